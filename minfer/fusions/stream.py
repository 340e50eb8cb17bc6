"""Decode by kernels that stream weights (cuda/kernels/stream.cuh): which matmuls they take, and what they take in.

Five rewrites, in this order, each with its switch: q, k, v with bias, RoPE and store, whatever their types; gate and up
with SwiGLU; a residual add; every matmul that is left; and last the RMSNorm whose only reader is one of these. Sums are
taken in another order than by the kernels they replace, so results agree up to the rounding of f32 sums, and now and
then of one q8 value.
"""

from collections.abc import Iterator
from dataclasses import replace

from minfer.cuda.kernels import stream_ring, stream_shared
from minfer.fusions import qkv
from minfer.gpu import Gpu
from minfer.graph import Chain, Graph, Node, splice

ROOT = "MINFER_NO_STREAM"
QKV, GLU, ADD = "MINFER_NO_STREAM_QKV", "MINFER_NO_STREAM_GLU", "MINFER_NO_STREAM_ADD"
ACTIVATIONS = "MINFER_NO_STREAM_NORM"

TYPES = {"Q4_K": 4, "Q6_K": 6}  # with their number in the kernels
OPS = ("stream_matmul", "stream_add", "stream_glu", "stream_qkv")
KEPT = 1536  # floats of shared memory left for an epilogue: more than any model's rows a block
RUN = 32  # values that share a scale


def rewrite_qkv(graph: Graph, gpu: Gpu) -> Graph:
    """bias on q, k and v, RoPE on q and k, k and v stored, in the epilogue of one launch over all their rows."""
    whole = [c for c in qkv.chains(graph) if _whole(graph, gpu, c)]
    return splice(graph, [qkv.replacement(chain, _qkv(chain), keep_matmuls=False) for chain in whole])


def _whole(graph: Graph, gpu: Gpu, chain: list[Node]) -> bool:
    return all(streamable(graph, gpu, m) for m in chain[:3])


def _qkv(chain: list[Node]) -> Node:
    weights = tuple(n.weights[0] for n in chain[:6])
    q, inputs = chain[0], (chain[0].inputs[0], chain[6].inputs[1])
    return Node(-1, "stream_qkv", "attn_qkv", q.layer, inputs, weights, 1, q.cols, None, qkv.chain_params(chain))


def rewrite_glu(graph: Graph, gpu: Gpu) -> Graph:
    """gate and up, row by row, with SwiGLU and the quantize for the matmul that reads it."""
    return splice(graph, list(_glus(graph, gpu)))


def _glus(graph: Graph, gpu: Gpu) -> Iterator[Chain]:
    readers = graph.readers()
    for node in graph.nodes:
        if node.op != "swiglu":
            continue
        gate, up = (graph.nodes[i] for i in node.inputs)
        after = readers[node.id]
        matmuls = all(streamable(graph, gpu, m) and len(readers[m.id]) == 1 for m in (gate, up))
        alike = len({graph.tensors[m.weights[0]].type for m in (gate, up) if m.weights}) == 1
        to_one = len(after) == 1 and streamable(graph, gpu, after[0])
        if matmuls and alike and to_one and gate.inputs == up.inputs and gate.cols % RUN == 0:
            weights = gate.weights + up.weights
            fused = Node(-1, "stream_glu", "ffn_gate_up", node.layer, gate.inputs, weights, 1, node.cols)
            yield Chain(frozenset((gate.id, up.id, node.id)), (fused,), {node.id: -1})


def rewrite_add(graph: Graph, gpu: Gpu) -> Graph:
    """The residual add in the epilogue of the matmul that feeds it."""
    return splice(graph, list(_adds(graph, gpu)))


def _adds(graph: Graph, gpu: Gpu) -> Iterator[Chain]:
    readers = graph.readers()
    for node in graph.nodes:
        if node.op != "add":
            continue
        residual, matmul = (graph.nodes[i] for i in node.inputs)
        if residual.id != matmul.id and streamable(graph, gpu, matmul) and len(readers[matmul.id]) == 1:
            inputs = (matmul.inputs[0], residual.id)
            fused = replace(node, id=-1, op="stream_add", name=matmul.name, inputs=inputs, weights=matmul.weights)
            yield Chain(frozenset((matmul.id, node.id)), (fused,), {node.id: -1})


def rewrite_matmuls(graph: Graph, gpu: Gpu) -> Graph:
    """Every other matmul that can be; q, k and v only where all three can: the reports' chain takes those layers."""
    left = {m.id for c in qkv.chains(graph) if not _whole(graph, gpu, c) for m in c[:3]}
    mine = {n.id for n in graph.nodes if n.id not in left and streamable(graph, gpu, n)}
    return replace(graph, nodes=tuple(replace(n, op="stream_matmul") if n.id in mine else n for n in graph.nodes))


def rewrite_norm(graph: Graph, gpu: Gpu) -> Graph:
    """RMSNorm in the prologue of its only reader; its weight is the reader's last one then, its eps a parameter."""
    return splice(graph, list(_norms(graph)))


def _norms(graph: Graph) -> Iterator[Chain]:
    readers = graph.readers()
    for node in graph.nodes:
        if node.op != "rms_norm" or len(readers[node.id]) != 1:
            continue
        reader = readers[node.id][0]
        if reader.op in OPS and reader.op != "stream_add" and reader.inputs[0] == node.id:
            params = {**reader.params, **node.params}
            inputs, weights = (node.inputs[0], *reader.inputs[1:]), reader.weights + node.weights
            fused = replace(reader, id=-1, inputs=inputs, weights=weights, params=params)
            yield Chain(frozenset((node.id, reader.id)), (fused,), {reader.id: -1})


def streamable(graph: Graph, gpu: Gpu, node: Node) -> bool:
    """Whether it is a matmul of a type the kernels have, with the pairs of rows they work in and room for its input."""
    if node.op != "matmul" or node.rows != 1:
        return False
    weight = graph.tensors[node.weights[0]]
    if weight.type not in TYPES or weight.rows % 2:
        return False
    return stream_shared(weight.shape[0], KEPT, stream_ring(gpu.shared)) <= gpu.shared
