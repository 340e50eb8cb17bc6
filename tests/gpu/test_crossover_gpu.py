"""`minfer crossover` on a GPU: kernels are right, times are possible, a second run adds nothing."""

import json

import pytest

from cli import run_main
from minfer import cli

pytestmark = pytest.mark.gpu
ARGS = ("crossover", "--types", "Q4_K,Q6_K", "--od", "512,8192", "--id", "2048,8192", "--no-models")


def test_crossover(tmp_path, monkeypatch, capsys):
    path = tmp_path / "t.jsonl"
    done = run_main(cli.main, "minfer", [*ARGS, "--out", path], monkeypatch, capsys)
    assert done.code == 0, done.err
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 2 * 4 * 2 and all(r["checked"] for r in rows)
    assert header["bandwidth_gbs"] > 100 and header["l2_bytes"] > 1 << 20
    for row in rows:
        assert 0 < row["us_min"] <= row["us"] <= row["us_max"]
        assert row["copies"] * row["bytes"] > 3 * header["l2_bytes"]
        assert row["share"] < 1.1, "faster than memory: the L2 still held the weights"
    done = run_main(cli.main, "minfer", [*ARGS, "--out", path, "--json"], monkeypatch, capsys)
    assert json.loads(done.out)["shapes"] == 8 and len(path.read_text().splitlines()) == 1 + 16 + 1
