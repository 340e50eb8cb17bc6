"""From two recorded structures to the clock: the acid test, and what the interval is made of."""

import json

import pytest
from advice_data import BENCH, FUSED, TRACES, UNFUSED, WHOLE, WINDOW, launch, step

from analysis import cli, clock, predict, prediction, reconcile
from census import ledger
from census.errors import CensusError
from census.timing import TrueTime

MEASURED = 545.7  # µs: medians of the window's 8 pairs, 1e6/133.9 - 1e6/144.5


@pytest.mark.parametrize("time_from", [None, WHOLE, BENCH])
def test_the_acid_test(time_from):
    """Fewer launches, slower: the interval holds what was measured, is narrow, and names the matrix-vector kernels."""
    made = predict.of_files(UNFUSED, FUSED, time_from)
    assert MEASURED in made.change_us and made.change_us.width < 600 and made.change_us.low > 0
    assert made.rows[0].kernel == "mul_mat_vec_q" and made.rows[0].change_us == pytest.approx(962.5, abs=0.1)
    assert made.reasons[0].startswith("slower: mul_mat_vec_q") and "(bool)1" in made.reasons[0]
    assert made.duration_change_us == pytest.approx(-367.1, abs=0.1)


def test_the_clock_of_the_window():
    said = clock.read(WINDOW)
    assert said.change_us == pytest.approx(MEASURED, abs=0.1) and said.pairs == said.b_slower == 8
    assert said.low_us < MEASURED < said.high_us and said.coverage == pytest.approx(0.9922, abs=1e-4)
    back = clock.turned(said)
    assert (back.change_us, back.low_us, back.b_slower) == (-said.change_us, -said.high_us, 0)


def test_an_interval_is_the_sum_of_its_stated_ends():
    """pre 100 ± 1, post 80 ± 2. Post is truly 78..80: tracing 80/79; 2 of 4 launches go, the host's 8 µs halve."""
    pre = step(*[launch("add", 25)] * 4, spread=1)
    post = step(*[launch("add", 40)] * 2, spread=2)
    bare = predict.of_steps(pre, post).change_us
    tracing = 2 * predict.TRACING_US  # fewer launches were slowed by the tracer: the true saving may be smaller
    assert (bare.low, bare.point, bare.high) == pytest.approx((78 - 101, -20, 82 - 99 + tracing))
    timed = predict.of_steps(pre, post, TrueTime("g", "whole-graph replays", 79, 78, 80, 4), host_us=4).change_us
    # pre: 99 * 78/80 .. 101; post: 78 .. 82; the API calls cost 2 µs a launch and 2 launches fewer: 4 µs at most
    assert (timed.low, timed.high) == pytest.approx((78 - 101 - 4, 82 - 99 * 78 / 80))
    assert timed.point == pytest.approx(79 - 100 * 79 / 80)


def test_rows_add_up_to_the_change():
    made = predict.of_files(UNFUSED, FUSED)
    gaps = sum(x.gap_us for x in made.post.launches) - sum(x.gap_us for x in made.pre.launches)
    assert sum(r.change_us for r in made.rows) + gaps == pytest.approx(made.post.step_us - made.pre.step_us)


def test_tracing_costs_a_launch_no_more_than_is_said():
    """The constant is measured again from every pair of recordings of one command."""
    costs = []
    for node in TRACES.glob("*-node.sqlite.gz"):
        if "no-cuda-graph" in node.name or "-five-" in node.name:  # five: launches overlap, so tracing hides as well
            continue
        a = ledger.of_file(str(node)).total
        b = ledger.of_file(str(node).replace("-node.", "-graph.")).total
        costs.append((a.step_us - b.step_us) / a.launches_per_step)
    assert len(costs) == 28 and min(costs) > 0 and max(costs) == pytest.approx(predict.TRACING_US, abs=0.015)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("predict") / "p.json"
    assert cli.run(["predict", "--pre", UNFUSED, "--post", FUSED, "--time-from", WHOLE, "--save-to", str(path)]) == 0
    return path


def test_reconcile_says_which_figure_disagrees_with_the_clock(kept, capsys):
    assert cli.run(["reconcile", str(kept), "--pre", UNFUSED, "--post", FUSED, "--window", str(WINDOW)]) == 0
    said = capsys.readouterr().out
    assert "exposed time (+485.0 µs) agrees in sign with the clock (+545.7 µs)" in said
    assert "the sum of durations (-367.1 µs) DISAGREES in sign with the clock" in said
    assert "lies in the predicted interval" in said and "slower because of mul_mat_vec_q (+962.5 µs)" in said


def test_reconcile_closes_with_the_clock(kept):
    made = reconcile.of_files(kept, UNFUSED, FUSED, WINDOW)
    assert made.contained and made.recorded_us + made.residual_us == pytest.approx(made.clock.change_us)
    turned = reconcile.of_files(kept, UNFUSED, FUSED, WINDOW, backwards=True)
    assert not turned.contained and turned.clock.change_us == -made.clock.change_us
    assert any("DISAGREES" in f and "exposed" in f for f in turned.findings)


def test_a_prediction_is_dated_sealed_and_never_replaced(kept):
    data = prediction.load(kept)
    assert data["date"].endswith("Z") and {i["file"] for i in data["inputs"]} >= {"llamacpp-qwen2-14b-h200.sqlite.gz"}
    with pytest.raises(CensusError, match="is there already"):
        prediction.save(kept, data)


def test_a_prediction_that_was_edited_is_refused(kept, tmp_path):
    data = json.loads(kept.read_text())
    data["change_us"]["high"] = 10_000
    other = tmp_path / "edited.json"
    other.write_text(json.dumps(data))
    with pytest.raises(CensusError, match="was changed after it was made"):
        prediction.load(other)


@pytest.mark.parametrize(("args", "says"), [
    (f"predict --pre {WHOLE} --post {FUSED}", "whole-graph recording"),
    (f"predict --pre {UNFUSED}", "post"),
    (f"predict --pre {UNFUSED} --post {FUSED} --time-from {FUSED}", "needs a whole-graph recording"),
    (f"reconcile {WINDOW} --pre {UNFUSED} --post {FUSED} --window {WINDOW}", "is no prediction"),
])
def test_mistakes_are_one_line(args, says, capsys):
    assert cli.run(args.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and says in said


def test_json_has_the_agreed_keys(capsys):
    assert cli.run(["predict", "--pre", UNFUSED, "--post", FUSED, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["change_us"]) == {"low", "point", "high"} and data["rows"] and data["reasons"] and data["sha256"]
