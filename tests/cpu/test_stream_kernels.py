"""The stream kernels (stream.cu), executed on the CPU, against numpy in float64.

Their work is shared at three levels, and the shapes cover each: blocks share the rows, evenly or not, or are more than
there are; warps take a block's items in turn, so a row of several items lies in several warps; a row's last item may
have fewer superblocks than the others; and a block may have more items than it keeps the sums of, which are added up
in between. Shared memory is as little as the lowering asks for: more would be an access outside.
"""

from pathlib import Path

import numpy as np
import pytest

from minfer.cuda.kernels import KERNELS, KV_TYPES, STREAM_RINGS, row_bytes, source, stream_shared
from minfer.cuda.stream import most_pairs, share_blocks
from minfer.emulated import emulate
from minfer.fusions.stream import TYPES
from minfer.gguf import Tensor
from on_cpu import launch, q8_plane, q8_values, to_quads, too_few, weights

RNG = np.random.default_rng(12)
NAMES = {number: name for name, number in TYPES.items()}
FLOAT = {"f32": np.float32, "f16": np.float16}
EPS = np.float32(1e-6)
SUM = 2e-7  # of what is summed: f32 sums of some hundred integer products
# rows, superblocks a row, blocks; 54 and 74: rows of 7, 10, 14 and 19 items, which 16 warps do not take evenly
SHAPES = [
    (2, 1, 1), (10, 5, 2), (38, 3, 3), (64, 14, 1), (6, 9, 5), (4, 2, 7), (70, 17, 2), (600, 9, 1),
    (30, 54, 2), (22, 74, 1),
]  # fmt: skip

BOTH = pytest.mark.parametrize("type", sorted(NAMES))
EACH = pytest.mark.parametrize(("od", "n", "grid"), SHAPES)


def rand(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def exact_rows(id, scale=1.0):
    """(x, weight of a norm, x normed in f32): squares are multiples of 1/16, so their sum is exact in any order."""
    x, g = (RNG.integers(-12, 13, id) / 4).astype(np.float32), rand(id) * np.float32(scale)
    root = np.sqrt(np.float32((x.astype(np.float64) ** 2).sum()) / np.float32(id) + EPS)
    return x, g, x * (np.float32(1) / root) * g


def check(got, values, row, more=0.0):
    """The product of a matrix and a row in float64, and what is added to it."""
    summed = np.abs(values).astype(np.float64) @ np.abs(row)  # rows may cancel, so the scale is what is summed
    error = np.abs(got - (values.astype(np.float64) @ row + more))
    assert (error <= SUM * (summed + np.abs(more))).all(), f"{(error / summed).max():.2g}"


def q8_of_quads(quads, count):
    """(int8 values, f32 scales) of a row from its quads."""
    runs = count // 32
    chunks = np.ascontiguousarray(quads[:, :1280].reshape(-1, 4, 320)[:, :, :256]).view(np.int8).reshape(-1, 4, 16, 16)
    scales = quads[:, 1280:1536].copy().view(np.float32).reshape(-1, 16, 4)[..., :2] * np.float32([1, 16])
    return chunks.swapaxes(1, 2).reshape(-1, 32)[:runs], scales.reshape(-1)[:runs]


def pairs_kept(od, grid):
    return 2 * -(-od // 2 // grid)


# --- store and add ----------------------------------------------------------------------------------------------------


@BOTH
@EACH
class TestProduct:
    @pytest.fixture
    def matrix(self, type, od, n, grid):
        """Weights on the device, their values, and the kernels' sizes."""
        w, values = weights(NAMES[type], od, 256 * n, RNG)
        return w, values, {"id": 256 * n, "od": od, "type": type}

    def run(self, kernel, grid, sizes, **args):
        out = np.empty(sizes["od"], np.float32)
        launch(f"stream_{kernel}", grid, out=out, outputs=("out",), **sizes, **args)
        return out

    def test_store(self, matrix, grid):
        """One product whatever the activations come from, and bit for bit the same."""
        w, values, sizes = matrix
        x, g, normed = exact_rows(sizes["id"])
        plane = q8_plane(normed)
        out = self.run("plane_store", grid, sizes, w0=w, q8=plane)
        check(out, values, q8_values(plane))
        assert (out == self.run("quant_store", grid, sizes, w0=w, in0=normed)).all()
        assert (out == self.run("norm_store", grid, sizes, w0=w, w1=g, in0=x, eps=EPS)).all()
        assert (out == self.run("quads_store", grid, sizes, w0=w, quads=to_quads(plane))).all()

    def test_a_row_of_any_numbers_is_normed(self, matrix, grid):
        """A sum of squares in another order may move a q8 value by one: 1e-3 of what is summed is room for some."""
        w, values, sizes = matrix
        x, g = rand(sizes["id"]), rand(sizes["id"])
        out = self.run("norm_store", grid, sizes, w0=w, w1=g, in0=x, eps=EPS)
        normed = (x / np.sqrt((x.astype(np.float64) ** 2).mean() + EPS) * g).astype(np.float32)
        row = q8_values(q8_plane(normed))
        assert (np.abs(out - values @ row) <= 1e-3 * (np.abs(values) @ np.abs(row))).all()

    def test_add(self, matrix, od, grid):
        w, values, sizes = matrix
        x, residual, more = rand(sizes["id"]), rand(od), {"w0": w, "kept": pairs_kept(od, grid)}
        plane = q8_plane(x)
        out = self.run("plane_add", grid, sizes, q8=plane, in1=residual, **more)
        check(out, values, q8_values(plane), residual)
        assert (out == self.run("quant_add", grid, sizes, in0=x, in1=residual, **more)).all()
        assert (out == self.run("quads_add", grid, sizes, quads=to_quads(plane), in1=residual, **more)).all()

    @pytest.mark.parametrize("origin", ["plane", "quant", "quads"])
    def test_add_in_place(self, matrix, od, grid, origin):
        w, values, sizes = matrix
        x, residual = rand(sizes["id"]), rand(od)
        plane, out = q8_plane(x), residual.copy()
        name, row = {"plane": ("q8", plane), "quant": ("in0", x), "quads": ("quads", to_quads(plane))}[origin]
        args = {name: row, "w0": w, "in1": out, "out": out, "kept": pairs_kept(od, grid)}
        launch(f"stream_{origin}_add", grid, **args, **sizes)
        check(out, values, q8_values(plane), residual)


def test_a_zero_row_and_a_row_of_one_value_have_their_own_scales():
    """Runs of zeros have d = 0; a scale below f16 is 0 as well, and so is the product."""
    x = np.zeros(1024, np.float32)
    x[40], x[100:128] = 3, 1e-9
    for type, kind in NAMES.items():
        w, values = weights(kind, 6, 1024, RNG)
        out = np.empty(6, np.float32)
        launch("stream_quant_store", 2, w0=w, in0=x, out=out, id=1024, od=6, type=type, outputs=("out",))
        check(out, values, q8_values(q8_plane(x)))
        launch("stream_quant_store", 2, w0=w, in0=x * 0, out=out, id=1024, od=6, type=type, outputs=("out",))
        assert (out == 0).all()


@pytest.mark.parametrize("n", [24, 25, 50])
def test_rows_longer_than_a_thread_holds_are_read_again(n):
    """6144 values stay in registers between the sum of squares and the quantize."""
    x, g, normed = exact_rows(256 * n)
    w, values = weights("Q4_K", 4, 256 * n, RNG)
    outs, sizes = np.empty((2, 4), np.float32), {"id": 256 * n, "od": 4, "type": 4, "outputs": ("out",)}
    launch("stream_norm_store", 1, w0=w, w1=g, in0=x, out=outs[0], eps=EPS, **sizes)
    launch("stream_quant_store", 1, w0=w, in0=normed, out=outs[1], **sizes)
    assert (outs[0] == outs[1]).all()
    check(outs[0], values, q8_values(q8_plane(normed)))


# --- gate, up and SwiGLU ----------------------------------------------------------------------------------------------


def run_glu(origin, type, od, n, grid):
    """(quads, gate and up as the store kernel gives them, gate and up in float64)."""
    x, g, normed = exact_rows(256 * n, 1 / 64)  # products of some units: not too large for f16
    (gate, a), (up, b) = (weights(NAMES[type], od, 256 * n, RNG) for _ in range(2))
    plane, sizes = q8_plane(normed), {"id": 256 * n, "od": od, "type": type}
    args = {"q8": plane} if origin == "plane" else {"w2": g, "in0": x, "eps": EPS}
    quads, products = np.zeros((-(-od // 1024), 1792), np.uint8), np.empty((2, od), np.float32)
    kept = 32 * -(-od // 32 // grid)
    launch(f"stream_{origin}_glu", grid, w0=gate, w1=up, quads=quads, kept=kept, **sizes, **args)
    for matrix, out in zip((gate, up), products, strict=True):
        launch("stream_plane_store", grid, w0=matrix, q8=plane, out=out, **sizes, outputs=("out",))
    return quads, products, [m.astype(np.float64) @ q8_values(plane) for m in (a, b)]


@BOTH
@pytest.mark.parametrize("origin", ["plane", "norm"])
class TestGlu:
    @pytest.mark.parametrize(
        ("od", "n", "grid"),
        [(32, 1, 1), (512, 3, 3), (96, 4, 2), (1504, 2, 5), (64, 1, 5), (288, 14, 5), (1056, 5, 2), (64, 17, 3)],
    )
    def test_its_plane_is_that_of_the_kernels_it_replaces(self, origin, type, od, n, grid):
        """Bit for bit, since a row's sum has one order whatever blocks and warps take it: product, SwiGLU, quantize."""
        quads, (gate, up), _ = run_glu(origin, type, od, n, grid)
        row = np.empty(od, np.float32)
        launch("swiglu_f32", -(-od // 256), in0=gate, in1=up, out=row, n=od, outputs=("out",))
        assert (quads == to_quads(q8_plane(row))).all()

    @pytest.mark.parametrize(("od", "n", "grid"), [(32, 9, 1), (288, 14, 5), (1056, 5, 2), (64, 17, 3)])
    def test_rows_that_warps_share(self, origin, type, od, n, grid):
        """Every value within half a step of q8, and the f16 rounding of the step: 2^-11 of it each."""
        quads, _, (gate, up) = run_glu(origin, type, od, n, grid)
        row = (gate / (1 + np.exp(-gate)) * up).reshape(-1, 32)
        q, d = q8_of_quads(quads, od)
        step = np.abs(row).max(axis=1) / 127
        assert np.abs(d - step).max() <= 1e-3 * step.max()
        assert (np.abs(q - row / step[:, None]) <= 0.51).all()

    def test_its_plane_feeds_the_next_matmul(self, origin, type):
        quads, *_ = run_glu(origin, type, 1280, 3, 3)
        q, d = q8_of_quads(quads, 1280)
        for kind, down in NAMES.items():
            w, values = weights(down, 14, 1280, RNG)
            args = {"quads": quads, "w0": w, "id": 1280, "od": 14, "type": kind, "outputs": ("out",)}
            out, residual = np.empty(14, np.float32), rand(14)
            launch("stream_quads_add", 3, in1=residual, out=out, kept=pairs_kept(14, 3), **args)
            row = (q * d.astype(np.float64)[:, None]).reshape(-1)
            check(out, values, row, residual)
            launch("stream_quads_store", 3, out=out, **args)
            check(out, values, row)


# --- q, k and v -------------------------------------------------------------------------------------------------------

CONTEXT = 6  # rows of a KV region


def shared_out(types, rows, id, grid):
    """What the lowering gives the kernel: (blocks of q, k and v, floats kept)."""
    matrices = [Tensor("w", NAMES[t], (id, r), 0, 0, Path()) for t, r in zip(types, rows, strict=True)]
    shares = share_blocks(matrices, grid)
    assert sum(shares) == grid
    return shares, 4 * most_pairs(matrices, shares)


def test_the_fullest_block_of_q_k_and_v_is_as_little_as_can_be():
    """Against every way to share: 14B's and 7B's sizes, v of either type, and matrices with fewer pairs than blocks."""
    for rows, id, count in (((5120, 1024, 1024), 5120, 132), ((3584, 512, 512), 3584, 132), ((96, 2, 2), 256, 40)):
        for types in ((4, 4, 4), (4, 4, 6)):
            shares, _ = shared_out(types, rows, id, count)
            per = [row_bytes(NAMES[t], id) for t in types]

            def fullest(shares, rows=rows, per=per):
                return max(-(-r // 2 // n) * b for r, n, b in zip(rows, shares, per, strict=True))

            ways = ((a, b, count - a - b) for a in range(1, count - 1) for b in range(1, count - a))
            assert fullest(shares) == min(fullest(way) for way in ways)


def rope(row, position, hd, base, scale):
    a, b = row.reshape(-1, 2, hd // 2).swapaxes(0, 1)
    theta = position * scale / base ** (2 * np.arange(hd // 2) / hd)
    return np.stack([a * np.cos(theta) - b * np.sin(theta), a * np.sin(theta) + b * np.cos(theta)], 1).reshape(-1)


def run_qkv(origin, kv, grid, args, kept, **row):
    """(q, region of k, region of v) of a launch; the regions are full of 77 before it."""
    q, k, v = np.empty(args["nqt"], np.float32), *np.full((2, CONTEXT, args["nkt"]), 77, FLOAT[kv])
    launch(f"stream_{origin}_qkv_{kv}", grid, out=q, k=k, v=v, kept=kept, outputs=("out",), **args, **row)
    return q, k, v


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("types", [(4, 4, 6), (6, 4, 4), (4, 4, 4), (6, 6, 6)])
@pytest.mark.parametrize(
    ("nqt", "nkt", "hd", "n", "grid", "scale"),
    [(128, 64, 32, 2, 4, 1.0), (256, 64, 64, 3, 7, 0.25), (64, 32, 32, 1, 70, 1.0), (48, 16, 8, 9, 3, 1.0)],
)
def test_qkv(kv, types, nqt, nkt, hd, n, grid, scale):
    """q turned; k turned and v as it is in their position's row, no other row touched. Both sources agree in bits."""
    id, rows, position = 256 * n, (nqt, nkt, nkt), int(RNG.integers(0, CONTEXT))
    x, g, normed = exact_rows(id)
    plane, bias = q8_plane(normed), [rand(r) for r in rows]
    w, values = zip(*(weights(NAMES[t], r, id, RNG) for t, r in zip(types, rows, strict=True)), strict=True)
    args = {f"w{i}": array for i, array in enumerate([*w, *bias])} | {"in1": np.int32([position])}
    args |= {"id": id, "nqt": nqt, "nkt": nkt, "hd": hd, "base": 1e4, "scale": scale}
    args |= dict(zip(("type_q", "type_k", "type_v"), types, strict=True))
    shares, kept = shared_out(types, rows, id, grid)
    args |= {"blocks_q": shares[0], "blocks_k": shares[1]}
    q, k, v = run_qkv("plane", kv, grid, args, kept, q8=plane)
    again = run_qkv("norm", kv, grid, args, kept, w6=g, in0=x, eps=EPS)
    assert all((a == b).all() for a, b in zip((q, k, v), again, strict=True))
    want = [m.astype(np.float64) @ q8_values(plane) + b for m, b in zip(values, bias, strict=True)]
    want[:2] = (rope(r, position, hd, 1e4, scale) for r in want[:2])
    for got, expected in zip((q, k[position], v[position]), want, strict=True):
        rounded = 1e-6 if got.dtype == np.float32 else 5e-4
        assert np.abs(got - expected).max() <= rounded * np.abs(expected).max()
    others = np.arange(CONTEXT) != position
    assert (k[others] == 77).all() and (v[others] == 77).all()


# --- shallow rings ----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("ring", [ring for _, ring in STREAM_RINGS[1:]])
@pytest.mark.parametrize(("od", "n", "grid"), [(38, 3, 3), (64, 14, 1), (6, 9, 5)])
def test_shallow_rings_give_the_same_bits(type, ring, od, n, grid):
    """For GPUs with less shared memory: fewer items under way, in less room."""
    module, id = emulate.load(f"#define STREAM_RING {ring}\n" + source("stream.cu")), 256 * n
    (w, _), x, (deep, shallow) = weights(NAMES[type], od, id, RNG), rand(id), np.empty((2, od), np.float32)
    launch("stream_quant_store", grid, w0=w, in0=x, out=deep, id=id, od=od, type=type, outputs=("out",))
    values = [w, x, shallow, *np.int32([id, od, type])]
    module.launch("stream_quant_store", grid, KERNELS["stream_quant_store"].block, values, stream_shared(id, 0, ring))
    assert (deep == shallow).all()


def test_every_stream_kernel_was_launched_at_three_shapes(request):
    """Last in this file: it looks at what the tests above have done."""
    assert too_few(request.config, (k for k in KERNELS.values() if k.family == "stream")) == {}
