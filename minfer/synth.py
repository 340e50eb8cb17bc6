"""`minfer synth PRESET OUT`: GGUF files with a real model's shapes and types and random weights.

Kernels see the bytes and the layout of the real model, and the numbers stay sane: a unit-variance input gives a
unit-variance output in every matrix, residual branches are damped by 1/sqrt(2 layers), logits have a standard
deviation of about 3, so that argmax has a margin. The text such a model writes means nothing.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from minfer.errors import UserError
from minfer.gguf import GGUF, QUANTS, open_gguf
from minfer.gguf_write import NewFile, NewTensor, copy_metadata, write_gguf
from minfer.progress import Progress, silent

CHUNK = 16 << 20  # bytes made at a time
HEADS = 256  # different block scales per tensor; a byte of each block's random bits chooses one
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
LOGIT_STD, BIAS_STD, NORM_STD = 3.0, 0.2, 0.1


def more_bits(layer: int, layers: int) -> bool:
    """Whether llama.cpp's Q4_K_M gives this layer's attn_v and ffn_down Q6_K: both end eighths, each third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def every_other(layer: int, layers: int) -> bool:
    return layer % 2 == 0


@dataclass(frozen=True)
class Preset:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    tied: bool = False
    wide: Callable[[int, int], bool] = more_bits
    rope_base: float = 1e6
    eps: float = 1e-6

    @property
    def kv_size(self) -> int:
        return self.hidden // self.heads * self.kv_heads


# nano-qwen2, tiny-qwen2: q, k, v of two types on even layers and of one on odd ones; nano is for emulated kernels
# the others: config.json of Qwen/Qwen2.5-{0.5B,1.5B,3B,7B,14B,32B}-Instruct
PRESETS: dict[str, Preset] = {
    "nano-qwen2": Preset(2, 256, 4, 2, 256, vocab=256, context=256, wide=every_other),
    "tiny-qwen2": Preset(4, 512, 8, 2, 1536, vocab=49152, context=2048, wide=every_other),
    "qwen2-0.5b": Preset(24, 896, 14, 2, 4864, vocab=151936, context=32768, tied=True),
    "qwen2-1.5b": Preset(28, 1536, 12, 2, 8960, vocab=151936, context=32768, tied=True),
    "qwen2-3b": Preset(36, 2048, 16, 2, 11008, vocab=151936, context=32768, tied=True),
    "qwen2-7b": Preset(28, 3584, 28, 4, 18944, vocab=152064, context=32768),
    "qwen2-14b": Preset(48, 5120, 40, 8, 13824, vocab=152064, context=32768),
    "qwen2-32b": Preset(64, 5120, 40, 8, 27648, vocab=152064, context=32768),
}


def synth(
    name: str,
    dst: Path,
    *,
    seed: int = 0,
    vocab_from: Path | None = None,
    header_only: bool = False,
    progress: Progress | None = None,
    force: bool = False,
) -> None:
    """Write the preset `name` to `dst`; the same seed gives the same bytes.

    `vocab_from` lends its tokenizer, padded with unused tokens to the preset's vocabulary; without one the file says
    it has no vocabulary and runs on token ids only. `header_only` leaves the weights out: enough for `minfer plan`.
    UserError: unknown preset, a vocabulary larger than the preset's, an existing `dst` without `force`.
    """
    if name not in PRESETS:
        raise UserError(f"{name}: no such preset; choose one of: {', '.join(PRESETS)}")
    preset = PRESETS[name]

    def fill(writer: gguf.GGUFWriter) -> None:
        add_hyperparameters(writer, name, preset)
        _add_vocabulary(writer, preset.vocab, vocab_from)

    def data(tensor: NewTensor) -> Iterator[np.ndarray]:
        return weights(tensor, weight_std(tensor, preset), seed)

    new = NewFile("qwen2", fill, tensors_of(preset), None if header_only else data)
    write_gguf(dst, new, progress or silent, force)


def tensors_of(preset: Preset) -> list[NewTensor]:
    """Every tensor in llama.cpp's order, with the types its Q4_K_M gives them."""
    p, out = preset, []
    if not p.tied:
        out.append(NewTensor("output.weight", _fitting("Q6_K", p.hidden), (p.hidden, p.vocab)))
    out.append(NewTensor("output_norm.weight", "F32", (p.hidden,)))
    # a tied embedding is the output matrix too, and gets its type
    embedding = _fitting("Q6_K" if p.tied else "Q4_K", p.hidden)
    out.append(NewTensor("token_embd.weight", embedding, (p.hidden, p.vocab)))
    for layer in range(p.layers):
        out += _layer_tensors(p, layer)
    return out


def _layer_tensors(p: Preset, layer: int) -> list[NewTensor]:
    wide = "Q6_K" if p.wide(layer, p.layers) else "Q4_K"
    rows = [
        ("attn_k.bias", "F32", (p.kv_size,)),
        ("attn_k.weight", "Q4_K", (p.hidden, p.kv_size)),
        ("attn_norm.weight", "F32", (p.hidden,)),
        ("attn_output.weight", "Q4_K", (p.hidden, p.hidden)),
        ("attn_q.bias", "F32", (p.hidden,)),
        ("attn_q.weight", "Q4_K", (p.hidden, p.hidden)),
        ("attn_v.bias", "F32", (p.kv_size,)),
        ("attn_v.weight", wide, (p.hidden, p.kv_size)),
        ("ffn_down.weight", wide, (p.ffn, p.hidden)),
        ("ffn_gate.weight", "Q4_K", (p.hidden, p.ffn)),
        ("ffn_norm.weight", "F32", (p.hidden,)),
        ("ffn_up.weight", "Q4_K", (p.hidden, p.ffn)),
    ]
    return [NewTensor(f"blk.{layer}.{role}", _fitting(kind, shape[0]), shape) for role, kind, shape in rows]


def _fitting(kind: str, row: int) -> str:
    """llama.cpp's fallback for rows that 256-element blocks do not divide."""
    return kind if row % QUANTS[kind].elements == 0 else {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}[kind]


def weight_std(tensor: NewTensor, preset: Preset) -> float:
    """The standard deviation that keeps activations near 1; norms scatter around 1, all else around 0."""
    if len(tensor.shape) == 1:
        return NORM_STD if tensor.name.endswith("norm.weight") else BIAS_STD
    if tensor.name == "output.weight" or (preset.tied and tensor.name == "token_embd.weight"):
        return LOGIT_STD / math.sqrt(preset.hidden)
    if tensor.name == "token_embd.weight":
        return 1.0
    # a tied embedding is so small that damped branches would leave it, and so the last token, the argmax
    damped = not preset.tied and tensor.name.endswith(("attn_output.weight", "ffn_down.weight"))
    return 1.0 / math.sqrt(tensor.shape[0] * (2 * preset.layers if damped else 1))


def weights(tensor: NewTensor, std: float, seed: int) -> Iterator[np.ndarray]:
    """The tensor's bytes in chunks: random bits, with every block's scales set so that the weights have `std`."""
    bits = np.random.SFC64([seed, zlib.crc32(tensor.name.encode())])
    rng = np.random.Generator(bits)
    if tensor.type == "F32":
        mean = 1.0 if tensor.name.endswith("norm.weight") else 0.0
        yield (mean + std * rng.standard_normal(tensor.shape[::-1], np.float32)).astype("<f4")
        return
    size = QUANTS[tensor.type].nbytes
    at, make = SCALES[tensor.type]
    table = make(rng, std)
    for start in range(0, tensor.nbytes, CHUNK // size * size):
        count = min(CHUNK // size, (tensor.nbytes - start) // size)
        raw = bits.random_raw(-(-count * size // 8)).astype("<u8", copy=False).view(np.uint8)
        blocks = raw[: count * size].reshape(count, size)
        chosen = table[blocks[:, at]]
        blocks[:, at : at + table.shape[1]] = chosen
        yield blocks


def _f16(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").view(np.uint8).reshape(len(values), -1)


def _spread(rng: np.random.Generator) -> np.ndarray:
    """Block scales around 1 with a mean square of 1, shape (HEADS, 1)."""
    scale = rng.uniform(0.5, 1.5, (HEADS, 1))
    return np.asarray(scale / np.sqrt(np.mean(scale**2)))


def _q4_k(rng: np.random.Generator, std: float) -> np.ndarray:
    """d, dmin, 8 x 6-bit scales and minimums. w = d*sc*q - dmin*m, q of 0..15: sc = m and dmin = 7.5 d centre it."""
    sc = rng.integers(24, 64, (HEADS, 8), np.uint8)
    d = _spread(rng) * std / (np.sqrt((16**2 - 1) / 12) * np.sqrt(np.mean(sc.astype(float) ** 2)))
    low, high = sc[:, :4], sc[:, 4:]
    # packed: bytes 0-3 sc of blocks 0-3, 4-7 their m, 8-11 low nibbles of blocks 4-7; their top 2 bits in bits 6-7
    first = low | (high >> 4 << 6)
    return np.hstack([_f16(d), _f16(7.5 * d), first, first, (high & 15) | ((high & 15) << 4)])


def _q6_k(rng: np.random.Generator, std: float) -> np.ndarray:
    """16 signed scales and d. w = d*sc*(q - 32), q of 0..63, has a mean of -sc*d/2: random signs cancel it."""
    sc = rng.integers(48, 128, (HEADS, 16)) * rng.choice([-1, 1], (HEADS, 16))
    d = _spread(rng) * std / (np.sqrt(64**2 / 12) * np.sqrt(np.mean(sc.astype(float) ** 2)))
    return np.hstack([sc.astype(np.int8).view(np.uint8), _f16(d)])


def _signed_d(rng: np.random.Generator, std: float, levels: int) -> np.ndarray:
    """d alone, of random sign: w = d*(q - levels/2) has a mean of -d/2."""
    return _f16(_spread(rng) * rng.choice([-1, 1], (HEADS, 1)) * std / np.sqrt(levels**2 / 12))


# type -> where in a block its scales start, and a maker of HEADS of them for a standard deviation
SCALES: dict[str, tuple[int, Callable[[np.random.Generator, float], np.ndarray]]] = {
    "Q4_K": (0, _q4_k),
    "Q6_K": (192, _q6_k),
    "Q5_0": (0, lambda rng, std: _signed_d(rng, std, 32)),
    "Q8_0": (0, lambda rng, std: _signed_d(rng, std, 256)),
}


def add_hyperparameters(writer: gguf.GGUFWriter, name: str, p: Preset) -> None:
    writer.add_name(f"synthetic {name}, random weights")
    writer.add_block_count(p.layers)
    writer.add_context_length(p.context)
    writer.add_embedding_length(p.hidden)
    writer.add_feed_forward_length(p.ffn)
    writer.add_head_count(p.heads)
    writer.add_head_count_kv(p.kv_heads)
    writer.add_rope_freq_base(p.rope_base)
    writer.add_layer_norm_rms_eps(p.eps)
    writer.add_vocab_size(p.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int, vocab_from: Path | None) -> None:
    if vocab_from is None:
        writer.add_tokenizer_model("no_vocab")
        return
    with open_gguf(vocab_from) as model:
        tokens, types = _vocabulary(model)
        if len(tokens) > size:
            raise UserError(f"{vocab_from}: {len(tokens)} tokens do not fit the preset's {size}; use a smaller one")
        copy_metadata(model, writer, "tokenizer.", without={TOKENS, TYPES})
    padding = range(len(tokens), size)
    writer.add_token_list(tokens + [f"[PAD{i}]" for i in padding])
    writer.add_token_types(types + [gguf.TokenType.UNUSED] * len(padding))


def _vocabulary(model: GGUF) -> tuple[list[str], list[int]]:
    try:
        return model.metadata[TOKENS].tolist(), model.metadata[TYPES].tolist()
    except KeyError as error:
        raise UserError(f"{model.path}: has no {error}; take the vocabulary from a model that has one") from None
