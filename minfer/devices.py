"""The devices by name: how to plan for one, how to open one. A backend is a row here and a folder beside."""

from collections.abc import Callable
from dataclasses import dataclass

from minfer import switches
from minfer.cpu import bandwidth
from minfer.cpu.backend import CpuDevice, CpuLowering
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.gpu import H200, Gpu
from minfer.options import Options, from_switches
from minfer.plan import Device, Lowering
from minfer.progress import Progress


@dataclass(frozen=True)
class Backend:
    lowering: Callable[[Options], Lowering]  # plans without the device
    open: Callable[[GGUF, Options, Progress | None], Device]
    kv_types: tuple[str, ...]  # the first is the default
    bandwidth: Callable[[], float]  # measures the memory's read bandwidth, GB/s


def _cuda_lowering(options: Options) -> Lowering:
    from minfer.cuda.lowering import CudaLowering

    return CudaLowering(options, gpu=_present_gpu())


def _present_gpu() -> Gpu:
    """The GPU here, whose numbers decide the plan; where there is none, an H200."""
    if not _gpu_usable():
        return H200
    import cupy

    from minfer.cuda import cupy_module

    return cupy_module.gpu(cupy)


def _open_cuda(gguf: GGUF, options: Options, progress: Progress | None) -> Device:
    from minfer.cuda.device import CudaDevice

    return CudaDevice(gguf, options, progress)


def _cuda_bandwidth() -> float:
    from minfer.cuda.bandwidth import measure_bandwidth

    return measure_bandwidth()


def _emulated_lowering(options: Options) -> Lowering:
    from minfer.emulated.device import lowering

    return lowering(options)


def _open_emulated(gguf: GGUF, options: Options, progress: Progress | None) -> Device:
    from minfer.emulated.device import EmulatedDevice

    return EmulatedDevice(gguf, options, progress)


BACKENDS: dict[str, Backend] = {
    "cpu": Backend(
        lambda options: CpuLowering(), lambda gguf, options, progress: CpuDevice(gguf, progress), ("f32",),
        bandwidth.measure_bandwidth,
    ),
    "cuda": Backend(_cuda_lowering, _open_cuda, ("f16", "f32"), _cuda_bandwidth),
    "emulated": Backend(_emulated_lowering, _open_emulated, ("f16", "f32"), bandwidth.measure_bandwidth),
}  # fmt: skip


def resolve(device: str) -> str:
    """`auto` is cuda where CuPy finds a GPU, else cpu. Raises UserError for a name not in the table."""
    if device == "auto":
        return "cuda" if _gpu_usable() else "cpu"
    if device not in BACKENDS:
        *names, last = BACKENDS
        raise UserError(f"--device {device!r} is not allowed: give auto, {', '.join(names)} or {last}")
    return device


def _gpu_usable() -> bool:
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # no CuPy, no driver, or one that does not fit the other: there is no GPU to use
        return False


@dataclass(frozen=True)
class Where:
    """A device by name, with the options under which it plans and runs."""

    device: str
    options: Options

    def lowering(self) -> Lowering:
        """The planner for it; needs no GPU."""
        return BACKENDS[self.device].lowering(self.options)

    def open(self, gguf: GGUF, progress: Progress | None = None) -> Device:
        """The device with the model's weights on it."""
        return BACKENDS[self.device].open(gguf, self.options, progress)


CPU = Where("cpu", Options())


def where(device: str, kv_type: str | None) -> Where:
    """The device of that name (or auto) under this process's switches; a KV type of None takes its default."""
    name = resolve(device)
    kinds = BACKENDS[name].kv_types
    if kv_type is not None and kv_type not in kinds:
        raise UserError(f"--kv {kv_type!r} is not allowed on {name}: give {' or '.join(kinds)}")
    return Where(name, from_switches(switches.current(), kv_type or kinds[0]))
