"""Weights as they lie on a device: blocks padded or in planes (kernels/quants.cuh), one allocation for q, k, v.

q, k and v of a layer lie one after the other when they have one type and row length, so that one matmul can read them.
Arrays are numpy's or CuPy's.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from minfer.cuda.kernels import PADDED, row_bytes
from minfer.cuda.walk import resident_bytes
from minfer.errors import UserError
from minfer.gguf import GGUF, QUANTS, SUPPORTED, Tensor

ALIGN = 256  # of an allocation; a tensor of its own keeps to it


def groups(gguf: GGUF) -> list[list[Tensor]]:
    """Tensors that share an allocation: q, k, v of a layer where one matmul could read all three."""
    found: dict[str, list[Tensor]] = {}
    for tensor in gguf.tensors.values():
        if tensor.type not in SUPPORTED:
            raise UserError(
                f"{tensor.file}: tensor {tensor.name} has type {tensor.type}, which has no kernel "
                f"(supported: {' '.join(SUPPORTED)}); use a model quantized to one of these"
            )
        stem, _, role = tensor.name.removesuffix(".weight").rpartition(".")
        qkv = role in ("attn_q", "attn_k", "attn_v") and tensor.name.endswith(".weight")
        key = f"{stem}.qkv.{tensor.type}.{tensor.shape[0]}" if qkv else tensor.name
        found.setdefault(key, []).append(tensor)
    return [sorted(group, key=lambda t: "qkv".find(t.name.removesuffix(".weight")[-1])) for group in found.values()]


def group_bytes(group: Sequence[Tensor]) -> int:
    """Size of a group's allocation."""
    return sum(-(-resident_bytes(t) // ALIGN) * ALIGN for t in group)


def joined(names: Iterable[str]) -> str:
    """The name under which weights that lie one after the other are one array."""
    return "+".join(names)


def place(whole: Any, group: Sequence[Tensor]) -> dict[str, Any]:
    """Each tensor's part of its group's allocation, and under `joined` names that of all of them."""
    found, at = {}, 0
    for tensor in group:
        found[tensor.name] = whole[at : at + resident_bytes(tensor)]
        at += resident_bytes(tensor)
    return {joined(t.name for t in group): whole[:at]} | found


def as_stored(kind: str) -> bool:
    """Whether a type's weights lie on the device byte for byte as in the file."""
    return PADDED.get(kind) == QUANTS[kind].nbytes


def pack(stored: Any, out: Any, kind: str, id: int) -> None:
    """Whole rows of `id` weights, uint8, from their stored blocks to their form on the device."""
    if kind == "Q6_K":
        _pack_q6_k(stored.reshape(-1, id // 256, 210), out.reshape(-1, row_bytes(kind, id)))
        return
    nbytes, blocks = QUANTS[kind].nbytes, out.reshape(-1, PADDED[kind])
    blocks[:, :nbytes], blocks[:, nbytes:] = stored.reshape(-1, nbytes), 0


def _pack_q6_k(stored: Any, out: Any) -> None:
    """Stored blocks (rows, n, 210) to rows of planes (rows, row_bytes).

    Stored, for each half of 128 weights (axis `half`): byte i of 64 has the nibbles of weights i and i+64, byte i of 32
    the upper bits of weights i, i+32, i+64, i+96 from its low bits up. A plane's chunk is weights 64j+16h.. and
    64j+32+16h.. (axes j and h; j = 2·half and 2·half+1): what 2 and 4 stored bytes hold is transposed, as a matrix of
    nibbles and one of bit pairs. Reshaped slices of `out` are views, so assigning to them writes `out`.
    """
    rows, n, _ = stored.shape
    low, high, scales, d = (stored[:, :, at:to] for at, to in ((0, 128), (128, 192), (192, 208), (208, 210)))
    low = low.reshape(rows, n, 2, 2, 32)  # half, sixteens of the chunk, byte
    to = out[:, : 128 * n].reshape(rows, n, 2, 2, 32)  # half, j % 2, byte
    to[:, :, :, 0] = low[:, :, :, 0] & 15 | low[:, :, :, 1] << 4
    to[:, :, :, 1] = low[:, :, :, 0] >> 4 | low[:, :, :, 1] & 0xF0
    high = high.reshape(rows, n, 2, 2, 4, 4)  # half, h, k, b
    to = out[:, 128 * n : 192 * n].reshape(rows, n, 2, 2, 2, 2, 4)  # half, j % 2, h, sixteen of the chunk, b
    for pair in range(4):
        bits = high >> 2 * pair & 3
        word = bits[..., 0, :] | bits[..., 1, :] << 2 | bits[..., 2, :] << 4 | bits[..., 3, :] << 6
        to[:, :, :, pair // 2, :, pair % 2] = word
    to = out[:, 192 * n : 208 * n].reshape(rows, n, 4, 2, 2)  # j, h, sixteen of the chunk
    to[...] = scales.reshape(rows, n, 4, 2, 2).swapaxes(3, 4)
    out[:, 208 * n : 210 * n], out[:, 210 * n :] = d.reshape(rows, 2 * n), 0
