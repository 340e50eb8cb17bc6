"""Architectures: GGUF metadata -> HParams -> Graph. Adding one is a file here and a row in ARCHITECTURES."""

from collections.abc import Callable, Mapping
from typing import Any

from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.graph import Builder, Graph
from minfer.models import llama, qwen2
from minfer.models.decoder import HParams, build

# general.architecture -> its hyperparameters from metadata; the layer stack itself is decoder.build
ARCHITECTURES: dict[str, Callable[[Mapping[str, Any]], HParams]] = {
    "llama": llama.hparams,
    "qwen2": qwen2.hparams,
}


def load_hparams(gguf: GGUF) -> HParams:
    """Hyperparameters of a model file. Raises UserError for an architecture, or a variant of one, not supported."""
    arch = gguf.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise UserError(
            f"{gguf.path}: architecture {arch!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[str(arch)](gguf.metadata)


def build_graph(gguf: GGUF, hp: HParams, nt: int, n_ctx: int, greedy: bool = False) -> Graph:
    """The graph of one pass over nt tokens; logits of the last one only, or their argmax.

    Raises UserError when the file holds tensors that the graph leaves unused: results would be silently wrong.
    """
    graph = build(Builder(gguf.tensors, nt, n_ctx), hp, greedy)
    unused = sorted(set(gguf.tensors) - graph.weights_used())
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise UserError(
            f"{gguf.path}: tensor {unused[0]}{more} is not used by the {hp.arch} graph; "
            f"this variant of {hp.arch} is not supported"
        )
    return graph
