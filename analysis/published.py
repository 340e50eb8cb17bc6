"""The three reports' figures, recomputed from the numbers that they publish: one row per figure, published beside ours.

Reports 70, 72 and 73 describe the method's first use on a small GPU. Each row is the arithmetic that a sentence of
theirs claims; `digits` is how many the sentence prints.
"""

from dataclasses import dataclass

from analysis import account

PEER_MS = 41.12  # llama.cpp, 14B at depth 3254


@dataclass(frozen=True)
class Figure:
    report: int
    what: str
    published: float
    computed: float
    digits: int  # decimals printed

    @property
    def agrees(self) -> bool:
        """Whether ours rounds to what is printed, give or take one unit of the last digit of its inputs."""
        return abs(self.published - self.computed) <= 10.0**-self.digits


def figures() -> tuple[Figure, ...]:
    """Every figure, in the order of the reports."""
    return (*_report_70(), *_report_72(), *_report_73())


def _distance(report: int, tps: float, ms: float, distance: float, percent: float) -> list[Figure]:
    made = account.bare(tps, PEER_MS)
    return [Figure(report, f"{tps} tok/s as ms per step", ms, made.ours_ms, 2),
            Figure(report, f"distance to {PEER_MS} ms, ms", distance, made.distance_ms, 2),
            Figure(report, "distance, % of our step", percent, made.distance_pct, 1)]


def _gain(report: int, what: str, before: float, after: float, published: float, digits: int = 2) -> Figure:
    return Figure(report, f"{what}: {before:g} to {after:g}, %", published, 100 * (after / before - 1), digits)


def _report_70() -> list[Figure]:
    listed = (0.63, 0.28, 0.44, 1.0)  # ms: attention, attn_v, head, norms
    return [_gain(70, "standalone quantize launches", 4448, 964, -78, 0), *_distance(70, 21.68, 46.12, 5.00, 10.8),
            Figure(70, "listed items, ms", 2.35, sum(listed), 2),
            Figure(70, "listed items, % of the distance", 47, 100 * sum(listed) / 5.00, 0)]


def _report_72() -> list[Figure]:
    return [_gain(72, "attn_v kernel, µs", 33.16, 24.32, -26.7, 1),
            Figure(72, "attn_v on 11 layers, µs per step", 97, 11 * (33.16 - 24.32), 0),
            _gain(72, "RMSNorm kernel, µs", 9.43, 5.66, -40, 0),
            Figure(72, "positions converted once, ms per step", 0.275, (239.6 - 1.2) * 1.15e-3, 3),
            _gain(72, "14B at 3254, tok/s", 21.57, 21.95, 1.76), *_distance(72, 21.95, 45.56, 4.44, 9.7)]


def _report_73() -> list[Figure]:
    return [_gain(73, "launches of a 16-step trace", 22098, 17130, -22.5, 1),
            Figure(73, "launches per step", -310, (17130 - 22098) / 16, 0),
            Figure(73, "by layer class: 24 x -8, 24 x -6, +24 quantizes", -312, 24 * -8 + 24 * -6 + 24, 0),
            Figure(73, "epilogue blocks, 14B", 16, (5120 // 2 + 1024 // 2 + 1024) / 256, 0),
            _gain(73, "14B tg128, tok/s", 23.81, 24.55, 3.11),
            Figure(73, "14B tg128, of the peer's", 1.010, 24.55 / 24.31, 3),
            *_distance(73, 22.40, 44.64, 3.52, 7.9)]
