"""A stand-in for the part of CuPy that `minfer crossover` uses: arrays in host memory, kernels on the emulator.

Streams and graphs only remember calls, in order; an open capture, or a launch of a kernel first seen inside
one, is an error as it is on a GPU.
"""

import ctypes
from types import SimpleNamespace

import numpy as np

from minfer.cuda.kernels import KERNELS


class Device(np.ndarray):
    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


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
        for call in self.calls:
            call()


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
            Device=lambda: SimpleNamespace(id=0, synchronize=lambda: None),
            get_elapsed_time=lambda a, b: (b.at - a.at) / 1e3,  # a launch is a µs
        )  # fmt: skip

    def get_default_memory_pool(self):
        return SimpleNamespace(free_all_blocks=lambda: None)

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
        def call(grid, block, args):
            def launch():
                self.ticks += 1
                self.launched.append((name, int(args[0]) if name != "quantize_pad40" else 0))
                self.runner(name, grid, self._arguments(name, args), block[0])

            if self.capturing is None:
                self.loaded.add(name)
                launch()
            else:
                assert name in self.loaded, "a kernel loads at its first launch, which a capture cannot hold"
                self.capturing.append(launch)

        return call

    def _arguments(self, name, args):
        if name == "quantize_pad40":
            return [np.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
        w, x, out, id, od = args
        source = _memory(x, id // 32 * 40) if KERNELS[name].family == "mmvq" else _memory(x, 4 * id).view(np.float32)
        return [_memory(w, self.weights_bytes(name, od, id)), source, _memory(out, 4 * od).view(np.float32), id, od]
