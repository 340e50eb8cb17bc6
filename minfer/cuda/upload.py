"""Weights from the mapped file to the device: through pinned staging, padded there to four-byte blocks.

q, k and v of a layer lie one after the other when they have one type and row length, so that one matmul can read them.
"""

from typing import Any

import numpy as np

from minfer.cuda.cupy_module import pinned
from minfer.cuda.kernels import PADDED
from minfer.cuda.lowering import resident_bytes
from minfer.errors import UserError
from minfer.gguf import GGUF, QUANTS, SUPPORTED, Tensor
from minfer.progress import Progress

STAGE = 64 << 20  # bytes of each of two staging buffers


def upload_weights(cp: Any, gguf: GGUF, progress: Progress | None) -> dict[str, Any]:
    """Tensor name -> uint8 device array of its padded blocks. Raises UserError when they do not fit."""
    groups = _groups(gguf)
    total = sum(resident_bytes(t) for group in groups for t in group)
    free, size = cp.cuda.runtime.memGetInfo()
    if total > free:
        raise UserError(
            f"the weights of {gguf.path.name} need {total / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} of the GPU's {size / 1e9:.1f} GB are free: use a smaller model"
        )
    stage, found, done = _Stage(cp), {}, 0
    for group in groups:
        whole, at = cp.empty(sum(_aligned(resident_bytes(t)) for t in group), np.uint8), 0
        for tensor in group:
            found[tensor.name] = whole[at : at + resident_bytes(tensor)]
            stage.send(gguf.raw(tensor).reshape(-1), found[tensor.name], tensor)
            at += resident_bytes(tensor)
            done += resident_bytes(tensor)
            if progress is not None:
                progress(done, total)
    cp.cuda.get_current_stream().synchronize()
    return found


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def _groups(gguf: GGUF) -> list[list[Tensor]]:
    """Tensors that share an allocation: q, k, v of a layer where one matmul could read all three."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in gguf.tensors.values():
        if tensor.type not in SUPPORTED:
            raise UserError(
                f"{tensor.file}: tensor {tensor.name} has type {tensor.type}, which has no kernel "
                f"(supported: {' '.join(SUPPORTED)}); use a model quantized to one of these"
            )
        stem, _, role = tensor.name.removesuffix(".weight").rpartition(".")
        qkv = role in ("attn_q", "attn_k", "attn_v") and tensor.name.endswith(".weight")
        key = f"{stem}.qkv.{tensor.type}.{tensor.shape[0]}" if qkv else tensor.name
        groups.setdefault(key, []).append(tensor)
    return [sorted(group, key=lambda t: "qkv".find(t.name.removesuffix(".weight")[-1])) for group in groups.values()]


class _Stage:
    """Two pinned buffers in turn: while one is copied to the device, the other is filled from the file."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self.host = [pinned(cp, STAGE, np.uint8) for _ in range(2)]
        self.sent = [cp.cuda.Event() for _ in range(2)]
        self.turn = 0

    def send(self, raw: np.ndarray, target: Any, tensor: Tensor) -> None:
        """Copy stored blocks to `target`, padding each one there."""
        stored, padded = QUANTS[tensor.type].nbytes, PADDED[tensor.type]
        step = STAGE // stored * stored
        for first in range(0, len(raw), step):
            part = raw[first : first + step]
            out = target[first // stored * padded :][: len(part) // stored * padded]
            if padded == stored:
                self._copy(part, out)
            else:
                packed = self.cp.empty(len(part), np.uint8)
                self._copy(part, packed)
                blocks = out.reshape(-1, padded)
                blocks[:, :stored], blocks[:, stored:] = packed.reshape(-1, stored), 0

    def _copy(self, part: np.ndarray, target: Any) -> None:
        host, sent = self.host[self.turn], self.sent[self.turn]
        sent.synchronize()
        host[: len(part)] = part
        target.set(host[: len(part)], stream=self.cp.cuda.get_current_stream())
        sent.record()
        self.turn = 1 - self.turn
