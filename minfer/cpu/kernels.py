"""The CPU's kernels: one numpy function per op, f32, all with one signature.

`kernel(out, ins, weights, params)`: `out` is the output array, `ins` the inputs, `weights` what the backend keeps for
each weight. Arrays are (rows, cols); an in-place launch gets the same memory as `out` and `ins[0]`. Nothing is
returned: a kernel writes `out` and no other array.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Kernel = Callable[[Array, Sequence[Array], Sequence[Any], Mapping[str, Any]], None]


def embed_rows(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    (rows_of,) = weights  # dequantizes rows on demand: the table is not kept in f32 for this
    out[:] = rows_of(ins[0][:, 0])


def rms_norm(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    (x,), (w,) = ins, weights
    # the sum in float64, as llama.cpp's CPU backend does
    mean = np.einsum("ij,ij->i", x, x, dtype=np.float64) / x.shape[1]
    scale = (1.0 / np.sqrt(mean + params["eps"])).astype(np.float32)
    np.multiply(x, scale[:, None], out=out)
    np.multiply(out, w, out=out)


def matmul(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    (x,), (w,) = ins, weights  # x (nt, id), w (od, id)
    if x.shape[0] == 1:
        np.dot(w, x[0], out=out[0])  # gemv over rows in memory order
    else:
        np.matmul(x, w.T, out=out)


def add_bias(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    np.add(ins[0], weights[0], out=out)


def rope(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    """Rotate the first n_rot features of each head; pair j turns by position · scale · base^(-2j/n_rot)."""
    x, positions = ins
    hd, n_rot = params["head_dim"], params["n_rot"]
    half = n_rot // 2
    freq = params["base"] ** (-2.0 * np.arange(half) / n_rot)
    if weights:
        freq = freq / weights[0]
    theta = positions.astype(np.float64) * (params["scale"] * freq)  # (nt, 1) · (half,)
    cos, sin = (f(theta).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    if out is not x:
        out[:] = x
    heads = out.reshape(out.shape[0], -1, hd)[:, :, :n_rot]
    interleaved = params["style"] == "interleaved"
    a, b = (heads[:, :, 0::2], heads[:, :, 1::2]) if interleaved else (heads[:, :, :half], heads[:, :, half:])
    a[:], b[:] = a * cos - b * sin, a * sin + b * cos


def kv_store(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    x, positions = ins
    first = int(positions[0, 0])
    out[first : first + x.shape[0]] = x


def attention(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    """softmax(q·kᵀ/√hd)·v, each query seeing keys up to its own position. Regions are (n_ctx, n_head_kv · hd)."""
    q, k, v, positions = ins
    nt, hd, kv_heads = q.shape[0], params["head_dim"], params["n_head_kv"]
    group = params["n_head"] // kv_heads
    n = int(positions[-1, 0]) + 1
    keys, values = (r[:n].reshape(n, kv_heads, hd).transpose(1, 0, 2) for r in (k, v))  # (kv_heads, n, hd) views
    queries = q.reshape(nt, kv_heads, group, hd).transpose(1, 2, 0, 3).reshape(kv_heads, group * nt, hd)
    scores = np.matmul(queries, keys.transpose(0, 2, 1)) * np.float32(hd**-0.5)
    if nt > 1:
        hidden = np.arange(n)[None, :] > positions  # (nt, n)
        scores.reshape(kv_heads, group, nt, n)[:, :, hidden] = -np.inf
    np.exp(scores - scores.max(axis=-1, keepdims=True), out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed = np.matmul(scores, values).reshape(kv_heads, group, nt, hd)
    out[:] = mixed.transpose(2, 0, 1, 3).reshape(nt, -1)


def add(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    np.add(ins[0], ins[1], out=out)


def swiglu(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    gate, up = ins
    with np.errstate(over="ignore"):  # exp(-gate) = inf gives silu = -0, which is its limit
        act = gate / (1.0 + np.exp(-gate))
    np.multiply(act, up, out=out)


def last_row(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    out[0] = ins[0][-1]


def argmax(out: Array, ins: Sequence[Array], weights: Sequence[Any], params: Mapping[str, Any]) -> None:
    out.view(np.int32)[0, 0] = np.argmax(ins[0][0])


KERNELS: dict[str, Kernel] = {
    f.__name__: f
    for f in (embed_rows, rms_norm, matmul, add_bias, rope, kv_store, attention, add, swiglu, last_row, argmax)
}
