"""The GPU of `minfer crossover`: weights in memory, one launch, a captured graph of launches."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minfer.cuda import cupy_module
from minfer.cuda.bandwidth import measure_bandwidth
from minfer.cuda.crossover import Call, Shape
from minfer.cuda.kernels import KERNELS, OPTIONS, row_bytes, source
from minfer.cuda.weights import pack

POISON = 0xFF  # NaN as f32
SPARE = 1 << 30  # bytes of memory left free


class Gpu:
    """A `crossover.Machine` on the current GPU."""

    def __init__(self) -> None:
        self.cp = cp = cupy_module.load()
        properties = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.facts: dict[str, Any] = {
            "device": cupy_module.device_name(cp), "l2_bytes": int(properties["l2CacheSize"]),
            "bandwidth_gbs": round(measure_bandwidth(), 1), "cupy": cp.__version__,
            "cuda_runtime": cp.cuda.runtime.runtimeGetVersion(), "cuda_driver": cp.cuda.runtime.driverGetVersion(),
        }  # fmt: skip
        self.pools: dict[str, Any] = {}
        cp.get_default_memory_pool().free_all_blocks()

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes have room beside the other types'."""
        return bool(nbytes + SPARE <= self.cp.cuda.runtime.memGetInfo()[0])

    def load(self, shape: Shape, rows: np.ndarray, nbytes: int) -> None:
        """Weights of one type: these stored rows again and again, as they lie on the device."""
        self.pools.pop(shape.type, None)  # its memory is free for the new one
        flat = self.cp.empty(len(rows) * row_bytes(shape.type, shape.id), np.uint8)
        pack(self.cp.asarray(rows), flat, shape.type, shape.id)
        pool = self.cp.empty(nbytes, np.uint8)
        for at in range(0, nbytes, flat.nbytes):
            part = pool[at : at + flat.nbytes]
            part[...] = flat[: part.nbytes]
        self.cp.cuda.Device().synchronize()
        self.pools[shape.type] = pool

    def quantize(self, x: np.ndarray) -> np.ndarray:
        """The plane that the standalone kernel makes of one row."""
        cp, blocks = self.cp, x.size // 32
        given, plane = cp.asarray(x), cp.zeros(40 * blocks, np.uint8)
        kernel = KERNELS["quantize_pad40"]
        self._function(kernel.name)((-(-blocks // kernel.block), 1, 1), (kernel.block, 1, 1),
                                    (given, plane, np.int32(blocks)))  # fmt: skip
        return np.asarray(cp.asnumpy(plane))

    def run(self, call: Call) -> np.ndarray:
        """One launch, outside a graph: it also loads the kernel, which a capture could not."""
        launch, out, _ = self._bind(call)
        with self.stream:
            launch(0)
        self.stream.synchronize()
        return np.asarray(self.cp.asnumpy(out))

    def capture(self, call: Call, copies: int, launches: int) -> Callable[[], float]:
        """Launches over the copies in turn, as a graph between two events."""
        cp, stream = self.cp, self.stream
        launch, *kept = self._bind(call)
        with stream:
            stream.begin_capture()
            for i in range(launches):
                launch(i % copies)
            graph = stream.end_capture()
            graph.upload(stream)
        begin, end = cp.cuda.Event(), cp.cuda.Event()

        def replay(_alive: Any = kept) -> float:
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            return float(cp.cuda.get_elapsed_time(begin, end) * 1e3)

        return replay

    def _bind(self, call: Call) -> tuple[Callable[[int], None], Any, Any]:
        """A launch on the copy of that number, and the buffers that must live as long."""
        cp, shape = self.cp, call.shape
        given = cp.asarray(call.source)
        out = cp.full(4 * shape.od, POISON, np.uint8).view(np.float32)
        cp.cuda.get_current_stream().synchronize()  # the launches' stream does not wait for this one
        function, pool, block = self._function(call.kernel), self.pools[shape.type], (KERNELS[call.kernel].block, 1, 1)
        pointers = np.uint64(given.data.ptr), np.uint64(out.data.ptr)
        sizes = np.int32(shape.id), np.int32(shape.od)

        def launch(copy: int) -> None:
            function(call.grid, block, (np.uint64(pool.data.ptr + copy * shape.stride), *pointers, *sizes))

        return launch, out, given

    def _function(self, name: str) -> Any:
        return cupy_module.function(self.cp, source(KERNELS[name].file), OPTIONS, name)
