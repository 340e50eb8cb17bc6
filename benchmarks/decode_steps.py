"""One landed step of the decode path as a block of markdown: predicted, measured, and which kernels changed.

    census ledger before.sqlite.gz --json > before.json
    census ledger after.sqlite.gz --json > after.json
    census verdict window.json --json > verdict.json
    python benchmarks/decode_steps.py before.json after.json verdict.json --predicted 215

Arm A of the window is the step that landed and B what was before (`--after B`: the other way round).
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from census import timing
from census.ab import stats
from census.errors import CensusError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("before", "after_ledger", "verdict"):
        parser.add_argument(name, type=Path, metavar=name.removesuffix("_ledger").upper())
    parser.add_argument("--predicted", type=float, required=True, metavar="US", help="predicted saving, µs per step")
    parser.add_argument("--after", choices=("A", "B"), default="A", help="the arm that has the step")
    parser.add_argument("--least", type=float, default=1.0, metavar="US", help="a smaller change is not listed")
    args = parser.parse_args(argv)
    try:
        before, after, verdict = (timing.load_json(p) for p in (args.before, args.after_ledger, args.verdict))
        print("\n".join([*head(verdict, args.after, args.predicted), "", *table(before, after, args.least)]))
    except CensusError as error:
        return _fail(str(error))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return _fail(f"give two ledgers and a verdict, in this order, as `census ... --json` prints them ({error!r})")
    return 0


def head(verdict: dict[str, Any], after: str, predicted: float) -> Iterator[str]:
    """What was compared and what the window says, in the verdict's own words."""
    before = "B" if after == "A" else "A"
    differ = sorted({word.split("=")[0] for word in _switches(verdict["A"]) ^ _switches(verdict["B"])})
    yield f"### {verdict['date'][:10]}: {' '.join(differ) or 'no switch differs'}"
    yield ""
    yield f"- device: {verdict['device']}"
    yield f"- after: `{verdict[after]}`"
    yield f"- before: `{verdict[before]}`"
    yield f"- predicted saving: {predicted:,.0f} µs per step"
    yield f"- measured saving: {_saving(verdict, after, before)}"
    yield f"- verdict: **{verdict['verdict']}**, {verdict['message']}{_lead(verdict)}; outputs {verdict['outputs']}"
    yield from (f"- note: {warning}" for warning in verdict["warnings"])


def _switches(command: str) -> set[str]:
    return {word for word in command.split() if word.startswith("MINFER_") and "=" in word}


def _saving(verdict: dict[str, Any], after: str, before: str) -> str:
    """Difference of the medians, interval of the paired differences: what `census table` says of the window."""
    if verdict["metric"] != "bench":
        return f"not in µs per step, the window's figure is {verdict['metric']}"
    pairs = [(1e3 * r[before], 1e3 * r[after]) for r in verdict["rows"] if r["counts"] == "yes"]  # from ms per token
    if not pairs:
        return "unknown, no pair counts"
    saved = statistics.median(b for b, _ in pairs) - statistics.median(a for _, a in pairs)
    found = stats.median_interval([b - a for b, a in pairs])
    interval = "no interval" if found is None else f"[{found[0]:,.0f}, {found[1]:,.0f}] with coverage {found[2]:.3f}"
    return f"{saved:,.0f} µs per step, {interval}, {len(pairs)} pairs of {len(verdict['rows'])} count"


def _lead(verdict: dict[str, Any]) -> str:
    if verdict["leader"] is None:
        return ""
    span = verdict["interval_pct"]
    interval = "" if span is None else f" [{span[0]:+.2f}%, {span[1]:+.2f}%]"
    wins = f"{verdict['leader']} wins {verdict['wins']} of {verdict['pairs']} pairs"
    return f"; {wins}, {verdict['change_pct']:+.2f}%{interval} (SEP {'yes' if verdict['sep'] else 'no'})"


def table(before: dict[str, Any], after: dict[str, Any], least: float) -> Iterator[str]:
    """Kernels with other launches, or with exposed time that moved by `least`; the rest in one line, then the sums."""
    if (before["by"], before["unit"]) != (after["by"], after["unit"]) or before["unit"] != "step":
        raise CensusError("the ledgers must both be per step and by the same key")
    sides = [{row[side["by"]]: row for row in side["rows"]} for side in (before, after)]
    listed, rest = [], [0.0, 0.0]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        b, a = (side.get(name, {"launches_per_step": 0, "exposed_us_per_step": 0.0}) for side in sides)
        moved = abs(a["exposed_us_per_step"] - b["exposed_us_per_step"])
        if moved >= least or a["launches_per_step"] != b["launches_per_step"]:
            listed.append((moved, _row(name, b, a)))
        else:
            rest = [rest[0] + b["exposed_us_per_step"], rest[1] + a["exposed_us_per_step"]]
    yield "| kernel | launches before | after | exposed µs per step before | after | change |"
    yield "|---|---:|---:|---:|---:|---:|"
    yield from (row for _, row in sorted(listed, key=lambda pair: (-pair[0], pair[1])))
    yield _line(f"others, each by less than {least:g} µs", ("", ""), rest)
    yield _row("all kernels", before["total"], after["total"])
    yield _line("step with its gaps", ("", ""), [side["total"]["step_us"] for side in (before, after)])


def _row(name: str, *sides: dict[str, Any]) -> str:
    launches = ["?" if s["launches_per_step"] is None else f"{s['launches_per_step']:g}" for s in sides]
    return _line(name, launches, [s["exposed_us_per_step"] for s in sides])


def _line(name: str, launches: Sequence[str], us: Sequence[float]) -> str:
    cells = (name.replace("|", r"\|"), *launches, *(f"{x:,.1f}" for x in us), f"{us[1] - us[0]:+,.1f}")
    return f"| {' | '.join(cells)} |"


def _fail(text: str) -> int:
    print(f"decode_steps: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
