"""The arithmetic of a window against scipy for n = 3..24, and against the tables of textbooks in comments."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from census.ab import stats

NS = range(3, 25)


def values(n):
    return np.random.default_rng(n).normal(0.3, 1.0, n).tolist()


@pytest.mark.parametrize("n", NS)
def test_sign_test(n):
    for k in range(n + 1):
        one, two = stats.sign_p(k, n)
        assert one == pytest.approx(scipy_stats.binomtest(k, n, 0.5, alternative="greater").pvalue, rel=1e-12)
        if 2 * k >= n:
            assert two == pytest.approx(scipy_stats.binomtest(k, n, 0.5).pvalue, rel=1e-12)


@pytest.mark.parametrize("n", NS)
def test_median_interval(n):
    d, ends = values(n), stats.median_interval(values(n))
    theirs = scipy_stats.quantile_test(d, q=0, p=0.5).confidence_interval(0.95)
    if n < 6:
        assert ends is None and math.isnan(theirs.low)
        return
    low, high, coverage = ends
    assert (low, high) == (theirs.low, theirs.high)
    r = sorted(d).index(low) + 1
    assert coverage == pytest.approx(1 - 2 * scipy_stats.binom.cdf(r - 1, n, 0.5), rel=1e-12)
    assert coverage >= 0.95 > 1 - 2 * scipy_stats.binom.cdf(r, n, 0.5)


@pytest.mark.parametrize("n", NS)
def test_signed_rank_distribution(n):
    """P(W+ <= w) of every attainable w, which the Hodges-Lehmann interval counts with."""
    counts = np.array(stats.signed_rank_counts(n), float)
    assert counts.sum() == 2**n
    d = values(n)
    w = int(scipy_stats.rankdata(np.abs(d))[np.array(d) > 0].sum())
    theirs = scipy_stats.wilcoxon(d, alternative="greater", method="exact").pvalue
    assert counts[w:].sum() / 2**n == pytest.approx(theirs)


@pytest.mark.parametrize("n", NS)
def test_hodges_lehmann_interval_is_what_the_signed_rank_test_does_not_reject(n):
    d, ends = values(n), stats.hl_interval(values(n))
    if n < 6:
        assert ends is None
        return

    def p(shift):
        return scipy_stats.wilcoxon(np.array(d) - shift, method="exact").pvalue

    low, high, coverage = ends
    assert p(low - 1e-9) <= 1 - coverage + 1e-12 < p(low + 1e-9)
    assert p(high + 1e-9) <= 1 - coverage + 1e-12 < p(high - 1e-9)
    assert coverage >= 0.95 and low < stats.hodges_lehmann(d) < high


@pytest.mark.parametrize("n", NS)
def test_power_of_the_sign_test(n):
    k = stats.wins_needed(n, 0.05)
    for effect in (0.0, 0.7, 1.9):
        expected = 0.0 if k is None else scipy_stats.binom.sf(k - 1, n, scipy_stats.norm.cdf(effect))
        assert stats.power(effect, n, 0.05) == pytest.approx(expected, abs=1e-12)


def test_hodges_lehmann_by_hand():
    """Walsh averages of 1, 2, 6: 1, 1.5, 3.5, 2, 4, 6; their median is (2 + 3.5) / 2."""
    assert stats.walsh([1, 2, 6]) == [1, 1.5, 2, 3.5, 4, 6]
    assert stats.hodges_lehmann([1, 2, 6]) == 2.75


def test_coverage_of_hodges_lehmann_intervals():
    """Published exact coverages of the 95% interval."""
    expected = {6: 0.9688, 7: 0.9531, 8: 0.9609, 9: 0.9609, 10: 0.9512, 11: 0.9580, 12: 0.9575}
    assert {n: round(stats.hl_interval(values(n))[2], 4) for n in expected} == expected


def test_seven_of_seven_and_six_of_seven():
    assert stats.sign_p(7, 7) == (0.0078125, 0.015625)
    assert stats.sign_p(6, 7) == (0.0625, 0.125)
    assert stats.sign_p(8, 8) == (0.00390625, 0.0078125)


def test_a_tie_is_no_win():
    """5 wins and 2 ties of 7: (21 + 7 + 1) / 128; without the ties it would be 5 of 5, 1/32."""
    assert stats.sign_p(5, 7)[0] == 29 / 128
    assert stats.sign_p(3, 10)[1] == 1.0  # 3 wins, 2 losses, 5 ties show nothing


def test_wins_needed():
    """Two-sided 0.05; none below 6 pairs."""
    expected = {5: None, 6: 6, 7: 7, 8: 8, 9: 8, 10: 9, 11: 10, 12: 10, 15: 12, 16: 13, 20: 15}
    assert {n: stats.wins_needed(n, 0.05) for n in expected} == expected


def test_slot_effect():
    """A first: 3 and 5 (median 4); B first: 1 and 2 (median 1.5). Effect 2.75, slot 1.25."""
    assert stats.slot_effect([3, 1, 5, 2], [True, False, True, False]) == (2.75, 1.25)
    assert stats.slot_effect([3, 5], [True, True]) is None


def test_separation():
    assert stats.separated(worse=[10, 11], better=[9, 9.5])
    assert not stats.separated(worse=[10, 11], better=[9, 10])
    assert stats.separated(worse=[9, 9.5], better=[10, 11], higher=True)


def test_spread_and_floor():
    """Deviations from the median 3: 2, 1, 0, 1, 97; their median is 1."""
    assert stats.spread([1, 2, 3, 4, 100]) == stats.MAD_TO_SD
    assert stats.floor([0.1, -0.2, 0.3]) is None
    null = [0.01, -0.02, 0.005, 0.0, -0.01, 0.02, 0.015, -0.005]
    low, high, _ = stats.hl_interval(null)
    assert stats.floor(null) == max(abs(low), abs(high)) > 0


def test_visible_effect():
    """Effect in sd of a pair for 80% power: probit of 0.8^(1/7) for 7 of 7 = 1.86; 10 pairs (9 wins) 1.38."""
    assert stats.visible(7) == pytest.approx(scipy_stats.norm.ppf(0.8 ** (1 / 7)), abs=1e-9)
    assert {n: round(stats.visible(n), 2) for n in (10, 12, 20)} == {10: 1.38, 12: 1.12, 20: 0.84}
    assert stats.visible(5) == math.inf
    assert stats.pairs_needed(1.4) == 10 and stats.pairs_needed(0.01) is None


def test_design_bound_by_enumeration():
    """Balanced labels: C(8, 4) = 70 vectors, one of which agrees with a given drift everywhere: 1/70."""
    expected = {(8, 8): 0.0143, (9, 10): 0.0238, (10, 10): 0.004, (10, 12): 0.04, (12, 12): 0.0011}
    assert {(k, n): round(stats.design_bound(k, n, n // 2), 4) for k, n in expected} == expected
    assert stats.design_bound(8, 8, 8) == 1.0  # always A first: a drift alone can win every pair
