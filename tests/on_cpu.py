"""The CUDA kernels run on the CPU: arguments by the names of the kernel table, weights as they lie on the device."""

import gguf
import numpy as np

from minfer.cuda.kernels import FOLDER, KERNELS, PADDED
from minfer.emulated import emulate
from minfer.gguf import QUANTS

SCALE_FIELDS = {  # type -> offsets of the f16 fields of a block, the rest being valid whatever its bits are
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,),
}  # fmt: skip


def launch(name: str, grid: int | tuple[int, ...], *, outputs: tuple[str, ...] = (), block: int = 0, **args) -> None:
    """Run a kernel in place. `outputs` name the arrays of which every element must be written."""
    kernel = KERNELS[name]
    tokens = kernel.args.split()
    names = [token.partition(":")[2] or token for token in tokens]
    scalar = {"i": np.int32, "f": np.float32}
    values = [scalar[t[0]](args[n]) if ":" in t else args[n] for t, n in zip(tokens, names, strict=True)]
    assert set(names) == set(args), f"{name} takes {names}"
    module = emulate.load(FOLDER / kernel.file)
    module.launch(name, grid, block or kernel.block, values, outputs=[names.index(o) for o in outputs])


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
    return padded(stored, kind), values


def padded(stored: np.ndarray, kind: str) -> np.ndarray:
    """Every block with zeros behind it, up to its size on the device."""
    blocks = stored.reshape(-1, QUANTS[kind].nbytes)
    return np.pad(blocks, ((0, 0), (0, PADDED[kind] - QUANTS[kind].nbytes))).reshape(-1)


def blocks(n: int, per: int) -> int:
    return -(-n // per)
