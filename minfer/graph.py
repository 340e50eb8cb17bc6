"""Node, Graph, Builder: a pure description of one forward pass, no device.

A graph is a list of nodes in execution order. Shapes are (rows, cols): rows = tokens of the pass (nt), cols =
features. Positions are data (an input), so one graph of nt=1 serves every decode step. `kv_store` gives the persistent
region it wrote; attention reads regions, so the order of stores and reads is data flow like everything else.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from minfer.errors import UserError
from minfer.gguf import Tensor
from minfer.ops import OPS


@dataclass(frozen=True)
class Node:
    id: int
    op: str  # a row of ops.OPS
    name: str  # what it computes: the weight's role (attn_q) or the value's name (q, residual)
    layer: int | None
    inputs: tuple[int, ...]  # node ids
    weights: tuple[str, ...]  # tensor names
    rows: int
    cols: int
    region: str | None = None  # the persistent KV region that this node writes, if any
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        return self.rows * self.cols


@dataclass(frozen=True)
class Graph:
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    output: int  # node id of the logits

    def last_use(self) -> dict[int, int]:
        """Node id -> id of the last node that reads it. The output is used past the end."""
        use = {i: node.id for node in self.nodes for i in node.inputs}
        use[self.output] = len(self.nodes)
        return use

    def readers(self) -> dict[int, list[Node]]:
        """Node id -> the nodes that read it, in order; the output has one more, outside the graph, not listed."""
        found: dict[int, list[Node]] = {node.id: [] for node in self.nodes}
        for node in self.nodes:
            for i in set(node.inputs):
                found[i].append(node)
        return found

    def matrices(self, node: Node) -> list[Tensor]:
        """The node's weights that are matrices, in order; biases and norms are vectors."""
        return [t for t in (self.tensors[w] for w in node.weights) if len(t.shape) > 1]

    def weights_used(self) -> set[str]:
        return {w for node in self.nodes for w in node.weights}


class Builder:
    """Appends nodes; every method returns a node id. `with b.layer(i):` marks the nodes built inside."""

    def __init__(self, tensors: Mapping[str, Tensor], nt: int, n_ctx: int) -> None:
        self.tensors, self.nt, self.n_ctx = tensors, nt, n_ctx
        self.nodes: list[Node] = []
        self._layer: int | None = None
        self.tokens = self._input("tokens")
        self.positions = self._input("positions")

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        self._layer = index
        yield
        self._layer = None

    def has(self, weight: str) -> bool:
        return weight in self.tensors

    def shape(self, weight: str) -> tuple[int, int]:
        """(rows, cols) of a weight; a vector has one row. Raises UserError when the file lacks it."""
        if weight not in self.tensors:
            raise UserError(f"tensor {weight} is missing from the file; the model's graph needs it")
        tensor = self.tensors[weight]
        return tensor.rows, tensor.shape[0]

    def embed_rows(self, table: str) -> int:
        return self._add("embed_rows", role(table), (self.tokens,), (table,), cols=self.shape(table)[1])

    def rms_norm(self, x: int, w: str, eps: float) -> int:
        return self._add("rms_norm", role(w), (x,), (w,), eps=eps)

    def matmul(self, x: int, w: str) -> int:
        """x (nt, id) times the transpose of w (od, id) -> (nt, od)."""
        rows, cols = self.shape(w)
        if cols != self.nodes[x].cols:
            raise UserError(f"tensor {w} has rows of {cols} elements; the graph feeds it {self.nodes[x].cols}")
        return self._add("matmul", role(w), (x,), (w,), cols=rows)

    def bias(self, x: int, w: str) -> int:
        """Add the `.bias` beside weight `w`, where the file has one."""
        bias = w.removesuffix(".weight") + ".bias"
        return self._add("add_bias", role(bias), (x,), (bias,)) if self.has(bias) else x

    def linear(self, x: int, w: str) -> int:
        """A matmul and its bias."""
        return self.bias(self.matmul(x, w), w)

    def rope(self, x: int, name: str, *, factors: str | None, params: Mapping[str, Any]) -> int:
        """Rotate pairs by position: style, head_dim, n_rot, base, scale. factors: a weight of frequency divisors."""
        return self._add("rope", name, (x, self.positions), (factors,) if factors else (), **params)

    def kv_store(self, x: int, name: str) -> int:
        """Append rows to this layer's persistent region; the node's value is the region (n_ctx, cols)."""
        region = f"{name}.{self._layer}"
        return self._add("kv_store", name, (x, self.positions), (), rows=self.n_ctx, region=region)

    def attention(self, q: int, k: int, v: int, **params: Any) -> int:
        """Causal attention of q over regions k and v. params: n_head, n_head_kv, head_dim."""
        cols = params["n_head"] * params["head_dim"]
        return self._add("attention", "attention", (q, k, v, self.positions), (), cols=cols, **params)

    def add(self, a: int, b: int, name: str) -> int:
        return self._add("add", name, (a, b), ())

    def swiglu(self, gate: int, up: int) -> int:
        return self._add("swiglu", "ffn_act", (gate, up), ())

    def last_row(self, x: int) -> int:
        """Only the last token's row: prefill needs no other logits."""
        return self._add("last_row", "last_row", (x,), (), rows=1)

    def argmax(self, logits: int) -> int:
        """The id of the largest logit: a greedy step's result."""
        return self._add("argmax", "next_token", (logits,), (), cols=1)

    def finish(self, output: int) -> Graph:
        return Graph(tuple(self.nodes), self.tensors, output)

    def _input(self, name: str) -> int:
        self.nodes.append(Node(len(self.nodes), "input", name, None, (), (), self.nt, 1))
        return len(self.nodes) - 1

    def _add(
        self, op: str, name: str, inputs: tuple[int, ...], weights: tuple[str, ...],
        *, rows: int | None = None, cols: int | None = None, region: str | None = None, **params: Any,
    ) -> int:
        if op not in OPS:
            raise KeyError(f"op {op} is not in the op table")
        for w in weights:
            self.shape(w)
        first = self.nodes[inputs[0]]
        shape = (first.rows if rows is None else rows, first.cols if cols is None else cols)
        self.nodes.append(Node(len(self.nodes), op, name, self._layer, inputs, weights, *shape, region, params))
        return len(self.nodes) - 1


@dataclass(frozen=True)
class Chain:
    """A rewrite of some nodes: `nodes` stand where the first of `removed` stood.

    New nodes have ids -1, -2, ...; their inputs are such ids or ids of the old graph. `values` says which new node
    stands for which removed one from then on.
    """

    removed: frozenset[int]
    nodes: tuple[Node, ...]
    values: Mapping[int, int]


def splice(graph: Graph, chains: Sequence[Chain]) -> Graph:
    """The graph with every chain put in place of the nodes it removes, renumbered."""
    begins = {min(chain.removed): chain for chain in chains}
    gone = {i for chain in chains for i in chain.removed}
    new: dict[int, int] = {}
    nodes: list[Node] = []

    def put(node: Node, local: Mapping[int, int]) -> int:
        known = {**new, **local}
        nodes.append(replace(node, id=len(nodes), inputs=tuple(known[i] for i in node.inputs)))
        return len(nodes) - 1

    for node in graph.nodes:
        if chain := begins.get(node.id):
            local: dict[int, int] = {}
            for fresh in chain.nodes:
                local[fresh.id] = put(fresh, local)
            new |= {old: local[i] for old, i in chain.values.items()}
        if node.id not in gone:
            new[node.id] = put(node, {})
    return Graph(tuple(nodes), graph.tensors, new[graph.output])


def role(weight: str) -> str:
    """blk.3.attn_q.weight -> attn_q; output.weight -> output; blk.3.attn_q.bias -> attn_q.bias."""
    parts = weight.split(".")
    kept = parts[2:] if parts[0] == "blk" else parts
    return ".".join(kept).removesuffix(".weight")
