"""Every picture: the only place that draws. Each function takes what a report made and writes one file."""

import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm, TwoSlopeNorm

from analysis.account import Account
from analysis.clock import Clock
from analysis.prediction import Interval
from analysis.sequence import Step
from census.crossover import Measured, Table
from census.errors import CensusError
from census.ledger import Ledger
from minfer.cuda import dispatch


def crossover_map(table: Table) -> Any:
    """GB/s of each kernel and the winner over (id, od), a row of panels per type, the gate drawn over them.

    Squares are the regular grid, circles are shapes of models.
    """
    types = sorted({s.type for s in table.shapes.values()})
    figure, axes = plt.subplots(len(types), 3, figsize=(15, 4.2 * len(types)), squeeze=False, layout="constrained")
    for type, panels in zip(types, axes, strict=True):
        _crossover_type(table, type, panels)
    facts = table.facts
    figure.suptitle(f"{facts.get('device')}, {facts.get('date')}: decode matmuls in a graph, weights rotated past the "
                    f"L2; read bandwidth {facts.get('bandwidth_gbs')} GB/s")  # fmt: skip
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a figure as its name's ending says, and close it. Raises CensusError when it cannot be written."""
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise CensusError(f"{path}: the figure cannot be written ({error}); give a .png, .svg or .pdf") from None
    finally:
        plt.close(figure)


def _crossover_type(table: Table, type: str, panels: Sequence[Any]) -> None:
    shapes = [s for s in table.shapes.values() if s.type == type]
    kernels = sorted({k for s in shapes for k in s.kernels}, reverse=True)[:2]  # mmvq_... before matmul_...
    bandwidth = table.facts.get("bandwidth_gbs")
    top = bandwidth or max(t.gbs for s in shapes for t in s.kernels.values())
    for kernel, panel in zip(kernels, panels, strict=False):
        timed = [s for s in shapes if kernel in s.kernels]
        drawn = _points(panel, timed, [s.kernels[kernel].gbs for s in timed], "viridis", LogNorm(top / 64, top))
        of_bandwidth = ", share of the read bandwidth" if bandwidth else ""
        bar = panel.figure.colorbar(drawn, ax=panel, label=f"GB/s{of_bandwidth}")
        ticks = [top / 2**i for i in range(6, -1, -1)]
        bar.set_ticks(ticks, labels=[f"{t:.0f}" + (f" · {100 * t / top:.0f}%" if bandwidth else "") for t in ticks])
        bar.minorticks_off()
        _frame(panel, f"{kernel}", type, shapes)
    both = [s for s in shapes if all(k in s.kernels for k in kernels)] if len(kernels) == 2 else []
    if both:
        ratios = [s.kernels[kernels[1]].us / s.kernels[kernels[0]].us for s in both]
        drawn = _points(panels[2], both, [min(max(r, 0.5), 2.0) for r in ratios], "RdBu", TwoSlopeNorm(1.0, 0.5, 2.0))
        panels[2].figure.colorbar(drawn, ax=panels[2], label=f"time of {kernels[1]} / {kernels[0]}")
    _frame(panels[2], f"winner: {kernels[0]} where blue", type, shapes)


def _points(panel: Any, shapes: Sequence[Measured], values: Sequence[float], colours: str, norm: Any) -> Any:
    drawn = None
    for grid, marker, size in ((True, "s", 90), (False, "o", 36)):
        chosen = [i for i, s in enumerate(shapes) if s.grid == grid]
        if chosen:
            drawn = panel.scatter([shapes[i].id for i in chosen], [shapes[i].od for i in chosen],
                                  c=[values[i] for i in chosen], marker=marker, s=size, cmap=colours, norm=norm,
                                  edgecolors="0.4", linewidths=0.4)  # fmt: skip
    return drawn


def _frame(panel: Any, title: str, type: str, shapes: Sequence[Measured]) -> None:
    """Logarithmic axes of sizes, and the gate: a line of od · id = its constant."""
    ids = [s.id for s in shapes]
    gate = next((g for g in dispatch.GATES if g.type == type), None)
    if gate is not None:
        ends = [min(ids) / 1.1, max(ids) * 1.1]
        panel.plot(ends, [max(gate.min_elements, 1) / i for i in ends], "k--", linewidth=1.2)
        title += f" (gate, dashed: {gate.min_elements:,})"
    panel.set(xscale="log", yscale="log", xlabel="id (row length)", ylabel="od (rows)", title=title)
    ods = [s.od for s in shapes]
    panel.set_ylim(min(ods) / 1.3, max(ods) * 1.3)


# --- pictures of ledgers, steps, accounts and windows: each returns a figure, `svg` turns it into text ---------------

# Okabe and Ito's colours: told apart by colour-blind readers; hatches tell them apart in print.
_INK = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_HATCH = ("", "//", "..", "\\\\", "xx", "++", "oo", "--")
_CUT = 38  # characters of a kernel's name beside a bar


def svg(figure: Any) -> str:
    """A figure as SVG text with its words as text; the figure is closed."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "census"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    return out.getvalue()[out.getvalue().index("<svg") :]


def _plain(text: str) -> str:
    """A name as matplotlib shall write it: cut, and without its mathematics."""
    short = text if len(text) <= _CUT else f"{text[: _CUT - 9]}…{text[-8:]}"
    return short.replace("$", r"\$")


def ledger_bars(made: Ledger, top: int = 12) -> Any:
    """µs per step of the largest rows, with their launch counts; the rest, gaps and residual are bars too."""
    rows = [(r.key, r.exposed_us_per_step, r.launches_per_step) for r in made.rows[:top]]
    rest = made.rows[top:]
    if rest:
        rows.append((f"other ({len(rest)} rows)", sum(r.exposed_us_per_step for r in rest), None))
    rows.append(("gaps and residual", made.total.gap_us_per_step + made.total.residual_us_per_step, None))
    figure, axis = plt.subplots(figsize=(9, 0.36 * len(rows) + 1.2), layout="constrained")
    bars = axis.barh(range(len(rows)), [r[1] for r in rows], color=_INK[0])
    labels = [f" {us:,.1f}" + ("" if n is None else f" · {n:,g} launches") for _, us, n in rows]
    axis.bar_label(bars, labels, fontsize=8)
    axis.set_yticks(range(len(rows)), [_plain(r[0]) for r in rows], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set(xlabel=f"exposed time, µs per {made.unit}", title=f"{made.total.step_us:,.1f} µs per {made.unit}")
    return figure


def timeline(step: Step, first: int = 0, count: int = 40) -> Any:
    """Launches of a step on its time line, one lane per class of kernel, gaps left open, layers divided by lines."""
    shown = step.launches[first : first + count]
    kinds = list(dict.fromkeys(x.kind for x in shown))
    figure, axis = plt.subplots(figsize=(9, 0.45 * len(kinds) + 1.4), layout="constrained")
    now, layer = 0.0, shown[0].layer if shown else None
    for x in shown:
        now += x.gap_us
        if x.layer != layer:
            axis.axvline(now, color="0.5", linewidth=0.8, linestyle=":")
            layer = x.layer
        lane = kinds.index(x.kind)
        axis.barh(lane, x.exposed_us, left=now, color=_INK[lane % 8], hatch=_HATCH[lane % 8], edgecolor="0.2",
                  linewidth=0.4)  # fmt: skip
        now += x.exposed_us
    axis.set_yticks(range(len(kinds)), kinds)
    axis.invert_yaxis()
    axis.set(xlabel=f"exposed time since launch {first}, µs (dotted: next layer)",
             title=f"launches {first} to {first + len(shown) - 1} of {len(step.launches):,}")
    return figure


def waterfall(made: Account) -> Any:
    """From the reference to ours: each item of an account as a step up or down."""
    names = ["reference", *(i.name for i in made.items), "ours"]
    figure, axis = plt.subplots(figsize=(9, 0.36 * len(names) + 1.2), layout="constrained")
    at = made.reference_ms
    axis.barh(0, at, color=_INK[7])
    for k, item in enumerate(made.items, 1):
        up = item.ms >= 0
        axis.barh(k, item.ms, left=at, color=_INK[5] if up else _INK[2], hatch="" if up else "//", edgecolor="0.2")
        at += item.ms
        axis.text(max(at, at - item.ms), k, f" {item.ms:+.3f}", va="center", fontsize=8)
    axis.barh(len(names) - 1, made.ours_ms, color=_INK[0])
    axis.set_yticks(range(len(names)), [_plain(n) for n in names], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set(xlabel="ms per step (hatched: taken away)", title=f"distance {made.distance_ms:+.2f} ms")
    return figure


def window_pairs(pairs: Sequence[tuple[float, float]], said: Clock, floor_us: float | None = None) -> Any:
    """Each pair's B - A of a window in µs per step, the interval of their median, the A/A floor where it is known."""
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    change = [b - a for a, b in pairs]
    if said.low_us is not None and said.high_us is not None:
        axis.axhspan(said.low_us, said.high_us, color=_INK[4], alpha=0.35,
                     label=f"interval of the median, coverage {said.coverage:.3f}")
    if floor_us is not None:
        axis.axhspan(-floor_us, floor_us, color=_INK[7], alpha=0.35, hatch="//", label="A/A floor")
    axis.plot(range(1, len(change) + 1), change, "o", color=_INK[0], label="pair")
    axis.axhline(said.change_us, color=_INK[5], linestyle="--", label="difference of the medians")
    axis.axhline(0, color="0.2", linewidth=0.8)
    axis.set(xlabel="pair", ylabel="B - A, µs per step",
             title=f"{said.window}: B slower in {said.b_slower} of {said.pairs}")
    axis.legend(fontsize=8)
    return figure


def launches_against_time(steps: Sequence[tuple[str, Step]]) -> Any:
    """Launches per step against µs per step, one point per recording: fewer launches are not always faster."""
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for k, (name, step) in enumerate(steps):
        axis.plot(len(step.launches), step.step_us, "osD^vP*X"[k % 8], color=_INK[k % 8], label=_plain(name),
                  markersize=8)  # fmt: skip
    axis.margins(0.2)
    axis.legend(fontsize=8)
    axis.set(xlabel="launches per step", ylabel="recorded step, µs", title="launches and time")
    return figure


def intervals(rows: Sequence[tuple[str, Interval, float | None]]) -> Any:
    """Predicted savings as intervals with their points, and what was measured (a cross) where something was."""
    figure, axis = plt.subplots(figsize=(9, 0.36 * len(rows) + 1.2), layout="constrained")
    for k, (_, span, measured) in enumerate(rows):
        axis.plot([span.low, span.high], [k, k], color=_INK[0], linewidth=4, solid_capstyle="butt")
        axis.plot(span.point, k, "o", color="white", markeredgecolor=_INK[0])
        if measured is not None:
            axis.plot(measured, k, "X", color=_INK[5], markersize=9)
    axis.axvline(0, color="0.2", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [_plain(name) for name, _, _ in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel="saving, µs per step (bar: interval, circle: point, cross: measured)")
    return figure


# --- decode speed against bytes ---------------------------------------------------------------------------------------


def decode_curves(lines: Sequence[Mapping[str, Any]]) -> Any:
    """Tokens/s over depth and ms over GB of a step, a colour per model, with the floors (dashed) of the same lines.

    `lines` are those of benchmarks/decode_curves.py, of one device.
    """
    figure, (speed, cost) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    least = min(line["depth"] for line in lines)
    by_size = sorted(lines, key=lambda line: line["weight_bytes"])
    for k, model in enumerate(dict.fromkeys(line["model"] for line in by_size)):
        rows = sorted((line for line in lines if line["model"] == model), key=lambda line: line["depth"])
        look = {"color": _INK[k % 8], "marker": "osD^vP*X"[k % 8], "label": _plain(model)}
        depths = [r["depth"] for r in rows]
        speed.plot(depths, [r["avg_ts"] for r in rows], **look)
        speed.plot(depths, [1e3 / r["floor_ms"] for r in rows], "--", color=look["color"], label="_floor")
        first = [r for r in rows if r["depth"] == least]
        cost.plot([_gb(r) for r in first], [1e3 / r["avg_ts"] for r in first], linestyle="", markersize=8, **look)
    speed.plot([], [], "--", color="0.4", label="floor")
    bandwidth = _floor_line(cost, [line for line in lines if line["depth"] == least])
    speed.set(yscale="log", xlabel="depth: tokens in the KV cache before the timed steps", ylabel="tokens per second",
              title="decode speed and its floor")
    cost.set(xscale="log", yscale="log", xlabel="weights and KV rows that a step reads, GB", ylabel="ms per step",
             title=f"cost and bytes at depth {least}")
    for panel in (speed, cost):
        panel.grid(alpha=0.3, which="both", linewidth=0.5)
        panel.yaxis.set_minor_formatter(lambda y, _: f"{y:,g}")
        panel.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    speed.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))  # beside: curves fill the panel
    cost.legend(fontsize=8)
    figure.supxlabel(f"{lines[0]['device']}, {min(line['date'] for line in lines)[:10]}; floor = bytes that the plan "
                     f"reads / {bandwidth:,.0f} GB/s, the measured read bandwidth", fontsize=9)
    return figure


def _gb(line: Mapping[str, Any]) -> float:
    return float(line["weight_bytes"] + line["kv_bytes"]) / 1e9


def _floor_line(panel: Any, lines: Sequence[Mapping[str, Any]]) -> float:
    """GB / bandwidth from the smallest to the largest step; the bandwidth, the middle one where runs were joined."""
    bandwidth = statistics.median(line["bandwidth_gbs"] for line in lines)
    ends = [min(map(_gb, lines)), max(map(_gb, lines))]
    panel.plot(ends, [1e3 * gb / bandwidth for gb in ends], "--", color="0.4", label=f"floor at {bandwidth:,.0f} GB/s")
    return float(bandwidth)
