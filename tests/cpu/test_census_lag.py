"""The step of a sequence that has no names for it: sequences whose answer is known because they were made."""

import numpy as np
import pytest
from census_data import build, kernel

from census import lag, ledger


def step(layers: int, rng=None, types: int = 1) -> list[int]:
    """Symbols of one step: embed, `layers` x (8 launches, the third of a type that varies), norm, head."""
    body = [[1, 2, 30 + (int(rng.integers(types)) if rng else 0), 4, 5, 2, 6, 7] for _ in range(layers)]
    return [100, *(s for layer in body for s in layer), 101, 102]


def test_exact_repetition():
    found = lag.find(np.array(step(12) * 9))
    assert (found.lag, found.match, found.stretches, found.layer) == (99, 1.0, ((0, 891),), 8)


def test_shortest_of_equal_lags():
    assert lag.find(np.array([1, 2, 3, 4, 5] * 40)).lag == 5


def test_prefill_before_and_a_partial_step_after():
    one = step(12, np.random.default_rng(1), types=3)
    rng = np.random.default_rng(2)
    prefill = [200 + int(s) for s in rng.integers(0, 12, 150)]
    found = lag.find(np.array(prefill + one * 20 + one[:40]))
    assert found.lag == len(one) and found.stretches == ((150, 150 + 20 * 99 + 40),)


def test_two_requests_are_two_stretches():
    one, rng = step(12, np.random.default_rng(1), types=3), np.random.default_rng(2)
    prefill = [200 + int(s) for s in rng.integers(0, 50, 150)]
    found = lag.find(np.array(prefill + one * 10 + prefill[::-1] + one * 12))
    lengths = [(hi - lo) / found.lag for lo, hi in found.stretches]
    assert found.lag == 99 and len(lengths) == 2 and lengths == pytest.approx([10, 12], abs=0.1)


def test_changed_grids_lower_the_match_but_keep_the_step():
    one = step(12)
    steps = [list(one) for _ in range(20)]
    for i, s in enumerate(steps):  # one launch of 99 has another grid in every step
        s[50] = 1000 + i
    found = lag.find(np.array([x for s in steps for x in s]))
    assert found.lag == 99 and found.match == pytest.approx(98 / 99)


def test_noise_has_no_step():
    found = lag.find(np.random.default_rng(0).integers(0, 9, 3000))
    assert found.stretches == () and found.match < 0.3


def test_too_short():
    assert lag.find(np.array([1, 2, 3])) is None


def test_irregular_trace_says_the_best_candidate_and_gives_totals(tmp_path):
    rng = np.random.default_rng(0)
    work = [kernel(i * 100, i * 100 + 50, name=f"k{rng.integers(9)}") for i in range(400)]
    made = ledger.of_file(str(build(tmp_path / "t.sqlite", kernels=work)))
    assert made.steps.count == 0 and made.unit == "trace"
    assert "no steady step: best match 0." in made.steps.reason
    assert made.total.launches_per_step == 400
    assert any("totals of the whole trace" in w for w in made.warnings)


def test_one_step_of_unlike_layers_is_not_taken_for_many(tmp_path):
    """Layers repeat, but nothing waits between them, and head and tail do not repeat: no steps are invented."""
    rng = np.random.default_rng(5)
    symbols = [*range(1000, 1030), *step(30, rng, types=2), *range(2000, 2030)]
    work = [kernel(i * 100, i * 100 + 90, name=f"k{s}") for i, s in enumerate(symbols)]
    assert ledger.of_file(str(build(tmp_path / "t.sqlite", kernels=work))).steps.count == 0


def test_phase_is_at_the_pause(tmp_path):
    """A window cut in mid-step: steps begin where the host pauses, the cut ends are left out and counted."""
    symbols, work, now = [7, 8, 9, *([1, 2, 3, 4, 5, 6, 7, 8, 9] * 10), 1, 2], [], 0
    for s in symbols:
        now += 50_000 if s == 1 else 100
        work.append(kernel(now, now + 1000, name=f"k{s}"))
        now += 1000
    made = ledger.of_file(str(build(tmp_path / "t.sqlite", kernels=work)))
    assert (made.steps.count, made.steps.launches_per_step) == (10, 9)
    assert made.steps.excluded == {"warm-up, prefill and partial steps": 5}
    assert made.total.gap_us_per_step == pytest.approx(0.8) and made.total.between_us == pytest.approx(50.0)
