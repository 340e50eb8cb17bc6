"""Faults in words: which kernel, block, thread and line broke which rule, on which argument or shared array."""

import ctypes
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .build import INCLUDE
from .layout import CONSTANT, GLOBAL, SHARED

if TYPE_CHECKING:
    from .emulate import _Launch

# the runtime's enums, in order
KINDS = ("none", "out-of-bounds", "misaligned", "const-write", "unwritten-read", "race", "block-race", "sync", "trap")
ACCESSES = ("read", "write", "atomic update")


class Access(ctypes.Structure):
    _fields_ = (("pc", ctypes.c_uint64), ("thread", ctypes.c_uint), ("kind", ctypes.c_int))


class Fault(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint),
        ("region", ctypes.c_int),
        ("access", Access),
        ("other", Access),
        ("detail", ctypes.c_char * 512),
    )


class KernelFault(Exception):
    """`kind` is one of KINDS or "unwritten-output"; `line` is the source line as file:line where one is to blame."""

    def __init__(self, kind: str, message: str, line: str = "") -> None:
        super().__init__(message)
        self.kind, self.line = kind, line


@dataclass(frozen=True)
class StaticArray:
    name: str
    begin: int
    size: int
    kind: int


def static_arrays(library: Path, code: ctypes.CDLL, anchor: str) -> list[StaticArray]:
    """The data objects of a kernel library: function-local ones without initial values are __shared__ arrays."""
    rows = subprocess.run(["nm", "-S", str(library)], capture_output=True, text=True, check=True).stdout.splitlines()
    symbols = [row.split() for row in rows if len(row.split()) == 4]
    offset = next(int(at, 16) for at, _, _, name in symbols if name == anchor)
    base = code_address(code, anchor) - offset
    arrays = []
    for at, size, letter, name in symbols:
        if letter.lower() not in "bdrv":
            continue
        local = name.startswith("_ZZ") and letter.lower() in "bv"
        kind = SHARED if local else CONSTANT if letter.lower() == "r" else GLOBAL
        arrays.append(StaticArray(plain_name(name), base + int(at, 16), int(size, 16), kind))
    return arrays


def code_address(code: ctypes.CDLL, function: str) -> int:
    """Where a function of a loaded library lies."""
    return ctypes.cast(getattr(code, function), ctypes.c_void_p).value or 0


def plain_name(mangled: str) -> str:
    """The last name of a mangled one: _ZZ4normE3sum -> sum."""
    for found in re.finditer(r"E(\d+)", mangled):
        name = mangled[found.end() : found.end() + int(found[1])]
        if mangled[found.end() + len(name) :].strip("_0123456789") == "":
            return name
    return mangled


def argument_name(launch: "_Launch", index: int) -> str:
    name = launch.module.library.kernels[launch.kernel][index]
    return f"argument {index}" + (f" `{name}`" if name else "")


def line_of(launch: "_Launch", pc: int) -> str:
    """file:line of a return address; an inlined helper is followed by the line that called it."""
    anchor, library = f"cuda_on_cpu_call_{launch.kernel}", launch.module.library.path
    base = code_address(launch.module.code, anchor) - symbol_offset(library, anchor)
    command = ["addr2line", "-i", "-e", str(launch.module.library.path), hex(pc - 1 - base)]
    frames = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    own = [Path(re.sub(r" \(.*", "", frame)).name for frame in frames if not frame.startswith(str(INCLUDE))]
    shown = own[:1] + [own[-1]] * (len(own) > 1)
    return " called at ".join(shown) or "an unknown line"


def symbol_offset(library: Path, name: str) -> int:
    rows = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(int(row.split()[0], 16) for row in rows if row.endswith(f" {name}"))


def coordinates(launch: "_Launch", thread: int) -> tuple[int, int, int]:
    x, y, _ = launch.block
    return thread % x, thread // x % y, thread // (x * y)


def region_name(launch: "_Launch", region: int, address: int) -> str:
    """What an address belongs to, with the offset that helps to find the index."""
    at = address - launch.regions[region].begin
    if region < len(launch.placed):
        group = launch.placed[region].arguments
        index = max(group, key=lambda i: (0 <= address - launch.pointer(i) < launch.arrays[i].nbytes, i))
        array = launch.arrays[index]
        at = address - launch.pointer(index)
        return f"{argument_name(launch, index)} at element {at // array.itemsize} (byte {at} of {array.nbytes})"
    dynamic = len(launch.regions) - len(launch.module.shared_arrays)
    name = "dynamic shared memory" if region < dynamic else f"`{launch.module.shared_arrays[region - dynamic].name}`"
    return f"{name} at byte {at} of {launch.regions[region].end - launch.regions[region].begin}"


def nearest(launch: "_Launch", address: int) -> str:
    """The region an address just misses; far from all of them it is a wild pointer."""
    if address < 1 << 16:
        return f"a null pointer (address {address})"
    distances = [max(r.begin - address, address - r.end + 1) for r in launch.regions]
    if not distances or min(distances) > 1 << 20:
        return f"no argument (address {address:#x})"
    region = int(np.argmin(distances))
    return region_name(launch, region, address)


def explain(launch: "_Launch", fault: Fault) -> KernelFault:
    kind = KINDS[fault.kind]
    where = f"kernel {launch.kernel}, block {tuple(fault.block)}, thread {coordinates(launch, fault.access.thread)}"
    if kind in ("sync", "trap"):
        detail = fault.detail.decode()
        return KernelFault(kind, f"{detail} [{where}]", ":".join(detail.split(":")[:2]))
    line = line_of(launch, fault.access.pc)
    access = f"{fault.size}-byte {ACCESSES[fault.access.kind]}"
    if fault.region < 0:
        return KernelFault(kind, f"{line}: {access} outside {nearest(launch, fault.address)} [{where}]", line)
    target = region_name(launch, fault.region, fault.address)
    return KernelFault(kind, f"{line}: {access} of {target}: {rule(launch, kind, fault)} [{where}]", line)


def rule(launch: "_Launch", kind: str, fault: Fault) -> str:
    if kind in ("race", "block-race"):
        other = f"the {ACCESSES[fault.other.kind]} at {line_of(launch, fault.other.pc)}"
        if kind == "block-race":
            return f"races with {other} by an earlier block"
        return f"races with {other} by thread {coordinates(launch, fault.other.thread)}: no barrier between them"
    return {
        "out-of-bounds": "goes past the end",
        "misaligned": f"the address is not a multiple of {fault.size}",
        "const-write": "the parameter points to const",
        "unwritten-read": "nobody wrote it before",
    }[kind]


def unwritten(launch: "_Launch", index: int, written: np.ndarray) -> KernelFault:
    missing = np.flatnonzero(~written)
    return KernelFault(
        "unwritten-output",
        f"kernel {launch.kernel} left {missing.size} of {written.size} elements of {argument_name(launch, index)} "
        f"unwritten, the first at {missing[0]}",
    )
