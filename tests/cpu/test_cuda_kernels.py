"""Every CUDA kernel, executed on the CPU, against numpy in float64 or `gguf`'s own dequantization.

Shapes are small, three a kernel, one of them no multiple of the block. Outputs are poisoned first; the emulator also
refuses races, accesses outside an array and unwritten elements. Tolerances are relative to the largest value and say
why they are what they are; "exact" means equal bits.
"""

import numpy as np
import pytest

from minfer.cuda.kernels import KERNELS, KV_TYPES, Q8_FORM, argmax_aux_bytes, attention_counter_bytes, partial_floats
from minfer.gguf import SUPPORTED
from on_cpu import blocks, launch, q8_plane, q8_values, to_quads, too_few, weights

RNG = np.random.default_rng(4)
FLOAT = {"f32": np.float32, "f16": np.float16}
SUM = 2e-6  # f32 sums of some hundred products: 6e-8 an operation, errors of both signs


def rand(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def close(got, want, tolerance):
    error = np.abs(got.astype(np.float64) - want).max()
    assert error <= tolerance * np.abs(want).max(), f"{error / np.abs(want).max():.2g}"


def id_of(kind, n):
    """n blocks of weights; the unquantized types count in eights."""
    return n * (256 if kind.endswith("_K") else 32 if kind.startswith("Q") else 8)


# --- weights ----------------------------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize("kind", SUPPORTED)


@EACH
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (5, 3), (300, 2)])
class TestWeights:
    def test_embed_rows_is_ggufs_dequantization(self, kind, rows, n):
        """Exact: a weight is d·q rounded once, here and there."""
        id = id_of(kind, n)
        table, values = weights(kind, rows, id, RNG)
        ids = RNG.integers(0, rows, 4).astype(np.int32)
        out = np.empty((4, id), np.float32)
        grid = (blocks(id, 8 * 256), 4)
        launch(f"embed_rows_{kind.lower()}", grid, w0=table, in0=ids, out=out, id=id, outputs=("out",))
        assert (out == values[ids]).all()

    @pytest.mark.parametrize("to", ["f16", "f32"])
    def test_dequant(self, kind, rows, n, to):
        """Exact, f16 rounded to nearest even."""
        id = id_of(kind, n)
        table, values = weights(kind, rows, id, RNG)
        out = np.empty((rows, id), FLOAT[to])
        grid = blocks(rows * id, 8 * 256)
        launch(f"dequant_{kind.lower()}_{to}", grid, w0=table, out=out, id=id, rows=rows, outputs=("out",))
        assert (out == values.astype(FLOAT[to])).all()


@EACH
@pytest.mark.parametrize(("od", "n"), [(1, 1), (8, 5), (19, 3)])
class TestMatmul:
    def test_one_token(self, kind, od, n):
        id = id_of(kind, n)
        w, values = weights(kind, od, id, RNG)
        x, out = rand(id), np.empty(od, np.float32)
        launch(f"matmul_{kind.lower()}_f32", blocks(od, 8), w0=w, in0=x, out=out, id=id, od=od, outputs=("out",))
        close(out, values.astype(np.float64) @ x, 4 * SUM)  # relative to the largest of few sums

    @pytest.mark.parametrize("nt", [2, 7, 16])
    def test_every_token_of_a_batch_has_the_bits_of_one_token(self, kind, od, n, nt):
        id, t = id_of(kind, n), kind.lower()
        w, _ = weights(kind, od, id, RNG)
        x, out = rand(nt, id), np.empty((nt, od), np.float32)
        args = {"w0": w, "id": id, "od": od, "outputs": ("out",)}
        launch(f"matmul_{t}_f32_batch", blocks(od, 8), in0=x, out=out, nt=nt, **args)
        one = np.empty_like(out)
        for i in range(nt):
            launch(f"matmul_{t}_f32", blocks(od, 8), in0=x[i].copy(), out=one[i], **args)
        assert (out == one).all()


# --- q8 activations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 64, 77])
def test_quantize(n):
    """Exact; a block of zeros, a block with one value and halves that round to even among them."""
    x = rand(n, 32, scale=3)
    x[0] = 0
    x[n // 2, 1:] = 0
    x[-1, :4] = np.float32([127, 0.5, 1.5, -2.5])
    x[-1, 4:] = 1
    plane = np.empty((n, 40), np.uint8)
    launch("quantize_pad40", blocks(n, 64), in0=x, q8=plane, blocks=n, outputs=("q8",))
    assert (plane == q8_plane(x)).all()


@pytest.mark.parametrize("kind", Q8_FORM)
@pytest.mark.parametrize(("od", "n"), [(1, 1), (3, 5), (2, 36)])
def test_mmvq(kind, od, n):
    """Integer products are exact: only scaling and the sum of parts round. 36 blocks of 256 give a thread two parts."""
    id = id_of(kind, n)
    w, values = weights(kind, od, id, RNG)
    plane, out = q8_plane(rand(id)), np.empty(od, np.float32)
    launch(f"mmvq_{kind.lower()}", od, w0=w, q8=plane, out=out, id=id, od=od, outputs=("out",))
    want = values.astype(np.float64) @ q8_values(plane)
    # values are rounded to f32 by gguf; rows may cancel, so the scale is what is summed
    summed = (np.abs(values) @ np.abs(q8_values(plane))).max()
    assert np.abs(out - want).max() <= 2e-7 * summed


# --- norms and elementwise ------------------------------------------------------------------------------------------


def rms_norm_reference(x, w):
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * w


@pytest.mark.parametrize(("nt", "d"), [(1, 4), (3, 64), (2, 580)])
def test_rms_norm(nt, d):
    x, w, out = rand(nt, d), rand(d), np.empty((nt, d), np.float32)
    launch("rms_norm_f32", nt, in0=x, w0=w, out=out, d=d, eps=1e-5, outputs=("out",))
    close(out, rms_norm_reference(x, w), 1e-6)  # rsqrtf: 2 units in the last place


@pytest.mark.parametrize(("nt", "d"), [(1, 32), (3, 96), (2, 608)])
def test_rms_norm_with_its_q8_plane(nt, d):
    """The plane is exact: that of the f32 output."""
    x, w, out, plane = rand(nt, d), rand(d), np.empty((nt, d), np.float32), np.empty((nt * d // 32, 40), np.uint8)
    launch("rms_norm_quant_pad40", nt, in0=x, w0=w, out=out, q8=plane, d=d, eps=1e-5, outputs=("out", "q8"))
    close(out, rms_norm_reference(x, w), 1e-6)
    assert (plane == q8_plane(out)).all()


@pytest.mark.parametrize(("nt", "cols"), [(1, 32), (3, 96), (2, 512)])
class TestElementwise:
    def test_add(self, nt, cols):
        a, b, out = rand(nt, cols), rand(nt, cols), np.empty((nt, cols), np.float32)
        launch("add_f32", blocks(nt * cols, 256), in0=a, in1=b, out=out, n=nt * cols, outputs=("out",))
        assert (out == a + b).all()

    def test_add_bias(self, nt, cols):
        n, x, bias, out = nt * cols, rand(nt, cols), rand(cols), np.empty((nt, cols), np.float32)
        launch("add_bias_f32", blocks(n, 256), in0=x, w0=bias, out=out, cols=cols, n=n, outputs=("out",))
        assert (out == x + bias).all()

    def test_swiglu(self, nt, cols):
        gate, up, out = rand(nt, cols, scale=5), rand(nt, cols), np.empty((nt, cols), np.float32)
        launch("swiglu_f32", blocks(nt * cols, 256), in0=gate, in1=up, out=out, n=nt * cols, outputs=("out",))
        g = gate.astype(np.float64)
        close(out, g / (1 + np.exp(-g)) * up, 1e-6)  # expf: 2 units in the last place
        fused, plane = np.empty_like(out), np.empty((nt * cols // 32, 40), np.uint8)
        launch("swiglu_quant_pad40", blocks(nt * cols, 256), in0=gate, in1=up, out=fused, q8=plane, n=nt * cols,
               outputs=("out", "q8"))  # fmt: skip
        assert (fused == out).all() and (plane == q8_plane(fused)).all()

    def test_last_row(self, nt, cols):
        x, out = rand(nt, cols), np.empty(cols, np.float32)
        launch("last_row_f32", blocks(cols, 256), in0=x, out=out, rows=nt, cols=cols, outputs=("out",))
        assert (out == x[-1]).all()

    def test_conversions(self, nt, cols):
        n = nt * cols
        ints, pos = RNG.integers(-(2**31), 2**31, n).astype(np.int32), np.empty(n, np.int32)
        launch("f32_bits_to_i32", blocks(n, 256), in0=ints.view(np.float32), pos=pos, n=n, outputs=("pos",))
        assert (pos == ints).all()
        x, half = rand(n), np.empty(n, np.float16)
        launch("f32_to_f16", blocks(n, 256), in0=x, out=half, n=n, outputs=("out",))
        assert (half == x.astype(np.float16)).all()


# --- positions --------------------------------------------------------------------------------------------------------


def rope_reference(x, pos, hd, n_rot, base, scale, factors, interleaved):
    half = n_rot // 2
    theta = pos[:, None] * (scale * base ** (-2.0 * np.arange(half) / n_rot) / factors)
    cos, sin = np.cos(theta)[:, None], np.sin(theta)[:, None]
    out = x.astype(np.float64).reshape(len(x), -1, hd)
    heads = out[:, :, :n_rot]
    a, b = (heads[:, :, ::2], heads[:, :, 1::2]) if interleaved else (heads[:, :, :half], heads[:, :, half:])
    a[:], b[:] = a * cos - b * sin, a * sin + b * cos
    return out.reshape(x.shape)


@pytest.mark.parametrize("style", ["neox", "interleaved"])
@pytest.mark.parametrize("with_factors", [False, True])
@pytest.mark.parametrize(("nt", "heads", "hd", "n_rot"), [(1, 1, 8, 8), (3, 5, 96, 96), (2, 3, 20, 12)])
@pytest.mark.parametrize("in_place", [False, True])
def test_rope(style, with_factors, nt, heads, hd, n_rot, in_place):
    x, pos = rand(nt, heads * hd), np.int32([0, 31, 700][-nt:])
    factors = np.linspace(1, 4, n_rot // 2).astype(np.float32) if with_factors else np.float32(1)
    want = rope_reference(x, pos, hd, n_rot, 10000.0, 0.5, factors, style == "interleaved")
    out = x if in_place else np.empty_like(x)
    args = {"cols": heads * hd, "head_dim": hd, "n_rot": n_rot, "base": 1e4, "scale": 0.5}
    args |= {"w0": factors} if with_factors else {}
    name = f"rope_{style}_f32" + ("_factors" if with_factors else "")
    grid = (blocks(heads * n_rot // 2, 256), nt)
    launch(name, grid, in0=x, out=out, pos=pos, outputs=() if in_place else ("out",), **args)
    close(out, want, 1e-6 + 3e-7 * pos.max())  # an angle carries the rounding of its frequency, times the position


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(("nt", "cols"), [(1, 8), (3, 64), (2, 300)])
def test_kv_store_writes_its_rows_and_no_other(kv, nt, cols):
    x, region = rand(nt, cols), np.full((9, cols), 7, FLOAT[kv])
    pos = np.arange(4, 4 + nt, dtype=np.int32)
    launch(f"kv_store_{kv}", (blocks(cols, 256), nt), in0=x, out=region, pos=pos, cols=cols)
    assert (region[pos] == x.astype(FLOAT[kv])).all() and (np.delete(region, pos, 0) == 7).all()


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "hd"), [(1, 1, 8), (3, 1, 20), (5, 2, 96)])
def test_bias_rope_and_store_in_one(kv, heads, kv_heads, hd):
    """q, k and v in place; one row of each region, which is exactly k or v rounded once."""
    pos, sizes = np.int32([5]), (heads * hd, kv_heads * hd, kv_heads * hd)
    q, k, v = rows = [rand(n) for n in sizes]
    bias = [rand(n) for n in sizes]
    keys, values = (np.full((9, sizes[1]), 7, FLOAT[kv]) for _ in "kv")
    want = [(x.astype(np.float64) + b)[None] for x, b in zip(rows, bias, strict=True)]
    want[:2] = [rope_reference(x, pos, hd, hd, 1e4, 0.5, np.float32(1), False) for x in want[:2]]
    launch(f"attn_bias_rope_store_{kv}", blocks((sizes[0] + 3 * sizes[1]) // 2, 256), in0=q, in1=k,
           in2=v, w0=bias[0], w1=bias[1], w2=bias[2], k=keys, v=values, pos=pos, nqt=sizes[0], nkt=sizes[1], hd=hd,
           base=1e4, scale=0.5)  # fmt: skip
    for got, exact in zip(rows, want, strict=True):
        close(got, exact[0], 3e-6)
    for region, row in ((keys, k), (values, v)):
        assert (region[5] == row.astype(FLOAT[kv])).all() and (np.delete(region, 5, 0) == 7).all()


# --- attention and what follows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "hd", "n_kv", "splits"),
    [(1, 1, 8, 1, 2), (6, 2, 64, 50, 3), (4, 2, 80, 9, 16), (9, 1, 128, 33, 2), (3, 3, 256, 19, 2)],
)
def test_attention(kv, heads, kv_heads, hd, n_kv, splits):
    """Splits without keys, more query heads than a warp carries, partial vectors; later rows of the cache are NaN."""
    q, cols = rand(heads * hd), kv_heads * hd
    k, v = (rand(n_kv + 3, cols).astype(FLOAT[kv]) for _ in "kv")
    k[n_kv:], v[n_kv:] = np.nan, np.nan
    partial = np.empty(partial_floats(heads, hd, splits), np.float32)
    out = np.empty(heads * hd, np.float32)
    shape = {"n_head": heads, "head_dim": hd, "splits": splits}
    launch(f"attention_split_{kv}", (kv_heads, splits), in0=q, in1=k, in2=v, pos=np.int32([n_kv - 1]), partial=partial,
        n_head_kv=kv_heads, outputs=("partial",), **shape)  # fmt: skip
    launch("attention_combine_f32", heads, partial=partial, out=out, outputs=("out",), **shape)
    close(out, attention_reference(q.reshape(heads, hd), k[:n_kv], v[:n_kv], kv_heads), 5e-6)  # f32 scores up to 20


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "hd", "n_kv", "splits"),
    [(1, 1, 8, 1, 2), (14, 2, 128, 129, 2), (7, 1, 128, 700, 1), (10, 2, 128, 300, 5), (10, 1, 64, 127, 5),
     (7, 1, 64, 2600, 20), (8, 1, 128, 128, 2), (6, 2, 80, 260, 16), (10, 2, 256, 400, 2), (7, 1, 200, 140, 3)],
)  # fmt: skip
class TestAttentionInOneLaunch:
    """Groups of 1 to 10 query heads, one split with keys and many, a tail of keys; later rows of the cache are NaN.

    With q of scale 1 the last key has the largest score, about 6, so what came before it must be scaled down.
    """

    def run(self, kv, heads, kv_heads, hd, n_kv, splits, scale):
        rng = np.random.default_rng([heads, hd, n_kv])
        q = (rng.standard_normal(heads * hd) * scale).astype(np.float32)
        k, v = (rng.standard_normal((n_kv + 3, kv_heads * hd)).astype(FLOAT[kv]) for _ in "kv")
        k[n_kv - 1] = q.reshape(kv_heads, -1, hd).sum(axis=1).reshape(-1) * 6 / np.sqrt(hd) / scale**2
        k[n_kv:], v[n_kv:] = np.nan, np.nan
        partial = np.full(partial_floats(heads, hd, splits), np.nan, np.float32)
        counters, outs = np.zeros(attention_counter_bytes(kv_heads), np.uint8), []
        for at in (n_kv, 1, n_kv):  # a launch finds what one with other splits has left behind
            outs.append(np.empty(heads * hd, np.float32))
            launch(f"attention_one_{kv}", (kv_heads, splits), in0=q, in1=k, in2=v, in3=np.int32([at - 1]),
                   counters=counters, partial=partial, out=outs[-1], n_head=heads, n_head_kv=kv_heads, head_dim=hd,
                   splits=splits, outputs=("out",))  # fmt: skip
            assert not counters.any()
            if hd % 32 == 0 and kv == "f16":  # the same row as the plane of the matmul behind
                quads = np.zeros((-(-heads * hd // 1024), 1792), np.uint8)
                launch("attention_quads_f16", (kv_heads, splits), in0=q, in1=k, in2=v, in3=np.int32([at - 1]),
                       counters=counters, partial=partial, quads=quads, n_head=heads, n_head_kv=kv_heads, head_dim=hd,
                       splits=splits)  # fmt: skip
                assert (quads == to_quads(q8_plane(outs[-1]))).all() and not counters.any()
        assert np.isnan(partial).all() == (n_kv <= 128 or splits == 1)  # one split writes the output itself
        assert (outs[0] == outs[2]).all()
        close(outs[1], attention_reference(q.reshape(heads, hd), k[:1], v[:1], kv_heads), SUM)
        close(outs[0], attention_reference(q.reshape(heads, hd), k[:n_kv], v[:n_kv], kv_heads), SUM)

    def test_flat_weights(self, kv, heads, kv_heads, hd, n_kv, splits):
        self.run(kv, heads, kv_heads, hd, n_kv, splits, 1)

    def test_few_keys_have_the_weight(self, kv, heads, kv_heads, hd, n_kv, splits):
        """Scores up to 30: the largest one moves often and by much."""
        self.run(kv, heads, kv_heads, hd, n_kv, splits, 8)


def attention_reference(q, k, v, kv_heads):
    heads, hd = q.shape
    k, v = (r.astype(np.float64).reshape(len(r), kv_heads, hd).repeat(heads // kv_heads, axis=1) for r in (k, v))
    scores = np.einsum("hd,khd->hk", q, k) / np.sqrt(hd)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("hk,khd->hd", p / p.sum(axis=1, keepdims=True), v).reshape(-1)


@pytest.mark.parametrize("to", KV_TYPES)
@pytest.mark.parametrize(("heads", "first", "nt"), [(1, 0, 1), (3, 2, 5), (2, 290, 7)])
def test_softmax_causal(to, heads, first, nt):
    """Hidden scores are NaN: they must not be read. f16 output is rounded once: 5e-4."""
    n_kv, pos = first + nt, np.arange(first, first + nt, dtype=np.int32)
    scores, out = rand(heads, nt, n_kv, scale=4), np.empty((heads, nt, n_kv), FLOAT[to])
    hidden = np.arange(n_kv) > pos[:, None]
    scores[:, hidden] = np.nan
    launch(f"softmax_causal_{to}", heads * nt, in0=scores, pos=pos, out=out, nt=nt, n_kv=n_kv, outputs=("out",))
    p = np.exp(scores.astype(np.float64) - np.nanmax(scores, axis=2, keepdims=True))
    p[:, hidden] = 0
    close(out, p / p.sum(axis=2, keepdims=True), 1e-6 if to == "f32" else 5e-4)


@pytest.mark.parametrize(("n", "grid"), [(1, 1), (1000, 8), (5000, 3)])
def test_argmax_takes_the_first_of_equals_and_leaves_its_counter_at_zero(n, grid):
    x, aux = rand(n), np.zeros(argmax_aux_bytes(grid), np.uint8)
    first, second = n // 3, n - 1
    x[[first, second]] = x.max() + 1
    x[n // 2 + 1 : n // 2 + 2] = np.nan
    for _ in range(2):  # the second launch finds what the first left behind
        out = np.empty(1, np.int32)
        launch("argmax_f32", grid, in0=x, out=out, aux=aux, n=n, outputs=("out",))
        assert out[0] == first and (aux[:4] == 0).all()


def test_argmax_of_no_number_is_zero():
    out, aux = np.empty(1, np.int32), np.zeros(argmax_aux_bytes(2), np.uint8)
    launch("argmax_f32", 2, in0=np.full(600, np.nan, np.float32), out=out, aux=aux, n=600)
    assert out[0] == 0


@pytest.mark.parametrize(("n", "grid", "entries"), [(1, 1, 2), (1000, 8, 4), (5000, 3, 16)])
def test_next_token_is_argmax_that_writes_the_next_steps_inputs_and_a_ring(n, grid, entries):
    """More steps than the ring has entries; the first is nobody's number, which is token 0."""
    aux, ring = np.zeros(argmax_aux_bytes(grid), np.uint8), np.zeros(entries, np.uint64)
    tokens, positions, chosen = np.int32([7]), np.int32([40]), []
    for step in range(entries + 2):
        x, out = rand(n) if step else np.full(n, np.nan, np.float32), np.empty(1, np.int32)
        launch("next_token", grid, in0=x, out=out, tokens=tokens, positions=positions, ring=ring, aux=aux, n=n,
               entries=entries, outputs=("out",))  # fmt: skip
        chosen.append((step + 1) << 32 | (int(x.argmax()) if step else 0))
        assert out[0] == tokens[0] == chosen[-1] & 0xFFFFFFFF and positions[0] == 41 + step
        assert (aux[:8].view(np.int32) == [0, step + 1]).all()
        kept = {i % entries: entry for i, entry in enumerate(chosen)}
        assert ring.tolist() == [kept.get(i, 0) for i in range(entries)]


def test_every_kernel_of_the_table_was_launched_at_three_shapes(request):
    """And at one that is no multiple of the block. Last in this file: it looks at what the tests above have done."""
    mine = (k for k in KERNELS.values() if k.family != "stream")  # those: test_stream_kernels.py
    assert too_few(request.config, mine) == {}
