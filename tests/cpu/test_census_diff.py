"""Diffs and true times of ledgers small enough to check by hand."""

import json

import pytest
from census_data import build, kernel, trace

from census import diff, ledger, timing
from census.errors import CensusError


def steps_of(path, *launches: tuple[str, int]):
    """Three `decode` steps of the given (kernel, ns) launches, back to back."""
    nvtx, api, kernels, at, corr = [], [], [], 0, 0
    for step in range(3):
        nvtx.append((step * 1000, step * 1000 + 900, 59, f"decode {step}", 0))
        for i, (name, ns) in enumerate(launches):
            corr += 1
            api.append((step * 1000 + 10 * i + 5, step * 1000 + 10 * i + 6, corr, "cudaLaunchKernel"))
            kernels.append(kernel(at, at + ns, corr=corr, name=name))
            at += ns
    return ledger.of_file(str(build(path, nvtx=nvtx, api=api, kernels=kernels)))


@pytest.fixture
def pair(tmp_path):
    a = steps_of(tmp_path / "a.sqlite", ("mul", 3000), ("add", 500), ("add", 500), ("norm", 800))
    b = steps_of(tmp_path / "b.sqlite", ("mul", 2600), ("add", 500), ("norm", 800), ("fused", 700))
    return a, b


def test_every_kind_of_change(pair):
    made = diff.ledgers(*pair)
    got = [(r.key, r.status, r.launches_a, r.launches_b, round(r.exposed_us_change, 6)) for r in made.rows]
    assert got == [("fused", "added", 0, 1, 0.7), ("add", "changed", 2, 1, -0.5), ("mul", "changed", 1, 1, -0.4),
                   ("norm", "same", 1, 1, 0.0)]
    assert made.rows[0].us_per_launch_a is None and made.rows[0].us_per_launch_b == pytest.approx(0.7)


def test_totals_reconcile_with_both_ledgers(pair):
    made = diff.ledgers(*pair)
    a, b = (m.total for m in pair)
    assert sum(r.exposed_us_change for r in made.rows) == pytest.approx(b.exposed_us_per_step - a.exposed_us_per_step)
    assert sum(r.duration_us_change for r in made.rows) == pytest.approx(made.duration_us_change)
    assert sum(r.launches_b - r.launches_a for r in made.rows) == made.launches_change == 0
    parts = made.exposed_us_change + made.gap_us_change + made.residual_us_change
    assert parts == pytest.approx(made.step_us_change)


def test_the_other_way_round_is_the_negative(pair):
    there, back = diff.ledgers(*pair), diff.ledgers(*pair[::-1])
    assert back.step_us_change == pytest.approx(-there.step_us_change)
    assert [(r.key, r.status) for r in back.rows] == [
        ("fused", "removed"), ("add", "changed"), ("mul", "changed"), ("norm", "same")]


def window(tmp_path, *speeds: tuple[float, float]):
    runs = [{"pair": i, "arm": arm, "avg_ts": s}
            for i, both in enumerate(speeds) for arm, s in zip("AB", both, strict=True)]
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"runs": runs}))
    return path


def test_the_clock_agrees_or_disagrees_in_sign(tmp_path, pair):
    # Steps of 4000 and 5000 µs: B is 1000 µs slower, although the ledgers say -0.2 µs.
    made = diff.ledgers(*pair, window(tmp_path, (250.0, 200.0), (250.0, 200.0), (240.0, 250.0)))
    assert made.clock.us_change == pytest.approx(1000) and (made.clock.pairs, made.clock.b_slower) == (3, 2)
    assert made.exposed_us_change == pytest.approx(-0.2)
    assert not made.clock.exposed_agrees and not made.clock.durations_agree
    faster = diff.ledgers(*pair, window(tmp_path, (200.0, 250.0))).clock
    assert faster.exposed_agrees and faster.durations_agree


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runs": [{"pair": 1, "arm": "A", "avg_ts": 3}]}', '{"runs": 5}',
                                  '{"runs": [{"pair": 1, "arm": "A", "avg_ts": 0}, 7]}'])
def test_windows_that_are_none(tmp_path, pair, text):
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(CensusError, match=r"w\.json"):
        diff.ledgers(*pair, tmp_path / "w.json")
    with pytest.raises(CensusError, match="no such file"):
        diff.ledgers(*pair, tmp_path / "none.json")


def test_a_step_and_a_whole_trace_do_not_compare(tmp_path, pair):
    whole = ledger.of_file(str(build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)])))
    with pytest.raises(CensusError, match="do not compare"):
        diff.ledgers(pair[0], whole)


def bench(tmp_path, *tests: dict):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(list(tests)))
    return str(path)


def test_true_time_from_bench_takes_generation_at_the_least_depth(tmp_path):
    true = timing.read(bench(
        tmp_path, {"n_prompt": 512, "n_gen": 0, "avg_ts": 9000.0},
        {"n_prompt": 0, "n_gen": 128, "n_depth": 1000, "avg_ts": 50.0},
        {"n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ts": 99.0, "samples_ts": [80.0, 100.0, 125.0]}))
    assert (true.min_us, true.step_us, true.max_us, true.steps) == (8000, 10_000, 12_500, 3)
    assert true.warnings == ("bench.json also measures depths 1000; used is depth 0",)


def test_true_time_that_is_none(tmp_path):
    with pytest.raises(CensusError, match="no generation test"):
        timing.read(bench(tmp_path, {"n_prompt": 512, "n_gen": 0, "avg_ts": 9000.0}))
    with pytest.raises(CensusError, match="needs a whole-graph recording"):
        timing.read(str(trace("probe-nsys2025.3-graphnodes")))


def test_no_step_no_inflation(tmp_path):
    whole = ledger.of_file(str(build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)])))
    with pytest.raises(CensusError, match="no step time to compare"):
        timing.beside(whole, bench(tmp_path, {"n_gen": 1, "avg_ts": 1.0}))
