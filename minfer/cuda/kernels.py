"""The CUDA kernels as a table: where each is, what it takes, what launch it needs; and their source as one string.

Plain data and text: nothing here needs a GPU, CuPy or NVRTC. CuPy hashes only the string it is given, not the files it
includes, so `source` pastes our own includes in place.

A kernel's `args` are its parameters in order:
  in0 in1 ..  inputs          w0 w1 ..  weights           out   output          k v      KV regions
  q8          q8 plane        pos       int32 positions   partial  attention scratch      aux  counters, scratch
  tokens      input           positions input             ring     chosen tokens, in the host's memory
  quads       activation plane in the form of the stream kernels
  i:NAME      int32           f:NAME    float32
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minfer.gguf import QUANTS, SUPPORTED
from minfer.gpu import Gpu

FOLDER = Path(__file__).with_name("kernels")
OPTIONS = ("--std=c++17",)  # no fast math: a kernel's bits are what its source says

# type -> bytes of one block on the device: as stored, padded at the end to a multiple of 4. Q6_K: see row_bytes
PADDED: dict[str, int] = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "Q4_0": 20,
    "Q4_1": 20,
    "Q5_0": 24,
    "Q5_1": 24,
    "Q8_0": 36,
    "Q4_K": 144,
    "Q5_K": 176,
}
Q8_FORM = ("Q8_0", "Q4_K", "Q5_K", "Q6_K")  # types with a matmul on q8 activations
KV_TYPES = ("f32", "f16")

# family (a kernel's name without its types) -> threads of a block
BLOCK: dict[str, int] = {
    "add": 256,
    "add_bias": 256,
    "argmax": 256,
    "attention_combine": 256,
    "attention_one": 512,
    "attention_quads": 512,
    "attention_split": 256,
    "attn_bias_rope_store": 256,
    "dequant": 256,
    "embed_rows": 256,
    "f32_bits_to_i32": 256,
    "f32_to_f16": 256,
    "kv_store": 256,
    "last_row": 256,
    "matmul": 256,
    "mmvq": 256,
    "next_token": 256,
    "quantize_pad40": 64,
    "rms_norm": 128,  # 32 gives the same bits
    "rope": 256,
    "softmax_causal": 256,
    "stream": 512,
    "swiglu": 256,
}
# family -> rows of the weight that one block computes
ROWS_PER_BLOCK: dict[str, int] = {"matmul": 8, "mmvq": 1}
UNIT = 8  # weights that a thread of embed_rows or dequant writes
MAX_HEAD_DIM = 256
RING = 16  # entries of next_token's ring: more than the steps that a host lets run ahead of it
RING_ENTRY = 8  # bytes


@dataclass(frozen=True)
class Kernel:
    name: str
    file: str
    args: str
    grid: str  # blocks in x, and in y after a comma; a / b rounds up
    family: str
    dependent: bool = False  # calls wait_for_previous, so it may be launched while its predecessor runs

    @property
    def block(self) -> int:
        return BLOCK[self.family]


def _rows() -> list[Kernel]:
    every, on_q8 = [t.lower() for t in SUPPORTED], [t.lower() for t in Q8_FORM]
    kv, styles = KV_TYPES, ("neox", "interleaved")
    rope = "i:cols i:head_dim i:n_rot f:base f:scale"
    flat, by_token = "n / 256", "cols / 256, nt"
    return [
        # Weights: id is a multiple of the type's block, and of 8 for F32, F16 and BF16; tables are 16-byte aligned.
        # ids are not checked: they must be inside the table. dequant: rows · id / 8 < 2^32.
        *_each("embed_rows_{t}", every, "rows.cu", "w0 in0 out i:id", "id / 8 / 256, nt"),
        *_each("dequant_{t}_f16", every, "rows.cu", "w0 out i:id i:rows", "rows · id / 8 / 256"),
        *_each("dequant_{t}_f32", every, "rows.cu", "w0 out i:id i:rows", "rows · id / 8 / 256"),
        *_each("matmul_{t}_f32", every, "matmul.cu", "w0 in0 out i:id i:od", "od / 8"),
        *_each("matmul_{t}_f32_batch", every, "matmul.cu", "w0 in0 out i:id i:od i:nt", "od / 8"),  # nt <= 16
        *_each("mmvq_{t}", on_q8, "mmvq.cu", "w0 q8 out i:id i:od", "od"),  # one token
        *_stream_rows(),
        # d is a multiple of 4; of 32 with the q8 plane. Blocks of 32 or 128 threads.
        Kernel("rms_norm_f32", "norm.cu", "in0 w0 out i:d f:eps", "nt", "rms_norm"),
        Kernel("rms_norm_quant_pad40", "norm.cu", "in0 w0 out q8 i:d f:eps", "nt", "rms_norm"),
        # x and out 16-byte aligned; n is a multiple of 32 with the q8 plane
        Kernel("quantize_pad40", "elementwise.cu", "in0 q8 i:blocks", "blocks / 64", "quantize_pad40"),
        Kernel("swiglu_f32", "elementwise.cu", "in0 in1 out i:n", flat, "swiglu"),
        Kernel("swiglu_quant_pad40", "elementwise.cu", "in0 in1 out q8 i:n", flat, "swiglu"),
        Kernel("add_f32", "elementwise.cu", "in0 in1 out i:n", flat, "add"),
        Kernel("add_bias_f32", "elementwise.cu", "in0 w0 out i:cols i:n", flat, "add_bias"),
        Kernel("last_row_f32", "elementwise.cu", "in0 out i:rows i:cols", "cols / 256", "last_row"),
        Kernel("f32_bits_to_i32", "elementwise.cu", "in0 pos i:n", flat, "f32_bits_to_i32"),
        Kernel("f32_to_f16", "elementwise.cu", "in0 out i:n", flat, "f32_to_f16"),
        # n_rot even; out is in0 itself or another buffer, never a shifted one
        *_each("rope_{t}_f32", styles, "rope.cu", f"in0 out pos {rope}", "cols / head_dim · n_rot / 2 / 256, nt"),
        *_each("rope_{t}_f32_factors", styles, "rope.cu", f"in0 out pos w0 {rope}", "as without factors"),
        *_each("kv_store_{t}", kv, "rope.cu", "in0 out pos i:cols", by_token),  # out: the region, n_ctx rows
        # one token, NEOX over the whole head, hd even; in0, in1, in2: sections q, k, v, changed in place
        *_each(
            "attn_bias_rope_store_{t}", kv, "rope.cu",
            "in0 in1 in2 w0 w1 w2 k v pos i:nqt i:nkt i:hd f:base f:scale", "(nqt / 2 + nkt / 2 + nkt) / 256",
        ),
        # one token; head_dim a multiple of 8, at most MAX_HEAD_DIM; partial: partial_floats(..) floats
        *_each(
            "attention_split_{t}", kv, "attention.cu",
            "in0 in1 in2 pos partial i:n_head i:n_head_kv i:head_dim i:splits", "n_head_kv, splits",
        ),
        Kernel(
            "attention_combine_f32", "attention.cu",
            "partial out i:n_head i:head_dim i:splits", "n_head", "attention_combine",
        ),
        # the same in one launch. in3: position; partial 16-byte aligned; counters: attention_counter_bytes(..), zero
        # before its first use
        *_each(
            "attention_one_{t}", kv, "attention_one.cu",
            "in0 in1 in2 in3 partial counters out i:n_head i:n_head_kv i:head_dim i:splits", "n_head_kv, splits",
            dependent=True,
        ),
        # and quantized for the stream kernel behind: head_dim a multiple of 32
        Kernel(
            "attention_quads_f16", "attention_one.cu",
            "in0 in1 in2 in3 partial counters quads i:n_head i:n_head_kv i:head_dim i:splits", "n_head_kv, splits",
            "attention_quads", True,
        ),
        # in0: scores (heads · nt, n_kv) in f32; out may not be in0 for f16
        *_each("softmax_causal_{t}", kv, "softmax.cu", "in0 pos out i:nt i:n_kv", "heads · nt"),
        # any grid of at most 1024 blocks; aux: argmax_aux_bytes(blocks), zero before its first use
        Kernel("argmax_f32", "argmax.cu", "in0 out aux i:n", "any", "argmax"),
        # ring: 8 · entries bytes, zero before its first use; entries is a power of two
        Kernel(
            "next_token", "argmax.cu", "in0 out tokens positions ring aux i:n i:entries", "any", "next_token", True
        ),
    ]  # fmt: skip


def _each(
    name: str, types: tuple[str, ...] | list[str], file: str, args: str, grid: str, dependent: bool = False
) -> list[Kernel]:
    """A row for each type; the family is the name without it."""
    return [Kernel(name.format(t=t), file, args, grid, name.partition("_{t}")[0], dependent) for t in types]


# source of activations -> its words: weights behind the matrices, inputs, scalars (stream.cu)
_STREAM_SOURCES = {"plane": ("", "q8", ""), "quant": ("", "in0", ""), "quads": ("", "quads", ""),
                   "norm": ("norm", "in0", " f:eps")}  # fmt: skip


def _stream_rows() -> list[Kernel]:
    """Type Q4_K is 4, Q6_K is 6; id a multiple of 256, od even; any grid, of a qkv three blocks at least; dynamic
    shared memory: stream_shared(..)."""
    sizes = "i:id i:od i:type"
    heads = "i:id i:nqt i:nkt i:hd i:type_q i:type_k i:type_v i:blocks_q i:blocks_k f:base f:scale"
    qkv = ("w0 w1 w2 w3 w4 w5", "in1 out k v", heads)
    epilogues = {  # -> matrices and biases, what it reads and writes, scalars; and its sources
        "store": ("w0", "out", sizes, ("plane", "norm", "quant", "quads")),
        "add": ("w0", "in1 out", sizes, ("plane", "quant", "quads")),
        "glu": ("w0 w1", "quads", sizes, ("plane", "norm")),
        "qkv_f32": (*qkv, ("plane", "norm")),
        "qkv_f16": (*qkv, ("plane", "norm")),
    }
    rows = []
    for epilogue, (weights, through, scalars, sources) in epilogues.items():
        for source in sources:
            norm, activations, more = _STREAM_SOURCES[source]
            norm = f" w{len(weights.split())}" if norm else ""
            args = f"{weights}{norm} {activations} {through} {scalars}{more}"
            rows.append(Kernel(f"stream_{source}_{epilogue}", "stream.cu", args, "any", "stream", dependent=True))
    return rows


KERNELS: dict[str, Kernel] = {k.name: k for k in _rows()}


def row_bytes(kind: str, id: int) -> int:
    """Bytes of a row of `id` weights on the device; a matrix is its rows one after another.

    Q6_K: four planes of the row (quants.cuh), of 128, 64, 16 and 2 bytes a superblock, padded to a multiple of 16.
    """
    blocks = id // QUANTS[kind].elements
    if kind == "Q6_K":
        return 208 * blocks + -(-2 * blocks // 16) * 16
    return blocks * PADDED[kind]


_QUAD, _QUAD_BYTES, _STREAM_WARPS = 1024, 1792, 16  # weights and bytes of a plane's quad; warps of a block
_STREAM_ROOM = 512  # items of which a block keeps the two sums
# least bytes of shared memory that a block may have -> bytes of a warp's ring in stream.cuh; the first is its default
STREAM_RINGS = ((200 << 10, 9216), (160 << 10, 6912), (0, 3456))


def plane_quads(id: int) -> int:
    """Bytes of a row's activation plane in the form of the stream kernels."""
    return -(-id // _QUAD) * _QUAD_BYTES


def stream_ring(shared: int) -> int:
    """Bytes of a warp's ring in stream.cuh, on a GPU that gives a block so many bytes of shared memory."""
    return next(ring for least, ring in STREAM_RINGS if shared >= least)


def stream_shared(id: int, kept: int, ring: int) -> int:
    """Bytes of dynamic shared memory of a stream kernel: plane, rings, items' sums, floats that its epilogue keeps."""
    return plane_quads(id) + _STREAM_WARPS * ring + 8 * _STREAM_ROOM + 4 * kept


def compile_options(gpu: Gpu) -> tuple[str, ...]:
    """NVRTC's options for that GPU."""
    ring = stream_ring(gpu.shared)
    return OPTIONS + (() if ring == STREAM_RINGS[0][1] else (f"-DSTREAM_RING={ring}",))


def partial_floats(n_head: int, head_dim: int, splits: int) -> int:
    """Size of attention's scratch. Per (head, split): head_dim weighted sums, the largest score, the sum of weights."""
    return n_head * splits * (head_dim + 2)


def attention_counter_bytes(n_head_kv: int) -> int:
    """Size of attention_one's counters: one of finished blocks per KV head."""
    return 4 * n_head_kv


def argmax_aux_bytes(blocks: int) -> int:
    """Size of argmax's scratch: a counter of blocks, one of tokens, and (value, index) per block of its grid."""
    return 8 + 8 * blocks


@cache
def source(file: str) -> str:
    """The text of a kernel file with our own includes pasted in place, each once."""
    return _paste(file, set())


def _paste(file: str, done: set[str]) -> str:
    if file in done:
        return ""
    done.add(file)
    text = (FOLDER / file).read_text()
    return re.sub(r'^#include "(.+)"\n', lambda m: _paste(m[1], done), text, flags=re.MULTILINE)
