"""CuPy, loaded when a GPU is asked for, with one clear line for everything that can be wrong with it."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from minfer.cuda.kernels import KERNELS, OPTIONS, source
from minfer.errors import UserError
from minfer.gpu import Gpu
from minfer.plan import Launch

LEAST_CAPABILITY = 80  # sm_80: what the kernels are compiled and checked for
DEPENDENT_CAPABILITY = 90  # from here on a kernel may be launched while its predecessor runs
_CTYPES = {np.uint64: ctypes.c_void_p, np.int32: ctypes.c_int, np.float32: ctypes.c_float}


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
    if capability(cupy) < LEAST_CAPABILITY:
        has = f"{device_name(cupy)} has compute capability {capability(cupy) / 10}"
        raise UserError(f"device cuda: {has}, 8.0 is the least")
    return cupy


def capability(cp: Any) -> int:
    """The current GPU's compute capability, 90 for 9.0."""
    return int(cp.cuda.Device().compute_capability)


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


def gpu(cp: Any) -> Gpu:
    """The current GPU's numbers."""
    attributes = cp.cuda.Device().attributes
    return Gpu(int(attributes["MultiProcessorCount"]), int(attributes["MaxSharedMemoryPerBlockOptin"]))


def call(cp: Any, function: Any, launch: Launch, args: tuple[np.generic, ...], dependent: bool) -> Callable[[], None]:
    """A launch, ready to be made on the current stream; `dependent`: it may begin while its predecessor runs."""
    shared = int(launch.args.params.get("shared", 0))
    _give_shared(function, shared)
    if dependent:
        # one division of the memory into cache and shared for the whole chain: another one would wait for an idle GPU
        function.preferred_shared_memory_carveout = 100
        return _dependent(cp, function, launch, args, shared)
    return lambda: function(launch.grid, launch.block, args, shared_mem=shared)


def _give_shared(function: Any, nbytes: int) -> None:
    """Let the kernel's blocks have so much dynamic shared memory; a launch with less stays possible."""
    if nbytes > function.max_dynamic_shared_size_bytes:
        function.max_dynamic_shared_size_bytes = nbytes


def _dependent(
    cp: Any, function: Any, launch: Launch, args: tuple[np.generic, ...], shared: int
) -> Callable[[], None]:
    """Programmatic dependent launch, which CuPy has no call for; under a capture it becomes a programmatic edge."""
    driver = _driver()
    attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes, config.attrs, config.numAttrs = shared, [attribute], 1
    values, types = tuple(a.item() for a in args), tuple(_CTYPES[type(a)] for a in args)
    handle = driver.CUfunction(function.kernel.ptr)

    def launch_it() -> None:
        config.hStream = driver.CUstream(cp.cuda.get_current_stream().ptr)
        (status,) = driver.cuLaunchKernelEx(config, handle, (values, types), 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{launch.kernel}: the driver refuses the launch: {status}")

    return launch_it


@functools.cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise UserError(
            f"dependent launch needs cuda-bindings ({_line(error)}): pip install cuda-bindings, "
            "or set MINFER_NO_DEPENDENT_LAUNCH=1"
        ) from None
    return driver


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
