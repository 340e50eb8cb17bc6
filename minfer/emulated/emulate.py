"""Runs CUDA kernels on the CPU: the same .cu source, compiled by g++, with CUDA's execution model and rules.

    module = emulate.load(Path("minfer/cuda/kernels/norm.cu"))       # or the source itself, as a string
    module.launch("rms_norm_f32", grid=(4,), block=(128,), args=(x, w, out, np.int32(n)), outputs=[2])

Arrays are passed as pointers and written in place, NumPy scalars as values, None as a null pointer. `outputs` are
poisoned first and every element must be written. What breaks a rule raises `KernelFault`, which names kernel, block,
thread and line; README.md says which rules, and what is not seen.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from . import faults
from .build import BuildError, Library, build, runtime
from .faults import KernelFault
from .layout import OUTPUT, PAGE, SHARED, Placed, Region, address, place, room

__all__ = ["BuildError", "KernelFault", "Launched", "Module", "load"]

POISON = 0xFF  # NaN in every float type, -1 in every integer
WRITABLE, CONST = -1, -2  # a pointer among a kernel's parameters
LIMITS = {"threads per block": 1024, "shared bytes": 227 << 10}
Dim3 = ctypes.c_uint * 3


@dataclass(frozen=True)
class Launched:
    """What a launch did: per argument that it may write, which elements it wrote."""

    written: dict[int, np.ndarray]
    accesses: int
    switches: int


@cache
def machine() -> ctypes.CDLL:
    # global: the kernels' libraries find the runtime's functions by name
    library = ctypes.CDLL(str(runtime()), mode=ctypes.RTLD_GLOBAL)
    library.cuda_on_cpu_arena.restype = ctypes.c_uint64
    library.cuda_on_cpu_arena_bytes.restype = ctypes.c_uint64
    library.cuda_on_cpu_written.restype = ctypes.c_uint64
    library.cuda_on_cpu_launch.restype = ctypes.POINTER(faults.Fault)
    library.cuda_on_cpu_accesses.restype = ctypes.c_uint64
    library.cuda_on_cpu_switches.restype = ctypes.c_uint64
    if not library.cuda_on_cpu_arena():
        raise MemoryError("the emulator reserves 136 GB of address space (not memory), which this system refuses")
    return library


def dim3(size: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = [size] if isinstance(size, int) else list(size)
    x, y, z = sizes + [1] * (3 - len(sizes))
    return x, y, z


@dataclass
class Module:
    library: Library
    code: ctypes.CDLL
    shared_arrays: list[faults.StaticArray] = field(default_factory=list)

    def launch(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[np.ndarray | np.generic | None],
        shared: int = 0,
        outputs: Iterable[int] = (),
    ) -> Launched:
        run = _Launch(self, kernel, dim3(grid), dim3(block), args, shared, set(outputs))
        return run()

    def parameters(self, kernel: str) -> list[int]:
        """Per parameter its size in bytes, or WRITABLE for a pointer, CONST for a pointer to const."""
        if kernel not in self.library.kernels:
            raise KeyError(f"no kernel {kernel!r}; the source has {', '.join(sorted(self.library.kernels))}")
        out = (ctypes.c_int * 256)()
        count = getattr(self.code, f"cuda_on_cpu_describe_{kernel}")(out)
        return list(out[:count])


class _Launch:
    """One launch: places the arrays, runs the grid, takes the results back."""

    def __init__(self, module: Module, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int],
                 args: Sequence, shared: int, outputs: set[int]) -> None:  # fmt: skip
        self.module, self.kernel, self.grid, self.block = module, kernel, grid, block
        self.args, self.shared, self.outputs = args, shared, outputs
        self.parameters = module.parameters(kernel)
        self.check()
        self.machine = machine()
        self.arena = self.machine.cuda_on_cpu_arena()
        self.arrays = {i: a for i, a in enumerate(args) if isinstance(a, np.ndarray)}
        constant = {i for i in self.arrays if self.parameters[i] == CONST}
        self.placed, self.end = place(self.arrays, constant, outputs)
        self.regions = self.make_regions()

    def check(self) -> None:
        threads = int(np.prod(self.block))
        if not 0 < threads <= LIMITS["threads per block"] or min(self.grid) < 1:
            raise ValueError(f"{self.kernel}: grid {self.grid} of blocks {self.block} cannot be launched")
        if self.shared > LIMITS["shared bytes"]:
            raise ValueError(f"{self.kernel}: {self.shared} bytes of shared memory, allowed {LIMITS['shared bytes']}")
        if len(self.args) != len(self.parameters):
            raise TypeError(f"{self.kernel} takes {len(self.parameters)} arguments, got {len(self.args)}")
        for index, (arg, size) in enumerate(zip(self.args, self.parameters, strict=True)):
            self.check_argument(index, arg, size)

    def check_argument(self, index: int, arg: object, size: int) -> None:
        where = f"{self.kernel}, {faults.argument_name(self, index)}"
        if size < 0 and not (arg is None or isinstance(arg, np.ndarray)):
            raise TypeError(f"{where} is a pointer, got {type(arg).__name__}")
        if size < 0 and isinstance(arg, np.ndarray) and not arg.flags.c_contiguous:
            raise TypeError(f"{where}: the array is not contiguous")
        if size >= 0 and not (isinstance(arg, np.generic) and arg.nbytes == size):
            raise TypeError(f"{where} is a value of {size} bytes, got {type(arg).__name__}")

    def make_regions(self) -> ctypes.Array:
        rows = [(self.arena + p.offset, self.arena + p.offset + p.size, p.offset, p.kind) for p in self.placed]
        self.dynamic = self.end
        if self.shared:
            rows.append((self.arena + self.dynamic, self.arena + self.dynamic + self.shared, self.dynamic, SHARED))
        self.end = room(self.dynamic, self.shared)
        for array in self.module.shared_arrays:  # they lie in the library; only their shadow is here
            rows.append((array.begin, array.begin + array.size, self.end, array.kind))
            self.end += -(-array.size // PAGE) * PAGE
        if self.end > self.machine.cuda_on_cpu_arena_bytes():
            raise MemoryError(f"{self.kernel}: the arrays of one launch exceed the emulator's 4 GiB")
        return (Region * len(rows))(*(Region(*row) for row in rows))

    def pointer(self, index: int) -> int:
        start = address(self.arrays[index])
        stretch = next(p for p in self.placed if index in p.arguments)
        return int(self.arena + stretch.offset + start - stretch.host)

    def argument_block(self) -> ctypes.Array:
        self.values: list[Any] = []  # keeps the buffers alive
        for index, arg in enumerate(self.args):
            if isinstance(arg, np.ndarray):
                self.values.append(ctypes.c_uint64(self.pointer(index)))
            elif arg is None:
                self.values.append(ctypes.c_uint64(0))
            else:
                self.values.append(ctypes.create_string_buffer(arg.tobytes(), arg.nbytes))
        return (ctypes.c_void_p * len(self.values))(*(ctypes.addressof(v) for v in self.values))

    def copy_in(self, stretch: Placed) -> None:
        if stretch.kind == OUTPUT:
            ctypes.memset(self.arena + stretch.offset, POISON, stretch.size)
        else:
            ctypes.memmove(self.arena + stretch.offset, stretch.host, stretch.size)

    def __call__(self) -> Launched:
        for stretch in self.placed:
            self.copy_in(stretch)
        self.machine.cuda_on_cpu_set_regions(self.regions, len(self.regions), ctypes.c_uint64(self.end))
        fault = self.machine.cuda_on_cpu_launch(
            getattr(self.module.code, f"cuda_on_cpu_call_{self.kernel}"), self.argument_block(), Dim3(*self.grid),
            Dim3(*self.block), ctypes.c_void_p(self.arena + self.dynamic))  # fmt: skip
        if fault:
            raise faults.explain(self, fault.contents)
        return self.take_back()

    def take_back(self) -> Launched:
        writable = [i for i in self.arrays if self.parameters[i] == WRITABLE]
        written = {index: self.written(index) for index in writable}
        for index in sorted(self.outputs):
            if not written[index].all():
                raise faults.unwritten(self, index, written[index])
        for index in writable:
            ctypes.memmove(address(self.arrays[index]), self.pointer(index), self.arrays[index].nbytes)
        return Launched(written, self.machine.cuda_on_cpu_accesses(), self.machine.cuda_on_cpu_switches())

    def written(self, index: int) -> np.ndarray:
        array = self.arrays[index]
        start = self.machine.cuda_on_cpu_written() + self.pointer(index) - self.arena
        flags = np.frombuffer(ctypes.string_at(start, array.nbytes), bool)
        return np.asarray(flags.reshape(*array.shape, array.itemsize).all(axis=-1))


@cache
def _load(source: str | Path, options: tuple[str, ...]) -> Module:
    machine()
    library = build(source, options)
    code = ctypes.CDLL(str(library.path))
    first = next(iter(library.kernels))
    return Module(library, code, faults.static_arrays(library.path, code, f"cuda_on_cpu_call_{first}"))


def load(source: str | Path, options: Sequence[str] = ()) -> Module:
    """Compiles a source, or takes it from the cache; a file is read once per process. Options: -I, -D and -U."""
    return _load(source, tuple(options))
