"""What must be equal bit for bit: a fused kernel and the chain it replaces, two geometries, rows together and alone.

Run on the CPU with the kernels' own source. Equality here shows that the arithmetic is the same, operation by
operation; that the GPU's compiler keeps it so is what `minfer gate probe` checks on the device.
"""

import numpy as np
import pytest

from minfer.cuda.kernels import KV_TYPES, Q8_FORM
from on_cpu import blocks, launch, weights

RNG = np.random.default_rng(73)
FLOAT = {"f32": np.float32, "f16": np.float16}


def rand(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def same(a, b):
    assert a.tobytes() == b.tobytes()


def quantized(x):
    plane = np.empty((x.size // 32, 40), np.uint8)
    launch("quantize_pad40", blocks(len(plane), 64), in0=x, q8=plane, blocks=len(plane), outputs=("q8",))
    return plane


@pytest.mark.parametrize(("nt", "d"), [(1, 32), (3, 576), (2, 5120)])
class TestNorm:
    def test_wide_and_narrow_blocks(self, nt, d):
        x, w = rand(nt, d), rand(d)
        wide, narrow = np.empty((2, nt, d), np.float32)
        for out, block in ((wide, 128), (narrow, 32)):
            launch("rms_norm_f32", nt, block=block, in0=x, w0=w, out=out, d=d, eps=1e-6, outputs=("out",))
        same(wide, narrow)

    @pytest.mark.parametrize("block", [32, 128])
    def test_fused_quantize(self, nt, d, block):
        x, w = rand(nt, d), rand(d)
        alone, out, plane = np.empty_like(x), np.empty_like(x), np.empty((nt * d // 32, 40), np.uint8)
        launch("rms_norm_f32", nt, in0=x, w0=w, out=alone, d=d, eps=1e-6, outputs=("out",))
        launch("rms_norm_quant_pad40", nt, block=block, in0=x, w0=w, out=out, q8=plane, d=d, eps=1e-6,
               outputs=("out", "q8"))  # fmt: skip
        same(out, alone)
        same(plane, quantized(alone))


@pytest.mark.parametrize("n", [32, 288, 1536])
@pytest.mark.parametrize("in_place", [False, True])
def test_swiglu_with_fused_quantize(n, in_place):
    gate, up, alone, plane = rand(n, scale=4), rand(n), np.empty(n, np.float32), np.empty((n // 32, 40), np.uint8)
    launch("swiglu_f32", blocks(n, 256), in0=gate, in1=up, out=alone, n=n, outputs=("out",))
    out, outputs = (gate, ("q8",)) if in_place else (np.empty(n, np.float32), ("out", "q8"))
    launch("swiglu_quant_pad40", blocks(n, 256), in0=gate, in1=up, out=out, q8=plane, n=n, outputs=outputs)
    same(out, alone)
    same(plane, quantized(alone))


@pytest.mark.parametrize("kind", Q8_FORM)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 2, 2)])
def test_concatenated_rows(kind, sizes):
    """One matrix of all rows gives every row the bits it has in its own matrix."""
    id, t = 512, kind.lower()
    parts = [weights(kind, od, id, RNG)[0] for od in sizes]
    plane = quantized(rand(id))

    def product(w, od):
        out = np.empty(od, np.float32)
        launch(f"mmvq_{t}", od, w0=w, q8=plane, out=out, id=id, od=od, outputs=("out",))
        return out

    alone = [product(*part) for part in zip(parts, sizes, strict=True)]
    same(product(np.concatenate(parts), sum(sizes)), np.concatenate(alone))


# --- bias, RoPE and KV store: one launch for seven --------------------------------------------------------------

BASE, SCALE, N_CTX = 1e6, 1.0, 40


def chain(kv, q, k, v, biases, regions, pos, hd):
    """The seven launches, in place."""
    for x, bias in zip((q, k, v), biases, strict=True):
        launch("add_bias_f32", blocks(x.size, 256), in0=x, w0=bias, out=x, cols=x.size, n=x.size)
    for x in (q, k):
        launch("rope_neox_f32", (blocks(x.size // 2, 256), 1), in0=x, out=x, pos=pos, cols=x.size, head_dim=hd,
               n_rot=hd, base=BASE, scale=SCALE)  # fmt: skip
    for x, region in zip((k, v), regions, strict=True):
        launch(f"kv_store_{kv}", (blocks(x.size, 256), 1), in0=x, out=region, pos=pos, cols=x.size)


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "hd"), [(1, 1, 8), (7, 1, 64), (5, 2, 96)])
@pytest.mark.parametrize("concat", [True, False])
def test_qkv_epilogue(kv, heads, kv_heads, hd, concat):
    """Sections of one buffer and three separate buffers; q, k, v and both regions whole."""
    nqt, nkt, pos = heads * hd, kv_heads * hd, np.int32([N_CTX - 1])
    sizes = (nqt, nkt, nkt)
    rows, biases = [rand(n, scale=8) for n in sizes], [rand(n) for n in sizes]
    plain, fused = ([np.zeros((N_CTX, nkt), FLOAT[kv]) for _ in "kv"] for _ in range(2))
    unfused = [x.copy() for x in rows]
    chain(kv, *unfused, biases, plain, pos, hd)
    sections = np.split(np.concatenate(rows), np.cumsum(sizes)[:2]) if concat else rows
    names = ("in0", "in1", "in2", "w0", "w1", "w2", "k", "v")
    launch(f"attn_bias_rope_store_{kv}", blocks(nqt // 2 + nkt // 2 + nkt, 256), pos=pos, nqt=nqt, nkt=nkt, hd=hd,
           base=BASE, scale=SCALE, **dict(zip(names, (*sections, *biases, *fused), strict=True)))  # fmt: skip
    for got, want in zip((*sections, *fused), (*unfused, *plain), strict=True):
        same(got, want)
