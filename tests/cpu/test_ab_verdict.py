"""Verdicts: the recorded llama.cpp window to the digit, and every rung of the ladder from values made by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ab_windows import run, window
from census.ab.metric import Condition
from census.ab.plan import Rule
from census.ab.verdict import judge
from census.ab.window import from_data, load
from census.errors import CensusError

RECORDING = Path(__file__).parents[1] / "data" / "window-llamacpp-fusion-14b-h200.json"
FLAT = [100.0] * 10  # values of arm A


def faster(*percents):
    """B of each pair so that B is faster by that much, in percent, where A is 100."""
    return [100 / (1 + p / 100) for p in percents]


def grade(*args, **more):
    made = judge(window(*args, **more))
    return made.grade.verdict, made.grade.reason, made.winner


def test_the_llama_cpp_window():
    made = judge(load(RECORDING))
    f = made.figures
    assert (made.grade.verdict, made.grade.reason, made.winner, f.wins, f.pairs) == ("SEP", "separated", "A", 8, 8)
    assert (f.p_two, f.p_one, f.bound) == (0.0078125, 0.00390625, 1 / 70)
    low, high, coverage = f.interval
    assert [round(100 * math.expm1(x), 2) for x in (f.effect, low, high)] == [8.36, 5.81, 8.62]
    assert round(coverage, 4) == 0.9922
    assert f.edges == (901372479, 949905478)  # the worst of A beats the best of B
    assert made.floor is None and made.outputs == "unknown" and made.lands is None


def test_the_llama_cpp_window_says_what_it_lacks():
    warnings = judge(load(RECORDING)).warnings
    assert any("GGML_CUDA_DISABLE_FUSION is set in one arm only and unset in B" in w for w in warnings)
    assert any(w.startswith("no A/A in this window") for w in warnings)
    assert any(w.startswith("no guards were recorded") for w in warnings)
    assert any(w.startswith("outputs were not compared") for w in warnings)


def test_the_llama_cpp_window_by_tokens_per_second_is_the_same():
    data = json.loads(RECORDING.read_text())
    for row in data["runs"]:
        del row["avg_ns"]
    made = judge(from_data(data, RECORDING))
    assert (made.grade.verdict, made.winner) == ("SEP", "A")
    assert math.expm1(made.figures.effect) == pytest.approx(0.0836, abs=5e-5)


def test_seven_pairs():
    """7 of 7 is 1/128 one-sided; 6 of 7 is 8/128 and open."""
    made = judge(window(FLAT[:7], faster(1, 2, 3, 1, 2, 3, 2)))
    assert (made.figures.p_one, made.figures.p_two, made.winner) == (0.0078125, 0.015625, "B")
    six = judge(window([100, 90, 110, 100, 90, 110, 100], [98, 88, 108, 99, 88, 109, 101]))
    assert (six.figures.wins, six.figures.p_one, six.figures.p_two) == (6, 0.0625, 0.125)
    assert (six.grade.verdict, six.grade.reason, six.winner) == ("OPEN", "not_shown", None)


def test_a_tie_is_no_win():
    """5 wins and 2 equal values: 29/128 one-sided, not the 1/32 of 5 wins out of 5."""
    made = judge(window(FLAT[:7], [95, 95, 95, 95, 95, 100, 100]))
    assert (made.figures.wins, made.figures.ties, made.figures.p_one) == (5, 2, 29 / 128)
    assert made.grade.verdict == "OPEN"


@pytest.mark.parametrize(("resolutions", "ties"), [((1.0, 1.0), 8), ((1.0, 0.1), 0)])
def test_values_that_differ_by_their_last_digit_are_ties(resolutions, ties):
    """100 and 99 to the whole number are a tie; of 100 and 99.0 the finer figure decides."""
    a, b = ([run(v, resolution=r)] * 8 for v, r in zip((100, 99), resolutions, strict=True))
    assert judge(window(a, b)).figures.ties == ties


def test_separated_and_paired():
    assert grade(FLAT, faster(*[3] * 10)) == ("SEP", "separated", "B")
    drifting = [100 + 3 * i for i in range(10)]  # the arms overlap, the pairs do not
    assert grade(drifting, [v * 0.98 for v in drifting]) == ("PAIRED", "sign_test", "B")
    assert grade([v * 0.98 for v in drifting], drifting) == ("PAIRED", "sign_test", "A")
    nine = [v * 0.98 for v in drifting[:9]] + [drifting[9] * 1.01]
    assert grade(drifting, nine) == ("PAIRED", "sign_test", "B")
    assert grade(drifting, [*nine[:8], drifting[8] * 1.01, nine[9]])[:2] == ("OPEN", "not_shown")


def test_higher_is_better():
    assert grade(FLAT, [103.0] * 10, rule=Rule(10, True)) == ("SEP", "separated", "B")
    assert grade(FLAT, [103.0] * 10, rule=Rule(10, False)) == ("SEP", "separated", "A")


def test_five_pairs_never_show_anything():
    assert grade(FLAT[:5], faster(*[50] * 5)) == ("OPEN", "few_pairs", None)


def test_equivalent_within_delta():
    mixed = faster(0.5, -0.5, 0.3, -0.3, 0.8, -0.8, 0.1, -0.1, 0.2, -0.2)
    assert grade(FLAT, mixed) == ("EQUIV", "inside_delta", None)
    assert grade(FLAT, mixed, rule=Rule(10, False, delta_pct=0.2))[:2] == ("OPEN", "not_shown")


NOISY_NULL = faster(2, -2, 1, -1, 2, -2, 1, -1, 2, -2)  # A' against A: the Hodges-Lehmann interval reaches ±1.5%


def test_a_claim_must_be_above_the_floor():
    """The same 1.2% stands or falls with what A/A shows; the floor of the noisy A/A is between 1.2% and 2%."""
    b = faster(*[1.2] * 10)
    assert grade(FLAT, b) == ("SEP", "separated", "B")
    made = judge(window(FLAT, b, null=NOISY_NULL))
    assert 0.012 < made.floor < 0.02
    assert (made.grade.verdict, made.grade.reason) == ("OPEN", "below_floor")
    assert judge(window(FLAT, faster(*[4] * 10), null=NOISY_NULL)).winner == "B"


def test_a_null_that_differs_voids_the_window():
    assert grade(FLAT, faster(*[9] * 10), null=[99.0] * 10)[:2] == ("INVALID", "null_separated")
    spread = [100 + 3 * i for i in range(10)]
    shifted = [v * 0.98 for v in spread]
    assert grade(spread, [v * 0.9 for v in spread], null=shifted)[:2] == ("INVALID", "null_interval")


def test_a_slot_effect_above_the_claim_voids_it():
    """The run of A that comes first is 3% slower: of 40 pairs the floor is 0, the slot 3%, and the claim 2%."""
    order = ["AA'B", "BA'A"] * 20
    null = [100 / 1.03 if label == "AA'B" else 103.0 for label in order]
    made = judge(window(FLAT * 4, [100 / 1.02] * 40, null=null, order=order))
    assert made.floor == pytest.approx(0.0, abs=1e-12) and abs(made.null.order[1]) == pytest.approx(math.log(1.03))
    assert (made.grade.verdict, made.grade.reason, made.winner) == ("INVALID", "null_slot", None)
    assert judge(window(FLAT * 4, [100 / 1.05] * 40, null=null, order=order)).winner == "B"


def test_different_output_comes_before_speed():
    def side(value, digest):
        return [run(value, output_hash=digest)] * 10

    assert grade(side(100, "x"), side(90, "x")) == ("SEP", "separated", "B")
    assert grade(side(100, "x"), side(90, "y")) == ("DIFFERENT OUTPUT", "output_hash", None)
    declared = Rule(10, False, different_output=True)
    assert grade(side(100, "x"), side(90, "y"), rule=declared) == ("SEP", "separated", "B")
    unstable = [run(100, output_hash="xz"[i % 2]) for i in range(10)]
    assert grade(unstable, side(90, "y"), rule=declared)[0] == "DIFFERENT OUTPUT"
    assert judge(window(side(100, "x"), side(90, None))).outputs == "unknown"


def test_missing_runs_and_a_broken_order():
    assert grade(FLAT[:9], faster(*[3] * 9), rule=Rule(10, False))[:2] == ("INVALID", "missing_runs")
    assert grade(FLAT, faster(*[3] * 10), broken="pair 2 ran BA")[:2] == ("INVALID", "plan_broken")


def test_dropped_pairs_are_capped():
    a, b = [100.0] * 13, faster(*[3] * 13)
    assert grade(a, b, dropped=(1, 4, 7), rule=Rule(10, False))[:2] == ("INVALID", "machine")
    assert grade(a[:12], b[:12], dropped=(1, 4)) == ("SEP", "separated", "B")


def test_the_verdict_must_hold_with_the_dropped_pairs():
    """9 of 10 without the two dropped pairs, 9 of 12 with them: that needs 10."""
    b = faster(3, 3, 3, 3, 3, -1, 3, 3, 3, 3, -5, -5)
    assert grade([100.0] * 12, b, dropped=(10, 11)) == ("OPEN", "dropped_pairs_decide", None)
    assert grade([100.0] * 10, b[:10]) == ("PAIRED", "sign_test", "B")


@pytest.mark.parametrize(("bar", "guard", "lands", "why"), [
    (2.0, 40.0, True, "passes the bar"), (3.5, 40.0, False, "below the bar"), (2.0, 60.0, False, "guard tg128>=60"),
    (None, 40.0, None, "no bar"),
])  # fmt: skip
def test_landing(bar, guard, lands, why):
    rule = Rule(10, False, bar_pct=bar, conditions=(Condition("tg128", ">=", guard),))
    b = [run(v, reported={"tg128": 50.0}) for v in faster(*[3] * 10)]
    made = judge(window(FLAT, b, rule=rule))
    assert made.lands is lands and why in made.lands_why
    assert judge(window(b, FLAT, rule=replace(rule, bar_pct=2.0))).lands is False  # A won


def test_a_guard_that_no_run_reports_does_not_hold():
    rule = Rule(10, False, bar_pct=1.0, conditions=(Condition("tg128", ">=", 1.0),))
    assert judge(window(FLAT, faster(*[3] * 10), rule=rule)).lands is False


def test_cycles_show_a_difference_of_clocks():
    """B is 3% faster at a clock that is 3% higher: no cycle is saved."""
    a, b = [run(103, sm_mhz=1000.0)] * 10, [run(100, sm_mhz=1030.0)] * 10
    made = judge(window(a, b))
    assert made.winner == "B" and made.cycles == pytest.approx(0.0, abs=1e-12)
    assert judge(window(FLAT, faster(*[3] * 10))).cycles is None


def test_an_open_window_says_what_it_could_have_seen():
    made = judge(window(FLAT, faster(3, -2, 4, 1, -1, 2, -3, 2, 1, 3)))
    assert made.grade.verdict == "OPEN"
    assert made.visible == pytest.approx(1.38 * made.figures.spread, rel=0.01)
    assert made.needed > 10


def test_slot_effect_is_reported_for_the_first_run():
    """The first run of a pair is 2% slower and the arms are equal: slot +2%, effect 0."""
    order = ["AB", "BA"] * 5
    a = [102.0 if label == "AB" else 100.0 for label in order]
    b = [102.0 if label == "BA" else 100.0 for label in order]
    adjusted, slot = judge(window(a, b, order=order)).figures.order
    assert adjusted == pytest.approx(0.0) and slot == pytest.approx(math.log(1.02))


BAD = [
    ({"runs": []}, "has no list `runs`"),
    ({"runs": [{"pair": 0, "order": "AB", "arm": "A"}]}, "have no figure"),
    ({"runs": [{"pair": 0, "order": "AB", "arm": "A", "avg_ns": 0}]}, "finite number above 0"),
    ({"runs": [{"pair": 0, "arm": "A", "avg_ns": 5}]}, "a run has no 'order'"),
    ({"runs": [{"pair": 0, "order": "AB", "arm": "A", "avg_ns": 5}] * 2}, "two runs of arm A"),
    ({"runs": [{"model": m, "pair": 0, "order": "AB", "arm": "A", "avg_ns": 5} for m in "xy"]}, "several models"),
]


@pytest.mark.parametrize(("data", "said"), BAD)
def test_a_file_that_is_no_window(data, said):
    with pytest.raises(CensusError, match=said):
        from_data(data, Path("w.json"))


def test_runs_out_of_their_order_break_the_window():
    data = json.loads(RECORDING.read_text())
    data["runs"][0], data["runs"][1] = data["runs"][1], data["runs"][0]
    assert judge(from_data(data, RECORDING)).grade.reason == "plan_broken"
