"""Weights from the mapped file to the device: through pinned staging, brought there into their form (weights.py)."""

from typing import Any

import numpy as np

from minfer.cuda.cupy_module import pinned
from minfer.cuda.kernels import row_bytes
from minfer.cuda.walk import resident_bytes
from minfer.cuda.weights import as_stored, group_bytes, groups, pack, place
from minfer.errors import UserError
from minfer.gguf import GGUF, Tensor
from minfer.progress import Progress

STAGE = 64 << 20  # bytes of each of two staging buffers


def upload_weights(cp: Any, gguf: GGUF, progress: Progress | None) -> dict[str, Any]:
    """Tensor name -> uint8 device array of its rows (weights.py). Raises UserError when they do not fit."""
    allocations = groups(gguf)
    total = sum(resident_bytes(t) for group in allocations for t in group)
    free, size = cp.cuda.runtime.memGetInfo()
    if total > free:
        raise UserError(
            f"the weights of {gguf.path.name} need {total / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} of the GPU's {size / 1e9:.1f} GB are free: use a smaller model"
        )
    found: dict[str, Any] = {}
    stage, done = _Stage(cp), 0
    for group in allocations:
        found |= place(cp.empty(group_bytes(group), np.uint8), group)
        for tensor in group:
            stage.send(gguf.raw(tensor), found[tensor.name], tensor)
            done += resident_bytes(tensor)
            if progress is not None:
                progress(done, total)
    cp.cuda.get_current_stream().synchronize()
    return found


class _Stage:
    """Two pinned buffers in turn: while one is copied to the device, the other is filled from the file."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self.host = [pinned(cp, STAGE, np.uint8) for _ in range(2)]
        self.sent = [cp.cuda.Event() for _ in range(2)]
        self.turn = 0

    def send(self, raw: np.ndarray, target: Any, tensor: Tensor) -> None:
        """Copy stored rows (rows, row_nbytes) to `target`, bringing them there into their form on the device."""
        stored, resident = tensor.row_nbytes, row_bytes(tensor.type, tensor.shape[0])
        step = STAGE // stored
        for first in range(0, tensor.rows, step):
            part = raw[first : first + step].reshape(-1)
            out = target[first * resident : (first + step) * resident]
            if as_stored(tensor.type):
                self._copy(part, out)
            else:
                packed = self.cp.empty(len(part), np.uint8)
                self._copy(part, packed)
                pack(packed, out, tensor.type, tensor.shape[0])

    def _copy(self, part: np.ndarray, target: Any) -> None:
        host, sent = self.host[self.turn], self.sent[self.turn]
        sent.synchronize()
        host[: len(part)] = part
        target.set(host[: len(part)], stream=self.cp.cuda.get_current_stream())
        sent.record()
        self.turn = 1 - self.turn
