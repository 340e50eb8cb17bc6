"""CuPy, loaded when a GPU is asked for, with one clear line for everything that can be wrong with it."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from minfer.cuda.kernels import KERNELS, OPTIONS, source
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


def runner() -> Callable[..., None]:
    """A probe runner on the current GPU: arrays go over, one launch, they come back."""
    cp = load()

    def run(kernel: str, grid: tuple[int, ...], args: list[Any], block: int = 0) -> None:
        row = KERNELS[kernel]
        held: dict[int, Any] = {}  # id of a host buffer's owner -> device copy: views of one buffer stay so
        device = [_device_view(cp, held, a) if isinstance(a, np.ndarray) else a for a in args]
        call = function(cp, source(row.file), OPTIONS, kernel)
        call((*grid, *(1,) * (3 - len(grid))), (block or row.block, 1, 1), tuple(device))
        for host, on_device in zip(args, device, strict=True):
            if isinstance(host, np.ndarray):
                host[...] = cp.asnumpy(on_device)

    return run


def _device_view(cp: Any, held: dict[int, Any], host: np.ndarray) -> Any:
    owner = host if host.base is None or not isinstance(host.base, np.ndarray) else host.base
    flat = owner.reshape(-1)
    whole = held.setdefault(id(owner), cp.asarray(flat))
    at = (host.ctypes.data - owner.ctypes.data) // host.itemsize
    return whole[at : at + host.size].view(host.dtype).reshape(host.shape)
