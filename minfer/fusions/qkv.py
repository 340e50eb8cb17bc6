"""Fused QKV: bias on q, k and v, RoPE on q and k, k and v stored, in one epilogue (report 73). Decode only.

Class 1, where q, k and v have one quant type: one matmul over their rows, laid out one after the other at upload, and
the epilogue on its three sections. Class 2, mixed types: three matmuls and the epilogue. Decided layer by layer.
Bitwise: the epilogue's body is that of add_bias, rope (NEOX) and kv_store verbatim, and a decode matmul's rows are
independent of each other.
"""

from minfer.gpu import Gpu
from minfer.graph import Chain, Graph, Node, splice

SWITCH = "MINFER_NO_FUSE_QKV"


def rewrite(graph: Graph, gpu: Gpu) -> Graph:
    """Fuse every layer's chain that can be; the others keep theirs."""
    return splice(graph, [_fused(graph, nodes) for nodes in chains(graph)])


def chains(graph: Graph) -> list[list[Node]]:
    """Each layer's chain that one kernel could end: 3 matmuls, 3 biases, 2 NEOX ropes of whole heads, 2 stores."""
    if graph.nodes[0].rows != 1:
        return []
    layers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.layer is not None:
            layers.setdefault(node.layer, []).append(node)
    found = (_match(nodes) for nodes in layers.values())
    return [chain for chain in found if chain is not None]


def _match(nodes: list[Node]) -> list[Node] | None:
    by = {(n.op, n.name): n for n in nodes}
    names = [("matmul", "attn_q"), ("matmul", "attn_k"), ("matmul", "attn_v"),
             ("add_bias", "attn_q.bias"), ("add_bias", "attn_k.bias"), ("add_bias", "attn_v.bias"),
             ("rope", "q"), ("rope", "k"), ("kv_store", "kv_k"), ("kv_store", "kv_v")]  # fmt: skip
    if any(name not in by for name in names):
        return None
    chain = [by[name] for name in names]
    rope = chain[6].params
    whole_heads = rope["n_rot"] == rope["head_dim"] and rope["head_dim"] % 2 == 0
    return chain if rope["style"] == "neox" and not chain[6].weights and whole_heads else None


def _fused(graph: Graph, chain: list[Node]) -> Chain:
    one_type = len({graph.tensors[m.weights[0]].type for m in chain[:3]}) == 1
    return replacement(chain, _concat(chain) if one_type else _epilogue(chain), keep_matmuls=not one_type)


def chain_params(chain: list[Node]) -> dict[str, object]:
    q, k = chain[0], chain[1]
    rope, stores = chain[6].params, chain[8:10]
    return {
        "nqt": q.cols, "nkt": k.cols, "hd": rope["head_dim"], "base": rope["base"], "scale": rope["scale"],
        "regions": tuple(s.region for s in stores), "region_shape": (stores[0].rows, stores[0].cols),
    }  # fmt: skip


def _concat(chain: list[Node]) -> Node:
    weights = tuple(n.weights[0] for n in chain[:6])
    x, positions = chain[0].inputs[0], chain[6].inputs[1]
    cols = chain[0].cols + 2 * chain[1].cols  # [q | k | v]; attention reads q at offset 0
    params = chain_params(chain)
    return Node(-1, "fused_qkv", "attn_qkv", chain[0].layer, (x, positions), weights, 1, cols, None, params)


def _epilogue(chain: list[Node]) -> Node:
    q, k, v = chain[:3]
    biases, positions = tuple(n.weights[0] for n in chain[3:6]), chain[6].inputs[1]
    inputs = (q.id, k.id, v.id, positions)
    return Node(-1, "qkv_epilogue", "qkv_epilogue", q.layer, inputs, biases, 1, q.cols, None, chain_params(chain))


def replacement(chain: list[Node], fused: Node, keep_matmuls: bool) -> Chain:
    """`fused` in place of the chain, and the regions that it has written as values."""
    loads = tuple(
        Node(-2 - i, "kv_load", s.name, s.layer, (-1,), (), s.rows, s.cols, s.region) for i, s in enumerate(chain[8:10])
    )
    removed = frozenset(n.id for n in (chain[3:] if keep_matmuls else chain))
    return Chain(removed, (fused, *loads), {chain[6].id: -1, chain[8].id: -2, chain[9].id: -3})
