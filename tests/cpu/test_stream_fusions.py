"""What the stream rewrites (fusions/stream.py) take, and what they leave: each condition broken by itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from minfer.devices import Where
from minfer.engine import plan_step
from minfer.fusions import FUSIONS, fuse, stream
from minfer.gguf import Tensor, open_gguf
from minfer.gpu import H200, Gpu
from minfer.graph import Builder
from minfer.models import build_graph, load_hparams
from minfer.options import Options
from minfer.switches import SWITCHES
from minfer.synth import synth
from tiny import write_llama

HIDDEN, FFN = 256, 512
WEIGHTS = {  # name -> (columns, rows), type
    "token_embd": ((HIDDEN, 64), "Q4_K"), "norm": ((HIDDEN,), "F32"), "gate": ((HIDDEN, FFN), "Q4_K"),
    "up": ((HIDDEN, FFN), "Q4_K"), "down": ((FFN, HIDDEN), "Q6_K"), "output": ((HIDDEN, 64), "Q6_K"),
}  # fmt: skip


def builder(nt=1, **changed):
    """A builder over WEIGHTS, some of them changed or added as name=(shape, type)."""
    rows = WEIGHTS | changed
    tensors = {f"{n}.weight": Tensor(f"{n}.weight", kind, shape, 0, 0, Path()) for n, (shape, kind) in rows.items()}
    if "bias" in changed:
        tensors["gate.bias"] = replace(tensors["bias.weight"], name="gate.bias")
    return Builder(tensors, nt, 8)


def ops(b, output, gpu=H200, *off):
    graph = fuse(b.finish(output), Options(frozenset(off)), gpu)
    return [n.op for n in graph.nodes if n.op != "input"]


def ffn(b, x, h):
    act = b.swiglu(b.linear(h, "gate.weight"), b.linear(h, "up.weight"))
    return b.add(x, b.matmul(act, "down.weight"), "residual")


def model(b):
    """embedding, one layer's feed-forward part, head."""
    x = b.embed_rows("token_embd.weight")
    x = ffn(b, x, b.rms_norm(x, "norm.weight", 1e-6))
    return b.matmul(b.rms_norm(x, "norm.weight", 1e-6), "output.weight")


ALL = ["embed_rows", "stream_glu", "stream_add", "stream_matmul"]
# as gate, up and swiglu are not one op: they stream each by itself, and share the norm, which stays
NO_GLU = ["embed_rows", "rms_norm", "stream_matmul", "stream_matmul", "swiglu", "stream_add", "stream_matmul"]


def test_a_model_of_the_right_types_is_all_taken():
    b = builder()
    assert ops(b, model(b)) == ALL


def test_a_norm_and_a_residual_that_are_taken_in_are_the_readers_own():
    b = builder()
    x, glu, add, head = [n for n in fuse(b.finish(model(b)), Options(), H200).nodes if n.op != "input"]
    assert glu.inputs == (x.id,) and glu.weights == ("gate.weight", "up.weight", "norm.weight")
    assert add.inputs == (glu.id, x.id) and add.weights == ("down.weight",) and "eps" not in add.params
    assert head.inputs == (add.id,) and glu.params["eps"] == head.params["eps"] == 1e-6


def test_several_tokens_are_not_fused():
    b = builder(nt=2)
    assert not {op for op in ops(b, model(b)) if op.startswith("stream")}


def test_without_the_room_nothing_is_taken():
    b = builder()
    assert not {op for op in ops(b, model(b), Gpu(shared=48 << 10)) if op.startswith("stream")}


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({"up": ((HIDDEN, FFN), "Q6_K")}, NO_GLU),  # two types
        ({"gate": ((HIDDEN, FFN), "Q5_K"), "up": ((HIDDEN, FFN), "Q5_K")},
         ["embed_rows", "rms_norm", "matmul", "matmul", "swiglu", "stream_add", "stream_matmul"]),
        ({"down": ((FFN, HIDDEN), "Q8_0")},  # nobody would read the plane
         ["embed_rows", "rms_norm", "stream_matmul", "stream_matmul", "swiglu", "matmul", "add", "stream_matmul"]),
        ({"bias": ((FFN,), "F32")},
         ["embed_rows", "rms_norm", "stream_matmul", "add_bias", "stream_matmul", "swiglu", "stream_add",
          "stream_matmul"]),
        ({"output": ((HIDDEN, 63), "Q6_K")}, [*ALL[:-1], "rms_norm", "matmul"]),  # odd rows
        ({"output": ((HIDDEN, 64), "F16")}, [*ALL[:-1], "rms_norm", "matmul"]),
    ],
    ids=["two types", "Q5_K", "down of another type", "bias on gate", "odd rows", "F16"],
)  # fmt: skip
def test_a_matrix_that_does_not_fit_is_left(changed, left):
    b = builder(**changed)
    assert ops(b, model(b)) == left


def test_a_second_reader_of_swiglu_keeps_it():
    b = builder()
    x = b.embed_rows("token_embd.weight")
    act = b.swiglu(b.matmul(x, "gate.weight"), b.matmul(x, "up.weight"))
    both = b.add(b.matmul(act, "down.weight"), b.matmul(act, "down.weight"), "both")
    assert ops(b, both) == ["embed_rows", "stream_matmul", "stream_matmul", "swiglu", "stream_matmul", "stream_add"]


def test_a_second_reader_of_gate_keeps_it():
    b = builder()
    x = b.embed_rows("token_embd.weight")
    gate = b.matmul(x, "gate.weight")
    down = b.matmul(b.swiglu(gate, b.matmul(x, "up.weight")), "down.weight")
    assert "stream_glu" not in ops(b, b.add(down, b.matmul(gate, "down.weight"), "sum"))


def test_gate_and_up_of_two_rows_are_two():
    b = builder()
    x = b.embed_rows("token_embd.weight")
    h = b.rms_norm(x, "norm.weight", 1e-6)
    act = b.swiglu(b.matmul(x, "gate.weight"), b.matmul(h, "up.weight"))
    assert "stream_glu" not in ops(b, b.matmul(act, "down.weight"))


def test_a_product_that_is_read_again_is_not_only_added():
    b = builder()
    x = b.embed_rows("token_embd.weight")
    product = b.matmul(b.matmul(x, "gate.weight"), "down.weight")
    total = b.add(b.add(x, product, "sum"), product, "again")
    assert ops(b, total) == ["embed_rows", "stream_matmul", "stream_matmul", "add", "add"]


def test_a_norm_with_two_readers_stays():
    b = builder()
    h = b.rms_norm(b.embed_rows("token_embd.weight"), "norm.weight", 1e-6)
    assert ops(b, b.matmul(ffn(b, h, h), "output.weight")) == ["embed_rows", "rms_norm", *ALL[1:]]


def test_a_norm_before_an_add_stays():
    """The kernels have no such form: decode's adds follow attention and SwiGLU."""
    b = builder(square=((HIDDEN, HIDDEN), "Q4_K"))
    x = b.embed_rows("token_embd.weight")
    out = b.add(x, b.matmul(b.rms_norm(x, "norm.weight", 1e-6), "square.weight"), "sum")
    assert ops(b, out) == ["embed_rows", "rms_norm", "stream_add"]


def test_q_k_and_v_are_taken_all_three_or_left_to_the_reports_chain(tmp_path):
    synth("nano-qwen2", tmp_path / "nano.gguf", header_only=True)
    gguf = open_gguf(tmp_path / "nano.gguf")
    graph = build_graph(gguf, load_hparams(gguf), 1, 16)
    name = "blk.1.attn_k.weight"
    other = replace(graph, tensors={**graph.tensors, name: replace(graph.tensors[name], type="Q5_K")})
    nodes = fuse(other, Options(), H200).nodes
    assert [n.layer for n in nodes if n.op == "stream_qkv"] == [0]
    roles = {n.name: n.op for n in nodes if n.layer == 1 and n.name in ("attn_q", "attn_k", "attn_v")}
    assert roles == {"attn_q": "matmul", "attn_k": "matmul", "attn_v": "matmul"}
    assert [n.layer for n in nodes if n.op == "qkv_epilogue"] == [1]


@pytest.mark.parametrize("kind", [None, "Q4_0", "Q8_0"])
def test_a_model_of_other_types_has_no_stream_kernel(tmp_path, kind):
    where = Where("cuda", Options())
    planned = plan_step(open_gguf(write_llama(tmp_path / "m.gguf", matrices=kind)), where, 0)
    assert not [k for k in planned.by_kernel() if k.startswith("stream")]


def test_each_rewrite_has_its_switch_and_all_go_with_the_root():
    mine = [f.switch for f in FUSIONS if f.name.startswith("stream")]
    assert mine == [stream.QKV, stream.GLU, stream.ADD, stream.ROOT, stream.ACTIVATIONS]
    assert all(SWITCHES[s].needs == stream.ROOT for s in mine if s != stream.ROOT)
    b = builder()
    assert not {op for op in ops(b, model(b), H200, stream.ROOT) if op.startswith("stream")}
