"""Lowering of the stream ops (fusions/stream.py): one launch each, its geometry from the GPU's numbers.

A launch has one block a multiprocessor; q, k and v share them by their bytes. Where its activations come from is part
of the kernel's name:
  norm   the op took in an RMSNorm: an f32 row, normed and quantized by every block
  quads  the plane that a stream_glu or the attention left in scratch
  plane  the q8 plane of another launch: one is current already, or prologues are switched off
  quant  an f32 row, quantized by every block
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minfer.cuda.kernels import plane_quads, stream_ring, stream_shared
from minfer.cuda.walk import Walk, blocks, quantize, resident_bytes
from minfer.fusions import stream
from minfer.fusions.activation_cache import Key
from minfer.gguf import Tensor
from minfer.graph import Node
from minfer.plan import Args, Ref

_EPILOGUE = {"stream_matmul": "store", "stream_add": "add", "stream_glu": "glu", "stream_qkv": "qkv_{kv}"}


def lower_stream(walk: Walk, node: Node) -> None:
    """The op's launch, and before it the quantize that it may need."""
    args = walk.args(node)
    source, params = _source(walk, node, args.inputs[0]), _sizes(walk, node)
    if source == "norm":
        params["eps"] = node.params["eps"]
    if source == "quads":
        params |= {"quads_bytes": plane_quads(params["id"]), "quads_reads": str(Key.of(args.inputs[0]))}
    if source == "plane":
        params |= quantize(walk, node, args.inputs[0])
    args = replace(args, params=params)
    if node.op == "stream_glu":
        args = to_quads(walk, node, args)
    kernel = f"stream_{source}_{_EPILOGUE[node.op].format(kv=walk.options.kv_type)}"
    walk.emit(node, kernel, (_blocks(walk, node), 1, 1), args)


def _blocks(walk: Walk, node: Node) -> int:
    return max(walk.gpu.multiprocessors, len(walk.graph.matrices(node)) if node.op == "stream_qkv" else 1)


def _source(walk: Walk, node: Node, x: Ref) -> str:
    if "eps" in node.params:
        return "norm"
    if node.inputs[0] in walk.quads:
        return "quads"
    current = walk.cache.hit(Key.of(x))
    return "plane" if current or not walk.options.on(stream.ACTIVATIONS) else "quant"


def reads_quads(walk: Walk, node: Node) -> bool:
    """Whether the one reader of this node's output takes it as the plane in scratch: a matmul that takes in no norm."""
    readers = walk.readers[node.id]
    one = len(readers) == 1 and readers[0].op in ("stream_matmul", "stream_add") and readers[0].inputs[0] == node.id
    return one and "eps" not in readers[0].params and walk.options.on(stream.ACTIVATIONS)


def to_quads(walk: Walk, node: Node, args: Args) -> Args:
    """The node's output is the plane in scratch, not a row of f32."""
    walk.quads.add(node.id)
    nbytes = plane_quads(node.cols)
    params = dict(args.params) | {"quads_bytes": nbytes, "quads_writes": str(Key.of(args.out))}
    return replace(args, out=Ref("scratch", "quads", 1, nbytes), params=params)


def _sizes(walk: Walk, node: Node) -> dict[str, Any]:
    """The kernel's scalars, and the shared memory that it needs in bytes."""
    matrices, share = walk.graph.matrices(node), _blocks(walk, node)
    types = [stream.TYPES[t.type] for t in matrices]
    id, od = matrices[0].shape[0], matrices[0].rows
    if node.op == "stream_qkv":
        p = node.params
        sizes = {name: p[name] for name in ("nqt", "nkt", "hd", "base", "scale")}
        sizes |= dict(zip(("type_q", "type_k", "type_v"), types, strict=True))
        shares = share_blocks(matrices, share)
        sizes |= dict(zip(("blocks_q", "blocks_k"), shares, strict=False))
        kept = 4 * most_pairs(matrices, shares)  # biases and an angle of each
    else:
        sizes = {"od": od, "type": types[0]}
        add, glu = 2 * blocks(od // 2, share), stream.RUN * blocks(od // stream.RUN, share)
        kept = {"stream_add": add, "stream_glu": glu}.get(node.op, 0)
    return sizes | {"id": id, "shared": stream_shared(id, kept, stream_ring(walk.gpu.shared))}


def share_blocks(matrices: Sequence[Tensor], count: int) -> list[int]:
    """How many of `count` blocks take each matrix, so that the fullest block has the least bytes; each matrix has one.

    One at a time to the matrix whose blocks are the fullest: more blocks never make a matrix's blocks fuller.
    """
    shares = [1] * len(matrices)

    def fullest(i: int) -> int:
        return blocks(matrices[i].rows // 2, shares[i]) * (resident_bytes(matrices[i]) // matrices[i].rows)

    for _ in range(count - len(matrices)):
        shares[max(range(len(matrices)), key=fullest)] += 1
    return shares


def most_pairs(matrices: Sequence[Tensor], shares: Sequence[int]) -> int:
    """Pairs of rows that one block has at most."""
    return max(blocks(t.rows // 2, n) for t, n in zip(matrices, shares, strict=True))
