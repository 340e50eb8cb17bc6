"""Find the step of a decode trace that has no NVTX: the lag at which the sequence of launches repeats itself.

A regular decode repeats the same (name, grid, block) sequence every step, so at the right lag almost every launch
equals the one a step earlier; the best shorter lag is the layer. Irregular traces show a low best match: then there
is no step to find and none is invented.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.95  # below this match there is no steady step
_WINDOW = 1 << 17  # launches in which candidates are looked for; the match itself is taken over all
_CANDIDATES = 24
_PROJECTIONS = 4  # independent sets of random signs, averaged
_TIE = 0.002  # matches this close count as equal: the shorter lag wins
_LAYER_TIE = 0.02  # layers of mixed types match a little better at multiples of the layer

Symbols = NDArray[np.int64]


@dataclass(frozen=True)
class Period:
    """The best lag, its match, the stretches [lo, hi) of the sequence that repeat at it, and the layer's lag.

    Without a stretch there is no steady step; `match` is then `whole`.
    """

    lag: int
    match: float  # inside the stretches
    whole: float  # of the whole sequence
    stretches: tuple[tuple[int, int], ...]
    layer: int | None


def find(symbols: Symbols) -> Period | None:
    """The period of a sequence of launches. None when it is too short to hold two of anything."""
    if len(symbols) < 4:
        return None
    lag = _best(symbols, _candidates(symbols, len(symbols) // 2), _TIE)
    whole, stretches = _match(symbols, lag), _steady(symbols, lag)
    if 2 * sum(hi - lo for lo, hi in stretches) < len(symbols):  # a few repeats in the middle of something else
        return Period(lag, whole, whole, (), None)
    same = [symbols[lo : hi - lag] == symbols[lo + lag : hi] for lo, hi in stretches]
    return Period(lag, float(np.concatenate(same).mean()), whole, stretches, _layer(symbols, lag, stretches[0]))


def _match(symbols: Symbols, lag: int) -> float:
    """Share of launches that equal the one `lag` later."""
    return float((symbols[:-lag] == symbols[lag:]).mean())


def _best(symbols: Symbols, lags: list[int], tie: float) -> int:
    """The lag of the best match, or its shortest whole fraction that matches as well: k steps repeat like one."""
    best = max(lags, key=lambda lag: _match(symbols, lag))
    enough = _match(symbols, best) - tie
    shorter = (best // k for k in range(best // 2, 1, -1) if best % k == 0)
    return next((lag for lag in shorter if _match(symbols, lag) >= enough), best)


def _candidates(symbols: Symbols, longest: int) -> list[int]:
    """The lags up to `longest` at which a window from the end of the sequence looks most like itself.

    Each symbol becomes a random sign, so the autocorrelation (one FFT) counts the matches at every lag at once; noise
    is about 1/sqrt(window), and the candidates are matched exactly afterwards.
    """
    window = symbols[-_WINDOW:]
    n, longest = len(window), min(longest, len(window) // 2)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (_PROJECTIONS, int(window.max()) + 1))[:, window]
    spectrum = np.fft.rfft(signs, 2 * n, axis=1)
    corr = np.fft.irfft((np.abs(spectrum) ** 2).sum(axis=0), 2 * n)[1 : longest + 1]
    corr /= n - np.arange(1, longest + 1)
    order = np.argsort(-corr, kind="stable")
    return [int(i) + 1 for i in order if i][:_CANDIDATES]  # not a lag of 1: one kernel repeated is not a step


def _steady(symbols: Symbols, lag: int) -> tuple[tuple[int, int], ...]:
    """Stretches in which each launch of a step's length, at any offset, matches the next step at the threshold."""
    same = symbols[:-lag] == symbols[lag:]
    if len(same) < lag:
        return ()
    total = np.concatenate(([0], np.cumsum(same)))
    good = total[lag:] - total[:-lag] >= THRESHOLD * lag
    edges = np.flatnonzero(np.diff(good.astype(np.int8), prepend=0, append=0))
    trimmed = [_trim(same, lag, lo, hi) for lo, hi in pairwise([int(e) for e in edges])]
    return _disjoint(trimmed[::2])


def _trim(same: NDArray[np.bool_], lag: int, lo: int, hi: int) -> tuple[int, int]:
    """Take off the few launches at both ends that only the tolerance let in. `hi` is one past the last good offset."""
    slack = int((1 - THRESHOLD) * lag) + 1
    first, last = lo, hi - 1 + lag  # matches looked at: same[first:last]
    if lo:
        head = np.flatnonzero(~same[first : first + slack])
        first += int(head[-1]) + 1 if len(head) else 0
    if last < len(same):
        tail = np.flatnonzero(~same[last - slack : last])
        last = last - slack + int(tail[0]) if len(tail) else last
    return first, last + lag


def _disjoint(stretches: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Stretches in order, each beginning where the one before has ended."""
    out: list[tuple[int, int]] = []
    for lo, hi in stretches:
        lo = max(lo, out[-1][1]) if out else lo
        if hi > lo:
            out.append((lo, hi))
    return tuple(out)


def _layer(symbols: Symbols, lag: int, stretch: tuple[int, int]) -> int | None:
    """The best lag well below the step, in the first steps; None when nothing shorter repeats for half a step."""
    part = symbols[stretch[0] : min(stretch[1], stretch[0] + 8 * lag)]
    if lag < 4:
        return None
    layer = _best(part, _candidates(part, lag // 2), _LAYER_TIE)
    return layer if _match(part, layer) >= 0.5 else None
