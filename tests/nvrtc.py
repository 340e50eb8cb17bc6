"""NVRTC from PyPI: compiles the kernels for any architecture, without a GPU, and says what each needs.

Wheels `nvidia-cuda-nvrtc` (the compiler) and `nvidia-cuda-runtime` (cuda_fp16.h), of the same CUDA version.
"""

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from minfer.cuda.kernels import OPTIONS, source

VERSION = (13, 0)  # the wheels' CUDA; registers are a compiler's choice, so the golden table belongs to it
# what CuPy adds to a RawModule's own options
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")

_ENTRY = re.compile(r"\.entry (?P<name>\w+)\((?P<parameters>.*?)\)(?P<body>.*?)(?=\.entry |\Z)", re.DOTALL)
_FUNCTION = re.compile(
    r"entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """What one kernel needs, as ptxas reports it; bytes but for registers."""

    registers: int  # per thread
    shared: int  # per block, static
    stack: int  # per thread
    spill: int  # per thread, stores and loads
    parameters: tuple[str, ...]  # PTX types in order: u64 a pointer, u32, f32
    waits: bool  # for the kernel before it: may be launched while that one runs

    def __str__(self) -> str:
        return f"{self.registers}/{self.shared}/{self.stack}/{self.spill}"


@cache
def _library() -> tuple[ctypes.CDLL, Path]:
    """The loaded NVRTC and the folder of the toolkit's headers."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(p) / f"cu{VERSION[0]}" for p in spec.submodule_search_locations] if spec else []
    home = next((p for p in places if list(p.glob("lib/libnvrtc.so.*"))), None)
    assert home is not None, "the test extra's wheel nvidia-cuda-nvrtc is not installed: pip install -e '.[test]'"
    # NVRTC opens its builtins by name only; it finds them when they are loaded already
    ctypes.CDLL(str(next(home.glob("lib/libnvrtc-builtins.so.*"))), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(next(home.glob("lib/libnvrtc.so.*")))), home / "include"


def version() -> tuple[int, int]:
    """(major, minor) of the compiler."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library()[0].nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compile_file(file: str, arch: int, *more: str) -> dict[str, Resources]:
    """compile_text of one of the engine's files."""
    return compile_text(source(file), arch, *more, name=file)


def compile_text(text: str, arch: int, *more: str, name: str = "program.cu") -> dict[str, Resources]:
    """Kernel -> what it needs on sm_{arch}; `more`: options. AssertionError with the log when it does not compile."""
    lib, include = _library()
    options = (*OPTIONS, *CUPY_OPTIONS, *more, f"-arch=sm_{arch}", f"-I{include}", "--ptxas-options=-v")
    program = ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    argv = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    failed = lib.nvrtcCompileProgram(program, len(options), argv)
    log = _text(program, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog)
    assert not failed and "warning" not in log, f"{name} for sm_{arch}:\n{log[:4000]}"
    ptx = _text(program, lib.nvrtcGetPTXSize, lib.nvrtcGetPTX)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    entries = {m["name"]: m for m in _ENTRY.finditer(ptx)}
    return {m["name"]: _resources(m, entries[m["name"]]) for m in _FUNCTION.finditer(log)}


def _text(program: ctypes.c_void_p, size_of: Any, read: Any) -> str:
    """What a pair of NVRTC calls (size, content) gives."""
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    read(program, text)
    return text.value.decode()


def _resources(m: re.Match[str], entry: re.Match[str]) -> Resources:
    shared = re.search(r"(\d+) bytes smem", m["rest"])
    spill, static = int(m["stores"]) + int(m["loads"]), int(shared[1]) if shared else 0
    parameters = tuple(re.findall(r"\.param \.(\w+)", entry["parameters"]))
    waits = "griddepcontrol.wait" in entry["body"]
    return Resources(int(m["registers"]), static, int(m["stack"]), spill, parameters, waits)
