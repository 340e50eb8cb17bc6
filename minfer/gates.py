"""Gates: checks of results, not speed, that must pass before a speed counts.

Each compares one setting with another (a switch at 0 and at 1, or two devices) on the same model and tokens, and
returns JSON-able data with `passed`. They look at what is stable: logits, KV rows, token ids; never at scratch.
"""

import bisect
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minfer.devices import Where
from minfer.engine import Engine, plan_step
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.sampler import Sampling, log_softmax, sample

PROMPT = 16  # tokens of a seeded prompt


@dataclass(frozen=True)
class Setting:
    """One side of a gate."""

    name: str
    where: Where


def switch_settings(where: Where, switch: str) -> tuple[Setting, Setting]:
    """The two sides of a switch on one device."""
    off = where.options.off - {switch}
    sides = (frozenset(off), frozenset(off | {switch}))
    a, b = (replace(where, options=replace(where.options, off=s)) for s in sides)
    return Setting(f"{switch}=0", a), Setting(f"{switch}=1", b)


def seeded_prompt(gguf: GGUF, seed: int, n: int = PROMPT) -> list[int]:
    """n token ids that depend on the seed alone."""
    n_vocab = gguf.tensors["token_embd.weight"].rows
    return [int(t) for t in np.random.default_rng(seed).integers(0, n_vocab, n)]


def dump(
    gguf: GGUF, sides: tuple[Setting, Setting], tokens: int, tolerance: float, prompt: int = PROMPT
) -> dict[str, Any]:
    """Logits of the prompt and of every step, and all KV rows at the end, byte for byte.

    The second side is fed the first one's tokens. Passes when the largest logit difference is within `tolerance`
    (0: when every byte is equal, KV included).
    """
    forced: list[int] = []
    found = [_logits_and_kv(gguf, side, seeded_prompt(gguf, 0, prompt), tokens, forced) for side in sides]
    (rows_a, kv_a), (rows_b, kv_b) = found
    files = [("logits prefill", rows_a[0], rows_b[0]), *_steps(rows_a, rows_b)]
    files += [(name, kv_a[name], kv_b[name]) for name in sorted(kv_a)]
    compared = [_compare(*file) for file in files]
    worst = max(row["max_difference"] for row in compared if row["what"].startswith("logits"))
    same = all(row["bytes_differ"] == 0 for row in compared)
    return {
        "gate": "dump", "sides": [s.name for s in sides], "steps": tokens, "tolerance": tolerance,
        "identical": sum(r["bytes_differ"] == 0 for r in compared), "compared": len(compared),
        "max_logit_difference": worst, "passed": same if tolerance == 0 else worst <= tolerance,
        "differing": [r for r in compared if r["bytes_differ"]],
    }  # fmt: skip


def _steps(a: list[np.ndarray], b: list[np.ndarray]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    return ((f"logits step {i}", x, y) for i, (x, y) in enumerate(zip(a[1:], b[1:], strict=True)))


def _logits_and_kv(
    gguf: GGUF, side: Setting, prompt: list[int], tokens: int, forced: list[int]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Logits (vocab,) before each step; fills `forced` with greedy ids when it is empty, follows it otherwise."""
    engine = Engine(gguf, len(prompt) + tokens, side.where)
    rows, follow = [engine.prefill(prompt).copy()], bool(forced)
    for i in range(tokens):
        if not follow:
            forced.append(int(rows[-1].argmax()))
        rows.append(engine.decode(forced[i]).copy())
    return rows, engine.kv()


def _compare(what: str, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    differ = int((a.view(np.uint8) != b.view(np.uint8)).sum())
    return {"what": what, "bytes_differ": differ, "max_difference": float(np.abs(a - b, dtype=np.float64).max())}


def streams(
    gguf: GGUF, sides: tuple[Setting, Setting], seeds: Sequence[int], tokens: int, temp: float, margin: float
) -> dict[str, Any]:
    """Token streams of both sides from the same seeded prompts: greedy (temp 0) or sampled.

    The second side is fed the first one's ids, so after a step where it chose another it goes on in the same place. A
    step where they differ and the first side's best two log-probabilities are within `margin` is a tie: counted, and
    not a failure. Passes when there is no other difference.
    """
    how = Sampling(temp=temp, top_k=40, top_p=0.95)
    first = _streams(gguf, sides[0], seeds, tokens, how, None)
    second = _streams(gguf, sides[1], seeds, tokens, how, [x[0] for x in first])
    rows = [_compare_streams(seed, a, b, margin) for seed, a, b in zip(seeds, first, second, strict=True)]
    return {
        "gate": "sampled" if temp else "greedy", "sides": [s.name for s in sides], "seeds": list(seeds),
        "tokens": tokens, "margin": margin,
        "identical": sum(r["differences"] == 0 for r in rows), "ties": sum(r["ties"] for r in rows), "streams": rows,
        "passed": all(r["differences"] == r["ties"] for r in rows),
    }  # fmt: skip


Stream = tuple[list[int], list[float]]  # ids chosen, and the margin between the best two log-probabilities before each


def _streams(
    gguf: GGUF, side: Setting, seeds: Sequence[int], tokens: int, how: Sampling, fed: list[list[int]] | None
) -> list[Stream]:
    """A stream per seed; each step is fed what was chosen, or the ids in `fed`."""
    engine = Engine(gguf, PROMPT + tokens, side.where)
    return [_stream(engine, seed, tokens, how, fed[i] if fed else None) for i, seed in enumerate(seeds)]


def _stream(engine: Engine, seed: int, tokens: int, how: Sampling, fed: list[int] | None) -> Stream:
    engine.rewind()
    prompt, rng = seeded_prompt(engine.gguf, seed), np.random.default_rng(seed)
    logits = engine.prefill(prompt)
    ids: list[int] = []
    margins: list[float] = []
    while len(ids) < tokens:
        before = ids if fed is None else fed[: len(ids)]
        best = np.partition(log_softmax(logits), -2)[-2:]
        margins.append(float(best[1] - best[0]))
        ids.append(sample(logits, prompt + before, how, rng))
        logits = engine.decode(ids[-1] if fed is None else fed[len(ids) - 1])
    return ids, margins


def _compare_streams(seed: int, a: Stream, b: Stream, margin: float) -> dict[str, Any]:
    gaps = [gap for x, y, gap in zip(a[0], b[0], a[1], strict=True) if x != y]
    first = next((i for i, (x, y) in enumerate(zip(a[0], b[0], strict=True)) if x != y), None)
    return {
        "seed": seed, "differences": len(gaps), "ties": sum(gap <= margin for gap in gaps), "first_difference": first,
        "largest_margin": max(gaps, default=None),
    }  # fmt: skip


def coverage(gguf: GGUF, where: Where, log: Path) -> dict[str, Any]:
    """A launch log's decode steps against the plan, layer by layer: per layer the kernels, in order."""
    planned = _by_layer((x.layer, x.kernel) for x in plan_step(gguf, where, 0).launches)
    steps = _logged_steps(log)
    layers = [_cover(layer, planned[layer], steps) for layer in planned]
    return {
        "gate": "coverage", "steps": len(steps), "layers": len([x for x in layers if x["layer"] is not None]),
        "covered": sum(x["covered"] for x in layers), "compared": len(layers),
        "missing": [x for x in layers if not x["covered"]],
        "passed": bool(steps) and all(x["covered"] for x in layers),
    }  # fmt: skip


Layer = int | None


def _by_layer(launches: Iterator[tuple[Layer, str]]) -> dict[Layer, list[str]]:
    found: dict[Layer, list[str]] = {}
    for layer, kernel in launches:
        found.setdefault(layer, []).append(kernel)
    return found


def _cover(layer: Layer, planned: list[str], steps: list[dict[Layer, list[str]]]) -> dict[str, Any]:
    wrong = [step.get(layer, []) for step in steps if step.get(layer, []) != planned]
    differ: dict[str, int] = {}
    if wrong:
        have, want = Counter(wrong[0]), Counter(planned)
        differ = {k: have[k] - want[k] for k in {**have, **want} if have[k] != want[k]}
    return {"layer": layer, "covered": not wrong, "steps_differing": len(wrong), "launches_more": differ}


def _logged_steps(log: Path) -> list[dict[Layer, list[str]]]:
    """The decode steps of a launch log (instrument.py), each as layer -> kernels in order."""
    try:
        head, *lines = log.read_text().splitlines()
        if json.loads(head).get("log") != "minfer-launches":
            raise ValueError
        rows = [json.loads(line) for line in lines]
    except (OSError, ValueError, AttributeError):
        raise UserError(f"{log}: not a launch log; record one with MINFER_LAUNCH_LOG=FILE minfer bench ...") from None
    ranges = [(r[2], r[3], r[1]) for r in rows if r[0] == "range"]
    launches = [(r[4], r[1]) for r in rows if r[0] == "launch"]
    layers = sorted((s, e, int(t.split()[1])) for s, e, t in ranges if t.startswith("layer "))
    steps = sorted((s, e) for s, e, t in ranges if t.startswith("decode "))
    return [_by_layer((_layer_at(layers, t), k) for t, k in launches if s <= t <= e) for s, e in steps]


def _layer_at(layers: list[tuple[int, int, int]], time: int) -> Layer:
    i = bisect.bisect_right(layers, (time, 1 << 62, 0)) - 1
    return layers[i][2] if i >= 0 and layers[i][0] <= time <= layers[i][1] else None
