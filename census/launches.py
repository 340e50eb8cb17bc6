"""Who launched what: device work joined to the API call behind it, and the identity of launches.

The join is on process and correlation id (ids repeat between processes). All nodes of a graph replay share the
correlation id of one cudaGraphLaunch. A launch call inside a stream capture never executes.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from census import trace as tr
from census.activity import KERNEL, REPLAY, Activity
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
    """The launching call of every piece of device work: index into the api columns, its start (ns) and thread."""

    call: NDArray[np.int32]  # -1 unknown
    time: Ints
    tid: Ints
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
    order = np.lexsort((api["start"], _key(pid, api["corr"])))
    keys = _key(pid, api["corr"])[order]
    call = _find(keys, order, _key(act.pid, act.corr))
    call[act.corr < 0] = -1
    known = call >= 0
    time, tid = np.full(len(act), np.iinfo(np.int64).min), np.full(len(act), -1, np.int64)
    if len(order):
        time[known], tid[known] = api["start"][call[known]], api["tid"][call[known]]
    identity = _identity(trace, act, call, api)
    return Launches(call, time, tid, identity, (*warnings, *_complaints(trace, act, call, identity)))


def _key(pid: Ints, corr: Ints) -> Ints:
    return (pid << 32) ^ (corr & 0xFFFFFFFF)


def _find(keys: Ints, order: Ints, wanted: Ints) -> NDArray[np.int32]:
    """Index (into the unsorted table) of the first entry with each wanted key, -1 where there is none."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int32)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, order[at], -1).astype(np.int32)


def _outermost(api: dict[str, Ints]) -> NDArray[np.bool_]:
    """Which calls are the first of their (process, correlation id): older exports list runtime and driver call."""
    key = _key(api["tid"] >> 24, api["corr"])
    order = np.lexsort((api["start"], key))
    first = np.zeros(len(key), np.bool_)
    first[order] = np.diff(key[order], prepend=key[order][:1] - 1) != 0
    return first


def _named(names: Ints, text: dict[int, str], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    ids = [i for i, value in text.items() if pattern.search(value)]
    return np.isin(names, np.array(ids, np.int64))


def _identity(trace: Trace, act: Activity, call: NDArray, api: dict[str, Ints]) -> Identity:
    kernel = act.kind == KERNEL
    node = kernel & (act.node != 0)
    orphan = kernel & (call < 0) & ~node
    replay_keys = np.unique(_key(act.pid, act.corr)[node | (act.kind == REPLAY)])
    kernels, replayed, lost = int(kernel.sum()), int(node.sum()), int(orphan.sum())
    if "api" not in trace.rows:
        return Identity(kernels, kernels - replayed, replayed, 0, len(replay_keys), None, None, None, None)
    text = tr.strings(trace, np.unique(api["name"]).tolist())
    launch = np.flatnonzero(_named(api["name"], text, _LAUNCH))
    launch = launch[_outermost(api)[launch]]
    idle = launch[~np.isin(launch, call[kernel & (call >= 0)])]
    captured = _in_capture(api, text, idle)
    return Identity(kernels, kernels - replayed - lost, replayed, lost, len(replay_keys),
                    int(_named(api["name"], text, _GRAPH_LAUNCH).sum()), int(captured.sum()),
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
    shared = len(eager) - len(np.unique(eager))
    if shared:
        out.append(f"{shared} eager kernels share their launch call with another kernel")
    if ident.graph_launches is not None and ident.graph_launches > ident.replays:
        lost = ident.graph_launches - ident.replays
        out.append(f"{lost} of {ident.graph_launches} graph launches left no device work in the trace")
    return out
