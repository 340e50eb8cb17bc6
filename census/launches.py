"""Who launched what: device work joined to the API call behind it, and the identity of launches.

The join is on process and correlation id (ids repeat between processes). All nodes of a graph replay share the
correlation id of one cudaGraphLaunch. A launch call inside a stream capture never executes.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from census import trace as tr
from census.activity import KERNEL, REPLAY, Activity, factor, run_heads
from census.trace import Ints, Trace

_LAUNCH = re.compile(r"^cu(da)?Launch")
_GRAPH_LAUNCH = re.compile(r"^cu(da)?GraphLaunch")
_CAPTURE_BEGIN = re.compile(r"^cu(da)?StreamBeginCapture")
_CAPTURE_END = re.compile(r"^cu(da)?StreamEndCapture")


@dataclass(frozen=True)
class Identity:
    """kernels = eager + replayed + without_launch. What never ran or was cut off is counted apart. None: unknown."""

    kernels: int
    eager: int
    replayed: int
    without_launch: int  # kernels whose launch call is not in the trace
    replays: int  # graph launches that left device work
    graph_launches: int | None
    captured: int | None  # launch calls inside a capture: they never execute
    launches_without_kernel: int | None  # launch calls outside a capture that left no kernel (clipped or failed)
    pairs: int | None  # (kernel, launch call) pairs


@dataclass(frozen=True)
class Launches:
    """The launching call of every piece of device work: an index into the columns of the API calls (ns)."""

    call: NDArray[np.int32]  # -1 unknown
    api_start: Ints  # of every call, not of every piece of work
    api_tid: Ints
    identity: Identity
    warnings: tuple[str, ...]


def join(trace: Trace, act: Activity) -> Launches:
    """Find the API call of every piece of device work, count what is left over on both sides."""
    api = tr.columns(trace, "api", "start", "tid", "corr", "name")
    warnings: list[str] = []
    pid = api["tid"] >> 24
    if not act.pid.any():  # the export does not say which process a kernel belongs to
        if len(np.unique(pid)) > 1:
            warnings.append("kernels carry no process id and several processes called the API: launches may be mixed")
        pid = np.zeros_like(pid)
    # The first call per key is the outermost: a runtime call comes before the driver call it makes.
    key = _key(pid, api["corr"])
    order = np.lexsort((api["start"], key))
    order = order[np.diff(key[order], prepend=key[order][:1] - 1) != 0]
    call = _find(key[order], order.astype(np.int32), act)
    identity = _identity(trace, act, call, api, order)
    return Launches(call, api["start"], api["tid"], identity, (*warnings, *_complaints(trace, act, call, identity)))


def _key(pid: Ints, corr: Ints) -> Ints:
    return (pid << 32) ^ (corr & 0xFFFFFFFF)


def _find(keys: Ints, calls: NDArray[np.int32], act: Activity) -> NDArray[np.int32]:
    """The call with each piece of work's key, -1 where there is none. `keys` are sorted."""
    if not len(keys):
        return np.full(len(act), -1, np.int32)
    wanted = _key(act.pid, act.corr)
    heads = run_heads(wanted)  # all nodes of a replay share one key: look it up once
    at = np.minimum(np.searchsorted(keys, wanted[heads]), len(keys) - 1)
    found = np.where((keys[at] == wanted[heads]) & (act.corr[heads] >= 0), calls[at], -1).astype(np.int32)
    return np.repeat(found, np.diff(heads, append=len(wanted)))


def moments(launches: Launches) -> tuple[Ints, Ints]:
    """Thread and time (ns) at which each piece of work was launched; -1 and the least int64 where unknown."""
    call = launches.call
    if not len(launches.api_start):
        return np.full(len(call), -1, np.int64), np.full(len(call), np.iinfo(np.int64).min)
    at = np.maximum(call, 0)
    return (np.where(call >= 0, launches.api_tid[at], -1),
            np.where(call >= 0, launches.api_start[at], np.iinfo(np.int64).min))


def _named(names: Ints, text: dict[int, str], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    ids = [i for i, value in text.items() if pattern.search(value)]
    return np.isin(names, np.array(ids, np.int64))


def _identity(trace: Trace, act: Activity, call: NDArray, api: dict[str, Ints], outermost: NDArray) -> Identity:
    kernel = act.kind == KERNEL
    node = kernel & (act.node != 0)
    key = _key(act.pid, act.corr)[node | (act.kind == REPLAY)]
    replays = len(np.unique(key[run_heads(key)]))
    kernels, replayed = int(kernel.sum()), int(node.sum())
    lost = int((kernel & (call < 0) & ~node).sum())
    if "api" not in trace.rows:
        return Identity(kernels, kernels - replayed, replayed, 0, replays, None, None, None, None)
    text = tr.strings(trace, factor(api["name"])[0].tolist())
    used = np.zeros(len(api["start"]) + 1, np.bool_)
    used[call[kernel]] = True  # -1 marks the spare place at the end
    idle = outermost[_named(api["name"][outermost], text, _LAUNCH) & ~used[outermost]]
    captured = _in_capture(api, text, idle)
    return Identity(kernels, kernels - replayed - lost, replayed, lost, replays,
                    int(_named(api["name"][outermost], text, _GRAPH_LAUNCH).sum()), int(captured.sum()),
                    int((~captured).sum()), int((kernel & (call >= 0)).sum()))


def _in_capture(api: dict[str, Ints], text: dict[int, str], calls: NDArray) -> NDArray[np.bool_]:
    """Which of the calls happened between a begin and an end of capture on their own thread."""
    begins = np.flatnonzero(_named(api["name"], text, _CAPTURE_BEGIN))
    ends = np.flatnonzero(_named(api["name"], text, _CAPTURE_END))
    inside = np.zeros(len(calls), np.bool_)
    for tid in np.unique(api["tid"][begins]):
        mine = api["tid"][calls] == tid
        opened = np.sort(api["start"][begins][api["tid"][begins] == tid])
        closed = np.sort(api["start"][ends][api["tid"][ends] == tid])
        when = api["start"][calls][mine]
        inside[mine] = np.searchsorted(opened, when) > np.searchsorted(closed, when)
    return inside


def _complaints(trace: Trace, act: Activity, call: NDArray, ident: Identity) -> list[str]:
    """Named warnings for everything that breaks kernels = eager launches + replayed nodes."""
    if "api" not in trace.rows:
        return ["no API calls in the trace: launches cannot be checked and ranges not attributed (record with -t cuda)"]
    out = []
    if ident.without_launch:
        out.append(f"{ident.without_launch} kernels have no launch call in the trace (its window is cut)")
    if ident.launches_without_kernel:
        out.append(f"{ident.launches_without_kernel} launch calls outside a capture left no kernel (the window is cut)")
    eager = call[(act.kind == KERNEL) & (act.node == 0) & (call >= 0)]
    shared = len(eager) - len(factor(eager)[0])
    if shared:
        out.append(f"{shared} eager kernels share their launch call with another kernel")
    if ident.graph_launches is not None and ident.graph_launches > ident.replays:
        lost = ident.graph_launches - ident.replays
        out.append(f"{lost} of {ident.graph_launches} graph launches left no device work in the trace")
    return out
