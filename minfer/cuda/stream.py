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
from minfer.cuda.walk import Walk, blocks, quantize, resident_bytes
from minfer.fusions import stream
from minfer.fusions.activation_cache import Key
from minfer.graph import Node
from minfer.plan import Args, Ref

_EPILOGUE = {"stream_matmul": "store", "stream_add": "add", "stream_glu": "glu", "stream_qkv": "qkv_{kv}"}


def lower_stream(walk: Walk, node: Node) -> None:
    """The op's launch, and before it the quantize that it may need."""
    args = walk.args(node)
    source, params = _source(walk, node, args.inputs[0]), _sizes(walk, node)
    if source == "norm":
        params["eps"] = node.params["eps"]
    if source == "plane":
        params |= quantize(walk, node, args.inputs[0])
    args = replace(args, params=params)
    if node.op == "stream_glu":
        args = _to_quads(args, node.cols)
    kernel = f"stream_{source}_{_EPILOGUE[node.op].format(kv=walk.options.kv_type)}"
    walk.emit(node, kernel, (walk.gpu.multiprocessors, 1, 1), args)


def _source(walk: Walk, node: Node, x: Ref) -> str:
    if "eps" in node.params:
        return "norm"
    if walk.graph.nodes[node.inputs[0]].op == "stream_glu":
        return "quads"
    current = walk.cache.hit(Key.of(x))
    return "plane" if current or not walk.options.on(stream.ACTIVATIONS) else "quant"


def _to_quads(args: Args, cols: int) -> Args:
    """The output is the plane in scratch, not a row of f32."""
    nbytes = plane_quads(cols)
    return replace(args, out=Ref("scratch", "quads", 1, nbytes), params=dict(args.params) | {"quads_bytes": nbytes})


def _sizes(walk: Walk, node: Node) -> dict[str, Any]:
    """The kernel's scalars, and the shared memory that it needs in bytes."""
    matrices, share = walk.graph.matrices(node), walk.gpu.multiprocessors
    types = [stream.TYPES[t.type] for t in matrices]
    id, od = matrices[0].shape[0], matrices[0].rows
    if node.op == "stream_qkv":
        p = node.params
        sizes = {name: p[name] for name in ("nqt", "nkt", "hd", "base", "scale")}
        sizes |= dict(zip(("type_q", "type_k", "type_v"), types, strict=True))
        kept = 4 * most_pairs(walk, node)  # biases and an angle of each
    else:
        sizes = {"od": od, "type": types[0]}
        add, glu = 2 * blocks(od // 2, share), stream.RUN * blocks(od // stream.RUN, share)
        kept = {"stream_add": add, "stream_glu": glu}.get(node.op, 0)
    if walk.graph.nodes[node.inputs[0]].op == "stream_glu":
        sizes["quads_bytes"] = plane_quads(id)
    return sizes | {"id": id, "shared": stream_shared(id, kept, stream_ring(walk.gpu.shared))}


def most_pairs(walk: Walk, node: Node) -> int:
    """Pairs of rows of q, k or v that one block has at most, shared by bytes as in stream.cu."""
    matrices = walk.graph.matrices(node)
    share = blocks(sum(resident_bytes(t) // 2 for t in matrices), walk.gpu.multiprocessors)
    return max(min(t.rows // 2, share // (resident_bytes(t) // t.rows) + 2) for t in matrices)
