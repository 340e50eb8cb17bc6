"""Weights as they lie on the device: Q6_K's planes read back by a plain reader, upload in chunks."""

from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from minfer.cuda import upload
from minfer.cuda.kernels import row_bytes
from minfer.cuda.weights import pack
from minfer.gguf import QUANTS, SUPPORTED, Tensor
from on_cpu import packed

RNG = np.random.default_rng(66)


def stored_q6_k(rows, n):
    """Random stored blocks, shape (rows, 210 n), every d finite."""
    blocks = RNG.integers(0, 256, (rows, n, 210), dtype=np.uint8)
    blocks[:, :, 208:] = RNG.standard_normal((rows, n, 1)).astype("<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


def from_planes(planes, n):
    """Rows of planes (rows, row_bytes) -> f32 (rows, 256 n), weight by weight as quants.cuh describes them."""
    low, high, scales, d, rest = np.split(planes, np.array([128, 192, 208, 210]) * n, axis=1)
    assert (rest == 0).all()
    low, scales = low.reshape(-1, n, 8, 16), scales.reshape(-1, n, 8, 2).view(np.int8)
    high, d = high.copy().view("<u4").reshape(-1, n, 8, 2), d.copy().view("<f2").astype(np.float32)
    out = np.empty((len(planes), n, 256), np.float32)
    for s, g, i in np.ndindex(8, 2, 16):
        q = (low[:, :, s, i] >> 4 * g & 15) | (high[:, :, s, g] >> 8 * (i % 4) + 2 * (i // 4) & 3) << 4
        weight = d * scales[:, :, s, g] * (q.astype(np.float32) - 32)
        out[:, :, 64 * (s // 2) + 32 * g + 16 * (s % 2) + i] = weight
    return out.reshape(len(planes), -1)


@pytest.mark.parametrize("n", [1, 3, 14])
def test_q6_k_planes_hold_the_stored_weights(n):
    """Bit for bit. n superblocks a row: padded by 14, 10 and 4 bytes."""
    stored = stored_q6_k(7, n)
    planes = packed(stored, "Q6_K", 256 * n).reshape(7, -1)
    assert planes.shape[1] == row_bytes("Q6_K", 256 * n) == {1: 224, 3: 640, 14: 2944}[n]
    want = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q6_K)
    assert from_planes(planes, n).tobytes() == want.tobytes()


def test_rows_of_q6_k_are_packed_alone_as_together():
    stored = stored_q6_k(5, 3)
    alone = [packed(row[None], "Q6_K", 768) for row in stored]
    assert (packed(stored, "Q6_K", 768) == np.concatenate(alone)).all()


class Device(np.ndarray):
    """A device array: what `upload` does to one."""

    def set(self, host, stream):
        self[:] = host


@pytest.mark.parametrize("kind", SUPPORTED)
def test_upload_in_chunks_is_packing_at_once(kind, monkeypatch):
    """Eleven rows through staging buffers of three."""
    id = 512
    tensor = Tensor("w", kind, (id, 11), 0, 11 * id // QUANTS[kind].elements * QUANTS[kind].nbytes, None)
    raw = RNG.integers(0, 256, (11, tensor.row_nbytes), dtype=np.uint8)
    monkeypatch.setattr(upload, "STAGE", 3 * tensor.row_nbytes + 5)
    monkeypatch.setattr(upload, "pinned", lambda cp, n, dtype: np.empty(n, dtype))
    event = SimpleNamespace(synchronize=lambda: None, record=lambda: None)
    cuda = SimpleNamespace(Event=lambda: event, get_current_stream=lambda: None)
    cp = SimpleNamespace(cuda=cuda, empty=lambda n, dtype: np.empty(n, dtype).view(Device))
    target = np.empty(11 * row_bytes(kind, id), np.uint8).view(Device)
    upload._Stage(cp).send(raw, target, tensor)
    want = np.empty_like(target)
    pack(raw, want, kind, id)
    assert (target == want).all()
