"""Weights as they lie on a device: every block padded to a multiple of four bytes, one allocation for q, k, v.

q, k and v of a layer lie one after the other when they have one type and row length, so that one matmul can read them.
Arrays are numpy's or CuPy's.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from minfer.cuda.kernels import PADDED
from minfer.cuda.lowering import resident_bytes
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


def pad(packed: Any, out: Any, kind: str) -> None:
    """Stored blocks to their padded form, zeros behind each."""
    stored, blocks = QUANTS[kind].nbytes, out.reshape(-1, PADDED[kind])
    blocks[:, :stored], blocks[:, stored:] = packed.reshape(-1, stored), 0
