"""A stand-in for the part of CuPy that minfer uses: arrays in host memory, kernels on the emulator.

Streams and graphs only remember calls, in order; an open capture, or a launch of a kernel first seen inside
one, is an error as it is on a GPU. `FakeCupy` is for `minfer crossover`, `QueuedCupy` for a whole engine.
"""

import ctypes
from collections import deque
from types import SimpleNamespace

import numpy as np

from minfer.cuda.kernels import KERNELS


class Device(np.ndarray):
    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, host, stream):
        stream.do(lambda: np.copyto(self, host))

    def get(self, stream, out, blocking):
        stream.do(lambda: np.copyto(out, self))


def _device(array):
    return np.ascontiguousarray(array).copy().view(Device)


def _memory(pointer, nbytes):
    return np.frombuffer((ctypes.c_char * nbytes).from_address(int(pointer)), np.uint8)


class Graph:
    def __init__(self, calls):
        self.calls, self.uploaded = calls, False

    def upload(self, stream):
        self.uploaded = True

    def launch(self, stream):
        assert self.uploaded
        stream.do(lambda: [call() for call in self.calls])


class FakeCupy:
    __version__ = "0"

    def __init__(self, runner, weights_bytes):
        self.runner, self.weights_bytes = runner, weights_bytes
        self.capturing, self.loaded, self.launched, self.ticks = None, set(), [], 0
        fake = self

        class Stream:
            def __init__(self, non_blocking=False):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *exc):
                pass

            def do(self, call):
                call()

            def synchronize(self):
                assert fake.capturing is None

            def begin_capture(self):
                fake.capturing = []

            def end_capture(self):
                calls, fake.capturing = fake.capturing, None
                return Graph(calls)

        class Event:
            def record(self, stream=None):
                self.at = fake.ticks

            def synchronize(self):
                pass

        runtime = SimpleNamespace(
            getDeviceProperties=lambda i: {"name": b"Fake", "l2CacheSize": 4096}, runtimeGetVersion=lambda: 13000,
            driverGetVersion=lambda: 13000, memGetInfo=lambda: (64 << 30, 64 << 30),
        )  # fmt: skip
        self.cuda = SimpleNamespace(
            Stream=Stream, Event=Event, runtime=runtime, get_current_stream=Stream,
            Device=lambda: SimpleNamespace(
                id=0, synchronize=lambda: None, compute_capability="80",
                attributes={"MultiProcessorCount": 3, "MaxSharedMemoryPerBlockOptin": 163 << 10},
            ),
            get_elapsed_time=lambda a, b: (b.at - a.at) / 1e3,  # a launch is a µs
        )  # fmt: skip

    def get_default_memory_pool(self):
        return SimpleNamespace(free_all_blocks=lambda: None, free_bytes=lambda: 0)

    asarray = staticmethod(_device)
    asnumpy = staticmethod(lambda a: np.array(a))

    @staticmethod
    def empty(n, dtype):
        return _device(np.empty(n, dtype))

    @staticmethod
    def zeros(n, dtype):
        return _device(np.zeros(n, dtype))

    @staticmethod
    def full(n, value, dtype):
        return _device(np.full(n, value, dtype))

    def function(self, cp, code, options, name):
        def call(grid, block, args, shared_mem=0):
            def launch():
                self.ticks += 1
                self.launched.append((name, int(args[0]) if name != "quantize_pad40" else 0))
                self.runner(name, grid, self._arguments(name, args), block[0], shared_mem)

            if self.capturing is None:
                self.loaded.add(name)
                self._submit(launch)
            else:
                assert name in self.loaded, "a kernel loads at its first launch, which a capture cannot hold"
                self.capturing.append(launch)

        call.max_dynamic_shared_size_bytes = 48 << 10
        return call

    def _submit(self, launch):
        launch()

    def _arguments(self, name, args):
        if name == "quantize_pad40":
            return [np.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
        w, x, out, id, od = args
        source = _memory(x, id // 32 * 40) if KERNELS[name].family == "mmvq" else _memory(x, 4 * id).view(np.float32)
        return [_memory(w, self.weights_bytes(name, od, id)), source, _memory(out, 4 * od).view(np.float32), id, od]


class QueuedCupy(FakeCupy):
    """What a stream is given waits: it runs one by one when the stream is queried, all of it when it is waited for."""

    def __init__(self, runner):
        super().__init__(runner, None)
        self.queue, self.held = deque(), []
        fake = self

        class Stream(self.cuda.Stream):
            ptr = 1

            def do(self, call):
                fake.queue.append(call)

            def synchronize(self):
                super().synchronize()
                while fake.queue:
                    fake.queue.popleft()()

        self.cuda.Stream = Stream
        self.cuda.alloc_pinned_memory = lambda nbytes: self._hold(np.full(nbytes, 0xA5, np.uint8))
        self.cuda.runtime.streamQuery = self._query

    def empty(self, n, dtype):
        return self._hold(FakeCupy.empty(n, dtype))

    def zeros(self, n, dtype):
        return self._hold(FakeCupy.zeros(n, dtype))

    def full(self, n, value, dtype):
        return self._hold(FakeCupy.full(n, value, dtype))

    def _hold(self, array):
        self.held.append(array)
        return array

    def _query(self, pointer):
        if self.queue:
            self.queue.popleft()()
        return 600 if self.queue else 0

    def _submit(self, launch):
        self.queue.append(launch)

    def _arguments(self, name, args):
        return [self._from(int(a)) if isinstance(a, np.uint64) else a for a in args]

    def _from(self, pointer):
        """The bytes from an address to the end of its allocation."""
        whole = next(a for a in self.held if a.ctypes.data <= pointer < a.ctypes.data + a.nbytes)
        return np.asarray(whole).reshape(-1).view(np.uint8)[pointer - whole.ctypes.data :]
