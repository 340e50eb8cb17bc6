"""A two-layer llama of a few kilobytes, written with the gguf package: for tests that need no real model."""

from pathlib import Path

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, LAYERS = 64, 4, 2, 96, 48, 2
KV = HIDDEN // HEADS * KV_HEADS
SHAPES = {
    "attn_q": (HIDDEN, HIDDEN), "attn_k": (KV, HIDDEN), "attn_v": (KV, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN),
}  # fmt: skip


def write_llama(path: Path, *, arch="llama", drop=(), extra=None, metadata=None, quant=None, matrices=None) -> Path:
    """`drop` leaves tensors out, `extra` adds them by name and shape, `matrices` quantizes every matrix.

    `quant` stores attn_q as that ggml type, all bytes zero: also for types that the gguf package cannot write.
    """
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, arch)
    keys = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": FFN, "context_length": 128,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
    } | (metadata or {})  # fmt: skip
    for key, value in keys.items():
        writer.add_key_value(f"{arch}.{key}", value, _kind(value))
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    tensors = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        tensors |= {f"blk.{i}.{name}.weight": shape for name, shape in SHAPES.items()}
        tensors |= {f"blk.{i}.{name}.weight": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
    tensors |= extra or {}
    for name, shape in tensors.items():
        if name not in drop:
            data = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
            if matrices and len(shape) > 1:
                kind = gguf.GGMLQuantizationType[matrices]
                writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
            else:
                _add(writer, name, data, quant if "attn_q" in name else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _kind(value):
    by_type = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32, str: gguf.GGUFValueType.STRING}
    return by_type[type(value)]


def _add(writer, name, data, quant):
    if quant is None:
        writer.add_tensor(name, data)
    else:
        kind = gguf.GGMLQuantizationType[quant]
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        raw = np.zeros((data.shape[0], data.shape[1] // elements * nbytes), np.uint8)
        writer.add_tensor(name, raw, raw_dtype=kind)
