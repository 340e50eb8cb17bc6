"""Fused QKV: bias on q, k and v, RoPE on q and k, k and v stored, in one epilogue (report 73). Decode only.

Class 1, where q, k and v have one quant type: one matmul over their rows, laid out one after the other at upload, and
the epilogue on its three sections. Class 2, mixed types: three matmuls and the epilogue. Decided layer by layer.
Bitwise: the epilogue's body is that of add_bias, rope (NEOX) and kv_store verbatim, and a decode matmul's rows are
independent of each other.
"""

from minfer.graph import Chain, Graph, Node, splice

SWITCH = "MINFER_NO_FUSE_QKV"


def rewrite(graph: Graph) -> Graph:
    """Fuse every layer's chain that can be; the others keep theirs."""
    if graph.nodes[0].rows != 1:
        return graph
    layers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.layer is not None:
            layers.setdefault(node.layer, []).append(node)
    found = (_match(graph, nodes) for nodes in layers.values())
    return splice(graph, [chain for chain in found if chain is not None])


def _match(graph: Graph, nodes: list[Node]) -> Chain | None:
    """The chain of one layer: 3 matmuls, 3 biases, 2 NEOX ropes of whole heads, 2 stores; None when it differs."""
    by = {(n.op, n.name): n for n in nodes}
    names = [("matmul", "attn_q"), ("matmul", "attn_k"), ("matmul", "attn_v"),
             ("add_bias", "attn_q.bias"), ("add_bias", "attn_k.bias"), ("add_bias", "attn_v.bias"),
             ("rope", "q"), ("rope", "k"), ("kv_store", "kv_k"), ("kv_store", "kv_v")]  # fmt: skip
    if any(name not in by for name in names):
        return None
    chain = [by[name] for name in names]
    rope = chain[6].params
    whole_heads = rope["n_rot"] == rope["head_dim"] and rope["head_dim"] % 2 == 0
    if rope["style"] != "neox" or chain[6].weights or not whole_heads:
        return None
    types = {graph.tensors[m.weights[0]].type for m in chain[:3]}
    fused = _concat(chain) if len(types) == 1 else _epilogue(chain)
    return _chain(graph, chain, fused, keep_matmuls=len(types) > 1)


def _params(chain: list[Node]) -> dict[str, object]:
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
    return Node(-1, "fused_qkv", "attn_qkv", chain[0].layer, (x, positions), weights, 1, cols, None, _params(chain))


def _epilogue(chain: list[Node]) -> Node:
    q, k, v = chain[:3]
    biases, positions = tuple(n.weights[0] for n in chain[3:6]), chain[6].inputs[1]
    inputs = (q.id, k.id, v.id, positions)
    return Node(-1, "qkv_epilogue", "qkv_epilogue", q.layer, inputs, biases, 1, q.cols, None, _params(chain))


def _chain(graph: Graph, chain: list[Node], fused: Node, keep_matmuls: bool) -> Chain:
    loads = tuple(
        Node(-2 - i, "kv_load", s.name, s.layer, (-1,), (), s.rows, s.cols, s.region) for i, s in enumerate(chain[8:10])
    )
    removed = frozenset(n.id for n in (chain[3:] if keep_matmuls else chain))
    return Chain(removed, (fused, *loads), {chain[6].id: -1, chain[8].id: -2, chain[9].id: -3})
