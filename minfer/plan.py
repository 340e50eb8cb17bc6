"""Graph + backend -> Plan: the ordered launches of one pass, as plain data.

The plan is the predicted census: it needs the GGUF header only. Eager execution walks `launches`; a recorded run is
reconciled with them launch by launch. Positions and n_kv are data: they change byte counts, never the list.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from minfer.graph import Graph, Node
from minfer.memory import Memory, plan_memory
from minfer.ops import OPS


@dataclass(frozen=True)
class Ref:
    """Where a value lives: slot N of the scratch, a KV region, or a host-written input. Shape (rows, cols)."""

    kind: str  # "slot" | "region" | "input"
    key: int | str
    rows: int
    cols: int


@dataclass(frozen=True)
class Args:
    inputs: tuple[Ref, ...]
    weights: tuple[str, ...]
    out: Ref
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    kernel: str
    op: str
    name: str
    layer: int | None
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    weight_type: str | None  # as stored in the file
    weight_bytes: int  # weight rows this launch needs, as stored in the file
    bytes_read: int  # all it reads, in the form the backend keeps it
    bytes_written: int
    flops: int
    args: Args


class Lowering(Protocol):
    """What the planner asks of a backend."""

    name: str

    def kernel(self, graph: Graph, node: Node) -> str: ...
    def geometry(self, graph: Graph, node: Node) -> tuple[tuple[int, int, int], tuple[int, int, int]]: ...
    def resident_bytes(self, graph: Graph, node: Node) -> int:
        """Bytes of weights the node's kernel reads, in the form the backend keeps them."""
        ...


@dataclass(frozen=True)
class Plan:
    backend: str
    n_tokens: int
    n_kv: int
    launches: tuple[Launch, ...]
    memory: Memory
    output: Ref  # the logits

    def totals(self) -> dict[str, int]:
        """Sums over the launches: launches, weight_bytes, bytes_read, bytes_written, flops."""
        sums = ("weight_bytes", "bytes_read", "bytes_written", "flops")
        return {"launches": len(self.launches)} | {k: sum(getattr(x, k) for x in self.launches) for k in sums}

    def by_kernel(self) -> dict[str, int]:
        """Kernel -> launches per pass."""
        return dict(Counter(x.kernel for x in self.launches))


def make_plan(graph: Graph, backend: Lowering, n_kv: int) -> Plan:
    """Lower every node to one launch. n_kv: KV rows that attention will read, this pass's own included."""
    memory = plan_memory(graph)
    nodes = [n for n in graph.nodes if n.op != "input"]
    launches = tuple(_launch(graph, backend, memory, n, n_kv) for n in nodes)
    output = _ref(memory, graph.nodes[graph.output])
    return Plan(backend.name, graph.nodes[0].rows, n_kv, launches, memory, output)


def _launch(graph: Graph, backend: Lowering, memory: Memory, node: Node, n_kv: int) -> Launch:
    cost = OPS[node.op].cost(graph, node, n_kv)
    grid, block = backend.geometry(graph, node)
    args = Args(
        tuple(_ref(memory, graph.nodes[i]) for i in node.inputs), node.weights, _ref(memory, node), node.params
    )
    return Launch(
        kernel=backend.kernel(graph, node),
        op=node.op,
        name=node.name,
        layer=node.layer,
        grid=grid,
        block=block,
        weight_type=graph.tensors[node.weights[0]].type if node.weights else None,
        weight_bytes=stored_bytes(graph, node),
        bytes_read=cost.read + backend.resident_bytes(graph, node),
        bytes_written=cost.written,
        flops=cost.flops,
        args=args,
    )


def _ref(memory: Memory, node: Node) -> Ref:
    if node.op == "input":
        return Ref("input", node.name, node.rows, node.cols)
    if node.region is not None:
        return Ref("region", node.region, node.rows, node.cols)
    return Ref("slot", memory.slot[node.id], node.rows, node.cols)


def stored_bytes(graph: Graph, node: Node) -> int:
    """Bytes of the weights a node needs, as stored: whole tensors, but one embedding row a token."""
    if node.op == "embed_rows":
        return node.rows * graph.tensors[node.weights[0]].row_nbytes
    return sum(graph.tensors[w].nbytes for w in node.weights)


def launch_dict(launch: Launch) -> dict[str, Any]:
    """A launch as JSON-able data, arguments flattened to readable references."""
    row = asdict(launch) | {"grid": list(launch.grid), "block": list(launch.block)}
    row["args"] = {
        "inputs": [f"{r.kind}:{r.key}" for r in launch.args.inputs],
        "weights": list(launch.args.weights),
        "out": f"{launch.args.out.kind}:{launch.args.out.key}",
        "params": dict(launch.args.params),
    }
    return row
