"""What a run reports: one figure, and beside it the hash of its tokens, its switches and the values of guards.

    bench            `minfer bench -o json` or `llama-bench -o json` with one test: ms per token, lower is better
    bench:tg128      the same, of the test named tg128 (or `tg128@d512`, `pp512`) among several
    json:PATH        a number in the JSON that the command prints; PATH is dotted, and a list is looked through
    regex:EXPR       the only match of EXPR in what it prints; its first group if it has one
"""

import json
import math
import operator
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from census.errors import CensusError

BENCH = "bench"
_COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Condition:
    """A declared guard value: the median of NAME over the runs of B must hold it for B to land."""

    name: str
    sign: str  # >= or <=
    value: float

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value:g}"

    def holds(self, value: float) -> bool:
        return _COMPARE[self.sign](value, self.value)


@dataclass(frozen=True)
class Measured:
    """One run's report; `resolution` is one unit of the value's last printed digit."""

    value: float
    unit: str
    resolution: float
    output_hash: str | None  # None: the command does not say
    switches: dict[str, str] | None  # the switches that the engine found set; None: it does not say
    reported: dict[str, float]  # condition name -> value


def condition(text: str) -> Condition:
    """A --guard option. Raises CensusError for anything but NAME>=VALUE and NAME<=VALUE."""
    found = re.fullmatch(r"\s*(.+?)\s*(>=|<=)\s*([-+.\deE]+)\s*", text)
    try:
        return Condition(found[1], found[2], float(found[3]))  # type: ignore[index]
    except (TypeError, ValueError):
        raise CensusError(f"--guard {text!r} is not allowed: give NAME>=VALUE or NAME<=VALUE, "
                          "e.g. tg128>=22.7 (tok/s)") from None


def check(metric: str, higher: bool | None) -> bool:
    """Whether higher values of `metric` are better. Raises CensusError for a metric or direction not allowed."""
    kind, _, rest = metric.partition(":")
    if kind == BENCH:
        if higher:
            raise CensusError(f"--metric {metric!r} is ms per token, where lower is better; leave --higher out")
        return False
    if kind not in ("json", "regex") or not rest:
        raise CensusError(f"--metric {metric!r} is not allowed: give bench, bench:TEST, json:PATH or regex:EXPR")
    if higher is None:
        raise CensusError(f"--metric {metric!r}: say which direction is better, --lower or --higher")
    if kind == "regex":
        _compiled(rest)
    return higher


def extract(metric: str, conditions: Sequence[Condition], out: str, err: str) -> Measured:
    """What a run printed, read by `metric`. Raises CensusError for no figure, several, or one that is not above 0."""
    kind, _, rest = metric.partition(":")
    if kind == "regex":
        value, resolution = _regex(rest, out + "\n" + err)
        data = _documents(out)
    else:
        data = _documents(out)
        if data is None:
            raise CensusError("it printed no JSON on standard output; add -o json to a bench command")
        value, resolution = _bench(rest, data) if kind == BENCH else _path(rest, data)
    if not math.isfinite(value) or value <= 0:
        raise CensusError(f"its {metric} is {value}, and ratios need a finite value above 0")
    reported = {c.name: _condition_value(c.name, data) for c in conditions}
    unit = "ms/token" if kind == BENCH else ""
    return Measured(value, unit, resolution, _hash(data, rest), _switches(data), reported)


def tests(data: Any) -> dict[str, dict[str, Any]]:
    """The rows of a bench output by test name, e.g. tg128 or pp512@d1024; empty for other JSON."""
    rows = data if isinstance(data, list) else []
    return {_test_name(r): r for r in rows if isinstance(r, dict) and {"n_prompt", "n_gen", "avg_ns"} <= r.keys()
            and r["n_prompt"] + r["n_gen"] > 0}


def _test_name(row: dict[str, Any]) -> str:
    parts = [f"{kind}{row[key]}" for kind, key in (("pp", "n_prompt"), ("tg", "n_gen")) if row[key]]
    return "+".join(parts) + (f"@d{row['n_depth']}" if row.get("n_depth") else "")


def _documents(out: str) -> Any:
    """The JSON of a standard output: all of it, or its lines that are JSON objects or arrays; None without any."""
    try:
        return json.loads(out)
    except ValueError:
        pass
    found = []
    for line in out.splitlines():
        if line.lstrip().startswith(("{", "[")):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found[0] if len(found) == 1 else found or None


def _bench(name: str, data: Any) -> tuple[float, float]:
    """Median over the repetitions, in ms per token, of the test `name` or of the only one."""
    rows = tests(data)
    if not rows:
        raise CensusError("it printed no rows of a bench (n_prompt, n_gen, avg_ns); give --metric json:PATH")
    if name.replace(" ", "") in rows:
        row = rows[name.replace(" ", "")]
    elif name or len(rows) > 1:
        said = f"no test {name!r}" if name else f"{len(rows)} tests"
        raise CensusError(f"it printed {said}; choose one with --metric bench:TEST: {', '.join(rows)}")
    else:
        row = next(iter(rows.values()))
    per_token = 1e6 * (row["n_prompt"] + row["n_gen"])  # ns of a repetition -> ms per token
    return statistics.median(row.get("samples_ns") or [row["avg_ns"]]) / per_token, 1 / per_token


def _path(path: str, data: Any) -> tuple[float, float]:
    found = [v for v in _lookup(data, path.split(".")) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(found) != 1:
        said = f"{len(found)} numbers" if found else "no number"
        raise CensusError(f"it printed {said} at json:{path}, and a run has exactly one figure")
    return float(found[0]), _resolution(repr(found[0]))


def _lookup(data: Any, keys: Sequence[str]) -> list[Any]:
    """Every value at a dotted path; a list without an index means each of its items."""
    if not keys:
        return [data]
    key, rest = keys[0], keys[1:]
    if isinstance(data, dict):
        return _lookup(data[key], rest) if key in data else []
    if isinstance(data, list):
        if re.fullmatch(r"-?\d+", key):
            return _lookup(data[int(key)], rest) if -len(data) <= int(key) < len(data) else []
        return [value for item in data for value in _lookup(item, keys)]
    return []


def _compiled(expr: str) -> re.Pattern[str]:
    try:
        return re.compile(expr, re.M)
    except re.error as error:
        raise CensusError(f"--metric regex:{expr!r} is not an expression ({error})") from None


def _regex(expr: str, text: str) -> tuple[float, float]:
    pattern = _compiled(expr)
    found = [m[1] if pattern.groups else m[0] for m in pattern.finditer(text)]
    if len(found) != 1:
        said = f"{len(found)} matches" if found else "no match"
        raise CensusError(f"it printed {said} of regex:{expr}, and a run has exactly one figure")
    try:
        return float(found[0]), _resolution(found[0])
    except (TypeError, ValueError):
        raise CensusError(f"regex:{expr} matched {found[0]!r}, which is no number; put the number in a group") from None


def _resolution(text: str) -> float:
    """One unit of the last printed digit."""
    mantissa, _, exponent = text.strip().lower().partition("e")
    decimals = len(mantissa.partition(".")[2].rstrip("_"))
    return 10.0 ** (int(exponent or 0) - decimals)


def _condition_value(name: str, data: Any) -> float:
    """A guard's value: tok/s of the bench test of that name, else the number at that JSON path."""
    row = tests(data).get(name.replace(" ", ""))
    if row is not None:
        return float(row["avg_ts"])
    found = [v for v in _lookup(data, name.split(".")) if isinstance(v, int | float)]
    if len(found) != 1:
        known = ", ".join(tests(data)) or "none"
        raise CensusError(f"it does not report the guard {name!r} ({len(found)} numbers of that name; tests: {known})")
    return float(found[0])


def _hash(data: Any, test: str) -> str | None:
    """The hash of the generated tokens: of the measured test, else of all rows together."""
    rows = tests(data)
    here = rows.get(test.replace(" ", ""), data)
    found = [str(v) for v in _lookup(here, ["output_hash"]) if v]
    return "+".join(found) or None


def _switches(data: Any) -> dict[str, str] | None:
    found = [v for v in _lookup(data, ["switches"]) if isinstance(v, dict)]
    return {str(k): str(v) for k, v in found[0].items()} if found else None
