"""Graph -> the CUDA launches of one pass. Plans without a GPU: only sizes, types and switches decide.

Most nodes are one launch. A decode matmul that takes quantized activations may need a quantize first (see
fusions/activation_cache.py); kernels that read positions may need them converted (fusions/positions.py); attention is
split over the keys and combined. Prefill passes use library matrix products where tokens are many.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from minfer.cuda import dispatch
from minfer.cuda.kernels import (
    BLOCK,
    KERNELS,
    MAX_HEAD_DIM,
    RING,
    RING_ENTRY,
    ROWS_PER_BLOCK,
    UNIT,
    argmax_aux_bytes,
    attention_counter_bytes,
    partial_floats,
)
from minfer.cuda.stream import lower_stream, reads_quads, to_quads
from minfer.cuda.walk import Q8_BLOCK, Walk, blocks, plane_bytes, quantize
from minfer.errors import UserError
from minfer.fusions import activation_cache, fuse, stream
from minfer.fusions.activation_cache import Key
from minfer.gpu import H200, Gpu
from minfer.graph import Graph, Node
from minfer.memory import Memory
from minfer.ops import F32, OPS, Cost, Kv
from minfer.options import Options
from minfer.plan import Args, Dim, Launch, Ref

KV_BYTES = {"f32": 4, "f16": 2}
ONE_ATTENTION, ATTENTION_QUADS = "MINFER_NO_ONE_ATTENTION", "MINFER_NO_ATTENTION_QUADS"
ATTENTION_BLOCKS = 128  # a fixed grid: about one block per multiprocessor of a large GPU
ARGMAX_BLOCKS = 64


@dataclass(frozen=True)
class CudaLowering:
    """What the planner asks of the CUDA backend under these options."""

    options: Options
    name: str = "cuda"
    gpu: Gpu = H200

    @property
    def kv_bytes(self) -> int:
        return KV_BYTES[self.options.kv_type]

    def fuse(self, graph: Graph) -> Graph:
        """The graph rewrites that the switches leave on."""
        return fuse(graph, self.options, self.gpu)

    def lower(self, graph: Graph, memory: Memory, kv: Kv) -> list[Launch]:
        """Walk the nodes in order, with the state that decides which extra launches they need."""
        walk = Walk(self.options, self.gpu, graph, memory, kv)
        for node in graph.nodes:
            if node.op not in ("input", "kv_load"):
                walk.cache.enter(node.op)
                _LOWER[node.op](walk, node)
                walk.cache.leave(node.op)
        return walk.launches


def _require(ok: bool, node: Node, what: str) -> None:
    """Refuse, in one line, a model whose sizes a kernel cannot take: silently wrong results would be worse."""
    if not ok:
        where = "" if node.layer is None else f" of layer {node.layer}"
        raise UserError(f"cuda: {node.name}{where}: {what}; use --device cpu")


# --- activations: one launch each -------------------------------------------------------------------------------------


def _embed(walk: Walk, node: Node) -> None:
    kind = walk.graph.tensors[node.weights[0]].type.lower()
    grid = (blocks(node.cols // UNIT, BLOCK["embed_rows"]), node.rows, 1)
    walk.emit(node, f"embed_rows_{kind}", grid, walk.args(node, id=node.cols))


def _rms_norm(walk: Walk, node: Node) -> None:
    _require(node.cols % 4 == 0, node, f"RMSNorm takes rows of a multiple of 4 values, not {node.cols}")
    block = BLOCK["rms_norm"] if walk.options.on("MINFER_NO_WIDE_RMS") else 32
    args, grid = walk.args(node, d=node.cols, eps=node.params["eps"]), (node.rows, 1, 1)
    _produce(walk, node, "rms_norm", grid, args, block)


def _swiglu(walk: Walk, node: Node) -> None:
    args, grid = walk.args(node, n=node.elements), (blocks(node.elements, BLOCK["swiglu"]), 1, 1)
    _produce(walk, node, "swiglu", grid, args, BLOCK["swiglu"])


def _produce(walk: Walk, node: Node, kernel: str, grid: Dim, args: Args, block: int) -> None:
    """The producer alone, or writing the q8 plane as well when a matmul right behind it will read that."""
    if not _feeds_q8(walk, node):
        walk.emit(node, f"{kernel}_f32", grid, args, block=block)
        return
    key = Key.of(args.out)
    cost = OPS[node.op].cost(walk.graph, node, walk.kv)
    cost = replace(cost, written=cost.written + plane_bytes(key.id))
    args = replace(args, params=dict(args.params) | {"q8_bytes": plane_bytes(key.id), "q8_writes": str(key)})
    walk.emit(node, f"{kernel}_quant_pad40", grid, args, cost, block)
    walk.cache.record(key)


def _feeds_q8(walk: Walk, node: Node) -> bool:
    if not walk.cache.active or node.rows != 1 or node.cols % Q8_BLOCK:
        return False
    for consumer in walk.graph.nodes[node.id + 1 :]:
        if consumer.op in stream.OPS and consumer.inputs[0] == node.id:
            return True
        if consumer.op not in activation_cache.PRESERVING:
            return False
        if node.id in consumer.inputs and _gate(walk, consumer).q8:
            return True
    return False


def _elementwise(kernel: str, **names: Callable[[Node], int]) -> Callable[[Walk, Node], None]:
    """A kernel over all elements of its output."""

    def lower(walk: Walk, node: Node) -> None:
        params = {name: of(node) for name, of in names.items()}
        walk.emit(node, kernel, (blocks(node.elements, KERNELS[kernel].block), 1, 1), walk.args(node, **params))

    return lower


def _last_row(walk: Walk, node: Node) -> None:
    args = walk.args(node, rows=walk.graph.nodes[node.inputs[0]].rows, cols=node.cols)
    walk.emit(node, "last_row_f32", (blocks(node.cols, BLOCK["last_row"]), 1, 1), args)


def _argmax(walk: Walk, node: Node) -> None:
    n = walk.graph.nodes[node.inputs[0]].cols
    args, grid = walk.args(node, n=n, aux_bytes=argmax_aux_bytes(ARGMAX_BLOCKS)), (ARGMAX_BLOCKS, 1, 1)
    if not walk.options.on("MINFER_NO_TOKEN_LOOP"):
        walk.emit(node, "argmax_f32", grid, args)
        return
    args = replace(args, params=dict(args.params) | {"entries": RING, "ring_bytes": RING_ENTRY * RING})
    cost = OPS["argmax"].cost(walk.graph, node, walk.kv)
    cost = replace(cost, read=cost.read + F32, written=cost.written + 2 * F32 + RING_ENTRY)
    walk.emit(node, "next_token", grid, args, cost)


# --- matmul ----------------------------------------------------------------------------------------------------------


def _gate(walk: Walk, node: Node) -> dispatch.Gate:
    weights = walk.graph.matrices(node)
    od, id = sum(w.rows for w in weights), weights[0].shape[0]
    return dispatch.route(weights[0].type, od, id, walk.nt if node.rows > 1 else 1, walk.options.off)


def _matmul(walk: Walk, node: Node) -> None:
    _multiply(walk, node, walk.args(node))


def _multiply(walk: Walk, node: Node, args: Args) -> None:
    """The matmul of args.inputs[0] with args.weights, which lie one after the other, and the quantize it may need."""
    gate, source = _gate(walk, node), args.inputs[0]
    kernel = dispatch.kernel_name(gate, walk.graph.tensors[args.weights[0]].type)
    od = sum(walk.graph.tensors[w].rows for w in args.weights)
    _require(source.cols % UNIT == 0, node, f"matmul takes rows of a multiple of {UNIT} values, not {source.cols}")
    params: dict[str, Any] = {"id": source.cols, "od": od, "nt": source.rows}
    read = F32 * source.rows * source.cols
    if gate.q8:
        read = plane_bytes(source.cols)
        params |= quantize(walk, node, source)
    cost = Cost(read, F32 * source.rows * od, 2 * source.rows * source.cols * od)
    args = replace(args, params=params, out=replace(args.out, cols=od))
    if kernel not in KERNELS:  # a library product chooses its own grid
        walk.emit(node, kernel, (1, 1, 1), args, cost)
    elif source.rows > dispatch.MAX_BATCH:
        _batches(walk, node, kernel, args)
    else:
        walk.emit(node, kernel, _row_grid(kernel, od), args, cost)


def _row_grid(kernel: str, od: int) -> Dim:
    return blocks(od, ROWS_PER_BLOCK[KERNELS[kernel].family]), 1, 1


def _batches(walk: Walk, node: Node, kernel: str, args: Args) -> None:
    """A batched kernel over more tokens than it takes: one launch per batch, each on its rows."""
    source, id, od = args.inputs[0], args.params["id"], args.params["od"]
    for first in range(0, source.rows, dispatch.MAX_BATCH):
        nt = min(dispatch.MAX_BATCH, source.rows - first)
        x, y = (replace(r, rows=nt, offset=r.offset + first * r.cols) for r in (source, args.out))
        part = replace(args, inputs=(x,), out=y, params={"id": id, "od": od, "nt": nt})
        walk.emit(node, kernel, _row_grid(kernel, od), part, Cost(F32 * nt * id, F32 * nt * od, 2 * nt * id * od))


# --- what reads positions --------------------------------------------------------------------------------------------


def _convert_positions(walk: Walk, node: Node) -> None:
    if walk.memo.needs_conversion():
        source, nt = Ref("input", "positions", walk.nt, 1), walk.nt
        args = Args((source,), (), Ref("scratch", "pos", nt, 1), {"n": nt, "pos_bytes": F32 * nt})
        grid = (blocks(nt, BLOCK["f32_bits_to_i32"]), 1, 1)
        walk.emit(replace(node, op="positions"), "f32_bits_to_i32", grid, args, Cost(F32 * nt, F32 * nt, 0))


def _rope(walk: Walk, node: Node) -> None:
    _convert_positions(walk, node)
    p = node.params
    pairs = node.cols // p["head_dim"] * (p["n_rot"] // 2)
    kernel = f"rope_{p['style']}_f32" + ("_factors" if node.weights else "")
    names = ("head_dim", "n_rot", "base", "scale")
    args = walk.args(node, cols=node.cols, **{name: p[name] for name in names})
    walk.emit(node, kernel, (blocks(pairs, BLOCK["rope"]), node.rows, 1), args)


def _kv_store(walk: Walk, node: Node) -> None:
    _convert_positions(walk, node)
    grid = (blocks(node.cols, BLOCK["kv_store"]), walk.nt, 1)
    walk.emit(node, f"kv_store_{walk.options.kv_type}", grid, walk.args(node, cols=node.cols))


def _attention(walk: Walk, node: Node) -> None:
    if not walk.options.on(ONE_ATTENTION) or walk.nt > 1:
        _convert_positions(walk, node)
    p = {name: node.params[name] for name in ("n_head", "n_head_kv", "head_dim")}
    fits = p["head_dim"] % 8 == 0 and p["head_dim"] <= MAX_HEAD_DIM
    _require(fits, node, f"attention takes heads of a multiple of 8, at most {MAX_HEAD_DIM}, not {p['head_dim']}")
    if walk.nt > 1:
        walk.emit(node, "attention_prefill", (1, 1, 1), walk.args(node, **p), block=1)
        return
    splits = max(1, ATTENTION_BLOCKS // p["n_head_kv"])
    if walk.options.on(ONE_ATTENTION):
        _attention_one(walk, node, p | {"splits": splits})
        return
    params = p | {"splits": splits, "partial_bytes": F32 * partial_floats(p["n_head"], p["head_dim"], splits)}
    whole, partial = OPS["attention"].cost(walk.graph, node, walk.kv), params["partial_bytes"]
    args = walk.args(node, **params)
    scratch = Ref("scratch", "partial", 1, partial // F32)
    split = replace(args, out=scratch)
    grid = (p["n_head_kv"], splits, 1)
    walk.emit(node, f"attention_split_{walk.options.kv_type}", grid, split, replace(whole, written=partial))
    combine = replace(node, op="attention_combine")
    grid = (p["n_head"], 1, 1)
    walk.emit(combine, "attention_combine_f32", grid, replace(args, inputs=(scratch,)), Cost(partial, whole.written, 0))


def _attention_one(walk: Walk, node: Node, p: dict[str, int]) -> None:
    """Split and combine in one launch, which reads the position where the host, or the step before, wrote it."""
    partial, counters = F32 * partial_floats(p["n_head"], p["head_dim"], p["splits"]), p["n_head_kv"]
    params = p | {"partial_bytes": partial, "counters_bytes": attention_counter_bytes(counters)}
    args, grid, kv = walk.args(node, **params), (p["n_head_kv"], p["splits"], 1), walk.options.kv_type
    fits = p["head_dim"] % Q8_BLOCK == 0 and kv == "f16"  # with f32 keys the kernel has no registers left for it
    if walk.options.on(ATTENTION_QUADS) and fits and reads_quads(walk, node):
        walk.emit(node, "attention_quads_f16", grid, to_quads(walk, node, args))
    else:
        walk.emit(node, f"attention_one_{kv}", grid, args)


def _epilogue(walk: Walk, node: Node, args: Args) -> None:
    """Bias, RoPE and store on the sections q, k, v that args.inputs[:3] name."""
    p = node.params
    _require(walk.nt == 1, node, f"the fused QKV epilogue is for one token, not {walk.nt}")
    _require(p["hd"] % 2 == 0, node, f"the fused QKV epilogue pairs features: head dimension {p['hd']} is odd")
    params = {name: p[name] for name in ("nqt", "nkt", "hd", "base", "scale")}
    threads = p["nqt"] // 2 + p["nkt"] // 2 + p["nkt"]
    cost = OPS["qkv_epilogue"].cost(walk.graph, node, walk.kv)
    grid = (blocks(threads, BLOCK["attn_bias_rope_store"]), 1, 1)
    kernel = f"attn_bias_rope_store_{walk.options.kv_type}"
    walk.emit(replace(node, op="qkv_epilogue"), kernel, grid, replace(args, params=params), cost)


def _qkv_epilogue(walk: Walk, node: Node) -> None:
    if node.id not in walk.memory.in_place:
        raise AssertionError(f"{node.name} of layer {node.layer} cannot be in place: q has another reader")
    _convert_positions(walk, node)
    _epilogue(walk, node, walk.args(node))


def _fused_qkv(walk: Walk, node: Node) -> None:
    """The concat matmul and the epilogue on its sections [q | k | v]."""
    args, p = walk.args(node), node.params
    _multiply(walk, node, replace(args, weights=node.weights[:3], inputs=args.inputs[:1], regions=()))
    _convert_positions(walk, node)
    q = replace(args.out, cols=p["nqt"])
    k = replace(args.out, cols=p["nkt"], offset=p["nqt"])
    v = replace(args.out, cols=p["nkt"], offset=p["nqt"] + p["nkt"])
    _epilogue(walk, node, replace(args, weights=node.weights[3:], inputs=(q, k, v)))


_LOWER: dict[str, Callable[[Walk, Node], None]] = {
    "embed_rows": _embed,
    "rms_norm": _rms_norm,
    "matmul": _matmul,
    "add_bias": _elementwise("add_bias_f32", cols=lambda n: n.cols, n=lambda n: n.elements),
    "rope": _rope,
    "kv_store": _kv_store,
    "attention": _attention,
    "add": _elementwise("add_f32", n=lambda n: n.elements),
    "swiglu": _swiglu,
    "last_row": _last_row,
    "argmax": _argmax,
    "fused_qkv": _fused_qkv,
    "qkv_epilogue": _qkv_epilogue,
} | dict.fromkeys(stream.OPS, lower_stream)
