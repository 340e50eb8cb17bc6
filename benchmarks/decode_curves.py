"""Decode speed against depth and against model size: does a step cost what its bytes cost?

    python benchmarks/decode_curves.py 0.5b.gguf 7b.gguf 14b.gguf --out curves.jsonl --plot curves.png
    python benchmarks/decode_curves.py --out curves.jsonl --plot curves.png       # draw what was measured before

One `minfer bench` process per model takes all depths. Depth d is a prefill of d tokens that is not timed; the timed
steps then run at depths d to d + N - 1, and the bytes of a line are those of the first of them, so that its floor is
one for all. A line per (model, depth): bytes from the plan, tokens/s, the floors, and where all of it was measured.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from census import provenance
from census.errors import CensusError
from minfer.devices import Where, where
from minfer.engine import plan_step
from minfer.errors import UserError
from minfer.gguf import GGUF, open_gguf
from minfer.pull import resolve

REFERENCE_GBS = 4300.0  # the bandwidth that the reports divide by, so that their floors compare with these
DEPTHS = "0,1024,2048,4096,8192,16384"
DRAWN = {"model", "device", "date", "depth", "weight_bytes", "kv_bytes", "bandwidth_gbs", "floor_ms", "avg_ts"}


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    try:
        if args.models:
            measure(args)
        if args.plot:
            draw(args.out, args.plot)
    except (UserError, CensusError, OSError) as error:
        _say(f"decode_curves: {error}")
        return 2
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a GGUF file, or a name that was pulled")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines: written with models, read without")
    parser.add_argument("--plot", type=Path, help="draw the lines of --out here (.png)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("-d", "--n-depth", default=DEPTHS, help=f"default: {DEPTHS}")
    parser.add_argument("-n", "--n-gen", type=int, default=64, help="steps of a repetition")
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    args = parser.parse_args(argv)
    if not (args.models or args.plot):
        parser.error("give a MODEL to measure, or --plot to draw what --out holds")
    return args


def measure(args: argparse.Namespace) -> None:
    """One line per point to args.out. Every model is looked at before the first is run: the last may be the bad one."""
    paths = [resolve(model) for model in args.models]
    if len({path.stem for path in paths}) < len(paths):
        raise UserError("two models have the same file name; a line tells them apart by it: rename one")
    for path in paths:
        with open_gguf(path) as gguf:
            gguf.require_data()
    place, options = where(args.device, None), ["--device", args.device]
    measured = json.loads(_minfer("plan", str(paths[0]), *options, "--bandwidth", "measure", "--json"))
    facts = {"bandwidth_gbs": measured["bandwidth_gbs"], "reference_gbs": REFERENCE_GBS,
             "versions": provenance.versions()}
    _say(f"read bandwidth {facts['bandwidth_gbs']:,.0f} GB/s")
    sizes = ["-p", "0", "-n", str(args.n_gen), "-r", str(args.repetitions), "-d", args.n_depth, "-o", "jsonl"]
    with args.out.open("w") as out:
        for number, path in enumerate(paths, 1):
            _say(f"{path.stem}: model {number} of {len(paths)}, depths {args.n_depth}")
            for line in points(path, place, ["bench", str(path), *sizes, *options], facts):
                out.write(json.dumps(line) + "\n")
                out.flush()
                _say(f"  depth {line['depth']}: {line['avg_ts']:,.1f} tokens/s, {1e3 / line['avg_ts']:.3f} ms a step, "
                     f"floor {line['floor_ms']:.3f}")


def points(path: Path, place: Where, command: list[str], facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of one model."""
    rows = [json.loads(text) for text in _minfer(*command).splitlines()]
    with open_gguf(path) as gguf:
        for row in rows:
            size = step_bytes(gguf, place, row["n_depth"])
            needed = size["weight_bytes"] + size["kv_bytes"]
            yield {
                "model": path.stem, "device": row["gpu_info"] or row["cpu_info"], "date": row["test_time"],
                "command": provenance.shown(["minfer", *command]), "switches": row["switches"],
                "kv_type": row["type_k"], "depth": row["n_depth"], "n_gen": row["n_gen"], **size, **facts,
                "floor_ms": needed / facts["bandwidth_gbs"] / 1e6, "floor_ms_reference": needed / REFERENCE_GBS / 1e6,
                "avg_ts": row["avg_ts"], "samples_ts": row["samples_ts"],
            }  # fmt: skip


def step_bytes(gguf: GGUF, place: Where, depth: int) -> dict[str, int]:
    """Bytes of the plan of a step after `depth` tokens: weights as stored, KV rows read, and all that is moved.

    A plan one row deeper reads one more KV row and nothing else: the difference is a row, whatever kernels read it.
    """
    plan, deeper = (plan_step(gguf, place, d) for d in (depth, depth + 1))
    now, then = plan.totals(), deeper.totals()
    row = then["bytes_read"] - now["bytes_read"]
    return {"weight_bytes": now["weight_bytes"], "kv_bytes": row * plan.n_kv,
            "bytes_moved": now["bytes_read"] + now["bytes_written"]}  # fmt: skip


def draw(lines: Path, to: Path) -> None:
    """The figure of a file of lines."""
    from analysis import plots  # matplotlib takes a second to load, and a machine that only measures may lack it

    plots.save(plots.decode_curves(read(lines)), to)


def read(path: Path) -> list[dict[str, Any]]:
    """A file's lines, of one device. Raises CensusError for another file."""
    try:
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        whole = all(line.keys() >= DRAWN for line in lines)
    except (ValueError, AttributeError):
        lines, whole = [], False
    if not (lines and whole):
        raise CensusError(f"{path}: holds no lines of benchmarks/decode_curves.py")
    if len({line["device"] for line in lines}) > 1:
        raise CensusError(f"{path}: lines of several devices; a floor is of one: draw them apart")
    return lines


def _minfer(*args: str) -> str:
    """A child process, so that a model's memory is gone before the next one is loaded."""
    done = subprocess.run([sys.executable, "-m", "minfer", *args], capture_output=True, text=True)
    said = done.stderr.strip()
    if done.returncode == 2 and said and "\n" not in said:
        raise UserError(said)
    if done.returncode:
        sys.stderr.write(done.stderr)  # all of it: the last line of a traceback alone says too little
        raise UserError(f"minfer {args[0]} ended with code {done.returncode}")
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
