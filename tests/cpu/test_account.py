"""The account: the reports' arithmetic, items that add up, windows that are not mixed."""

import json
import math

import pytest
from advice_data import BENCH, FUSED, TRACES, WINDOW, launch, planned, step

from analysis import account, cli, sequence
from census import timing
from census.errors import CensusError
from census.timing import TrueTime


@pytest.mark.parametrize(("tps", "distance", "percent"), [(22.40, "3.52", "7.9"), (21.95, "4.44", "9.7")])
def test_the_reports_arithmetic(tps, distance, percent):
    """Reports 72 and 73: llama.cpp takes 41.12 ms; 1000 / 22.40 = 44.64, 1000 / 21.95 = 45.56."""
    made = account.bare(tps, 41.12)
    assert (f"{made.distance_ms:.2f}", f"{made.distance_pct:.1f}") == (distance, percent)
    assert math.fsum(i.ms for i in made.items) == made.distance_ms


def test_items_of_a_step_above_its_floor():
    """Bytes at 1 GB/s are 1e3 per µs: matmul 10 - 4, attention 6 - 1, small 1 launch of 2 = 1 structure + (1 - 0.5)."""
    recorded = step(launch("mmvq_q4_k", 10, op="matmul output", gap=1), launch("attention", 6), launch("add_f32", 2),
                    launch("add_bias", 1))
    plan = [planned("mmvq_q4_k", "matmul", "output", size=4000), planned("attention", "attention", "attention"),
            planned("add_f32", "add", "x", size=500), planned("add_bias", "add_bias", "y", size=0)]
    made = account.of_step(recorded, plan=plan, floor_gbs=1)
    items = {i.name: round(i.ms * 1e3, 9) for i in made.items}
    assert items == {"head": 6, "attention": 5, "launch structure of small kernels": 2, "small kernels": 0.5,
                     "gaps inside the step": 1, "residual": 0}
    assert made.ours_ms == pytest.approx(0.020) and made.reference_ms == pytest.approx(0.0055)


@pytest.mark.parametrize("peer", [None, TrueTime("peer.json", "benchmark", 7436.4, 7400, 7500, 5)])
@pytest.mark.parametrize("true", [None, TrueTime("graph", "whole-graph replays", 6717.3, 6708, 6726, 4)])
def test_items_add_up_exactly_for_a_recorded_step(peer, true):
    recorded = sequence.read(str(TRACES / "14b-d0-default-node.sqlite.gz"))
    plan = [planned(x.kernel, "op", (x.op or "").removeprefix("matmul "), size=1_000_000) for x in recorded.launches]
    made = account.of_step(recorded, true=true, plan=plan, floor_gbs=4430, peer=peer)
    assert math.fsum(i.ms for i in made.items) == pytest.approx(made.distance_ms, abs=1e-12)
    assert made.ours_ms == pytest.approx((true.step_us if true else recorded.step_us) / 1e3)
    assert any(i.name == "head" for i in made.items)


def test_a_peer_without_a_plan():
    made = account.of_files(FUSED, "auto", peer=BENCH, floor_gbs=None, plan=None, time_from=None)
    assert math.fsum(i.ms for i in made.items) == pytest.approx(made.distance_ms, abs=1e-12)
    assert made.reference_ms == pytest.approx(timing.read(BENCH).step_us / 1e3)


def test_history_subtracts_inside_a_window_only(tmp_path):
    """Second window: both arms 10% slower. The distance grows with them, the peer's drift stands apart."""
    data = json.loads(WINDOW.read_text())
    for run in data["runs"]:
        run["avg_ts"] /= 1.1
    later = tmp_path / "later.json"
    later.write_text(json.dumps(data))
    first, second = account.history([WINDOW, later])
    assert first.distance_ms == pytest.approx(-0.5457, abs=1e-4) and first.peer_drift_ms == 0
    assert second.distance_ms == pytest.approx(1.1 * first.distance_ms)
    assert second.peer_drift_ms == pytest.approx(0.1 * first.peer_ms)
    assert account.history([WINDOW], "B")[0].distance_ms == -first.distance_ms


@pytest.mark.parametrize(("args", "says"), [
    ("account", "needs a TRACE"),
    ("account --ours-tps 0 --reference-ms 41.12", "must be above 0"),
    (f"account {FUSED}", "needs a reference"),
    (f"account {FUSED} --floor 4300", "needs --plan"),
    (f"account {FUSED} --floor -1", "above 0"),
    (f"account --history {WINDOW} --ours C", "unknown arm"),
    ("account nowhere.sqlite --peer x.json", "nowhere.sqlite"),
])
def test_mistakes_are_one_line(args, says, capsys):
    assert cli.run(args.split()) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and says in said.err


def test_json_has_the_agreed_keys(capsys):
    assert cli.run(["account", "--ours-tps", "22.40", "--reference-ms", "41.12", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {"ours_ms", "reference_ms", "distance_ms", "distance_pct", "items"} <= data.keys()
    assert set(data["items"][0]) == {"name", "ms"}


def test_a_floor_needs_bytes():
    with pytest.raises(CensusError, match="needs --plan"):
        account.of_step(step(launch("add", 1)), floor_gbs=10)
