"""What the notebooks show a report with: its table as a data frame, a figure as SVG. No notebook computes anything."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import plots
from analysis.planned import Planned, of_rows
from analysis.sequence import Step
from census.errors import CensusError
from census.output import Report


def table(report: Report, top: int = 0) -> pd.DataFrame:
    """The rows of a report under its columns' headings; the first `top`, all by default."""
    rows = report.rows[:top] if top else report.rows
    frame = pd.DataFrame([{c.head.replace("\n", " ") or c.key: row.get(c.key) for c in report.columns} for row in rows])
    return frame.round(3)


def rows(made: Iterable[Any]) -> pd.DataFrame:
    """Results of one type, a line each."""
    return pd.DataFrame([asdict(x) for x in made]).round(3)


def lines(report: Report) -> None:
    """What stands above and below a report's table."""
    sys.stdout.write("".join(f"{text}\n" for text in (*report.head, *report.notes)))


def picture(figure: Any) -> Any:
    """A figure to be the last value of a cell."""
    from IPython.display import SVG

    return SVG(plots.svg(figure))


def minfer_plan(model: str, depth: int, *switches: str) -> tuple[Planned, ...]:
    """The plan of a step of minfer on cuda with these switches set.

    MODEL is a preset of `minfer synth`, of which only a header is written.
    Raises CensusError with minfer's own line where it refuses.
    """
    env = os.environ | dict.fromkeys(switches, "1")
    with tempfile.TemporaryDirectory() as folder:
        header = str(Path(folder) / "model.gguf")
        _minfer(["synth", model, header, "--header-only"], env)
        said = _minfer(["plan", header, "-d", str(depth), "--device", "cuda", "--json"], env)
    return of_rows(json.loads(said)["launches"], model)


def recordings(folder: str, model: str, depth: int, newer: str | None = None) -> tuple[str, str]:
    """Node-mode recordings of minfer's default decode out of a manifest: the first one, and `newer` or the last one.

    Says so where the first is the last.
    """
    manifest = json.loads((Path(folder) / "manifest.json").read_text())
    wanted = {"model": model, "depth": depth, "graphs": "node", "switch": None}
    found = sorted((e["date"], e["file"]) for e in manifest if wanted.items() <= e.items())
    old, new = (str(Path(folder) / file) for _, file in (found[0], found[-1]))
    if newer is None and old == new:
        sys.stdout.write(f"there is no newer recording of {model} at depth {depth} than {old}\n")
    return old, newer or new


def above_floor(steps: Iterable[tuple[str, Step, Sequence[Planned]]], gbs: float) -> pd.DataFrame:
    """(name, recorded step, plan): the plan's launches, bytes and floor at GB/s; the step where it is that plan's."""
    made = []
    for name, step, plan in steps:
        moved = sum(p.bytes for p in plan)
        floor = moved / gbs / 1e3  # µs
        us = step.step_us if [x.kernel for x in step.launches] == [p.kernel for p in plan] else None
        made.append({"": name, "launches": len(plan), "MB moved": moved / 1e6, "floor µs": floor, "step µs": us,
                     "times the floor": us and us / floor})
    return pd.DataFrame(made).round(3)


def _minfer(args: list[str], env: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-m", "minfer", *args], env=env, capture_output=True, text=True)
    if done.returncode:
        raise CensusError(done.stderr.strip().splitlines()[-1])
    return done.stdout
