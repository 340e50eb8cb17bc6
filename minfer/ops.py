"""The op table: every op once, with its arity, in-place rule, flops and the bytes it must move.

One table serves the graph builder, the memory planner, the plan's byte and flop counts, NVTX names and the op tests.
Bytes here are what an op cannot avoid: each activation it reads and writes once in f32, each weight row once, and the
KV rows it touches. Weight bytes are counted by the plan, since they depend on how a backend keeps the weight.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minfer.graph import Graph, Node

F32 = 4  # bytes


@dataclass(frozen=True)
class Cost:
    """What one node moves and computes, weights apart."""

    read: int  # bytes
    written: int  # bytes
    flops: int


@dataclass(frozen=True)
class Kv:
    """The KV cache as a pass sees it."""

    rows: int  # that attention reads, this pass's own included
    bytes: int  # per element


@dataclass(frozen=True)
class Op:
    name: str
    inputs: tuple[str, ...]  # activations, in order
    weights: tuple[str, ...]  # weights, in order; a name ending in "?" is optional
    in_place: int | None  # the input whose buffer the output may take over when this is its last use
    cost: Callable[["Graph", "Node", "Kv"], Cost]
    help: str


def _elements(graph: "Graph", node: "Node") -> int:
    return sum(graph.nodes[i].elements for i in node.inputs)


def _elementwise(flops_per_element: int) -> Callable[["Graph", "Node", "Kv"], Cost]:
    def cost(graph: "Graph", node: "Node", kv: "Kv") -> Cost:
        return Cost(F32 * _elements(graph, node), F32 * node.elements, flops_per_element * node.elements)

    return cost


def _matmul(graph: "Graph", node: "Node", kv: "Kv") -> Cost:
    x = graph.nodes[node.inputs[0]]
    return Cost(F32 * x.elements, F32 * node.elements, 2 * x.elements * node.cols)


def _kv_store(graph: "Graph", node: "Node", kv: "Kv") -> Cost:
    x = graph.nodes[node.inputs[0]]
    return Cost(F32 * _elements(graph, node), kv.bytes * x.elements, 0)


def _attention(graph: "Graph", node: "Node", kv: "Kv") -> Cost:
    q, k, v, positions = (graph.nodes[i] for i in node.inputs)
    read = F32 * (q.elements + positions.elements) + kv.bytes * kv.rows * (k.cols + v.cols)
    # q·k and p·v: two multiply-adds per query element and key
    return Cost(read, F32 * node.elements, 4 * q.elements * kv.rows)


def _one_row(graph: "Graph", node: "Node", kv: "Kv") -> Cost:
    return Cost(F32 * node.elements, F32 * node.elements, 0)


def _qkv_epilogue(graph: "Graph", node: "Node", kv: "Kv") -> Cost:
    """q, k, v and biases read; all three written back in place, k and v stored into the cache as well."""
    elements, stored = node.params["nqt"] + 2 * node.params["nkt"], 2 * node.params["nkt"]
    flops = elements + 3 * (node.params["nqt"] + node.params["nkt"])  # bias everywhere, RoPE on q and k
    return Cost(F32 * (elements + 1), F32 * elements + kv.bytes * stored, flops)


def _stream(graph: "Graph", node: "Node", kv: "Kv") -> Cost:
    """Rows of weights times the first input; a residual read; k and v stored."""
    x, rows = graph.nodes[node.inputs[0]], sum(w.rows for w in graph.matrices(node))
    residual = node.elements if node.op == "stream_add" else 0
    stored = kv.bytes * 2 * node.params["nkt"] if node.op == "stream_qkv" else 0
    return Cost(F32 * (x.elements + residual), F32 * node.elements + stored, 2 * x.elements * rows)


def _none(graph: "Graph", node: "Node", kv: "Kv") -> Cost:
    return Cost(0, 0, 0)


OPS: dict[str, Op] = {
    row.name: row
    for row in (
        Op("input", (), (), None, _none, "data the host writes before a step"),
        Op("embed_rows", ("tokens",), ("table",), None, _elementwise(0), "rows of the embedding table"),
        Op("rms_norm", ("x",), ("w",), None, _elementwise(4), "x / sqrt(mean(x²) + eps) · w"),
        Op("matmul", ("x",), ("w",), None, _matmul, "x · wᵀ"),
        Op("add_bias", ("x",), ("bias",), 0, _elementwise(1), "x + bias, every row"),
        Op("rope", ("x", "positions"), ("factors?",), 0, _elementwise(3), "rotary position embedding"),
        Op("kv_store", ("x", "positions"), (), None, _kv_store, "rows into a persistent KV region"),
        Op("attention", ("q", "k", "v", "positions"), (), None, _attention, "causal grouped-query attention"),
        Op("add", ("a", "b"), (), 0, _elementwise(1), "residual add"),
        Op("swiglu", ("gate", "up"), (), 0, _elementwise(5), "silu(gate) · up"),
        Op("fused_qkv", ("x", "positions"), ("w", "w", "w", "b", "b", "b"), None, _none,
           "one matmul over the rows of q, k and v, then bias, RoPE and store in one epilogue"),
        Op("qkv_epilogue", ("q", "k", "v", "positions"), ("b", "b", "b"), 0, _qkv_epilogue,
           "bias on q, k and v, RoPE on q and k, k and v stored: what seven kernels do, in one"),
        Op("stream_matmul", ("x",), ("w", "norm?"), None, _stream, "x · wᵀ, rows streamed; x may be normed first"),
        Op("stream_add", ("x", "residual"), ("w",), 1, _stream, "x · wᵀ + residual, rows streamed"),
        Op("stream_glu", ("x",), ("w", "w", "norm?"), None, _stream, "silu(x · gateᵀ) · (x · upᵀ), rows streamed"),
        Op("stream_qkv", ("x", "positions"), ("w", "w", "w", "b", "b", "b", "norm?"), None, _stream,
           "q, k and v of any types in one launch, then bias, RoPE and store"),
        Op("kv_load", ("writer",), (), None, _none, "a KV region that an earlier node wrote; no launch"),
        Op("argmax", ("logits",), (), None, _elementwise(0), "id of the largest logit, as int32 bits"),
        Op("last_row", ("x",), (), None, _one_row, "the last token's row"),
    )
}
