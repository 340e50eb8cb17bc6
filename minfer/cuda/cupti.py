"""What the GPU ran, told by CUPTI to the process itself: a recording where there is a GPU and no profiler.

The only module that imports cupti-python (extra `record`). Rows, all times in ns of CUPTI's clock, `where` = device,
context, stream, correlation id, graph node id (0: not in a graph):

    ["kernel", mangled name, [gx,gy,gz], [bx,by,bz], start, end, *where, registers, static, dynamic, local bytes]
    ["memcpy", copy kind, bytes, start, end, *where, source kind, destination kind]
    ["memset", value, bytes, start, end, *where, memory kind]
    ["api", name, start, end, thread, correlation id, returned]    calls that launch, copy, set or capture; no others
    ["node", time, thread, node, original]    births of graph nodes; original: the captured node this one is a clone of
    ["note", text]                            what could not be recorded

A node is born while the launch that makes it is captured, on the capturing thread, so its time lies inside the layer
and op ranges then open; instantiating the graph clones it, and replayed kernels carry the clone's id.
"""

import ctypes
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from minfer.errors import UserError

BUFFER_BYTES = 32 << 20  # about 150,000 records: most runs end before a delivery, which takes µs a record, disturbs one
FORCED = 1  # flush buffers that are not full as well
_CALLS = re.compile(r"^cu(da)?(Launch|GraphLaunch|Memcpy|Memset|Stream(Begin|End)Capture)")
_MAX_NOTES = 5  # a callback that fails may fail for every node

Row = list[Any]


class Collector:
    """CUPTI's records of this process, from now on until `stop`."""

    def __init__(self, cupti: Any) -> None:
        self.clock: Callable[[], int] = cupti.get_timestamp
        self._cupti = cupti
        self._rows: deque[Row] = deque()  # filled by CUPTI's threads, emptied by ours
        self._notes = 0
        self._calls = _call_names(cupti)
        kind = cupti.ActivityKind
        self._kinds = (kind.CONCURRENT_KERNEL, kind.MEMCPY, kind.MEMSET, kind.RUNTIME, kind.DRIVER)
        self._row_of = {
            kind.CONCURRENT_KERNEL: _kernel, kind.KERNEL: _kernel, kind.MEMCPY: _memcpy, kind.MEMSET: _memset,
            kind.RUNTIME: self._api, kind.DRIVER: self._api,
        }  # fmt: skip
        self._subscriber = self._start()

    def _start(self) -> Any:
        cupti = self._cupti
        cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)  # the ids that the ranges are logged with
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)
        subscriber = cupti.subscribe(self._created, {})
        births = cupti.CallbackIdResource
        for event in (births.GRAPHNODE_CREATED, births.GRAPHNODE_CLONED):
            cupti.enable_callback(1, subscriber, cupti.CallbackDomain.RESOURCE, event)
        for kind in self._kinds:
            cupti.activity_enable(kind)
        self._keep_calls()  # after the kinds: enabling a kind enables all of its calls
        return subscriber

    def _keep_calls(self) -> None:
        """Record only the calls that device work comes from; CuPy asks for the current device all the time."""
        cupti, kind = self._cupti, self._cupti.ActivityKind
        for of, table, choose in (
            (kind.RUNTIME, cupti.runtime_api_trace_cbid, cupti.activity_enable_runtime_api),
            (kind.DRIVER, cupti.driver_api_trace_cbid, cupti.activity_enable_driver_api),
        ):
            for call in table:
                if call.name not in ("INVALID", "SIZE", "FORCE_INT") and (of, int(call)) not in self._calls:
                    choose(int(call), 0)

    def take(self) -> list[Row]:
        """Rows delivered since the last call. CUPTI delivers full buffers; the rest comes with `stop`."""
        return [self._rows.popleft() for _ in range(len(self._rows))]

    def stop(self) -> list[Row]:
        """End the recording; the rows not taken yet, and how many CUPTI had no room for (None: unknown)."""
        cupti = self._cupti
        try:
            cupti.activity_flush_all(FORCED)
            for kind in self._kinds:
                cupti.activity_disable(kind)
            cupti.unsubscribe(self._subscriber)
        except Exception as error:  # what was delivered until then is still written
            self._note(f"CUPTI did not end the recording: {error}")
        end = ["end", self._dropped()]
        return [*self.take(), end]

    def _dropped(self) -> int | None:
        count = ctypes.c_size_t(0)
        try:
            self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        except Exception as error:  # cupti-python raises classes of its own
            self._note(f"dropped records cannot be counted: {error}")
            return None
        return count.value

    def _completed(self, records: list[Any]) -> None:
        """A full buffer. Its records are valid in here only."""
        for record in records:
            make = self._row_of.get(record.kind)
            row = make(record) if make else None
            if row is not None:
                self._rows.append(row)

    def _api(self, x: Any) -> Row | None:
        name = self._calls.get((x.kind, x.cbid))
        return None if name is None else ["api", name, x.start, x.end, x.thread_id, x.correlation_id, x.return_value]

    def _created(self, userdata: Any, domain: int, event: int, data: Any) -> None:
        """A graph node's birth, inside the CUDA call that makes it; an error must not reach that call."""
        try:
            cupti = self._cupti
            resource = cupti.ResourceData.from_ptr(data) if isinstance(data, int) else data
            graph = cupti.GraphData.from_ptr(resource.resource_descriptor)
            cloned = event == cupti.CallbackIdResource.GRAPHNODE_CLONED
            original = cupti.get_graph_node_id(graph.original_node) if cloned else 0
            node = cupti.get_graph_node_id(graph.node)
            self._rows.append(["node", self.clock(), threading.get_native_id(), node, original])
        except Exception as error:  # whatever it is, the recording goes on without this node
            self._note(f"a graph node's birth was not recorded: {type(error).__name__}: {error}")

    def _note(self, text: str) -> None:
        if self._notes < _MAX_NOTES:
            self._rows.append(["note", text])
        self._notes += 1


def _call_names(cupti: Any) -> dict[tuple[int, int], str]:
    """(activity kind, call id) -> name of every call that is recorded."""
    tables = ((cupti.ActivityKind.RUNTIME, cupti.runtime_api_trace_cbid),
              (cupti.ActivityKind.DRIVER, cupti.driver_api_trace_cbid))  # fmt: skip
    return {(kind, int(call)): call.name for kind, table in tables for call in table if _CALLS.match(call.name)}


def _where(x: Any) -> Row:
    return [x.device_id, x.context_id, x.stream_id, x.correlation_id, x.graph_node_id]


def _kernel(x: Any) -> Row:
    grid, block = [x.grid_x, x.grid_y, x.grid_z], [x.block_x, x.block_y, x.block_z]
    shared = (x.static_shared_memory, x.dynamic_shared_memory)
    return ["kernel", x.name, grid, block, x.start, x.end, *_where(x), x.registers_per_thread, *shared,
            x.local_memory_per_thread]  # fmt: skip


def _memcpy(x: Any) -> Row:
    return ["memcpy", x.copy_kind, x.bytes, x.start, x.end, *_where(x), x.src_kind, x.dst_kind]


def _memset(x: Any) -> Row:
    return ["memset", x.value, x.bytes, x.start, x.end, *_where(x), x.memory_kind]


def start() -> Collector:
    """Record from now on. Raises UserError where cupti-python is missing or CUPTI refuses."""
    try:
        from cupti import cupti
    except ImportError as error:
        raise UserError(f"MINFER_CUPTI_LOG needs cupti-python ({error}): pip install 'launch-census[record]'") from None
    try:
        return Collector(cupti)
    except Exception as error:  # its classes differ between versions; all mean that nothing can be recorded
        raise UserError(f"CUPTI cannot record here ({error}): is another profiler attached? "
                        "Else unset MINFER_CUPTI_LOG") from None  # fmt: skip
