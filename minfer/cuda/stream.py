"""Lowering of the stream ops (fusions/stream.py): one launch each, its geometry from the GPU's numbers.

A launch has one block a multiprocessor. Where its activations come from is part of the kernel's name:
  norm   the op took in an RMSNorm: an f32 row, normed and quantized by every block
  quads  the plane that a stream_glu left in scratch
  plane  the q8 plane of another launch: one is current already, or prologues are switched off
  quant  an f32 row, quantized by every block
"""

from dataclasses import replace
from typing import Any

from minfer.cuda.kernels import plane_quads, stream_ring, stream_shared
from minfer.cuda.walk import Walk, plane_bytes, quantize, resident_bytes
from minfer.fusions import stream
from minfer.fusions.activation_cache import Key
from minfer.graph import Node
from minfer.ops import OPS
from minfer.plan import Args, Ref

_EPILOGUE = {"stream_matmul": "store", "stream_add": "add", "stream_glu": "glu", "stream_qkv": "qkv_{kv}"}


def lower_stream(walk: Walk, node: Node) -> None:
    """The op's launch, and before it the quantize that it may need."""
    source = _source(walk, node)
    params = _sizes(walk, node) | ({"eps": node.params["eps"]} if source == "norm" else {})
    args = walk.args(node, **params)
    if source == "plane":
        key = quantize(walk, node, args.inputs[0])
        args = replace(args, params=dict(args.params) | {"q8_reads": str(key), "q8_bytes": plane_bytes(key.id)})
    if node.op == "stream_glu":
        args = _to_quads(args, node.cols)
    kernel = f"stream_{source}_{_EPILOGUE[node.op].format(kv=walk.options.kv_type)}"
    cost = OPS[node.op].cost(walk.graph, node, walk.kv)
    walk.emit(node, kernel, (walk.gpu.multiprocessors, 1, 1), args, cost)
    if node.op != "stream_matmul":  # its output may lie where the plane's source was
        walk.cache.held = None


def _source(walk: Walk, node: Node) -> str:
    if "eps" in node.params:
        return "norm"
    if walk.graph.nodes[node.inputs[0]].op == "stream_glu":
        return "quads"
    current = walk.cache.hit(Key.of(walk.args(node).inputs[0]))
    return "plane" if current or not walk.options.on(stream.ACTIVATIONS) else "quant"


def _to_quads(args: Args, cols: int) -> Args:
    """The output is the plane in scratch, not a row of f32."""
    nbytes = plane_quads(cols)
    return replace(args, out=Ref("scratch", "quads", 1, nbytes), params=dict(args.params) | {"quads_bytes": nbytes})


def _sizes(walk: Walk, node: Node) -> dict[str, Any]:
    """The kernel's scalars, and the shared memory that it needs in bytes."""
    matrices = [walk.graph.tensors[w] for w in node.weights if len(walk.graph.tensors[w].shape) > 1]
    types = [stream.TYPES[t.type] for t in matrices]
    id, od, blocks = matrices[0].shape[0], matrices[0].rows, walk.gpu.multiprocessors
    if node.op == "stream_qkv":
        p = node.params
        sizes = {name: p[name] for name in ("nqt", "nkt", "hd", "base", "scale")}
        sizes |= dict(zip(("type_q", "type_k", "type_v"), types, strict=True))
        kept = 4 * most_pairs(walk, node)  # biases and an angle of each
    else:
        sizes = {"od": od, "type": types[0]}
        add, glu = 2 * -(-od // 2 // blocks), stream.RUN * -(-od // stream.RUN // blocks)
        kept = {"stream_add": add, "stream_glu": glu}.get(node.op, 0)
    if walk.graph.nodes[node.inputs[0]].op == "stream_glu":
        sizes["quads_bytes"] = plane_quads(id)
    return sizes | {"id": id, "shared": stream_shared(id, kept, stream_ring(walk.gpu.shared))}


def most_pairs(walk: Walk, node: Node) -> int:
    """Pairs of rows of q, k or v that one block has at most, shared by bytes as in stream.cu."""
    matrices = [walk.graph.tensors[w] for w in node.weights[:3]]
    total = sum(resident_bytes(t) // 2 for t in matrices)
    share = -(-total // walk.gpu.multiprocessors)
    return max(min(t.rows // 2, share // (resident_bytes(t) // t.rows) + 2) for t in matrices)
