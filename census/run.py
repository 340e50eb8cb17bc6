"""`census run MODEL`: predict, record, ledger, reconcile; one folder per run.

minfer is treated like any other engine: a child process that speaks JSON. The folder appears when it is complete:
`trace.sqlite` (the recording) and `run.json` (command, device, versions, date, model hash, plan, timing, and what the
recording cost: the same command unrecorded before and after).
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from census import activity, launches, provenance, ranges, record, sources, steps
from census import trace as tr
from census.activity import KERNEL
from census.errors import CensusError
from census.ledger import Ledger
from census.reconcile import Reconciliation

MINFER = (sys.executable, "-m", "minfer")


@dataclass(frozen=True)
class Run:
    model: str
    tokens: int  # decode steps recorded
    depth: int  # tokens in the KV cache before the first
    folder: Path
    device: str = "auto"  # minfer's --device


def predict(model: str, tokens: int, depth: int, device: str = "auto") -> dict[str, Any]:
    """The plan of a step in the middle of the run, with the floor at this machine's measured bandwidth."""
    middle = depth + tokens // 2
    where = ("--device", device, "--bandwidth", "measure")
    plan = minfer_json("plan", model, "--depth", str(middle), *where, "--json")
    if plan["data_missing"]:
        raise CensusError(plan["data_missing"])
    return dict(plan)


def minfer_json(*args: str) -> Any:
    """What `minfer ARGS` prints, as data. Its complaint becomes ours."""
    done = subprocess.run([*MINFER, *args], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"minfer {args[0]} ended with exit code {done.returncode}"]
        raise CensusError(lines[-1].removeprefix("minfer: "))
    return json.loads(done.stdout)


def record_run(run: Run, plan: dict[str, Any], overhead: bool = True) -> dict[str, Any]:
    """Record the run into its folder and return its run.json. Nothing is left behind when it fails.

    With `overhead` the same command runs unrecorded before and after, to say what recording costs.
    """
    with record.fresh(run.folder) as part:
        recorder = record.recorder_for(plan["backend"])
        date, save = provenance.now(), part / "bench.json"
        command = bench_command(run, save)
        before = [_bench(command, save)] if overhead else []
        if code := record.record(command, recorder, part / record.TRACE):
            raise CensusError(f"{record.ended(command, code)}; its message is above")
        rows = _take(save)
        after = [_bench(command, save)] if overhead else []
        facts = _facts(run, plan, recorder.name, rows) | {
            "date": date,
            "overhead": _overhead(rows[0], [*before, *after]) if overhead else None,
            "messages": list(record.check(part / record.TRACE)),
        }
        (part / "run.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def bench_command(run: Run, save: Path) -> list[str]:
    """The engine's command: N decode steps once, after one warm-up step, rows saved as JSON."""
    sizes = ("-p", "0", "-n", str(run.tokens), "-d", str(run.depth), "-r", "1")
    return [*MINFER, "bench", run.model, *sizes, "--device", run.device, "-o", "json", "--save", str(save)]


def _bench(command: Sequence[str], save: Path) -> dict[str, Any]:
    """The row of an unrecorded run."""
    done = subprocess.run(command, stdout=record.STDERR)
    if done.returncode:
        raise CensusError(f"{record.ended(command, done.returncode)}; its message is above")
    return _take(save)[0]


def _take(save: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(save.read_text())
    save.unlink()
    return rows


def _overhead(recorded: dict[str, Any], unrecorded: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """ms per token with and without the recorder.

    The ratio is over the median of the runs without; `ratio_range` over the slowest and the fastest of them, which
    are far apart on a busy machine.
    """
    without = [_ms_per_token(row) for row in unrecorded]
    with_it = _ms_per_token(recorded)
    return {
        "recorded_ms": with_it,
        "unrecorded_ms": without,
        "ratio": with_it / statistics.median(without),
        "ratio_range": [with_it / max(without), with_it / min(without)],
        "same_tokens": {row["output_hash"] for row in unrecorded} == {recorded["output_hash"]},
    }


def _ms_per_token(row: dict[str, Any]) -> float:
    return float(row["avg_ns"]) / 1e6 / int(row["n_gen"])


def _facts(run: Run, plan: dict[str, Any], recorder: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    model = Path(plan["model"])
    shown = ["minfer", *bench_command(run, Path("bench.json"))[len(MINFER) :]]
    shown[shown.index(run.model)] = model.name  # runs are shared: no path of this machine in them
    return {
        "command": shown,
        "device": rows[0]["gpu_info"] or rows[0]["cpu_info"],
        "backend": plan["backend"],
        "recorder": recorder,
        "versions": provenance.versions(),
        "model": {"file": model.name, "bytes": model.stat().st_size, "sha256": provenance.sha256(model)},
        "tokens": run.tokens,
        "depth": run.depth,
        "plan": plan | {"model": model.name},
        "bench": [row | {"model_filename": model.name} for row in rows],
    }


def step_kernels(path: Path, how: str = "nvtx") -> list[list[str]]:
    """The kernel names of each recorded step, in the order they ran; `how` steps are found, as in --steps."""
    trace = sources.open_source(str(path))
    try:
        act = activity.load(trace)
        found = steps.find(trace, act, launches.join(trace, act), ranges.load(trace), how)
        kernel = np.flatnonzero((act.kind == KERNEL) & (found.of >= 0))
        text = tr.strings(trace, np.unique(act.name[kernel]).tolist())
        names = [activity.work_name(trace, KERNEL, int(n), text) for n in act.name[kernel]]
        by_step: list[list[str]] = [[] for _ in range(found.count)]
        for step, name in zip(found.of[kernel], names, strict=True):
            by_step[step].append(name)
        return by_step
    finally:
        tr.close(trace)


def default_folder(model: str, backend: str) -> Path:
    """traces/<model>-<backend>-<UTC time>."""
    return provenance.default_folder(Path(model).name.removesuffix(".gguf"), backend)


def prediction_lines(plan: dict[str, Any]) -> Sequence[str]:
    """The prediction for reading: launches, bytes and the floor, before anything has run."""
    totals, floor, gbs = plan["totals"], plan["floor_ms"]["as_this_backend_moves"], plan["bandwidth_gbs"]
    return (
        f"predicted: {totals['launches']} launches per step, {totals['bytes_moved'] / 1e6:,.1f} MB moved "
        f"({totals['weight_bytes'] / 1e6:,.1f} MB of weights as stored)",
        f"predicted: floor {floor:.3f} ms per step ({1e3 / floor:.1f} tok/s) at the {gbs:.1f} GB/s measured here",
    )


def outcome_lines(ledger: Ledger, facts: dict[str, Any], plan: dict[str, Any], held: Reconciliation) -> Sequence[str]:
    """Measured against predicted: launches one by one, time against the floor and against the engine's own clock."""
    total, row = ledger.total, facts["bench"][0]
    token_us = row["avg_ns"] / 1e3 / row["n_gen"]
    floor_us = plan["floor_ms"]["as_this_backend_moves"] * 1e3
    between = total.between_us or 0.0
    lines = [
        f"reconciled: {held.matching} of {held.steps} steps launch the plan's {held.planned} kernels, in its order",
        f"step: {total.step_us / 1e3:.3f} ms on the device, {total.step_us / floor_us:.2f} times the floor",
        f"clock: {token_us / 1e3:.3f} ms per token by the engine ({1e6 / token_us:.1f} tok/s, recorder on) "
        f"= step {total.step_us / 1e3:.3f} + between steps {between / 1e3:.3f} "
        f"+ rest {(token_us - total.step_us - between) / 1e3:.3f}",
    ]
    lines += overhead_lines(facts["overhead"]) + [f"profiler: {text}" for text in facts["messages"]]
    return [*lines, *(f"mismatch: {d}" for d in held.differences), *_more(held)]


def overhead_lines(overhead: dict[str, Any] | None) -> list[str]:
    """What recording costs, for reading; nothing where it was not measured."""
    if overhead is None:
        return []
    without = " and ".join(f"{ms:.3f}" for ms in overhead["unrecorded_ms"])
    low, high = overhead["ratio_range"]
    same = [] if overhead["same_tokens"] else ["mismatch: the recorded run chose other tokens than the unrecorded ones"]
    return [f"overhead: {overhead['recorded_ms']:.3f} ms per token recorded, {without} not recorded (before, after); "
            f"ratio {overhead['ratio']:.3f} ({low:.3f} to {high:.3f})", *same]  # fmt: skip


def as_data(run: Run, facts: dict[str, Any], ledger: dict[str, Any], held: Reconciliation) -> dict[str, Any]:
    """The JSON of `census run`: what was predicted and measured, the plan's launches left to run.json."""
    plan = {k: v for k, v in facts["plan"].items() if k != "launches"}
    shown = {k: v for k, v in facts.items() if k != "plan"}
    return {"run": str(run.folder), **shown, "prediction": plan, "ledger": ledger, "reconciliation": asdict(held)}


def _more(held: Reconciliation) -> list[str]:
    return [f"mismatch: {held.more} more differences"] if held.more else []
