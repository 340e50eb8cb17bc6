"""The true time of a step, from a run that the census did not slow down: a whole-graph recording or a benchmark.

Structure comes from a node-mode trace, time from here. Nothing is scaled: traced time, true time and their ratio
stand side by side.
"""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census import ledger
from census.errors import CensusError


@dataclass(frozen=True)
class TrueTime:
    """What one step takes without node tracing, in µs, and where that is known from."""

    source: str
    what: str  # "whole-graph replays" (device time) or "benchmark" (wall clock with the host's part)
    step_us: float
    min_us: float
    max_us: float
    steps: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inflation:
    """A traced step beside the true one."""

    traced_us: float
    true: TrueTime
    factor: float  # traced / true


def beside(made: ledger.Ledger, source: str) -> Inflation:
    """The ledger's step beside the true time in `source`. Raises CensusError where either has no steps."""
    if not made.steps.count:
        raise CensusError(f"{made.trace}: no steps in it, so there is no step time to compare with {source}")
    true = read(source)
    return Inflation(made.total.step_us, true, made.total.step_us / true.step_us)


def read(source: str) -> TrueTime:
    """The true step time in a whole-graph export or in the JSON of llama-bench or `minfer bench`."""
    return _from_bench(Path(source)) if source.endswith(".json") else _from_graph(source)


def _from_graph(source: str) -> TrueTime:
    made = ledger.of_file(source, steps="graph")
    total = made.total
    if total.launches_per_step is not None:
        raise CensusError(f"{source}: --time-from needs a whole-graph recording, this one holds graph nodes; "
                          "record with --cuda-graph-trace=graph")
    return TrueTime(source, "whole-graph replays", total.step_us, total.step_us_min, total.step_us_max,
                    made.steps.count)


def load_json(path: Path) -> Any:
    """A JSON file. Raises CensusError when it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CensusError(f"{path}: no such file") from None
    except (OSError, ValueError) as err:
        raise CensusError(f"{path}: not a JSON file ({err})") from None


def _from_bench(path: Path) -> TrueTime:
    runs = [r for r in _tests(load_json(path)) if r.get("n_gen") and not r.get("n_prompt") and _positive(r["avg_ts"])]
    if not runs:
        raise CensusError(f"{path}: holds no generation test; run the benchmark with -p 0 -n N -o json")
    # The traced run starts from an empty cache unless it was asked not to: the least depth is its like.
    first = min(runs, key=lambda r: r.get("n_depth", 0))
    speeds = [s for s in first.get("samples_ts", []) if _positive(s)] or [first["avg_ts"]]
    times = sorted(1e6 / s for s in speeds)  # tokens per second -> µs per step
    others = sorted({r.get("n_depth", 0) for r in runs} - {first.get("n_depth", 0)})
    warnings = (f"{path.name} also measures depths {', '.join(map(str, others))}; used is depth "
                f"{first.get('n_depth', 0)}",) if others else ()
    return TrueTime(str(path), "benchmark", statistics.median(times), times[0], times[-1], len(times), warnings)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def _tests(value: Any) -> Iterator[dict[str, Any]]:
    """Every benchmark entry at any depth of a JSON value: files of one run, or several runs under names."""
    if isinstance(value, dict) and "avg_ts" in value:
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tests(inner)
