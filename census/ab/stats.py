"""The arithmetic of a paired window; exact, no scipy, no randomness.

d holds one value per pair, ln(worse direction / better direction): above 0 means B is better. Tests compare every
function with scipy for n = 3..24.
"""

import functools
import math
from collections.abc import Sequence
from math import comb, erf, inf, sqrt
from statistics import median

MAD_TO_SD = 1.4826  # median absolute deviation -> standard deviation, normal values


def binomial_tail(k: int, n: int) -> float:
    """P(K >= k) for K ~ Bin(n, 1/2)."""
    return sum(comb(n, i) for i in range(max(k, 0), n + 1)) / (1 << n)


def sign_p(k: int, n: int) -> tuple[float, float]:
    """Sign test of k wins out of n: (one-sided, two-sided) p. Ties counted in n and not in k make it stricter."""
    one = binomial_tail(k, n)
    # With ties k and n-k are not the two sides' wins, so the smaller tail is never doubled for a minority of wins.
    return one, min(1.0, 2 * one) if 2 * k >= n else 1.0


def wins_needed(n: int, alpha: float) -> int | None:
    """The least k with a two-sided p of at most alpha; None when even n of n is not enough."""
    return next((k for k in range(n // 2 + 1, n + 1) if sign_p(k, n)[1] <= alpha), None)


def median_interval(d: Sequence[float], level: float = 0.95) -> tuple[float, float, float] | None:
    """Order-statistic interval of the median with its real coverage, at least `level`; None when n is too small.

    The ends are the r-th smallest and largest; coverage is 1 - 2 P(Bin(n, 1/2) <= r-1), exact for continuous values.
    """
    x, n, best = sorted(d), len(d), None
    for r in range(1, n // 2 + 1):
        coverage = 1 - 2 * sum(comb(n, i) for i in range(r)) / (1 << n)
        if coverage < level:
            break
        best = x[r - 1], x[n - r], coverage
    return best


def walsh(d: Sequence[float]) -> list[float]:
    """All averages of two values, each with itself too, sorted."""
    return sorted((d[i] + d[j]) / 2 for i in range(len(d)) for j in range(i, len(d)))


def hodges_lehmann(d: Sequence[float]) -> float:
    """Median of the Walsh averages."""
    return median(walsh(d))


@functools.cache
def signed_rank_counts(n: int) -> tuple[int, ...]:
    """How many of the 2^n sign patterns give each signed-rank sum 0..n(n+1)/2."""
    ways = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return tuple(ways)


def hl_interval(d: Sequence[float], level: float = 0.95) -> tuple[float, float, float] | None:
    """Exact interval of the Hodges-Lehmann estimate and its coverage (symmetric differences assumed)."""
    w, n = walsh(d), len(d)
    below, rank = 0, 0
    counts = signed_rank_counts(n)
    while 1 - 2 * (below + counts[rank]) / (1 << n) >= level:
        below += counts[rank]
        rank += 1
    return (w[rank - 1], w[len(w) - rank], 1 - 2 * below / (1 << n)) if rank else None


def floor(null: Sequence[float], level: float = 0.95) -> float | None:
    """What an A/A looks like at worst: the farther end of its Hodges-Lehmann interval; None when n is too small."""
    ends = hl_interval(null, level)
    return None if ends is None else max(abs(ends[0]), abs(ends[1]))


def slot_effect(d: Sequence[float], first: Sequence[bool]) -> tuple[float, float] | None:
    """(order-adjusted effect, slot effect) from the medians of pairs that ran A first and B first.

    slot > 0: the first run of a pair is slower. None unless both orders occur.
    """
    ab = [x for x, a_first in zip(d, first, strict=True) if a_first]
    ba = [x for x, a_first in zip(d, first, strict=True) if not a_first]
    if not ab or not ba:
        return None
    return (median(ab) + median(ba)) / 2, (median(ab) - median(ba)) / 2


def separated(worse: Sequence[float], better: Sequence[float], higher: bool = False) -> bool:
    """SEP: the worst run of the better side beats the best run of the other side."""
    return min(better) > max(worse) if higher else max(better) < min(worse)


def spread(d: Sequence[float]) -> float:
    """Robust standard deviation of pair values, from their median absolute deviation."""
    middle = median(d)
    return MAD_TO_SD * median(abs(x - middle) for x in d)


def power(effect_sd: float, n: int, alpha: float) -> float:
    """Probability that the sign test finds an effect of `effect_sd` standard deviations of a pair (normal values)."""
    k = wins_needed(n, alpha)
    win = (1 + erf(effect_sd / sqrt(2))) / 2
    return 0.0 if k is None else sum(comb(n, i) * win**i * (1 - win) ** (n - i) for i in range(k, n + 1))


@functools.cache
def visible(n: int, alpha: float = 0.05, wanted: float = 0.8) -> float:
    """The effect, in standard deviations of a pair, that n pairs find with probability `wanted`; inf: none."""
    low, high = 0.0, 20.0
    if power(high, n, alpha) < wanted:
        return inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, n, alpha) >= wanted else (middle, high)
    return high


def pairs_needed(effect_sd: float, alpha: float = 0.05, most: int = 200) -> int | None:
    """The least even number of pairs that would find the effect with probability 0.8; None above `most`."""
    return next((n for n in range(6, most + 1, 2) if visible(n, alpha) <= abs(effect_sd)), None)


def design_bound(k: int, n: int, first: int) -> float:
    """Largest one-sided p of k wins of n under any drift, where `first` of n pairs ran A first, in shuffled order.

    A drift that outweighs everything makes a pair's winner a function of its order label. The worst drift is the
    pattern of w ones with most of the C(n, first) label vectors within n-k flips.
    """
    def near(w: int) -> int:  # a ones and b zeros flipped give a vector with `first` ones
        return sum(comb(w, a) * comb(n - w, b) for a in range(n - k + 1) for b in range(n - k - a + 1)
                   if w - a + b == first)

    return max(near(w) for w in range(n + 1)) / comb(n, first)


def percent(log_ratio: float) -> float:
    """A log ratio as a change in percent."""
    return 100 * math.expm1(log_ratio)
