"""The walk over a graph's nodes that makes launches of them, and what several kinds of node need of it."""

from dataclasses import dataclass, field, replace
from typing import Any

from minfer.cuda.kernels import BLOCK, KERNELS, row_bytes
from minfer.fusions import activation_cache, positions
from minfer.fusions.activation_cache import ActivationCache, Key
from minfer.fusions.positions import PositionsMemo
from minfer.gguf import Tensor
from minfer.gpu import Gpu
from minfer.graph import Graph, Node
from minfer.memory import Memory
from minfer.ops import F32, OPS, Cost, Kv
from minfer.options import Options
from minfer.plan import Args, Dim, Launch, Ref, make_launch, node_args, stored_bytes

Q8_BLOCK, Q8_BYTES = 32, 40  # values and bytes of a block of the activation plane


def resident_bytes(tensor: Tensor) -> int:
    """Bytes of a weight on the device."""
    return tensor.rows * row_bytes(tensor.type, tensor.shape[0])


@dataclass
class Walk:
    """The state of one pass over a graph's nodes, in order: what decides which extra launches a node needs."""

    options: Options
    gpu: Gpu
    graph: Graph
    memory: Memory
    kv: Kv
    launches: list[Launch] = field(default_factory=list)
    quads: set[int] = field(default_factory=set)  # nodes whose output is the plane in scratch, not a row of f32
    cache: ActivationCache = field(init=False)
    memo: PositionsMemo = field(init=False)
    readers: dict[int, list[Node]] = field(init=False)

    def __post_init__(self) -> None:
        self.cache = ActivationCache(self.options.on(activation_cache.SWITCH))
        self.readers = self.graph.readers()
        self.memo = PositionsMemo(self.options.on(positions.SWITCH))

    @property
    def nt(self) -> int:
        return self.graph.nodes[0].rows

    def args(self, node: Node, **params: Any) -> Args:
        """The node's arguments with the scalars its kernel takes."""
        return replace(node_args(self.graph, self.memory, node), params=params)

    def emit(self, node: Node, kernel: str, grid: Dim, args: Args, cost: Cost | None = None, block: int = 0) -> None:
        """Append a launch; its cost is the op's unless given, its weights are those of `args`."""
        part = replace(node, weights=args.weights)
        stored, resident = stored_bytes(self.graph, part), self._resident(part)
        found = OPS[node.op].cost(self.graph, node, self.kv) if cost is None else cost
        shape = (block or (KERNELS[kernel].block if kernel in KERNELS else 1), 1, 1)
        self.launches.append(make_launch(self.graph, node, args, kernel, grid, shape, found, (stored, resident)))

    def _resident(self, node: Node) -> int:
        if node.op == "embed_rows":
            table = self.graph.tensors[node.weights[0]]
            return node.rows * resident_bytes(table) // table.rows
        return sum(resident_bytes(self.graph.tensors[w]) for w in node.weights)


def blocks(n: int, per: int) -> int:
    return -(-n // per)


def quantize(walk: Walk, node: Node, source: Ref) -> dict[str, Any]:
    """Make the q8 plane of `source` current; nothing to do when it is. The parameters of the launch that reads it."""
    key = Key.of(source)
    if not walk.cache.hit(key):
        count = source.cols // Q8_BLOCK
        params = {"blocks": count, "q8_bytes": plane_bytes(key.id), "q8_writes": str(key)}
        args = Args((source,), (), Ref("scratch", "q8", 1, plane_bytes(key.id)), params)
        cost = Cost(F32 * source.cols, plane_bytes(key.id), 0)
        grid = (blocks(count, BLOCK["quantize_pad40"]), 1, 1)
        walk.emit(replace(node, op="quantize"), "quantize_pad40", grid, args, cost)
        walk.cache.record(key)
    return {"q8_reads": str(key), "q8_bytes": plane_bytes(key.id)}


def plane_bytes(id: int) -> int:
    """Bytes of the q8 plane of one row."""
    return id // Q8_BLOCK * Q8_BYTES
