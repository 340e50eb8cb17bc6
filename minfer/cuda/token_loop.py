"""Greedy steps launched ahead of their tokens: the kernel `next_token` writes each next step's inputs on the device.

Its tokens come back through a ring in pinned host memory, which a GPU writes into directly: no copy, no synchronization
between steps. The host polls the entry that it waits for, and asks the stream now and then whether it still runs.
"""

from typing import TYPE_CHECKING

import numpy as np

from minfer.cuda.kernels import RING
from minfer.instrument import Tracer

if TYPE_CHECKING:
    from minfer.cuda.device import CudaProgram

AHEAD = 4  # the host needs a fraction of a step to launch one; every step more is one to throw away at an early end
SPINS = 1000  # looks at the ring, 0.1 ms, between two at the stream
NOT_READY = 600  # cudaErrorNotReady


class TokenLoop:
    """The loop of a program that ends in `next_token` (plan.TokenLoop)."""

    ahead = AHEAD

    def __init__(self, program: "CudaProgram") -> None:
        self.program, self.stream = program, program.device.stream
        self.taken = 0  # entries of the ring that are done with, of all since the device was opened
        self.ring: np.ndarray = np.zeros(0, np.uint64)

    def start(self, token: int, position: int) -> None:
        """Begin a run; the stream is idle, so what the ring holds now are earlier runs' entries."""
        self.ring = self.program.device.scratch_buffers["ring"].view(np.uint64)
        self.taken = int(self.ring.max()) >> 32
        with self.stream:
            self.program.start((token,), position)

    def launch(self, tracer: Tracer, step: str) -> None:
        """One step more, without waiting for it."""
        with self.stream:
            self.program.launch(tracer, step)

    def take(self) -> int:
        """The next token, once it is there. Raises RuntimeError when it never will be, and what a failed step left."""
        token = self._poll()
        while token is None:
            running = self.program.device.cp.cuda.runtime.streamQuery(self.stream.ptr) == NOT_READY
            if not running:
                self.stream.synchronize()  # raises a kernel's error, which a query leaves unsaid
            token = self._poll()
            if token is None and not running:
                raise RuntimeError(f"every launched step has ended, and token {self.taken} is not in the ring")
        self.taken += 1
        return token

    def _poll(self) -> int | None:
        at, sequence = self.taken % RING, self.taken + 1
        for _ in range(SPINS):
            entry = int(self.ring[at])
            if entry >> 32 == sequence:
                return entry & 0xFFFFFFFF
        return None

    def stop(self) -> None:
        """Wait for what still runs."""
        self.stream.synchronize()
