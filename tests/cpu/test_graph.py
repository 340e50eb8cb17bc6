"""Graph and memory: what is built, and that no value is overwritten while somebody still needs it."""

import pytest

from minfer.cpu.backend import CpuLowering
from minfer.engine import plan_pass
from minfer.errors import UserError
from minfer.gguf import open_gguf
from minfer.graph import Builder
from minfer.memory import plan_memory
from minfer.models import build_graph, load_hparams
from minfer.ops import OPS
from tiny import write_llama


def graph_of(path, nt):
    gguf = open_gguf(path)
    return build_graph(gguf, load_hparams(gguf), nt, n_ctx=128)


@pytest.fixture(params=["llama", "qwen2"])
def model(request, tmp_path, qwen2_7b_header):
    return write_llama(tmp_path / "m.gguf") if request.param == "llama" else qwen2_7b_header


@pytest.mark.parametrize("nt", [1, 7])
def test_no_value_is_overwritten_before_its_last_use(model, nt):
    """Walk the nodes, remembering whose value each slot holds: every read must find its own."""
    graph = graph_of(model, nt)
    memory, holds = plan_memory(graph), {}
    for node in graph.nodes:
        for i in node.inputs:
            if i in memory.slot:
                assert holds[memory.slot[i]] == i, f"{node.op} {node.name} reads a slot that was overwritten"
        if node.id in memory.slot:
            assert memory.slot_elements[memory.slot[node.id]] >= node.elements
            if node.id not in memory.in_place:
                assert memory.slot[node.id] not in {memory.slot.get(i) for i in node.inputs}
            holds[memory.slot[node.id]] = node.id
    assert holds[memory.slot[graph.output]] == graph.output


def test_in_place_ops_take_over_their_input(model):
    graph = graph_of(model, 1)
    memory = plan_memory(graph)
    able = [n for n in graph.nodes if OPS[n.op].in_place is not None]
    last_use = graph.last_use()
    expected = {n.id for n in able if last_use[n.inputs[OPS[n.op].in_place]] == n.id}
    assert memory.in_place == expected and expected
    assert len(memory.slot_elements) < 8  # scratch is a handful of rows, whatever the depth of the model


def test_a_value_added_to_itself_is_not_aliased(tmp_path):
    gguf = open_gguf(write_llama(tmp_path / "m.gguf"))
    b = Builder(gguf.tensors, 1, 8)
    x = b.rms_norm(b.embed_rows("token_embd.weight"), "output_norm.weight", 1e-5)
    graph = b.finish(b.add(x, x, "twice"))
    assert plan_memory(graph).in_place == frozenset()


def test_topology_never_depends_on_the_position(model):
    gguf = open_gguf(model)
    hp = load_hparams(gguf)
    near, far = (plan_pass(gguf, hp, CpuLowering(), nt=1, n_kv=n, n_ctx=4096) for n in (1, 4000))
    assert [(x.kernel, x.grid, x.args) for x in near.launches] == [(x.kernel, x.grid, x.args) for x in far.launches]
    assert far.totals()["bytes_read"] > near.totals()["bytes_read"]


def test_attention_bytes_are_the_kv_rows(tmp_path):
    """Two layers, K and V of 32 f32 each: 4000 - 1 more rows cost 2 · 2 · 32 · 4 bytes each."""
    gguf = open_gguf(write_llama(tmp_path / "m.gguf"))
    hp = load_hparams(gguf)
    near, far = (plan_pass(gguf, hp, CpuLowering(), nt=1, n_kv=n, n_ctx=4096).totals()["bytes_read"] for n in (1, 4000))
    assert far - near == 3999 * 2 * 2 * 32 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": ["blk.1.ffn_up.weight"]}, "blk.1.ffn_up.weight is missing"),
        ({"extra": {"blk.0.attn_q_norm.weight": (16,)}}, "attn_q_norm.weight is not used by the llama graph"),
        ({"arch": "gemma9"}, "architecture 'gemma9' is not supported; supported: llama, qwen2"),
        ({"metadata": {"expert_count": 8}}, "8 experts is not supported"),
        ({"metadata": {"rope.scaling.type": "yarn"}}, "'yarn' is not supported; supported: none, linear"),
        ({"metadata": {"attention.head_count_kv": 3}}, "head_count 4 must be a multiple of head_count_kv 3"),
        ({"metadata": {"rope.dimension_count": 7}}, "rope.dimension_count 7 must be even"),
    ],
)
def test_a_model_that_would_run_wrong_is_refused(tmp_path, change, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        graph_of(write_llama(tmp_path / "m.gguf", **change), 1)
