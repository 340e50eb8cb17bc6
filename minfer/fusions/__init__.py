"""Fusions, one file each, in the order in which they apply; each is guarded by its switch.

A graph fusion rewrites the graph before memory is planned. A launch fusion changes how nodes become launches, while
the CUDA lowering walks them. `exact` says whether results are bitwise those of the unfused chain, and why.
"""

from collections.abc import Callable
from dataclasses import dataclass

from minfer.fusions import activation_cache, positions, qkv, stream
from minfer.gpu import Gpu
from minfer.graph import Graph
from minfer.options import Options


@dataclass(frozen=True)
class Fusion:
    name: str
    switch: str
    rewrite: Callable[[Graph, Gpu], Graph] | None  # None: a launch fusion
    exact: str


_SUMS = "sums in another order: f32 rounding, and now and then one q8 value"

FUSIONS: tuple[Fusion, ...] = (
    Fusion("stream qkv", stream.QKV, stream.rewrite_qkv, _SUMS),
    Fusion("stream glu", stream.GLU, stream.rewrite_glu, _SUMS),
    Fusion("stream add", stream.ADD, stream.rewrite_add, _SUMS),
    Fusion("stream matmuls", stream.ROOT, stream.rewrite_matmuls, _SUMS),
    Fusion("stream norm", stream.ACTIVATIONS, stream.rewrite_norm, _SUMS),
    Fusion("qkv", qkv.SWITCH, qkv.rewrite, "bitwise: seven kernels' bodies verbatim; matmul rows are independent"),
    Fusion("activation cache", activation_cache.SWITCH, None, "bitwise: producers run the standalone quantize body"),
    Fusion("attention quads", "MINFER_NO_ATTENTION_QUADS", None, "bitwise: the stream kernels' quantize body"),
    Fusion("positions memo", positions.SWITCH, None, "bitwise: the input does not change within a step"),
    Fusion("wide rms", "MINFER_NO_WIDE_RMS", None, "bitwise: lanes 0..31 keep the narrow form's reduction"),
)


def fuse(graph: Graph, options: Options, gpu: Gpu) -> Graph:
    """The graph after every rewrite whose switch is not set, in table order."""
    for fusion in FUSIONS:
        if fusion.rewrite is not None and options.on(fusion.switch):
            graph = fusion.rewrite(graph, gpu)
    return graph
