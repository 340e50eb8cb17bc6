"""Every picture: the only place that draws. Each function takes what a report made and writes one file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm, TwoSlopeNorm

from census.crossover import Measured, Table
from census.errors import CensusError
from minfer.cuda import dispatch


def crossover_map(table: Table, path: Path) -> None:
    """GB/s of each kernel and the winner over (id, od), a row of panels per type, the gate drawn over them.

    Squares are the regular grid, circles are shapes of models. Raises CensusError when the file cannot be written.
    """
    types = sorted({s.type for s in table.shapes.values()})
    figure, axes = plt.subplots(len(types), 3, figsize=(15, 4.2 * len(types)), squeeze=False, layout="constrained")
    for type, panels in zip(types, axes, strict=True):
        _crossover_type(table, type, panels)
    facts = table.facts
    figure.suptitle(f"{facts.get('device')}, {facts.get('date')}: decode matmuls in a graph, weights rotated past the "
                    f"L2; read bandwidth {facts.get('bandwidth_gbs')} GB/s")  # fmt: skip
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise CensusError(f"{path}: the map cannot be written ({error}); give a .png, .svg or .pdf") from None
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
