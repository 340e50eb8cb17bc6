"""The GPU as NVML reports it. Reads only: no clock, power limit or mode is ever set.

Without a GPU, or where a driver does not answer a question, the answer is None, which readers print as "not available".
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_MB = 1 << 20
# NVML clock-event reasons: that nothing runs, and those that make a run slower through no fault of the command
IDLE_REASON = 0x1
BAD_REASONS = {0x8: "HW slowdown", 0x20: "SW thermal slowdown", 0x40: "HW thermal slowdown", 0x80: "power brake"}


@dataclass(frozen=True)
class Gpus:
    """The devices that a command can see; `why` says why there are none."""

    handles: tuple[Any, ...] = ()
    why: str | None = None
    events: Any = None  # NVML event set with the critical Xid events of all devices, where supported


@contextlib.contextmanager
def opened(visible: str | None = None) -> Iterator[Gpus]:
    """NVML for the time of a window, of the devices in `visible` (CUDA_VISIBLE_DEVICES), else of all."""
    try:
        import pynvml as nv

        nv.nvmlInit()
    except Exception as error:  # no module, no library, no driver: all mean that there is nothing to ask
        yield Gpus(why=f"not available ({error})")
        return
    try:
        handles = tuple(_visible(nv, visible))
        yield Gpus(handles, None if handles else "not available (no GPU is visible)", _xid_events(nv, handles))
    finally:
        nv.nvmlShutdown()


def _visible(nv: Any, visible: str | None) -> Iterator[Any]:
    """Handles of the devices that are named (numbers in PCI order, or UUIDs)."""
    names = [str(i) for i in range(nv.nvmlDeviceGetCount())] if visible is None else visible.split(",")
    for name in (n.strip() for n in names):
        with contextlib.suppress(nv.NVMLError):
            yield nv.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nv.nvmlDeviceGetHandleByUUID(name)


def _xid_events(nv: Any, handles: tuple[Any, ...]) -> Any:
    try:
        events = nv.nvmlEventSetCreate()
        for handle in handles:
            nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, events)
        return events if handles else None
    except nv.NVMLError:
        return None


def state(gpus: Gpus) -> list[dict[str, Any]] | None:
    """One dict per device: clocks in MHz, memory in MB, utilisation in %, °C, W; None without a device."""
    if not gpus.handles:
        return None
    import pynvml as nv

    return [_device(nv, handle) for handle in gpus.handles]


def _device(nv: Any, handle: Any) -> dict[str, Any]:
    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception:  # each driver answers what it can; unknown is None
            return None

    reasons = nv.nvmlDeviceGetCurrentClocksEventReasons
    return {
        "sm_mhz": ask(lambda: nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)),
        "memory_mhz": ask(lambda: nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_MEM)),
        "reasons": ask(lambda: reasons(handle)),
        "utilization_pct": ask(lambda: nv.nvmlDeviceGetUtilizationRates(handle).gpu),
        # version 2 counts no memory that the driver reserves for itself
        "memory_mb": ask(lambda: nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2).used / _MB),
        "pids": ask(lambda: sorted(p.pid for p in nv.nvmlDeviceGetComputeRunningProcesses(handle))),
        "temperature_c": ask(lambda: nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)),
        "power_w": ask(lambda: nv.nvmlDeviceGetPowerUsage(handle) / 1e3),
        "ecc_errors": ask(lambda: nv.nvmlDeviceGetTotalEccErrors(
            handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC)),
    }  # fmt: skip


def identity(gpus: Gpus) -> list[dict[str, Any]]:
    """Name, UUID and driver of each device, for the window's head."""
    if not gpus.handles:
        return []
    import pynvml as nv

    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    driver = text(nv.nvmlSystemGetDriverVersion())
    return [{"name": text(nv.nvmlDeviceGetName(h)), "uuid": text(nv.nvmlDeviceGetUUID(h)), "driver": driver}
            for h in gpus.handles]


def xid(gpus: Gpus) -> list[int] | None:
    """Critical Xid numbers since the last call; None where the driver does not report them."""
    if gpus.events is None:
        return None
    import pynvml as nv

    found: list[int] = []
    while True:
        try:
            found.append(int(nv.nvmlEventSetWait_v2(gpus.events, 0).eventData))
        except nv.NVMLError:  # a timeout: nothing (more) has happened
            return found
