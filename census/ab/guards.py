"""Is a run contaminated? Judged from the machine alone: no function here sees a timing.

A run is observed before, during (once a second, the same in every arm) and after; what was seen is stored with the run,
and `contaminated` says of a whole window which pairs do not count and why.
"""

import os
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from census.ab import gpu
from census.ab.gpu import BAD_REASONS, IDLE_REASON, Gpus
from census.ab.plan import Limits

_IDLE_WAIT = 3.0  # s that NVML's utilisation, an average over up to a second, gets to fall to idle before a run
State = dict[str, Any]


def before(gpus: Gpus, limits: Limits) -> State:
    """The machine just before a run, once the GPU is idle or is not going to be."""
    until = time.monotonic() + _IDLE_WAIT
    seen = gpu.state(gpus)
    while seen and any((d["utilization_pct"] or 0) > limits.idle_utilization_pct for d in seen):
        if time.monotonic() > until:
            break
        time.sleep(0.25)
        seen = gpu.state(gpus)
    gpu.xid(gpus)  # what happened before the run is not the run's
    return _host() | {"gpus": seen}


def after(gpus: Gpus, start: State, polled: Sequence[Sequence[State] | None]) -> State:
    """What happened to the machine since `start`: the part of a run's record that guards read."""
    end, seen = _host(), gpu.state(gpus)
    seconds = end["monotonic"] - start["monotonic"]
    asleep = end["boottime"] - start["boottime"] - seconds
    others = None
    if start["busy"] is not None and end["busy"] is not None:
        others = max(0.0, end["busy"] - start["busy"] - (end["ours"] - start["ours"]))
    return {
        "seconds": seconds,
        "others_cpu_s": others,
        "suspended_s": asleep,
        "clock_step_s": end["wall"] - start["wall"] - seconds - asleep,
        "gpus": None if seen is None else _gpus(start["gpus"], polled, seen),
        "xid": gpu.xid(gpus),
    }


def _host() -> State:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "wall": time.time(),
        "monotonic": time.monotonic(),  # stands still while the machine sleeps; CLOCK_BOOTTIME does not
        "boottime": time.clock_gettime(time.CLOCK_BOOTTIME),
        "busy": _busy(),
        "ours": own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
    }


def _busy() -> float | None:
    """CPU seconds that the machine has worked since it started: user, nice, system, irq, softirq and stolen time."""
    with suppress(OSError, ValueError, IndexError):
        ticks = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK")
    return None


def _gpus(start: Sequence[State], polled: Sequence[Sequence[State] | None], end: Sequence[State]) -> list[State]:
    """Per device: its state before the run, and over the run the mean clock of its work and every reason that was seen.

    Polls that found it idle (NVML says so) tell nothing of the clock at which it worked: a run's first, after a pause.
    """
    out = []
    for i, (first, last) in enumerate(zip(start, end, strict=True)):
        during = [poll[i] for poll in polled if poll]
        clocks = [d["sm_mhz"] for d in during if d["sm_mhz"] is not None and not (d["reasons"] or 0) & IDLE_REASON]
        reasons = 0
        for seen in (*during, last):
            reasons |= seen["reasons"] or 0
        old, new = first["ecc_errors"], last["ecc_errors"]
        out.append({
            "before": first, "after": last, "reasons": reasons,
            "sm_mhz": statistics.mean(clocks) if clocks else None,
            "new_ecc_errors": None if old is None or new is None else new - old,
        })
    return out


def contaminated(runs: Sequence[Mapping[str, Any]], limits: Limits, gap_s: float) -> dict[int, list[str]]:
    """Pair -> reasons, for the pairs of these run records that do not count."""
    out: dict[int, list[str]] = {}
    usual, least = _usual_clocks(runs), _least_memory(runs)
    last: Mapping[str, Any] | None = None
    for run in runs:
        reasons = [run["failed"]] if run.get("failed") else []
        reasons += _host_reasons(run["machine"], limits)
        reasons += _gpu_reasons(run["machine"], limits, usual, least)
        if last is not None and last["pair"] == run["pair"]:
            reasons += _apart(last, run, limits.apart_s + gap_s)
        if reasons:
            out.setdefault(run["pair"], []).extend(f"{run['arm']}: {reason}" for reason in reasons)
        last = run
    return out


def _host_reasons(machine: Mapping[str, Any], limits: Limits) -> list[str]:
    out = []
    others, seconds = machine.get("others_cpu_s"), machine.get("seconds") or 0.0
    if others is not None and others > limits.host_cores * max(seconds, 1.0):  # below a second the ticks are too coarse
        out.append(f"other processes used {others / max(seconds, 1.0):.1f} CPU cores (at most {limits.host_cores:g})")
    if (machine.get("suspended_s") or 0.0) > limits.suspended_s:
        out.append(f"the machine was suspended for {machine['suspended_s']:.1f} s")
    step = machine.get("clock_step_s") or 0.0
    if abs(step) > limits.clock_step_s:
        out.append(f"the clock was set {'forward' if step > 0 else 'back'} by {abs(step):.1f} s")
    if machine.get("xid"):
        out.append(f"Xid {', '.join(map(str, machine['xid']))}")
    return out


def _gpu_reasons(machine: Mapping[str, Any], limits: Limits, usual: Mapping[int, float],
                 least: Mapping[int, float]) -> list[str]:
    out = []
    for i, device in enumerate(machine.get("gpus") or ()):
        first, clock = device["before"], device["sm_mhz"]
        if first["pids"] or device["after"]["pids"]:
            out.append(f"foreign processes on GPU {i}: {first['pids'] or device['after']['pids']}")
        if (first["utilization_pct"] or 0) > limits.idle_utilization_pct:
            out.append(f"GPU {i} was {first['utilization_pct']}% busy before the run")
        extra = (first["memory_mb"] or 0.0) - least.get(i, 0.0)
        if extra > limits.foreign_memory_mb:
            out.append(f"{extra:.0f} MB of foreign memory on GPU {i}")
        out += [f"GPU {i}: {name}" for bit, name in BAD_REASONS.items() if device["reasons"] & bit]
        if clock and i in usual and abs(clock / usual[i] - 1) > limits.sm_clock_pct / 100:
            out.append(f"GPU {i} ran at {clock:.0f} MHz, the window's median is {usual[i]:.0f}")
        if device["new_ecc_errors"]:
            out.append(f"{device['new_ecc_errors']} uncorrected ECC errors on GPU {i}")
    return out


def _apart(first: Mapping[str, Any], second: Mapping[str, Any], most: float) -> list[str]:
    """The two runs of a pair belong to the same minute; wall clock, because an interruption may hold a reboot."""
    between = second["began"] - first["ended"]
    if between < -1.0:
        return [f"the clock went back by {-between:.1f} s between the runs of the pair"]
    return [f"the pair was interrupted for {between:.0f} s"] if between > most else []


def _usual_clocks(runs: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    return {i: statistics.median(v) for i, v in _by_device(runs, lambda d: d["sm_mhz"]).items()}


def _least_memory(runs: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    return {i: min(v) for i, v in _by_device(runs, lambda d: d["before"]["memory_mb"]).items()}


def _by_device(runs: Sequence[Mapping[str, Any]], read: Any) -> dict[int, list[float]]:
    out: dict[int, list[float]] = {}
    for run in runs:
        for i, device in enumerate(run["machine"].get("gpus") or ()):
            if read(device) is not None:
                out.setdefault(i, []).append(read(device))
    return out


def cpu_name() -> str | None:
    """The processor's name, the device of a window without a GPU."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return None


def availability(gpus: Gpus) -> dict[str, str]:
    """What the guards could see, for the window's file."""
    return {
        "gpu": gpus.why or "read through NVML",
        "xid": "read through NVML" if gpus.events is not None else "not available",
        "host load": "read from /proc/stat" if _busy() is not None else "not available",
    }
