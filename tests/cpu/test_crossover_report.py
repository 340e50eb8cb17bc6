"""`census shapes --crossover`: a table joined with models; expectations are sums by hand."""

import json

import pytest

from analysis import cli
from census import crossover
from census.shapes import Model
from minfer.gguf import QUANTS, Tensor

FACTS = {"crossover": 1, "device": "H", "date": "2026-11-29", "bandwidth_gbs": 4000.0, "l2_bytes": 1}


def row(kind, od, id, kernel, us, spread=0.1, grid=False):
    return {"type": kind, "od": od, "id": id, "kernel": kernel, "grid": grid, "us": us, "us_min": us - spread,
            "us_max": us + spread, "gbs": 1000.0, "share": 0.25, "checked": True}  # fmt: skip


ROWS = [
    # 5,242,880 elements: the gate of 4,000,000 says mmvq, which loses 2 µs
    row("Q6_K", 1024, 5120, "mmvq_q6_k", 6.0), row("Q6_K", 1024, 5120, "matmul_q6_k_f32", 4.0),
    # 70,778,880 elements: mmvq, rightly
    row("Q6_K", 5120, 13824, "mmvq_q6_k", 20.0), row("Q6_K", 5120, 13824, "matmul_q6_k_f32", 30.0),
    # slower by its median, but the spreads overlap
    row("Q4_K", 5120, 5120, "mmvq_q4_k", 9.0, 1.0), row("Q4_K", 5120, 5120, "matmul_q4_k_f32", 8.5, 1.0),
    # of the grid only
    row("Q8_0", 256, 1024, "mmvq_q8_0", 3.0, grid=True), row("Q8_0", 256, 1024, "matmul_q8_0_f32", 2.0, grid=True),
    # a kernel that failed its check
    {**row("Q5_K", 256, 1024, "mmvq_q5_k", 1.0), "us": None},
]  # fmt: skip


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in [FACTS, *ROWS]) + '{"type": "Q6')  # a run that still writes
    return path


def census(args, capsys):
    code = cli.run([str(a) for a in args])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_loss_of_the_14b(table, capsys):
    code, out, err = census(["shapes", "--crossover", table, "catalogue:qwen2.5-14b", "--json"], capsys)
    assert code == 0, err
    data = json.loads(out)
    assert [(r["shape"], r["kernel"], r["fastest"], r["loss_us"], r["models"]) for r in data["rows"]] == [
        ("Q6_K 1024x5120", "mmvq_q6_k", "matmul_q6_k_f32", 2.0, 1),
        ("Q8_0 256x1024", "mmvq_q8_0", "matmul_q8_0_f32", 1.0, 0),
    ]
    (model,) = data["models"]
    # 24 layers have q, k, v of one type as one matmul, 24 have three; o, gate, up and down; the output
    assert model["matmuls"] == 24 * 1 + 24 * 3 + 48 * 4 + 1
    # attn_v on 24 layers, ffn_down in Q6_K on 24, 5120x5120 in Q4_K: o on 48 layers, q on the 24 that are apart
    assert model["measured"] == 24 + 24 + 48 + 24
    assert model["us"] == pytest.approx(24 * 6 + 24 * 20 + 72 * 9) and model["loss_us"] == pytest.approx(24 * 2)
    assert model["slower"] == [["Q6_K", 1024, 5120, 24]]


def test_as_a_table_and_a_map(table, tmp_path, capsys):
    plot = tmp_path / "map.png"
    code, out, _ = census(["shapes", "--crossover", table, "--plot", plot], capsys)
    assert code == 0 and "5 shapes" not in out and "2 on the slower kernel" in out
    assert plot.read_bytes()[:4] == b"\x89PNG"


def tensor(name, kind, rows, id):
    return Tensor(name, kind, (id, rows), 0, rows * id // QUANTS[kind].elements * QUANTS[kind].nbytes, None)


def test_steps_count_what_a_step_multiplies():
    """A layer without biases keeps its three matmuls; a tied embedding is the output."""
    layer = [tensor(f"blk.0.attn_{r}.weight", "Q4_K", od, 256) for r, od in (("q", 256), ("k", 64), ("v", 64))]
    bias = [Tensor(f"blk.0.attn_{r}.bias", "F32", (n,), 0, 4 * n, None) for r, n in (("q", 256), ("k", 64), ("v", 64))]
    ends = [tensor("token_embd.weight", "Q6_K", 512, 256)]
    apart = crossover.matmuls(Model("m", (*layer, *ends)))
    assert apart == {("Q4_K", 256, 256): 1, ("Q4_K", 64, 256): 2, ("Q6_K", 512, 256): 1}
    joined = crossover.matmuls(Model("m", (*layer, *bias, *ends)))
    assert joined == {("Q4_K", 384, 256): 1, ("Q6_K", 512, 256): 1}


@pytest.mark.parametrize("text, said", [
    (None, "cannot be read"), ("x}\n", "not a table"), (json.dumps(FACTS) + "\n", "no kernel has a time"),
    ('{"crossover": 1}\n{"type": 1}\n', "not a table"),
])  # fmt: skip
def test_another_file_is_one_line(text, said, tmp_path, capsys):
    path = tmp_path / "t"
    if text is not None:
        path.write_text(text)
    code, out, err = census(["shapes", "--crossover", path], capsys)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


@pytest.mark.parametrize("args", [["shapes"], ["shapes", "catalogue:phi-4", "--plot", "x.png"]])
def test_what_goes_with_what(args, capsys):
    code, _, err = census(args, capsys)
    assert code == 2 and "give a MODEL" in err and err.count("\n") == 1


def test_a_map_that_cannot_be_written(table, capsys):
    code, _, err = census(["shapes", "--crossover", table, "--plot", "map.nonsense"], capsys)
    assert code == 2 and "cannot be written" in err and err.count("\n") == 1
