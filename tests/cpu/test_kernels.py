"""Every CPU kernel against a plain float64 loop, at shapes that are not round.

Tolerance 2e-5 of the largest value: f32 carries 6e-8 per operation and the longest sums here have some 100 terms.
"""

import math

import numpy as np
import pytest

from minfer.cpu.kernels import KERNELS
from minfer.fusions import stream
from minfer.ops import OPS

RNG = np.random.default_rng(7)


def rand(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def run(op, ins, weights=(), out_shape=None, **params):
    """Outputs are poisoned first: every element must be written."""
    out = np.full(out_shape or ins[0].shape, np.nan, np.float32)
    KERNELS[op](out, ins, weights, params)
    return out


def close(got, want):
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


def test_every_op_has_a_kernel_but_inputs_and_what_only_fusions_of_the_gpu_make():
    assert set(KERNELS) == set(OPS) - {"input", "fused_qkv", "qkv_epilogue", "kv_load", *stream.OPS}


@pytest.mark.parametrize(("nt", "d"), [(1, 5), (3, 64), (7, 97)])
class TestShapes:
    def test_rms_norm(self, nt, d):
        x, w = rand(nt, d), rand(d)
        want = [[v / math.sqrt(sum(float(u) ** 2 for u in row) / d + 1e-5) * float(w[i]) for i, v in enumerate(row)]
                for row in x.astype(float)]  # fmt: skip
        close(run("rms_norm", [x], [w], eps=1e-5), np.array(want))

    def test_matmul(self, nt, d):
        x, w = rand(nt, d), rand(11, d)
        want = [[sum(float(a) * float(b) for a, b in zip(r, c, strict=True)) for c in w] for r in x]
        close(run("matmul", [x], [w], (nt, 11)), np.array(want))

    def test_elementwise(self, nt, d):
        a, b, bias = rand(nt, d), rand(nt, d), rand(d)
        close(run("add", [a, b]), a.astype(float) + b)
        close(run("add_bias", [a], [bias]), a.astype(float) + bias)
        silu = np.array([[v / (1 + math.exp(-v)) for v in row] for row in a.astype(float)])
        close(run("swiglu", [a, b]), silu * b)
        assert (run("last_row", [a], out_shape=(1, d)) == a[-1]).all()


def test_swiglu_of_a_large_negative_gate_is_zero_without_a_warning():
    got = run("swiglu", [np.float32([[-200.0, 200.0]]), np.float32([[1.0, 1.0]])])
    assert got.tolist() == [[0.0, 200.0]]


@pytest.mark.parametrize("style", ["interleaved", "neox"])
@pytest.mark.parametrize("n_rot", [8, 4])
@pytest.mark.parametrize("factors", [None, [1.0, 2.0, 4.0, 8.0]])
def test_rope(style, n_rot, factors):
    """Pair (2j, 2j+1) or (j, j + n_rot/2) turns by pos · base^(-2j/n_rot) / factor; the rest of the head stays."""
    nt, heads, hd, base, scale = 3, 2, 8, 10000.0, 0.5
    x, pos = rand(nt, heads * hd), np.array([[5], [6], [700]], np.int32)
    want = x.astype(float)
    for t in range(nt):
        for h in range(heads):
            for j in range(n_rot // 2):
                angle = pos[t, 0] * scale * base ** (-2 * j / n_rot) / (factors[j] if factors else 1)
                a, b = (2 * j, 2 * j + 1) if style == "interleaved" else (j, j + n_rot // 2)
                u, v = float(x[t, h * hd + a]), float(x[t, h * hd + b])
                want[t, h * hd + a] = u * math.cos(angle) - v * math.sin(angle)
                want[t, h * hd + b] = u * math.sin(angle) + v * math.cos(angle)
    weights = [np.float32(factors[: n_rot // 2])] if factors else []
    params = {"style": style, "head_dim": hd, "n_rot": n_rot, "base": base, "scale": scale}
    close(run("rope", [x, pos], weights, **params), want)
    in_place = x.copy()
    KERNELS["rope"](in_place, [in_place, pos], weights, params)
    close(in_place, want)


def test_rope_at_position_zero_changes_nothing():
    x = rand(1, 16)
    params = {"style": "neox", "head_dim": 8, "n_rot": 8, "base": 1e4, "scale": 1.0}
    assert (run("rope", [x, np.zeros((1, 1), np.int32)], **params) == x).all()


def test_argmax_is_the_first_of_the_largest_as_int32_bits():
    out = run("argmax", [np.float32([[1, 7, -3, 7]])], out_shape=(1, 1))
    assert out.view(np.int32).tolist() == [[1]]


def test_kv_store_writes_its_rows_and_no_other():
    region = np.full((9, 6), 7.0, np.float32)
    x = rand(2, 6)
    KERNELS["kv_store"](region, [x, np.array([[4], [5]], np.int32)], [], {})
    assert (region[4:6] == x).all() and (np.delete(region, [4, 5], 0) == 7).all()


@pytest.mark.parametrize(
    ("nt", "first", "heads", "kv_heads"), [(1, 0, 4, 2), (1, 12, 6, 2), (5, 3, 4, 4), (5, 0, 6, 1)]
)
def test_attention_sees_no_later_token_and_no_unwritten_row(nt, first, heads, kv_heads):
    hd, n_ctx = 8, 32
    q, k, v = rand(nt, heads * hd), rand(n_ctx, kv_heads * hd), rand(n_ctx, kv_heads * hd)
    n = first + nt
    k[n:], v[n:] = np.nan, np.nan  # rows past the last token: must not be read
    pos = np.arange(first, n, dtype=np.int32)[:, None]
    want = np.zeros((nt, heads * hd))
    for t in range(nt):
        for h in range(heads):
            g = h // (heads // kv_heads)
            seen = slice(0, first + t + 1)
            keys, values = (r[seen, g * hd : (g + 1) * hd].astype(float) for r in (k, v))
            score = keys @ q[t, h * hd : (h + 1) * hd].astype(float) / math.sqrt(hd)
            p = np.exp(score - score.max())
            want[t, h * hd : (h + 1) * hd] = p / p.sum() @ values
    close(run("attention", [q, k, v, pos], n_head=heads, n_head_kv=kv_heads, head_dim=hd), want)


def test_embed_rows_dequantizes_the_rows_that_are_asked_for():
    table = rand(10, 4)
    out = run("embed_rows", [np.array([[3], [0]], np.int32)], [lambda ids: table[ids]], (2, 4))
    assert (out == table[[3, 0]]).all()
