"""Record minfer's decode on a GPU, every switch, for `traces/`: needs nsys, CuPy and two model files.

    python benchmarks/record_traces.py --model 7b=qwen2-7b.gguf --depth 0 --depth 3254 --out traces
    python benchmarks/record_traces.py ... --switch default --label five --out traces

Per (model, depth, switch) one recording with graph nodes (structure) and one of whole graphs (true step time), of
STEPS steps after two of warm-up. Each is scrubbed and gzipped; `manifest.json` gains an entry: file, device, command,
date, versions. The second form records the default once more, beside what is there: `7b-d0-five-node.sqlite.gz`.
"""

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from census import record, scrub
from minfer.switches import SWITCHES

STEPS = 4
DEFAULT = "default"


def main() -> None:
    args = _arguments()
    out = args.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.workers) as pool:
        done: list[Future[dict[str, Any]]] = []
        for name, path in args.model:
            for depth in args.depth:
                for switch in args.switch:
                    stem = f"{name}-d{depth}-{args.label or _label(switch)}"
                    done += _record(Path(folder), pool, out / stem, name, path, depth, switch)
        _merge(out / "manifest.json", [f.result() for f in done])


def _arguments() -> argparse.Namespace:
    able = [DEFAULT, *(name for name, row in SWITCHES.items() if row.plan and "PREFILL" not in name)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, type=lambda t: tuple(t.split("=", 1)))
    parser.add_argument("--depth", action="append", type=int, required=True)
    parser.add_argument("--switch", action="append", choices=able, help="all by default")
    parser.add_argument("--label", help="in the files' names instead of the switch, of which there is one then")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=4, help="threads that scrub while the next one records")
    args = parser.parse_args()
    args.switch = args.switch or able
    if args.label and len(args.switch) > 1:
        parser.error("--label names recordings of one --switch")
    return args


def _label(switch: str) -> str:
    return switch.removeprefix("MINFER_").lower().replace("_", "-")


def _record(
    folder: Path, pool: ThreadPoolExecutor, target: Path, name: str, path: str, depth: int, switch: str
) -> list[Future[dict[str, Any]]]:
    """One command, recorded both ways; `target` is where the files go, without the end of their names."""
    stem = target.name
    sizes = ["-p", "0", "-n", str(STEPS), "-d", str(depth), "-r", "1", "--device", "cuda"]
    command = [sys.executable, "-m", "minfer", "bench", path, *sizes]
    os.environ |= {} if switch == DEFAULT else {switch: "1"}
    try:
        facts = record.record_command(command, "both", record.How(), folder / stem)
    finally:
        os.environ.pop(switch, None)
    sys.stderr.write(f"recorded {stem}\n")
    entry = {
        "model": name, "depth": depth, "switch": None if switch == DEFAULT else switch, "steps": STEPS,
        "device": facts["device"], "date": facts["date"], "versions": facts["versions"],
        "command": ["minfer", "bench", Path(path).name, *sizes],
    }  # fmt: skip
    return [pool.submit(_publish, folder / stem / r["trace"], target, r, entry) for r in facts["runs"]]


def _publish(trace: Path, target: Path, run: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Scrub and gzip one trace; its manifest entry."""
    clean, packed_file = trace.with_suffix(".clean"), target.with_name(f"{target.name}-{run['graphs']}.sqlite.gz")
    scrub.scrub(str(trace), clean, begin="warmup decode")  # a prefill of 3254 tokens is larger than all the steps
    with clean.open("rb") as source, gzip.GzipFile(packed_file, "wb", mtime=0) as packed:
        shutil.copyfileobj(source, packed)
    return {"file": packed_file.name, "graphs": run["graphs"], "messages": run["messages"], **entry}


def _merge(manifest: Path, entries: list[dict[str, Any]]) -> None:
    """Entries by file name; a new recording replaces the old one's."""
    held = {e["file"]: e for e in (json.loads(manifest.read_text()) if manifest.exists() else [])}
    held |= {e["file"]: e for e in entries}
    manifest.write_text(json.dumps([held[k] for k in sorted(held)], indent=1) + "\n")


if __name__ == "__main__":
    main()
