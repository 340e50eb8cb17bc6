"""The CUDA kernels run on the CPU: arguments by the names of the kernel table, weights as they lie on the device."""

from collections import defaultdict
from collections.abc import Iterable

import gguf
import numpy as np
import pytest

from minfer.cuda.kernels import FOLDER, KERNELS, Kernel, row_bytes, stream_ring, stream_shared
from minfer.cuda.weights import pack
from minfer.emulated import emulate
from minfer.gguf import QUANTS
from minfer.gpu import H200

SCALE_FIELDS = {  # type -> offsets of the f16 fields of a block, the rest being valid whatever its bits are
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,),
}  # fmt: skip


LAUNCHED: dict[str, set[tuple]] = defaultdict(set)  # kernel -> its launches by `launch`: grid, sizes, has_tail


def launch(
    name: str, grid: int | tuple[int, ...], *, outputs: tuple[str, ...] = (), block: int = 0, kept: int = 0, **args
) -> None:
    """Run a kernel in place. `outputs` name the arrays of which every element must be written.

    `kept`: floats that a stream kernel's epilogue keeps. It is given no more shared memory than it needs.
    """
    kernel = KERNELS[name]
    tokens = kernel.args.split()
    names = [token.partition(":")[2] or token for token in tokens]
    scalar = {"i": np.int32, "f": np.float32}
    values = [scalar[t[0]](args[n]) if ":" in t else args[n] for t, n in zip(tokens, names, strict=True)]
    assert set(names) == set(args), f"{name} takes {names}"
    module = emulate.load(FOLDER / kernel.file)
    shared = stream_shared(args["id"], kept, stream_ring(H200.shared)) if kernel.family == "stream" else 0
    module.launch(name, grid, block or kernel.block, values, shared, [names.index(o) for o in outputs])
    sizes = {n: int(args[n]) for t, n in zip(tokens, names, strict=True) if t.startswith("i:")}
    LAUNCHED[name].add((grid, *sizes.values(), has_tail(kernel, sizes)))


def too_few(config, kernels: Iterable[Kernel]) -> dict[str, int]:
    """Those not launched at three shapes, one of them no multiple of the block; skips where not all tests have run."""
    if config.getoption("keyword") or config.getoption("lf", False) or any("::" in arg for arg in config.args):
        pytest.skip("only a part of this file runs")
    shapes = {k.name: LAUNCHED[k.name] for k in kernels}
    return {name: len(rows) for name, rows in shapes.items() if len(rows) < 3 or not any(tail for *_, tail in rows)}


def has_tail(kernel: Kernel, sizes: dict[str, int]) -> bool:
    """Whether the last block has threads without work, by the grid of the table; True where a block is a whole row."""
    work, _, per = kernel.grid.partition(",")[0].rpartition(" / ")
    return not per.isdigit() or eval(work.replace("·", "*"), {}, sizes) % int(per) != 0


def weights(kind: str, rows: int, id: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A random matrix: (bytes as on the device, its values as gguf dequantizes them, f32)."""
    quant = QUANTS[kind]
    if kind in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, id)).astype(np.float32)
        stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).reshape(rows, -1).view(np.uint8)
    else:
        blocks = rng.integers(0, 256, (rows * id // quant.elements, quant.nbytes), dtype=np.uint8)
        for at in SCALE_FIELDS[kind]:
            scales = (rng.standard_normal(len(blocks)) * 0.02).astype(np.float16)
            blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
        stored = blocks.reshape(rows, -1)
    values = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind]).reshape(rows, id).astype(np.float32)
    return packed(stored, kind, id), values


def packed(stored: np.ndarray, kind: str, id: int) -> np.ndarray:
    """Stored rows (rows, bytes) in their form on the device."""
    out = np.full(len(stored) * row_bytes(kind, id), 0xA5, np.uint8)
    pack(stored, out, kind, id)
    return out


def blocks(n: int, per: int) -> int:
    return -(-n // per)


def q8_plane(x):
    """Reference of the 40-byte blocks: f16 d | 2 zero bytes | 32 int8 | i32 sum."""
    x = x.reshape(-1, 32)
    d = np.abs(x).max(axis=1) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    q = np.clip(np.rint(x * inverse[:, None]), -128, 127).astype(np.int8)
    plane = np.zeros((len(x), 40), np.uint8)
    plane[:, :2] = d.astype(np.float16)[:, None].view(np.uint8)
    plane[:, 4:36] = q.view(np.uint8)
    plane[:, 36:] = q.sum(axis=1, dtype=np.int32)[:, None].view(np.uint8)
    return plane


def to_quads(plane):
    """The quads (plane.cuh) of a row whose q8 plane this is; what no kernel writes or reads is zero."""
    d = np.zeros((-(-len(plane) // 32) * 32), np.float32)
    q = np.zeros((len(d), 32), np.int8)
    d[: len(plane)], q[: len(plane)] = plane[:, :2].copy().view(np.float16)[:, 0], plane[:, 4:36].view(np.int8)
    d, chunks = d.reshape(-1, 16, 2), q.reshape(-1, 16, 4, 16)  # quad, lane, chunk
    sums = chunks.sum(axis=3, dtype=np.int32).astype(np.float32) * d.repeat(2, axis=2)
    quads = np.zeros((len(d), 1792), np.uint8)
    quads[:, :1280].reshape(-1, 4, 320)[:, :, :256] = chunks.swapaxes(1, 2).reshape(-1, 4, 256).view(np.uint8)
    scales = np.stack([d[..., 0], d[..., 1] / 16, sums[..., 0] + sums[..., 1], sums[..., 2] + sums[..., 3]], axis=2)
    quads[:, 1280:1536] = scales.reshape(-1, 64).view(np.uint8)
    quads[:, 1536:] = sums.reshape(-1, 64).view(np.uint8)
    return quads


def q8_values(plane):
    d = plane[:, :2].copy().view(np.float16).astype(np.float64)
    return (d * plane[:, 4:36].view(np.int8)).reshape(-1)
