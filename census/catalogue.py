"""Shape tables of models that people run as GGUF, made of published configurations by llama.cpp's type rules.

catalogue.csv holds one configuration a row, from the config.json of `source` on the Hugging Face hub (2026-11-29);
which type each tensor gets is what llama.cpp's quantizer does for the mix (src/llama-quant.cpp at 007dbbf3, without an
importance matrix; Phi-3's joint attn_qkv goes by attn_v's rule there, older files have it in Q5_K). No weights.

    python -m census.catalogue > minfer/cuda/crossover_shapes.csv     # what `minfer crossover` measures
    catalogue:GLOB[:MIX]     e.g. catalogue:qwen2.5-7b, catalogue:gemma*:Q5_K_M, catalogue:*:*; Q4_K_M by default
"""

import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from census.errors import CensusError
from census.shapes import Model, matmuls
from minfer.cuda import dispatch
from minfer.gguf import QUANTS, Tensor

FILE = Path(__file__).with_name("catalogue.csv")
DEFAULT_MIX = "Q4_K_M"


@dataclass(frozen=True)
class Config:
    """A published configuration; `rope` is the length of the file's rope_freqs.weight, 0 without one."""

    name: str
    arch: str
    source: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: int
    rope: int

    @property
    def sizes(self) -> Mapping[str, int]:
        """What the names in the tables of tensors stand for."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {"hidden": self.hidden, "ffn": self.ffn, "2·ffn": 2 * self.ffn, "head": self.head_dim, "q": q, "kv": kv,
                "q+2·kv": q + 2 * kv}

    @property
    def class_70b(self) -> bool:
        """What llama.cpp calls the 70B model: its small attn_v is worth more bits."""
        return self.layers == 80 and self.arch in ("llama", "qwen2") and self.heads != self.kv_heads


# role -> names of its sizes, row length first
Roles = Mapping[str, tuple[str, ...]]
_NORMS: Roles = {"attn_norm.weight": ("hidden",), "ffn_norm.weight": ("hidden",)}
_DOWN: Roles = {"attn_output.weight": ("q", "hidden"), "ffn_down.weight": ("ffn", "hidden")}
_LLAMA: Roles = {
    **_NORMS, **_DOWN,
    "attn_q.weight": ("hidden", "q"), "attn_k.weight": ("hidden", "kv"), "attn_v.weight": ("hidden", "kv"),
    "ffn_gate.weight": ("hidden", "ffn"), "ffn_up.weight": ("hidden", "ffn"),
}  # fmt: skip
_BIAS: Roles = {"attn_q.bias": ("q",), "attn_k.bias": ("kv",), "attn_v.bias": ("kv",)}
_QK_NORM: Roles = {"attn_q_norm.weight": ("head",), "attn_k_norm.weight": ("head",)}
_POST: Roles = {"post_attention_norm.weight": ("hidden",), "post_ffw_norm.weight": ("hidden",)}
LAYER: Mapping[str, Roles] = {
    "llama": _LLAMA,
    "gemma": _LLAMA,
    "qwen2": {**_LLAMA, **_BIAS},
    "qwen3": {**_LLAMA, **_QK_NORM},
    "gemma2": {**_LLAMA, **_POST},
    "gemma3": {**_LLAMA, **_POST, **_QK_NORM},
    "phi3": {**_NORMS, **_DOWN, "attn_qkv.weight": ("hidden", "q+2·kv"), "ffn_up.weight": ("hidden", "2·ffn")},
}


@dataclass(frozen=True)
class At:
    """Where in a model a tensor is: rules for types look at nothing else."""

    layer: int
    layers: int
    gqa: int  # query heads per KV head


Rule = tuple[Callable[[At], bool], str]  # where it holds, the type is this; first match wins


def _more_bits(at: At) -> bool:
    """Both end eighths, and each third layer between."""
    eighth = at.layers // 8
    return at.layer < eighth or at.layer >= 7 * at.layers // 8 or (at.layer - eighth) % 3 == 2


def _always(at: At) -> bool:
    return True


def _grouped(at: At) -> bool:
    return at.gqa >= 4


def _first(layers: int) -> Callable[[At], bool]:
    return lambda at: at.layer < layers


def _first_part(parts: int) -> Callable[[At], bool]:
    return lambda at: at.layer < at.layers // parts


@dataclass(frozen=True)
class Mix:
    """A quantizer's setting: the type of most matrices, and those of roles that are sensitive."""

    type: str
    attn_v: tuple[Rule, ...] = ()
    ffn_down: tuple[Rule, ...] = ()
    attn_output: tuple[Rule, ...] = ()


_WIDE: tuple[Rule, ...] = ((_more_bits, "Q6_K"),)
MIXES: Mapping[str, Mix] = {
    "Q2_K": Mix("Q2_K", ((_grouped, "Q4_K"), (_always, "Q3_K")), ((_always, "Q3_K"),), ((_always, "Q3_K"),)),
    "Q3_K_M": Mix("Q3_K", ((_first(2), "Q5_K"), (_always, "Q4_K")), ((_first_part(16), "Q5_K"), (_always, "Q4_K")),
                  ((_always, "Q4_K"),)),
    "IQ4_XS": Mix("IQ4_XS", ((_grouped, "Q5_K"),), ((_first_part(8), "Q5_K"),)),
    "Q4_0": Mix("Q4_0"),
    "Q4_K_S": Mix("Q4_K", ((_first(4), "Q5_K"),), ((_first_part(8), "Q5_K"),)),
    "Q4_K_M": Mix("Q4_K", _WIDE, _WIDE),
    "Q5_K_S": Mix("Q5_K"),
    "Q5_K_M": Mix("Q5_K", _WIDE, _WIDE),
    "Q6_K": Mix("Q6_K"),
    "Q8_0": Mix("Q8_0"),
    "F16": Mix("F16"),
    "BF16": Mix("BF16"),
}  # fmt: skip
# a type whose blocks do not divide the row -> the type that the quantizer takes instead
FALLBACK: Mapping[str, str] = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
                               "Q6_K": "Q8_0"}


@cache
def configs() -> dict[str, Config]:
    """Every configuration by name."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    texts = ("name", "arch", "source")
    made = [Config(r["name"], r["arch"], r["source"], **{k: int(v) for k, v in r.items() if k not in texts})
            for r in rows]
    return {c.name: c for c in made}


def models(spec: str) -> list[Model]:
    """The models of a `catalogue:` argument. Raises CensusError when it names none."""
    _, _, wanted = spec.partition(":")
    name, _, mix = wanted.partition(":")
    mixes = [m for m in MIXES if fnmatchcase(m, (mix or DEFAULT_MIX).upper())]
    found = [c for c in configs().values() if fnmatchcase(c.name, name.lower() or "*")]
    if not found:
        raise CensusError(f"{spec}: the catalogue has no such model (known: {', '.join(configs())})")
    if not mixes:
        raise CensusError(f"{spec}: the catalogue has no such mix (known: {', '.join(MIXES)})")
    return [Model(f"{c.name} {m}", tuple(tensors(c, m))) for c in found for m in mixes]


def tensors(config: Config, mix: str) -> Iterator[Tensor]:
    """Every tensor of the model in the order of a quantized file: by layer, then by name."""
    chosen, sizes = MIXES[mix], config.sizes
    # the same tensor as the output where they are tied, and then of its type
    embedding = _output_type(config, chosen) if config.tied else chosen.type
    if not config.tied:
        yield _tensor("output.weight", _output_type(config, chosen), (config.hidden, config.vocab))
    yield _tensor("output_norm.weight", "F32", (config.hidden,))
    if config.rope:
        yield _tensor("rope_freqs.weight", "F32", (config.rope,))
    yield _tensor("token_embd.weight", embedding, (config.hidden, config.vocab))
    for layer in range(config.layers):
        for role, names in sorted(LAYER[config.arch].items()):
            type = "F32" if len(names) == 1 else _type(config, chosen, role, layer)
            yield _tensor(f"blk.{layer}.{role}", type, tuple(sizes[n] for n in names))


def _output_type(config: Config, mix: Mix) -> str:
    if mix.type in ("F16", "BF16", "Q8_0"):
        return mix.type
    return "Q8_0" if config.hidden % QUANTS[mix.type].elements else "Q6_K"


def _type(config: Config, mix: Mix, role: str, layer: int) -> str:
    rules = {"attn_v.weight": mix.attn_v, "attn_qkv.weight": mix.attn_v, "ffn_down.weight": mix.ffn_down,
             "attn_output.weight": mix.attn_output}  # fmt: skip
    at = At(layer, config.layers, config.heads // config.kv_heads)
    type = next((t for holds, t in rules.get(role, ()) if holds(at)), mix.type)
    return "Q5_K" if role == "attn_v.weight" and config.class_70b and type in ("Q3_K", "Q4_K") else type


def _tensor(name: str, type: str, shape: tuple[int, ...]) -> Tensor:
    while shape[0] % QUANTS[type].elements:
        type = FALLBACK[type]
    quant = QUANTS[type]
    return Tensor(name, type, shape, 0, math.prod(shape) // quant.elements * quant.nbytes, FILE)


def measured_csv() -> str:
    """Every (type, od, id) that a decode step of a catalogued model multiplies by, of the types with a size gate."""
    gated = {g.type for g in dispatch.GATES if g.type is not None}
    found = {key for model in models("catalogue:*:*") for key in matmuls(model) if key[0] in gated}
    return "type,od,id\n" + "".join(f"{type},{od},{id}\n" for type, od, id in sorted(found))


if __name__ == "__main__":
    sys.stdout.write(measured_csv())
