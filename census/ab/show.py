"""A verdict as the one report that `census ab` and `census verdict` print, and as JSON."""

from typing import Any

from census import output
from census.ab import stats
from census.ab.verdict import Figures, Verdict
from census.ab.window import Pair, Window
from census.output import Column, Report


def report(window: Window, verdict: Verdict) -> Report:
    """Head and one row per pair; warnings are its footnotes, and `lines` come below."""
    columns = [Column("pair", "pair", str), Column("order", "order", str)]
    arms = ["A", "A'", "B"] if window.null else ["A", "B"]
    columns += [Column(arm, f"{arm} {window.unit}".strip(), output.number(_digits(window))) for arm in arms]
    columns += [Column("b_over_a", "B/A", output.number(4)), Column("counts", "counts", str)]
    rows = [_row(pair) for pair in window.pairs]
    return Report("census_ab", _head(window, verdict), tuple(columns), rows, as_data(window, verdict, rows),
                  notes=tuple(f"warning: {w}" for w in verdict.warnings))  # fmt: skip


def lines(window: Window, verdict: Verdict) -> list[str]:
    """The figures, and the verdict as the last line."""
    grade = verdict.grade
    text = f"VERDICT  {grade.verdict}  {grade.message}  [{grade.reason}]"
    if verdict.lands is not None:
        text += f"  {'LANDS' if verdict.lands else 'does not land'}: {verdict.lands_why}"
    return [*_figures(window, verdict), text]


def _row(pair: Pair) -> dict[str, Any]:
    values = {arm: run.value for arm, run in pair.runs.items()}
    ratio = values["B"] / values["A"] if {"A", "B"} <= values.keys() else None
    return {"pair": pair.number + 1, "order": pair.order, **values, "b_over_a": ratio,
            "counts": "; ".join(pair.why) or ("yes" if pair.complete else "not complete")}


def _digits(window: Window) -> int:
    """Decimals that leave about five significant digits."""
    least = min((run.value for pair in window.pairs for run in pair.runs.values()), default=1.0)
    return next((digits for digits in range(8) if least * 10**digits >= 1e4), 8)


def _head(window: Window, verdict: Verdict) -> tuple[str, ...]:
    facts = [window.name, window.device or "unknown device", window.date or "unknown date",
             f"seed {'unknown' if window.seed is None else window.seed}"]
    better = "higher" if window.rule.higher else "lower"
    lines = [" · ".join(facts), f"A  {window.a}", f"B  {window.b}",
             f"{window.rule.pairs} pairs in the order {' '.join(p.order for p in window.pairs)}; "
             f"{window.metric}, {better} is better; outputs {verdict.outputs}"]
    for guard, seen in (window.guards or {}).items():
        if seen.startswith("not available"):
            lines.append(f"guard {guard}: {seen}")
    return tuple(lines)


def _figures(window: Window, verdict: Verdict) -> list[str]:
    f = verdict.figures
    if f is None:
        return []
    lines = [
        f"{f.leader} wins {f.wins} of {f.pairs} pairs, ties {f.ties}; sign p {f.p_one:.5g} one-sided, "
        f"{f.p_two:.5g} two-sided (at most {f.bound:.4g} one-sided under any drift)",
        f"{f.leader} {'faster' if verdict.winner else 'ahead'} by {_known(f.effect)} (median of paired ratios), "
        f"interval {_interval(f)}, "
        f"Hodges-Lehmann {_signed(f.hodges_lehmann)}{_order(f)}",
        f"SEP {'yes' if f.sep else 'no'} (worst {f.leader} {f.edges[0]:.5g}, best of the other {f.edges[1]:.5g}); "
        f"A/A floor {_known(verdict.floor)}; smallest visible effect {_known(verdict.visible)}",
    ]
    if verdict.cycles is not None:
        lines.append(f"in clock cycles: {_signed(verdict.cycles)}")
    if verdict.null is not None:
        n = verdict.null
        lines.append(f"A against A': {_signed(n.effect)}, interval {_interval(n)}, {n.wins} of {n.pairs}"
                     + (f", slot {_signed(n.order[1])}" if n.order else ""))
    lost, every = [p for p in window.pairs if p.why], verdict.everything
    if lost and every:
        lines.append(f"{len(lost)} pairs do not count; with them {every.leader} {every.wins} of {every.pairs}, "
                     f"{_signed(every.effect)}")
    lines += [f"guard {h['guard']}: {'unknown' if h['value'] is None else format(h['value'], '.5g')}, "
              f"{'holds' if h['holds'] else 'does not hold'}" for h in verdict.held]
    if verdict.grade.verdict == "OPEN" and verdict.needed:
        lines.append(f"an effect of this size needs {verdict.needed} pairs")
    return lines


def _signed(log_ratio: float) -> str:
    return f"{stats.percent(log_ratio):+.2f}%"


def _known(log_ratio: float | None) -> str:
    return "unknown" if log_ratio is None else f"{stats.percent(log_ratio):.2f}%"


def _interval(f: Figures) -> str:
    if f.interval is None:
        return f"none ({f.pairs} pairs are too few)"
    low, high, coverage = f.interval
    return f"[{_signed(low)}, {_signed(high)}] with coverage {coverage:.4f}"


def _order(f: Figures) -> str:
    return f", order-adjusted {_signed(f.order[0])}, slot {_signed(f.order[1])}" if f.order else ""


def as_data(window: Window, verdict: Verdict, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON object. Changes are in percent, seen from `leader`: above 0 it is better than the other arm."""
    f = verdict.figures
    return {
        "verdict": verdict.grade.verdict, "reason": verdict.grade.reason, "message": verdict.grade.message,
        "winner": verdict.winner, "lands": verdict.lands, "lands_why": verdict.lands_why,
        **_data(f), "floor_pct": _percent(verdict.floor), "visible_pct": _percent(verdict.visible),
        "pairs_needed": verdict.needed, "cycles_pct": _percent(verdict.cycles), "outputs": verdict.outputs,
        "null": _data(verdict.null) if verdict.null else None, "all_pairs": _data(verdict.everything),
        "guards": list(verdict.held), "machine": window.guards, "bar_pct": window.rule.bar_pct,
        "delta_pct": window.rule.delta_pct, "alpha": window.rule.alpha, "metric": window.metric,
        "higher_is_better": window.rule.higher, "window": window.name, "A": window.a, "B": window.b,
        "device": window.device, "date": window.date, "order_seed": window.seed,
        "order": [p.order for p in window.pairs], "rows": rows, "warnings": list(verdict.warnings),
    }  # fmt: skip


def _data(f: Figures | None) -> dict[str, Any]:
    if f is None:
        return {"leader": None, "wins": 0, "pairs": 0} | dict.fromkeys(
            ("p_one_sided", "p_two_sided", "change_pct", "interval_pct", "coverage", "sep"))
    return {
        "leader": f.leader, "wins": f.wins, "ties": f.ties, "pairs": f.pairs, "p_one_sided": f.p_one,
        "p_two_sided": f.p_two, "p_any_drift": f.bound, "change_pct": stats.percent(f.effect),
        "interval_pct": [stats.percent(x) for x in f.interval[:2]] if f.interval else None,
        "coverage": f.interval[2] if f.interval else None, "hodges_lehmann_pct": stats.percent(f.hodges_lehmann),
        "adjusted_pct": stats.percent(f.order[0]) if f.order else None,
        "slot_pct": stats.percent(f.order[1]) if f.order else None, "sep": f.sep,
    }  # fmt: skip


def _percent(log_ratio: float | None) -> float | None:
    return None if log_ratio is None else stats.percent(log_ratio)
