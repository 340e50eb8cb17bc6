"""Text in, text out: tokenize, prefill, decode until the end of generation or the token limit, streaming."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer.devices import Where
from minfer.engine import Engine
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.models import load_hparams
from minfer.progress import bar
from minfer.sampler import Sampling, sample
from minfer.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Request:
    prompt: str
    n_predict: int
    chat: bool
    n_ctx: int


def generate_text(gguf: GGUF, where: Where, request: Request, how: Sampling, stream: bool) -> dict[str, Any]:
    """Generate and return ids, text and times; with `stream` the text goes to stdout as it comes, times to stderr."""
    load_hparams(gguf)  # a model that cannot run is refused before its tokenizer is read
    gguf.require_data()
    tokenizer = load_tokenizer(gguf.metadata)
    prompt = prompt_ids(tokenizer, request)
    with bar("loading weights") as progress:
        engine = Engine(gguf, request.n_ctx, where, progress)
    started = time.perf_counter()
    logits = engine.prefill(prompt)
    prefilled = time.perf_counter()
    ids, text = _decode(engine, tokenizer, prompt, logits, request.n_predict, how, stream)
    decoded = time.perf_counter()
    result = {
        "prompt_ids": prompt,
        "ids": ids,
        "text": text,
        "prompt_tps": len(prompt) / (prefilled - started),
        # the first token comes from the prefill's logits, so a step less is timed than tokens are shown
        "decode_tps": (len(ids) - 1) / (decoded - prefilled) if len(ids) > 1 else None,
    }
    if stream:
        _summary(result)
    return result


def prompt_ids(tokenizer: Tokenizer, request: Request) -> list[int]:
    """The prompt's tokens. Raises UserError for an empty prompt and for one that leaves no room in the context."""
    if not request.prompt:
        raise UserError("the prompt is empty: give at least one character with --prompt")
    if request.chat:
        ids = tokenizer.encode(tokenizer.chat([{"role": "user", "content": request.prompt}]))
    else:
        ids = tokenizer.encode(request.prompt)
    if not ids:
        raise UserError(f"the prompt {request.prompt[:40]!r} gives no tokens: give some text with --prompt")
    if len(ids) >= request.n_ctx:
        raise UserError(f"the prompt has {len(ids)} tokens, --ctx {request.n_ctx} holds fewer with room for an answer")
    return ids


def _decode(
    engine: Engine, tokenizer: Tokenizer, prompt: list[int], logits: np.ndarray, n: int, how: Sampling, stream: bool
) -> tuple[list[int], str]:
    pieces = tokenizer.stream()
    ids: list[int] = []
    text: list[str] = []
    for token in _tokens(engine, prompt, logits, min(n, engine.n_ctx - len(prompt)), how):
        if token in tokenizer.eog:
            break
        ids.append(token)
        text.append(_show(pieces.feed(token), stream))
    text.append(_show(pieces.flush() + ("\n" if stream else ""), stream))
    return ids, "".join(text)


def _tokens(engine: Engine, prompt: list[int], logits: np.ndarray, n: int, how: Sampling) -> Iterator[int]:
    """At most n tokens, each from the logits behind the one before; the last is not decoded."""
    rng, ids = np.random.default_rng(how.seed), list(prompt)
    for left in range(n, 0, -1):
        ids.append(sample(logits, ids, how, rng))
        yield ids[-1]
        if how.temp == 0 and how.repeat_penalty == 1:
            yield from engine.greedy_run(ids[-1], left - 1)
            return
        if left > 1:
            logits = engine.decode(ids[-1])


def _show(piece: str, stream: bool) -> str:
    if stream:
        sys.stdout.write(piece)
        sys.stdout.flush()
    return piece


def _summary(result: dict[str, Any]) -> None:
    decode = result["decode_tps"]
    rate = "too short to time" if decode is None else f"{decode:.1f} tok/s"
    sys.stderr.write(
        f"prompt {len(result['prompt_ids'])} tokens, {result['prompt_tps']:.1f} tok/s; "
        f"generated {len(result['ids'])} tokens, {rate}\n"
    )
