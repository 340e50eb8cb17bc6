"""`census ledger --by shape --model`: launches to tensors, by walking a step along the model's layers."""

import json
from pathlib import Path

import pytest
from census_data import trace

from analysis import cli
from census import catalogue, ledger, matmuls
from census.matmuls import Matmul
from census.shapes import Model
from minfer.gguf import QUANTS, Tensor

TRACES = Path(__file__).parents[2] / "traces"
MODEL_14B = "catalogue:qwen2.5-14b"


def census(args, capsys):
    code = cli.run([str(a) for a in args])
    said = capsys.readouterr()
    return code, said.out, said.err


def counts(args, capsys):
    code, out, err = census(["ledger", *args, "--by", "shape", "--json"], capsys)
    assert code == 0, err
    data = json.loads(out)
    return {(r["role"], r["type"], r["od"], r["id"]): r["launches_per_step"] for r in data["rows"] if r["type"]}, data


@pytest.mark.parametrize("name, ffn", [
    ("llamacpp-qwen2-14b-h200", {("gate+up", "Q4_K", 27648, 5120): 48}),  # fused SwiGLU reads both
    ("llamacpp-qwen2-14b-h200-nofusion", {("ffn_gate", "Q4_K", 13824, 5120): 48, ("ffn_up", "Q4_K", 13824, 5120): 48}),
])  # fmt: skip
def test_llamacpps_14b(name, ffn, capsys):
    """Its rule gives 24 of 48 layers Q6_K for attn_v and ffn_down; attn_q, attn_output and ffn_down share a grid."""
    found, data = counts([trace(name), "--model", MODEL_14B], capsys)
    assert found == ffn | {
        ("attn_q", "Q4_K", 5120, 5120): 48, ("attn_k", "Q4_K", 1024, 5120): 48,
        ("attn_v", "Q4_K", 1024, 5120): 24, ("attn_v", "Q6_K", 1024, 5120): 24,
        ("attn_output", "Q4_K", 5120, 5120): 48, ("ffn_down", "Q4_K", 5120, 13824): 24,
        ("ffn_down", "Q6_K", 5120, 13824): 24, ("output", "Q6_K", 152064, 5120): 1,
    }  # fmt: skip
    assert data["warnings"] == []


def test_it_closes_as_every_ledger_does(capsys):
    path = trace("llamacpp-qwen2-14b-h200")
    _, data = counts([path, "--model", MODEL_14B], capsys)
    plain = ledger.of_file(str(path), by="shape")
    assert data["total"]["step_us"] == plain.total.step_us
    assert sum(r["exposed_us_per_step"] for r in data["rows"]) == pytest.approx(plain.total.exposed_us_per_step)
    # mul_mat_vec_q of 13824 rows is gate+up and nothing else: the two ledgers say the same of it
    same = next(r for r in plain.rows if "grid 13824x" in r.key)
    row = next(r for r in data["rows"] if r["role"] == "gate+up")
    assert row["exposed_us_per_step"] == pytest.approx(same.exposed_us_per_step)
    # 2 · 13824 · 5120 / 256 blocks of 144 bytes in the exposed time of a launch, of the advertised 4814 GB/s
    assert row["gbs"] == pytest.approx(2 * 13824 * 5120 / 256 * 144 / (same.exposed_us_per_launch * 1e3))
    assert row["bandwidth_share"] == pytest.approx(row["gbs"] / 4814.304)


@pytest.mark.parametrize("switch", ["default", "no-mmvq", "no-kq-mmvq"])
def test_minfers_7b_on_the_real_header(switch, qwen2_7b_header, capsys):
    """14 layers have q, k and v of one type: one matmul. Both forms, so both kinds of grid."""
    found, data = counts([TRACES / f"7b-d0-{switch}-node.sqlite.gz", "--model", qwen2_7b_header], capsys)
    assert found == {
        ("q+k+v", "Q4_K", 4608, 3584): 14, ("attn_q", "Q4_K", 3584, 3584): 14, ("attn_k", "Q4_K", 512, 3584): 14,
        ("attn_v", "Q6_K", 512, 3584): 14, ("attn_output", "Q4_K", 3584, 3584): 28,
        ("ffn_gate", "Q4_K", 18944, 3584): 28, ("ffn_up", "Q4_K", 18944, 3584): 28,
        ("ffn_down", "Q4_K", 3584, 18944): 14, ("ffn_down", "Q6_K", 3584, 18944): 14,
        ("output", "Q6_K", 152064, 3584): 1,
    }  # fmt: skip
    assert data["warnings"] == []


def test_another_model_is_noticed(capsys):
    found, data = counts([TRACES / "7b-d0-default-node.sqlite.gz", "--model", MODEL_14B], capsys)
    assert found == {} and "is it the model of this trace?" in data["warnings"][0]


def tensor(name, kind, rows, id):
    return Tensor(name, kind, (id, rows), 0, rows * id // QUANTS[kind].elements * QUANTS[kind].nbytes, None)


def test_one_layer_by_hand():
    """down has as many rows as o, and up as gate: order alone tells them apart."""
    roles = [("attn_q", 512, 256), ("attn_k", 256, 256), ("attn_v", 256, 256), ("attn_output", 256, 512),
             ("ffn_gate", 256, 256), ("ffn_up", 256, 256), ("ffn_down", 256, 256)]  # fmt: skip
    weights = [tensor(f"blk.0.{r}.weight", "Q4_K", od, id) for r, od, id in roles]
    model = Model("m", (tensor("token_embd.weight", "Q4_K", 1024, 256), *weights))

    def read(*blocks):
        taken = matmuls.assign([Matmul("Q4_K", n, (1,)) for n in blocks], model)
        return [[t.name.split(".")[-2] for t in group] for group in taken]

    apart = [[role] for role, *_ in roles] + [["token_embd"]]
    assert read(512, 256, 256, 256, 256, 256, 256, 1024) == apart
    joined = [["attn_q", "attn_k", "attn_v"], ["attn_output"], ["ffn_gate", "ffn_up"], ["ffn_down"], ["token_embd"]]
    assert read(1024, 256, 512, 256, 1024) == joined
    assert read(512, 99)[1] == []


@pytest.mark.parametrize("key, want", [
    ("mul_mat_vec_q<(ggml_type)14, (int)1, (bool)1> grid 1024x1x1 block 32x4x1", Matmul("Q6_K", 1024, (1, 4))),
    ("mmvq_q4_k grid 7168x1x1 block 256x1x1", Matmul("Q4_K", 7168, (1,))),
    ("matmul_q6_k_f32 grid 64x1x1 block 256x1x1", Matmul("Q6_K", 64, (8,))),
    ("matmul_q6_k_f32_batch grid 64x1x1 block 256x1x1", None),
    ("mul_mat_vec_q<(ggml_type)99, (int)1> grid 1x1x1 block 1x1x1", None),
    ("quantize_q8_1 grid 20x1x1 block 256x1x1", None), ("[HtoD copy]", None),
])  # fmt: skip
def test_kernels_by_name_and_grid(key, want):
    assert matmuls.parse(key) == want


@pytest.mark.parametrize("args, said", [
    (["--by", "kernel", "--model", MODEL_14B], "--by shape"),
    (["--by", "shape", "--model", "catalogue:qwen3-*"], "6 models"),
    (["--by", "shape", "--model", "nowhere.gguf"], "no such file"),
    (["--by", "shape", "--model", MODEL_14B, "--steps", "none"], "needs steps"),
])  # fmt: skip
def test_mistakes_are_one_line(args, said, capsys):
    code, out, err = census(["ledger", trace("llamacpp-qwen2-14b-h200"), *args], capsys)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_a_whole_graph_recording_says_what_would_help(capsys):
    path = trace("llamacpp-qwen2-14b-h200-wholegraph")
    code, _, err = census(["ledger", path, "--by", "shape", "--model", MODEL_14B], capsys)
    assert code == 2 and "--cuda-graph-trace=node" in err and err.count("\n") == 1


def test_every_catalogued_model_has_a_stage_for_every_matrix():
    for model in catalogue.models("catalogue:*"):
        staged = sum(len(s) for s in matmuls.stages(model))
        matrices = [t for t in model.tensors if len(t.shape) == 2]
        tied = not any(t.name == "output.weight" for t in matrices)
        assert staged == len(matrices) - (0 if tied else 1), model.name  # an embedding that is only looked up
