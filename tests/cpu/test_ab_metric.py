"""What is read out of a command's output, and what is refused."""

import json
from pathlib import Path

import pytest

from census.ab.metric import Condition, condition, extract
from census.errors import CensusError

LLAMA = json.loads((Path(__file__).parents[1] / "data" / "llama-bench-qwen2-14b-h200.json").read_text())
ROW = {"n_prompt": 0, "n_gen": 4, "n_depth": 0, "avg_ns": 9000000, "samples_ns": [8000000, 10000000, 8400000],
       "avg_ts": 444.0, "output_hash": "abc", "switches": {"MINFER_X": "1"}}  # fmt: skip
PROMPT = ROW | {"n_prompt": 512, "n_gen": 0, "n_depth": 64, "avg_ts": 9000.0, "output_hash": None}


def read(metric, out, err="", conditions=()):
    return extract(metric, conditions, out if isinstance(out, str) else json.dumps(out), err)


def test_bench_is_the_median_repetition_in_ms_per_token():
    """8.4 ms for 4 tokens."""
    got = read("bench", [ROW])
    assert (got.value, got.unit, got.output_hash, got.switches) == (2.1, "ms/token", "abc", {"MINFER_X": "1"})
    assert got.resolution == 1e-6 / 4  # one ns of a repetition


def test_bench_of_several_tests():
    assert read("bench:tg4", [PROMPT, ROW]).value == 2.1
    assert read("bench:pp512 @ d64", [PROMPT, ROW]).value == 8.4 / 512
    with pytest.raises(CensusError, match=r"2 tests; choose one with --metric bench:TEST: pp512@d64, tg4"):
        read("bench", [PROMPT, ROW])
    with pytest.raises(CensusError, match="no test 'tg8'"):
        read("bench:tg8", [PROMPT, ROW])


def test_llama_bench_rows():
    rows = next(iter(LLAMA.values())) if isinstance(LLAMA, dict) else LLAMA
    row = next(r for r in rows if r["n_gen"])
    got = read(f"bench:tg{row['n_gen']}", rows)
    assert got.value == pytest.approx(1e3 / row["avg_ts"], rel=0.01) and got.output_hash is None


def test_a_bench_in_between_other_lines():
    assert read("bench", "loading\n" + json.dumps([ROW]) + "\ndone\n").value == 2.1
    assert read("bench:tg4", json.dumps(PROMPT) + "\n" + json.dumps(ROW) + "\n").value == 2.1  # -o jsonl


@pytest.mark.parametrize(("path", "value"), [
    ("a.b", 5.0), ("list.1.x", 2.0), ("list.-1.x", 2.0), ("one.x", 7.0),
])  # fmt: skip
def test_json_paths(path, value):
    data = {"a": {"b": 5}, "list": [{"x": 1}, {"x": 2}], "one": [{"x": 7}], "text": "9", "flag": True}
    assert read(f"json:{path}", data).value == value


@pytest.mark.parametrize(("path", "said"), [
    ("list.x", "printed 2 numbers"), ("c", "printed no number"), ("text", "printed no number"),
    ("flag", "printed no number"), ("list.7.x", "printed no number"), ("neg", "finite value above 0"),
    ("big", "finite value above 0"),
])  # fmt: skip
def test_json_that_holds_no_single_figure(path, said):
    out = '{"list": [{"x": 1}, {"x": 2}], "text": "9", "flag": true, "neg": -1, "big": Infinity}'
    with pytest.raises(CensusError, match=said):
        read(f"json:{path}", out)


@pytest.mark.parametrize(("expr", "value", "resolution"), [
    (r"eval time = *([\d.]+) ms", 12.34, 0.01), (r"(?<=total )\d+", 900.0, 1.0), (r"rate ([\d.e-]+)", 1.5e-3, 1e-4),
])  # fmt: skip
def test_regex_reads_both_outputs(expr, value, resolution):
    got = read(f"regex:{expr}", "eval time =   12.34 ms\nrate 1.5e-3\n", "total 900\n")
    assert (got.value, got.resolution) == pytest.approx((value, resolution))


@pytest.mark.parametrize(("expr", "said"), [
    ("x=(.*)", "printed no match"), (r"t=(\d)", "printed 2 matches"), ("name=(.*)", "matched 'bob', which"),
    ("nan=(.*)", "finite value above 0"),
])  # fmt: skip
def test_regex_without_one_figure(expr, said):
    with pytest.raises(CensusError, match=said):
        read(f"regex:{expr}", "t=1\nt=2\nname=bob\nnan=nan\n")


def test_guards_name_a_test_or_a_path():
    wanted = (condition("tg4>=400"), condition("0.avg_ns <= 1e7"))
    got = read("bench:tg4", [ROW, PROMPT], conditions=wanted)
    assert got.reported == {"tg4": 444.0, "0.avg_ns": 9000000.0}
    assert wanted[0] == Condition("tg4", ">=", 400.0) and wanted[0].holds(400) and not wanted[0].holds(399.9)
    assert wanted[1].holds(1e7) and not wanted[1].holds(1e7 + 1)
    with pytest.raises(CensusError, match=r"does not report the guard 'tg9' \(0 numbers of that name; tests: tg4\)"):
        read("bench", [ROW], conditions=(condition("tg9>=1"),))
