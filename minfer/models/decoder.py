"""The pre-norm decoder stack that llama and qwen2 share: RMSNorm, GQA attention with RoPE, gated FFN."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minfer.errors import UserError
from minfer.graph import Builder, Graph


@dataclass(frozen=True)
class HParams:
    """What the graph needs to know beyond tensor shapes. Names as in GGUF metadata, `{arch}.` left out."""

    arch: str
    n_layer: int  # block_count
    n_embd: int  # embedding_length
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int  # leading features of a head that are rotated
    n_ctx_train: int
    rms_eps: float
    rope_base: float
    rope_scale: float  # positions are multiplied by it (linear scaling)
    rope_style: str  # "interleaved": pairs (2j, 2j+1); "neox": pairs (j, j + n_rot/2)


def read_hparams(md: Mapping[str, Any], arch: str, rope_style: str) -> HParams:
    """HParams from metadata. Raises UserError naming the key that is missing or the feature not supported."""

    def need(key: str) -> Any:
        if f"{arch}.{key}" not in md:
            raise UserError(f"metadata key {arch}.{key} is missing; the {arch} graph needs it")
        return md[f"{arch}.{key}"]

    def count(key: str, default: int | None = None) -> int:
        value = need(key) if default is None else md.get(f"{arch}.{key}", default)
        if not isinstance(value, int) or value < 1:
            raise UserError(f"metadata key {arch}.{key} must be one positive integer, the same for every layer")
        return value

    if md.get(f"{arch}.expert_count", 0):
        raise UserError(f"{arch} with {md[f'{arch}.expert_count']} experts is not supported; use a dense model")
    n_embd, n_head = count("embedding_length"), count("attention.head_count")
    head_dim = count("attention.key_length", n_embd // n_head)
    hp = HParams(
        arch=arch,
        n_layer=count("block_count"),
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=count("attention.head_count_kv", n_head),
        head_dim=head_dim,
        n_rot=count("rope.dimension_count", head_dim),
        n_ctx_train=count("context_length"),
        rms_eps=float(need("attention.layer_norm_rms_epsilon")),
        rope_base=float(md.get(f"{arch}.rope.freq_base", 10000.0)),
        rope_scale=_rope_scale(md, arch),
        rope_style=rope_style,
    )
    return _checked(hp)


def _rope_scale(md: Mapping[str, Any], arch: str) -> float:
    kind = md.get(f"{arch}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UserError(f"{arch}.rope.scaling.type {kind!r} is not supported; supported: none, linear")
    factor = float(md.get(f"{arch}.rope.scaling.factor", 1.0)) if kind == "linear" else 1.0
    return 1.0 / (factor or 1.0)


def _checked(hp: HParams) -> HParams:
    if hp.n_rot % 2 or not 0 < hp.n_rot <= hp.head_dim:
        raise UserError(f"rope.dimension_count {hp.n_rot} must be even and at most the head dimension {hp.head_dim}")
    if hp.n_head_kv < 1 or hp.n_head % hp.n_head_kv:
        raise UserError(f"head_count {hp.n_head} must be a multiple of head_count_kv {hp.n_head_kv}")
    return hp


def build(b: Builder, hp: HParams, greedy: bool) -> Graph:
    """One pass over b.nt tokens: logits (1, vocab) of the last, or with `greedy` the id (1, 1) of the largest."""
    x = b.embed_rows("token_embd.weight")
    for i in range(hp.n_layer):
        with b.layer(i):
            x = b.add(x, _attention(b, hp, x, f"blk.{i}"), "attn_residual")
            x = b.add(x, _ffn(b, hp, x, f"blk.{i}"), "ffn_residual")
    if b.nt > 1:
        x = b.last_row(x)
    x = b.rms_norm(x, "output_norm.weight", hp.rms_eps)
    tied = not b.has("output.weight")
    logits = b.linear(x, "token_embd.weight" if tied else "output.weight")
    return b.finish(b.argmax(logits) if greedy else logits)


def _attention(b: Builder, hp: HParams, x: int, blk: str) -> int:
    # llama 3.x ships per-pair frequency divisors instead of a rope.scaling.type
    factors = "rope_freqs.weight" if b.has("rope_freqs.weight") else None
    rope = {
        "style": hp.rope_style, "head_dim": hp.head_dim, "n_rot": hp.n_rot,
        "base": hp.rope_base, "scale": hp.rope_scale,
    }  # fmt: skip
    h = b.rms_norm(x, f"{blk}.attn_norm.weight", hp.rms_eps)
    weights = [f"{blk}.attn_{x}.weight" for x in "qkv"]
    # the three matmuls stand together: they read the same activations, and a backend may quantize those once
    q, k, v = [b.bias(x, w) for x, w in [(b.matmul(h, w), w) for w in weights]]
    q, k = b.rope(q, "q", factors=factors, params=rope), b.rope(k, "k", factors=factors, params=rope)
    k, v = b.kv_store(k, "kv_k"), b.kv_store(v, "kv_v")
    a = b.attention(q, k, v, n_head=hp.n_head, n_head_kv=hp.n_head_kv, head_dim=hp.head_dim)
    return b.linear(a, f"{blk}.attn_output.weight")


def _ffn(b: Builder, hp: HParams, x: int, blk: str) -> int:
    h = b.rms_norm(x, f"{blk}.ffn_norm.weight", hp.rms_eps)
    gate, up = b.linear(h, f"{blk}.ffn_gate.weight"), b.linear(h, f"{blk}.ffn_up.weight")
    return b.linear(b.swiglu(gate, up), f"{blk}.ffn_down.weight")
