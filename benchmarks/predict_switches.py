"""Predict what each of minfer's switches saves, from its switch-off recording alone, before any window is measured.

    python benchmarks/predict_switches.py --traces traces

For every node-mode recording with a switch set (NAME=1) the plan with the switch at 0 is the change, the whole-graph
recording of the same arm is the true time. One file per recording in TRACES/predictions, with date and hash; a file
that is there is kept. `census table TRACES` compares them with what was measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from analysis import landing, planned, prediction, sequence, show
from analysis.planned import Planned

STREAM = "2026-11-30"  # a recording from before this day is of a plan under MINFER_NO_STREAM
BANDWIDTH = 4430.0  # GB/s: pure read stream measured on the H200 of the recordings, 2026-11-29


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path("traces"))
    args = parser.parse_args()
    (args.traces / "predictions").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for entry in json.loads((args.traces / "manifest.json").read_text()):
            if entry["graphs"] == "node" and entry["switch"] not in (None, "MINFER_NO_CUDA_GRAPH"):
                predict(args.traces, Path(folder), entry)


def predict(traces: Path, folder: Path, entry: dict[str, Any]) -> None:
    """One prediction file, unless it is there."""
    stem = entry["file"].removesuffix("-node.sqlite.gz")
    out = traces / "predictions" / f"{stem}.json"
    if out.exists():
        return
    node, graph = (traces / f"{stem}-{mode}.sqlite.gz" for mode in ("node", "graph"))
    step = sequence.read(str(node))
    now, then = (plan(folder, entry, switch) for switch in (entry["switch"], None))
    planned.check(step, now, stem)
    made = landing.predict(step, now, then, bandwidth_gbs=BANDWIDTH, true=landing.recorded(str(graph)))
    files = {f.name: sequence.digest(str(f)) for f in (node, graph)}
    data = show.landing_data(step, made, files)
    prediction.save(out, prediction.sealed({"switch": entry["switch"], "model": entry["model"],
                                            "depth": entry["depth"], "bandwidth_gbs": BANDWIDTH, **data}))
    sys.stderr.write(f"{out}: {data['saving_us']}\n")


def plan(folder: Path, entry: dict[str, Any], switch: str | None) -> tuple[Planned, ...]:
    """The plan of a recording's step on cuda with this switch set, from a header alone; minfer is a child process."""
    model = entry["model"]
    header = folder / f"{model}.gguf"
    if not header.exists():
        _minfer("synth", f"qwen2-{model}", str(header), "--header-only")
    said = _minfer("plan", str(header), "-d", str(entry["depth"]), "--device", "cuda", "--json",
                   env=setting(entry["date"], switch))
    return planned.of_rows(json.loads(said)["launches"], f"{model} at {entry['depth']}")


def setting(date: str, *switches: str | None) -> dict[str, str]:
    """The environment of a plan of what was recorded on that date with these switches set."""
    return {name: "1" for name in (*switches, "MINFER_NO_STREAM" if date < STREAM else None) if name}


def _minfer(*args: str, env: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-m", "minfer", *args]
    done = subprocess.run(command, env=os.environ | (env or {}), capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
