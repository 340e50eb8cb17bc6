"""Timing of prompt processing (pp) and token generation (tg), with llama-bench's options and JSON field names.

Each test is one row: `n_prompt` tokens in passes, or `n_gen` greedy steps, after `n_depth` tokens that are not timed.
A repetition rewinds the KV cache to the depth. The fields that llama-bench has and this engine has no notion of are
left out; `output_hash` (SHA-256 of the generated ids) lets an A/B check that both arms produced the same tokens.
"""

import csv
import hashlib
import io
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from minfer import __version__, switches
from minfer.cpu.backend import cpu_name
from minfer.devices import Where
from minfer.engine import Engine
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.progress import bar, counter

WARMUP_STEPS = 2  # a program's first step is eager, its second captures the graph that later ones replay


@dataclass(frozen=True)
class Test:
    n_prompt: int
    n_gen: int
    n_depth: int

    @property
    def name(self) -> str:
        kind = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return kind + (f" @ d{self.n_depth}" if self.n_depth else "")


@dataclass(frozen=True)
class Sample:
    ns: int
    ids: tuple[int, ...]  # generated tokens


def run_bench(
    gguf: GGUF, where: Where, lengths: Sequence[Sequence[int]], *, reps: int, threads: int | None, warmup: bool,
    output: str,
) -> str:  # fmt: skip
    """`minfer bench`: lengths are the lists of -p, -n and -d; the result's rows as text in the form `output`."""
    if output not in FORMATS:
        raise UserError(f"-o {output!r} is not allowed: give one of {', '.join(FORMATS)}")
    rows = tests(*lengths)
    if not rows:
        raise UserError("nothing to time: give -p or -n a length above 0")
    with threadpool_limits(threads, user_api="blas"):
        with bar("loading weights") as progress:
            engine = Engine(gguf, context_needed(rows), where, progress)
        with counter("timing", len(rows) * (reps + warmup)) as tick:
            results = [report(engine, row, run_test(engine, row, reps, warmup, tick)) for row in rows]
    return FORMATS[output](results)


def tests(n_prompt: Iterable[int], n_gen: Iterable[int], n_depth: Iterable[int]) -> list[Test]:
    """llama-bench's order: for each depth the prompt tests, then the generation tests; a length of 0 is no test."""
    prompts, gens = [p for p in n_prompt if p], [g for g in n_gen if g]
    return [t for d in n_depth for t in [Test(p, 0, d) for p in prompts] + [Test(0, g, d) for g in gens]]


def context_needed(rows: Iterable[Test]) -> int:
    """KV rows that the longest of the tests fills."""
    return max(t.n_depth + t.n_prompt + t.n_gen for t in rows)


def run_test(engine: Engine, test: Test, reps: int, warmup: bool, tick: Callable[[], None]) -> list[Sample]:
    """Timed repetitions of one test; the warm-up's steps are named `warmup ...` and kept out of the samples."""
    prompt = _tokens(engine, test.n_depth + test.n_prompt)
    engine.label = "warmup "
    engine.rewind()
    if test.n_depth:
        engine.prefill(prompt[: test.n_depth])
    if warmup:
        _once(engine, Test(test.n_prompt, min(test.n_gen, WARMUP_STEPS), test.n_depth), prompt)
        tick()
    engine.label = ""
    samples = []
    for _ in range(reps):
        samples.append(_once(engine, test, prompt))
        tick()
    return samples


def _once(engine: Engine, test: Test, prompt: list[int]) -> Sample:
    engine.rewind(test.n_depth)
    token = prompt[test.n_depth - 1] if test.n_depth else prompt[0]
    start = time.perf_counter_ns()
    if test.n_prompt:
        engine.prefill(prompt[test.n_depth :])
    ids = tuple(engine.greedy_run(token, test.n_gen))
    return Sample(time.perf_counter_ns() - start, ids)


def _tokens(engine: Engine, n: int) -> list[int]:
    """Fixed pseudo-random token ids, at least one: the same prompt on every machine and run."""
    n_vocab = engine.gguf.tensors["token_embd.weight"].rows
    return [int(t) for t in np.random.default_rng(0).integers(0, n_vocab, max(n, 1))]


def report(engine: Engine, test: Test, samples: list[Sample]) -> dict[str, Any]:
    """One row of results: ns and tokens/s per repetition, their mean and sample deviation, and what was run."""
    ns = [s.ns for s in samples]
    ts = [1e9 * (test.n_prompt + test.n_gen) / t for t in ns]
    return setting(engine) | {
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "avg_ns": round(statistics.mean(ns)),
        "stddev_ns": round(_stdev(ns)),
        "avg_ts": statistics.mean(ts),
        "stddev_ts": _stdev(ts),
        "samples_ns": ns,
        "samples_ts": ts,
        "output_hash": output_hash(samples),
    }


def output_hash(samples: list[Sample]) -> str | None:
    """SHA-256 over the generated ids of every repetition (little-endian int32); None when nothing was generated."""
    ids = [i for s in samples for i in s.ids]
    return hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest() if ids else None


def setting(engine: Engine) -> dict[str, Any]:
    """What was run on what, in llama-bench's field names."""
    gguf = engine.gguf
    blas = next((t for t in threadpool_info() if t["user_api"] == "blas"), None)
    return {
        "build_commit": None,
        "build_number": __version__,
        "cpu_info": cpu_name(),
        **engine.device.facts,
        "model_filename": str(gguf.path),
        "model_type": model_type(gguf),
        "model_size": sum(t.nbytes for t in gguf.tensors.values()),
        "model_n_params": sum(t.rows * t.shape[0] for t in gguf.tensors.values()),
        "n_batch": engine.device.max_pass,
        "n_ubatch": engine.device.max_pass,
        "n_threads": blas["num_threads"] if blas else None,
        "pid": os.getpid(),
        "switches": switches.changed(),
    }


def model_type(gguf: GGUF) -> str:
    """Architecture, size label and the type that most weight bytes are stored in, e.g. `llama 135M Q4_1`."""
    by_type: dict[str, int] = {}
    for t in gguf.tensors.values():
        by_type[t.type] = by_type.get(t.type, 0) + t.nbytes
    size = gguf.metadata.get("general.size_label", "")
    main = max(by_type, key=lambda k: by_type[k])
    return " ".join(part for part in (str(gguf.metadata["general.architecture"]), str(size), main) if part)


def _stdev(values: list[int] | list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| model | size | params | backend | threads | test | t/s |", "|---|---:|---:|---|---:|---|---:|"]
    for r in rows:
        name = Test(r["n_prompt"], r["n_gen"], r["n_depth"]).name
        size, params = f"{r['model_size'] / 2**20:.2f} MiB", f"{r['model_n_params'] / 1e6:.2f} M"
        speed = f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}"
        cells = (r["model_type"], size, params, r["backends"], r["n_threads"], name, speed)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in r.items()} for r in rows)
    return out.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[Sequence[dict[str, Any]]], str]] = {
    "md": _markdown,
    "json": lambda rows: json.dumps(rows, indent=1),
    "jsonl": lambda rows: "\n".join(json.dumps(r) for r in rows),
    "csv": _csv,
}
