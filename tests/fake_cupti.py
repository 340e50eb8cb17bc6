"""A stand-in for cupti-python and for the GPU behind it: launches, captures and replays with known times.

Names and numbers of calls, kinds and events are those of cupti-python 13.0.1. Every launch takes 10 ns on the device
and starts where the one before it ended; every call takes 2 ns. The clock moves by 1 ns whenever it is asked.
"""

import enum
from types import SimpleNamespace


class ActivityKind(enum.IntEnum):
    MEMCPY, MEMSET, KERNEL, DRIVER, RUNTIME, CONCURRENT_KERNEL = 1, 2, 3, 4, 5, 10


class ActivityThreadIdType(enum.IntEnum):
    DEFAULT, SYSTEM = 0, 1


class CallbackDomain(enum.IntEnum):
    DRIVER_API, RUNTIME_API, RESOURCE = 1, 2, 3


class CallbackIdResource(enum.IntEnum):
    GRAPHNODE_CREATED, GRAPHNODE_CLONED = 13, 20


class runtime_api_trace_cbid(enum.IntEnum):
    INVALID, cudaGetDevice_v3020, cudaMemcpyAsync_v3020 = 0, 17, 41
    cudaStreamBeginCapture_v10000, cudaGraphLaunch_v10000 = 317, 311
    SIZE, FORCE_INT = 500, 0x7FFFFFFF


class driver_api_trace_cbid(enum.IntEnum):
    INVALID, cuCtxGetCurrent, cuLaunchKernel, FORCE_INT = 0, 304, 307, 0x7FFFFFFF


class FakeCupti:
    """What `from cupti import cupti` gives; `launch`, `capture`, `instantiate` and `replay` are the GPU's side."""

    ActivityKind, ActivityThreadIdType = ActivityKind, ActivityThreadIdType
    CallbackDomain, CallbackIdResource = CallbackDomain, CallbackIdResource
    runtime_api_trace_cbid, driver_api_trace_cbid = runtime_api_trace_cbid, driver_api_trace_cbid

    def __init__(self, tid=7):
        self.now, self.busy, self.tid, self.corr, self.graphs = 1_000_000, 0, tid, 0, 0
        self.kinds, self.silenced, self.events, self.dropped = set(), set(), set(), 0
        self.pending, self.capturing, self.subscribed = [], None, False
        self.pointers = False  # whether callbacks get addresses, not objects

    # what minfer calls
    def get_timestamp(self):
        self.now += 1
        return self.now

    def set_thread_id_type(self, kind):
        self.thread_ids = kind

    def activity_register_callbacks(self, requested, completed):
        self.requested, self.completed = requested, completed

    def subscribe(self, callback, userdata):
        self.callback, self.subscribed = callback, True
        return 99

    def unsubscribe(self, subscriber):
        assert subscriber == 99
        self.subscribed = False

    def enable_callback(self, on, subscriber, domain, event):
        assert (on, subscriber, domain) == (1, 99, CallbackDomain.RESOURCE)
        self.events.add(event)

    def activity_enable(self, kind):
        self.kinds.add(kind)
        self.silenced = {call for call in self.silenced if call[0] != kind}

    def activity_disable(self, kind):
        self.kinds.discard(kind)

    def activity_enable_runtime_api(self, cbid, on):
        assert not on and cbid not in (0, 500, 0x7FFFFFFF)
        self.silenced.add((ActivityKind.RUNTIME, cbid))

    def activity_enable_driver_api(self, cbid, on):
        assert not on
        self.silenced.add((ActivityKind.DRIVER, cbid))

    def activity_flush_all(self, flag):
        size, most = self.requested()
        assert size >= 1 << 20 and most == 0
        records, self.pending = self.pending, []
        self.completed(records)

    def activity_get_num_dropped_records(self, context, stream, address):
        import ctypes

        ctypes.c_size_t.from_address(address).value = self.dropped

    def get_graph_node_id(self, handle):
        return handle - 0x7F00_0000_0000

    class ResourceData:
        from_ptr = staticmethod(lambda address: _AT[address])

    class GraphData:
        from_ptr = staticmethod(lambda address: _AT[address])

    # what the GPU and its driver do
    def call(self, kind, cbid):
        """An API call; its correlation id."""
        self.corr += 1
        start = self.get_timestamp()
        self.now += 2
        if kind in self.kinds and (kind, int(cbid)) not in self.silenced:
            self.pending.append(SimpleNamespace(kind=kind, cbid=int(cbid), start=start, end=self.now, process_id=1,
                                                thread_id=self.tid, correlation_id=self.corr, return_value=0))
        return self.corr

    def launch(self, launch):
        """A kernel launch by the driver call that CuPy makes; inside a capture it becomes a node."""
        self.call(ActivityKind.DRIVER, driver_api_trace_cbid.cuCtxGetCurrent)
        if self.capturing is None:
            self._run(launch, self.call(ActivityKind.DRIVER, driver_api_trace_cbid.cuLaunchKernel), 0)
            return
        node = self.graphs << 32 | len(self.capturing)
        self.capturing.append((node, launch))
        self._birth(CallbackIdResource.GRAPHNODE_CREATED, node, 0)
        self.call(ActivityKind.DRIVER, driver_api_trace_cbid.cuLaunchKernel)

    def begin_capture(self):
        self.call(ActivityKind.RUNTIME, runtime_api_trace_cbid.cudaStreamBeginCapture_v10000)
        self.graphs += 1
        self.capturing = []

    def end_capture(self):
        """The executable graph: a clone of every node under a new id, born after the capture."""
        captured, self.capturing = self.capturing, None
        self.graphs += 1
        made = [(self.graphs << 32 | i, launch) for i, (_, launch) in enumerate(captured)]
        for (node, _), (original, _) in zip(made, captured, strict=True):
            self._birth(CallbackIdResource.GRAPHNODE_CREATED, node, 0)
            self._birth(CallbackIdResource.GRAPHNODE_CLONED, node, original)
        return made

    def replay(self, graph):
        corr = self.call(ActivityKind.RUNTIME, runtime_api_trace_cbid.cudaGraphLaunch_v10000)
        for node, launch in graph:
            self._run(launch, corr, node)

    def copy(self):
        """8 bytes, host to device."""
        corr = self.call(ActivityKind.RUNTIME, runtime_api_trace_cbid.cudaMemcpyAsync_v3020)
        self.pending.append(SimpleNamespace(kind=ActivityKind.MEMCPY, copy_kind=1, bytes=8, src_kind=1, dst_kind=2,
                                            **self._spent(corr, 0)))  # fmt: skip

    def _run(self, launch, corr, node):
        self.pending.append(SimpleNamespace(
            kind=ActivityKind.CONCURRENT_KERNEL, name=launch.kernel, registers_per_thread=32, static_shared_memory=0,
            dynamic_shared_memory=16, local_memory_per_thread=0, **self._spent(corr, node),
            **dict(zip(("grid_x", "grid_y", "grid_z"), launch.grid, strict=True)),
            **dict(zip(("block_x", "block_y", "block_z"), launch.block, strict=True)),
        ))  # fmt: skip

    def _spent(self, corr, node):
        start = max(self.now, self.busy)
        self.busy = start + 10
        return {"start": start, "end": self.busy, "device_id": 0, "context_id": 1, "stream_id": 13,
                "correlation_id": corr, "graph_node_id": node}  # fmt: skip

    def _birth(self, event, node, original):
        if event not in self.events or not self.subscribed:
            return
        handles = [x + 0x7F00_0000_0000 if x else 0 for x in (node, original)]
        _AT[1] = SimpleNamespace(node=handles[0], original_node=handles[1], node_type=0)
        _AT[2] = SimpleNamespace(resource_descriptor=1)
        self.callback({}, CallbackDomain.RESOURCE, event, 2 if self.pointers else _AT[2])


_AT = {}  # address -> what lies there
