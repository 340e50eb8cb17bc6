"""`census report`: one self-contained page for several runs: where the time goes, what next, what was tried.

Everything that comes out of a trace or a file is escaped. Figures are inline SVG, the only script sorts and searches
tables. The page asks nothing of the network.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import fusions, planned, plots, scores, sequence, show
from analysis.prediction import Interval
from census import ledger, reports, timing
from census.errors import CensusError
from census.output import Report

_TRACES = (".sqlite", ".sqlite.gz", ".nsys-rep")
_NEXT = 5  # candidates on the first screen


@dataclass(frozen=True)
class Run:
    """One recorded run on the page."""

    path: str
    made: ledger.Ledger
    step: sequence.Step
    found: tuple[fusions.Candidate, ...]


def read(path: str) -> Run:
    """A run: a trace, or a folder with one. Raises CensusError for anything else."""
    trace = _trace(Path(path))
    step = sequence.read(trace)
    return Run(path, ledger.of_file(trace), step, fusions.find(step, _plan(Path(path), step)))


def _plan(folder: Path, step: sequence.Step) -> tuple[planned.Planned, ...] | None:
    """The plan that `census run` kept beside its trace; None without one."""
    facts = folder / "run.json"
    held = timing.load_json(facts).get("plan") if facts.exists() else None
    if not held:
        return None
    rows = planned.of_rows(held["launches"], str(facts))
    planned.check(step, rows, str(facts))
    return rows


def _trace(path: Path) -> str:
    if not path.is_dir() or any(path.glob("*.parquet")):
        return str(path)
    held = sorted(p for p in path.iterdir() if p.name.endswith(_TRACES))
    nodes = [p for p in held if "graph" not in p.stem] or held
    if not nodes:
        raise CensusError(f"{path}: holds no trace ({', '.join(_TRACES)})")
    return str(nodes[0])


def page(runs: Sequence[Run], tried: Path | None = None) -> str:
    """The whole page. `tried`: a folder of predictions and windows (`census table`)."""
    tables = (*(part for run in runs for part in _run(run)), _tried(tried))
    return _PAGE.format(style=_STYLE, script=_SCRIPT, summary="".join(_first_screen(r) for r in runs),
                        body="".join(tables))


def save(path: Path, text: str) -> None:
    """Write the page. Raises CensusError when it cannot."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CensusError(f"{path}: cannot be written ({error.strerror})") from None


def _first_screen(run: Run) -> str:
    """Where the time goes, what to fuse next, what it should save: three columns of text."""
    total = run.made.total
    rows = "".join(f"<li>{_text(r.key)}: {r.exposed_us_per_step:,.1f} µs, {100 * r.share:.1f}%</li>"
                   for r in run.made.rows[:_NEXT])
    advice = "".join(f"<li>{_text(c.name)}: {c.saving_us.low:+,.1f} to {c.saving_us.high:+,.1f} µs "
                     f"({c.launches_removed} launches, {_text(c.basis)})</li>" for c in run.found[:_NEXT])
    return (f"<section class=first><h2>{_text(run.path)}</h2><p>{_text(run.made.device or 'unknown device')}: "
            f"{total.step_us:,.1f} µs a step, {len(run.step.launches):,} launches</p>"
            f"<div><h3>Where the time goes</h3><ol>{rows}</ol></div>"
            f"<div><h3>What to fuse next, and what it should save</h3><ol>{advice or '<li>nothing found</li>'}</ol>"
            "</div></section>")


def _run(run: Run) -> tuple[str, ...]:
    found = show.candidates(run.step, run.found, show.candidates_data(run.step, run.found, {}), ())
    name = _text(run.path)
    return (f"<h2>{name}: ledger</h2>{plots.svg(plots.ledger_bars(run.made))}", table(reports.ledger(run.made, 0)),
            f"<h2>{name}: the first launches of a step</h2>{plots.svg(plots.timeline(run.step))}",
            f"<h2>{name}: candidates</h2>", table(found))


def _tried(folder: Path | None) -> str:
    if folder is None:
        return "<h2>What was tried</h2><p>No predictions were given (--tried FOLDER).</p>"
    made = scores.of_folder(folder)
    spans = [(s.name, Interval(s.low, s.point, s.high), _measured(s)) for s in made]
    return ("<h2>What was tried: predicted and measured</h2>" + plots.svg(plots.intervals(spans))
            + table(show.scores(made, scores.summary(made))))


def _measured(score: scores.Score) -> float | None:
    return score.device_us if score.clock_us is None else score.clock_us


def table(report: Report) -> str:
    """A report as a table that can be sorted and searched, its head above and its notes below."""
    heads = "".join(f"<th>{_text(c.head or c.key)}</th>" for c in report.columns)
    body = "".join(f"<tr>{''.join(_cell(c.show(row.get(c.key)), row.get(c.key)) for c in report.columns)}</tr>"
                   for row in report.rows)
    notes = "".join(f"<li>{_text(n)}</li>" for n in report.notes)
    above = "".join(f"<p>{_text(line)}</p>" for line in report.head)
    return (f"{above}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table><ul>{notes}</ul>")


def _cell(shown: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = shown if number else ("" if value is None else str(value))  # names are not cut: search finds all of them
    return f'<td data-v="{value}" class=n>{_text(text)}</td>' if number else f"<td>{_text(text)}</td>"


def _text(value: object) -> str:
    return html.escape(str(value))


_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:1.5em auto;max-width:72em;padding:0 1em;color:#111}
section.first{display:grid;grid-template-columns:1fr 1fr;gap:0 2em;border-bottom:1px solid #ccc}
section.first h2,section.first p{grid-column:1/3;margin:.3em 0}
table{border-collapse:collapse;width:100%;margin:.5em 0}th{cursor:pointer;text-align:left;border-bottom:2px solid #111}
th[aria-sort]::after{content:" \\2195"}td{border-bottom:1px solid #ddd;padding:.15em .5em;overflow-wrap:anywhere}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}svg{max-width:100%;height:auto}
input{font:inherit;padding:.3em;width:24em}@media print{input{display:none}table{break-inside:avoid}}
"""
_SCRIPT = """
const value = c => c.dataset.v !== undefined ? Number(c.dataset.v) : c.textContent;
for (const head of document.querySelectorAll('th')) head.addEventListener('click', () => {
  const table = head.closest('table'), body = table.tBodies[0], at = head.cellIndex;
  const down = head.getAttribute('aria-sort') !== 'descending';
  for (const h of head.parentNode.cells) h.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const order = (a, b) => { const x = value(a.cells[at]), y = value(b.cells[at]); return x < y ? -1 : x > y ? 1 : 0; };
  for (const row of [...body.rows].sort((a, b) => down ? order(b, a) : order(a, b))) body.append(row);
});
document.getElementById('search').addEventListener('input', event => {
  const wanted = event.target.value.toLowerCase();
  for (const row of document.querySelectorAll('tbody tr')) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
"""
_PAGE = """<!doctype html>
<html lang=en><head><meta charset=utf-8><title>Census report</title><style>{style}</style></head><body>
<h1>Census report</h1>{summary}
<p><label>Search by kernel: <input id=search type=search></label></p>
{body}
<script>{script}</script></body></html>
"""
