"""What a switch changes in the plan of a step, asked of minfer before a window starts; and what recordings say to that.

minfer is a child process that speaks JSON. Where it cannot say (another engine, no such command, a switch it does not
know) the answer is one line, and the window goes on without.
"""

import itertools
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census import ledger
from census.ab.plan import Arm
from census.errors import CensusError

_SECONDS = 300.0  # planning reads a header and lowers a graph; more than this is a hang
# options of `minfer bench` that take a value: what follows them is not the model
_VALUED = {"-p", "--n-prompt", "-n", "--n-gen", "-d", "--n-depth", "-r", "--repetitions", "-t", "--threads", "-o",
           "--output", "--save", "--device", "--kv"}
_SHARED = ("--device", "--kv")  # options of `minfer bench` that change its plan, and that `minfer surface` has too


@dataclass(frozen=True)
class Surface:
    """`data` is minfer's JSON (switch, launches_per_step, rows of kernel, off, on), or None with the reason."""

    data: dict[str, Any] | None
    why: str | None

    @property
    def changed(self) -> list[dict[str, Any]]:
        """The rows that differ."""
        return [r for r in self.data["rows"] if r["off"] != r["on"]] if self.data else []

    @property
    def warnings(self) -> tuple[str, ...]:
        """A switch without a surface compares a build with itself."""
        if self.data is None or self.changed:
            return ()
        return (f"{self.data['switch']} changes no launch in the plan of {self.data['device'] or 'this engine'}: "
                "both arms run the same kernels",)

    @property
    def lines(self) -> list[str]:
        """For reading."""
        if self.data is None:
            return [f"surface: {self.why}"]
        per = self.data["launches_per_step"]
        place = f" on {self.data['device']}" if self.data["device"] else ""
        head = (f"surface of {self.data['switch']}{place}: {per['off']} -> {per['on']} launches per step "
                f"({per['delta']:+d})")
        return [head, *(f"  {r['kernel']}: {r['off']} -> {r['on']} ({r['on'] - r['off']:+d})" for r in self.changed)]


def engine(command: tuple[str, ...]) -> tuple[list[str], str, list[str]] | None:
    """(how minfer is started, its model, options that change its plan) of a `minfer bench`; None of other commands."""
    words = list(command)
    if Path(words[0]).name == "minfer":
        start, rest = words[:1], words[1:]
    elif Path(words[0]).name.startswith("python") and words[1:3] == ["-m", "minfer"]:
        start, rest = words[:3], words[3:]
    else:
        return None
    if rest[:1] != ["bench"]:
        return None
    pairs = list(itertools.pairwise(rest))
    models = [word for previous, word in pairs if not word.startswith("-") and previous not in _VALUED]
    shared = [w for name, value in pairs if name in _SHARED and value != "auto" for w in (name, value)]
    return (start, models[0], shared) if models else None


def ask(arm: Arm, switch: str, cwd: str, environ: Mapping[str, str]) -> Surface:
    """What `minfer surface SWITCH MODEL --json` says, with the arm's other variables set."""
    found = engine(arm.command)
    if found is None:
        return Surface(None, "not known: the command is no `minfer bench` of a model")
    start, model, options = found
    env = {**environ, **{k: v for k, v in arm.env.items() if k != switch}}
    try:
        done = subprocess.run([*start, "surface", switch, model, *options, "--json"], capture_output=True, text=True,
                              cwd=cwd, env=env, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return Surface(None, f"not known: minfer could not be asked ({error})")
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return Surface(None, f"not known: {said.removeprefix('minfer: ')}")
    try:
        return Surface(_checked(json.loads(done.stdout)), None)
    except (ValueError, KeyError, TypeError) as error:
        return Surface(None, f"not known: `minfer surface` answered in another form ({error!r})")


def _checked(data: Any) -> dict[str, Any]:
    """The fields that are used, with their types."""
    per = data["launches_per_step"]
    rows = [{"kernel": str(r["kernel"]), "off": int(r["off"]), "on": int(r["on"])} for r in data["rows"]]
    return {"switch": str(data["switch"]), "device": data.get("device"),
            "launches_per_step": {k: int(per[k]) for k in ("off", "on", "delta")}, "rows": rows}


def recorded(trace_a: Path, trace_b: Path) -> dict[str, Any]:
    """Launches per step of both arms' traces, and the kernels whose number differs. Raises CensusError."""
    a, b = (_launches(path) for path in (trace_a, trace_b))
    changed = [k for k in sorted({*a, *b}) if a.get(k, 0) != b.get(k, 0)]
    rows = [{"kernel": k, "off": a.get(k, 0), "on": b.get(k, 0)} for k in changed]
    off, on = sum(a.values()), sum(b.values())
    return {"launches_per_step": {"off": off, "on": on, "delta": on - off}, "rows": rows}


def _launches(path: Path) -> dict[str, int]:
    made = ledger.of_file(str(path))
    if not made.steps.count:
        raise CensusError(f"{path}: is not cut into steps ({made.steps.reason}); record decode steps of the arm")
    out: dict[str, int] = {}
    for row in made.rows:
        if row.launches_per_step is None or row.launches_min != row.launches_max:
            raise CensusError(f"{path}: {row.key} has no exact number of launches per step "
                              f"({row.launches_min} to {row.launches_max}); record with --cuda-graph-trace=node")
        if row.launches_per_step:
            out[row.key] = int(row.launches_per_step)
    return out


def check(surface: Surface, launches: Mapping[str, Any]) -> list[str]:
    """Lines about recorded launches. Raises CensusError where they changed otherwise than the surface says."""
    per = launches["launches_per_step"]
    seen = f"recorded: {per['off']} -> {per['on']} launches per step ({per['delta']:+d})"
    if surface.data is None:
        rows = [f"  {r['kernel']}: {r['off']} -> {r['on']} ({r['on'] - r['off']:+d})" for r in launches["rows"]]
        return [f"{seen}; there is no surface to check it against", *rows]
    want, have = ({r["kernel"]: r["on"] - r["off"] for r in rows} for rows in (surface.changed, launches["rows"]))
    wrong = [f"{k}: {have.get(k, 0):+d}, the surface says {want.get(k, 0):+d}" for k in sorted({*want, *have})
             if want.get(k, 0) != have.get(k, 0)]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CensusError(f"{surface.data['switch']} did not change the launches it says it changes: "
                          f"{'; '.join(wrong[:3])}{more}; nothing is timed until that is understood")
    return [f"{seen}, exactly as the surface says"]
