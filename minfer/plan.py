"""Graph + backend -> Plan: the ordered launches of one pass, as plain data.

The plan is the predicted census: it needs the GGUF header only. Eager execution walks `launches`; a recorded run is
reconciled with them launch by launch. Positions and n_kv are data: they change byte counts, never the list.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from minfer.graph import Graph, Node
from minfer.memory import Memory, plan_memory
from minfer.ops import Cost, Kv

Dim = tuple[int, int, int]
N_UBATCH = 512  # tokens a prefill pass takes at most


@dataclass(frozen=True)
class Ref:
    """Where a value lives: slot N, a KV region, a host-written input, or a backend's named scratch."""

    kind: str  # "slot" | "region" | "input" | "scratch"
    key: int | str
    rows: int
    cols: int
    offset: int = 0  # elements into the slot: a section of a larger row


@dataclass(frozen=True)
class Args:
    inputs: tuple[Ref, ...]
    weights: tuple[str, ...]
    out: Ref
    params: Mapping[str, Any]
    regions: tuple[Ref, ...] = ()  # KV regions written beside `out`


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

    @property
    def name(self) -> str: ...

    @property
    def kv_bytes(self) -> int:
        """Bytes of one KV element."""
        ...

    def fuse(self, graph: Graph) -> Graph:
        """The graph with this backend's rewrites applied."""
        ...

    def lower(self, graph: Graph, memory: Memory, kv: Kv) -> Sequence["Launch"]:
        """The launches of all nodes, in order."""
        ...


class TokenLoop(Protocol):
    """A greedy program whose steps need no host between them: each one chooses the token of the next.

    A run is a `start`, then a `launch` per step and a `take` per token in any order that takes no token before its step
    is launched and lets no more than `ahead` steps wait behind the one whose token is taken, then a `stop`.
    """

    @property
    def ahead(self) -> int: ...

    def start(self, token: int, position: int) -> None:
        """Begin a run with this token at this position."""
        ...

    def launch(self, tracer: Any, step: str) -> None:
        """One step more, its ranges named `step`, without waiting for it."""
        ...

    def take(self) -> int:
        """The token that the oldest step not yet asked has chosen; waits until it is there."""
        ...

    def stop(self) -> None:
        """Wait for the steps that are still running; their tokens are dropped."""
        ...


class Program(Protocol):
    """A plan bound to a device."""

    @property
    def plan(self) -> "Plan": ...

    @property
    def token_loop(self) -> TokenLoop | None:
        """How its steps run ahead of the host; None where the host takes part in every step."""
        ...

    def run(self, tracer: Any, step: str, tokens: Sequence[int], position: int) -> np.ndarray:
        """One pass from `position` on, its ranges named `step`: logits (vocab,), or a greedy step's int32 bits (1,)."""
        ...


class Device(Protocol):
    """Weights and KV cache of one model, somewhere."""

    @property
    def description(self) -> str: ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a benchmark says of it, in llama-bench's field names."""
        ...

    @property
    def lowering(self) -> Lowering: ...

    @property
    def max_pass(self) -> int:
        """Tokens that one pass takes at most."""
        ...

    def bind(self, plan: "Plan") -> Program: ...

    def kv(self, rows: int) -> dict[str, np.ndarray]:
        """Region -> its first rows on the host, as f32 (rows, cols)."""
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
    """Fuse, place and lower a graph. n_kv: KV rows that attention will read, this pass's own included."""
    graph = backend.fuse(graph)
    memory = plan_memory(graph)
    launches = tuple(backend.lower(graph, memory, Kv(n_kv, backend.kv_bytes)))
    output = ref(memory, graph.nodes[graph.output])
    return Plan(backend.name, graph.nodes[0].rows, n_kv, launches, memory, output)


def node_args(graph: Graph, memory: Memory, node: Node) -> Args:
    """A node's arguments as references."""
    inputs = tuple(ref(memory, graph.nodes[i]) for i in node.inputs)
    regions = tuple(Ref("region", r, *node.params["region_shape"]) for r in node.params.get("regions", ()))
    return Args(inputs, node.weights, ref(memory, node), node.params, regions)


def make_launch(
    graph: Graph, node: Node, args: Args, kernel: str, grid: Dim, block: Dim, cost: Cost, weights: tuple[int, int]
) -> Launch:
    """A launch of `node`; `weights` are the weight bytes it needs, as stored and as the backend reads them."""
    return Launch(
        kernel=kernel,
        op=node.op,
        name=node.name,
        layer=node.layer,
        grid=grid,
        block=block,
        weight_type=graph.tensors[args.weights[0]].type if args.weights else None,
        weight_bytes=weights[0],
        bytes_read=cost.read + weights[1],
        bytes_written=cost.written,
        flops=cost.flops,
        args=args,
    )


def ref(memory: Memory, node: Node) -> Ref:
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
        "regions": [str(r.key) for r in launch.args.regions],
        "inputs": [f"{r.kind}:{r.key}" for r in launch.args.inputs],
        "weights": list(launch.args.weights),
        "out": f"{launch.args.out.kind}:{launch.args.out.key}",
        "params": dict(launch.args.params),
    }
    return row
