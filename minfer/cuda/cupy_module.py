"""CuPy, loaded when a GPU is asked for, with one clear line for everything that can be wrong with it."""

import functools
from typing import Any

import numpy as np

from minfer.errors import UserError

LEAST_CAPABILITY = 80  # sm_80: what the kernels are compiled and checked for


def load() -> Any:
    """The cupy module with a usable GPU. Raises UserError: CuPy missing or for another CUDA, no driver, an old GPU."""
    try:
        import cupy
    except ImportError as error:
        if "cupy" not in str(error):
            raise UserError(f"CuPy cannot be loaded ({_line(error)}): install the one for your CUDA") from None
        raise UserError("device cuda needs CuPy: pip install 'launch-census[cuda13]' (or [cuda12])") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise UserError(f"device cuda: no usable GPU ({_line(error)}); check the driver, or use --device cpu") from None
    if not count:
        raise UserError("device cuda: the driver reports no GPU; use --device cpu")
    capability = int(cupy.cuda.Device().compute_capability)
    if capability < LEAST_CAPABILITY:
        raise UserError(f"device cuda: {device_name(cupy)} has compute capability {capability / 10}, 8.0 is the least")
    return cupy


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def device_name(cp: Any) -> str:
    """The current GPU's name."""
    name = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"]
    return str(name.decode() if isinstance(name, bytes) else name)


@functools.cache
def _module(cp: Any, code: str, options: tuple[str, ...]) -> Any:
    return cp.RawModule(code=code, options=options)


def function(cp: Any, code: str, options: tuple[str, ...], name: str) -> Any:
    """A kernel of a source text; each text is compiled once a process, and cached on disk by CuPy."""
    return _module(cp, code, options).get_function(name)


def pinned(cp: Any, n: int, dtype: Any) -> np.ndarray:
    """A host array of n elements that copies to and from the device without staging."""
    memory = cp.cuda.alloc_pinned_memory(n * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, n)
