"""Prefill and decode over one model: programs are built once per shape, positions are data."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from minfer import switches
from minfer.devices import CPU, Where
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.instrument import Tracer, open_tracer
from minfer.models import build_graph, load_hparams
from minfer.models.decoder import HParams
from minfer.plan import Device, Lowering, Plan, Program, TokenLoop, make_plan
from minfer.progress import Progress


def plan_pass(
    gguf: GGUF, hp: HParams, lowering: Lowering, *, nt: int, n_kv: int, n_ctx: int, greedy: bool = False
) -> Plan:
    """The plan of one pass over nt tokens whose attention reads n_kv rows. Needs the header only."""
    return make_plan(build_graph(gguf, hp, nt, n_ctx, greedy), lowering, n_kv)


def plan_step(gguf: GGUF, where: Where, depth: int) -> Plan:
    """The plan of a greedy decode step after `depth` tokens. Needs the header only."""
    hp = load_hparams(gguf)
    n_ctx = max(hp.n_ctx_train, depth + 1)
    return plan_pass(gguf, hp, where.lowering(), nt=1, n_kv=depth + 1, n_ctx=n_ctx, greedy=True)


def write_dump(folder: str, step: str, output: np.ndarray, kv: Mapping[str, np.ndarray]) -> None:
    """One pass's output row and the KV cache after it, as .npy files named by the step (f32, rows as in memory)."""
    try:
        target = Path(folder) / step.replace(" ", "-")
        target.mkdir(parents=True, exist_ok=True)
        for name, array in {"output": output, **kv}.items():
            np.save(target / f"{name}.npy", array)
    except OSError as error:
        raise UserError(f"switch MINFER_GRAPH_DUMP={folder!r} cannot be written: {error.strerror}") from None


class Engine:
    """One sequence at a time. `position` counts the tokens already in the KV cache."""

    def __init__(self, gguf: GGUF, n_ctx: int, where: Where = CPU, progress: Progress | None = None) -> None:
        self.hp = load_hparams(gguf)
        self.gguf, self.n_ctx, self.position = gguf, n_ctx, 0
        build_graph(gguf, self.hp, 1, n_ctx)  # refuse an unsupported model before loading its weights
        self.device: Device = where.open(gguf, progress)
        self.tracer: Tracer = open_tracer(self.device.description)
        self.dump_folder = switches.current()["MINFER_GRAPH_DUMP"]
        self.label = ""  # put before the step's range name: "warmup " keeps a step out of a census
        # a decode program of each kind; of prefill the latest two sizes (whole chunk, remainder) keep their scratch
        self._program = functools.lru_cache(maxsize=4)(self._build)

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Process a prompt from `position` on; logits (vocab,) of its last token. Raises UserError past the context."""
        if not tokens:
            raise UserError("the prompt is empty: give at least one token")
        self._need_room(len(tokens))
        for first in range(0, len(tokens), self.device.max_pass):
            logits = self._run("prefill", tokens[first : first + self.device.max_pass], greedy=False)
        return logits

    def decode(self, token: int) -> np.ndarray:
        """One step: one token in, logits (vocab,) of the next out."""
        self._need_room(1)
        return self._run("decode", (token,), greedy=False)

    def greedy(self, token: int) -> int:
        """One step: one token in, the likeliest next one out; its choice is a launch of the step."""
        self._need_room(1)
        return int(self._run("decode", (token,), greedy=True).view(np.int32)[0])

    def greedy_run(self, token: int, n: int) -> Iterator[int]:
        """The n ids that as many calls of `greedy` give; where the device can, steps are launched ahead of their ids.

        `position` counts the steps whose id was given. Until the iterator is at its end or closed the engine is its
        own. Raises UserError where the context ends, after the ids that fit.
        """
        loop = self._program(1, True).token_loop if n else None
        # a dump, and a log that is written between steps, need each step by itself
        if loop is None or self.dump_folder is not None or self.tracer.log is not None:
            for _ in range(n):
                token = self.greedy(token)
                yield token
            return
        fit = min(n, self.n_ctx - self.position)
        self._check((token,))
        yield from self._run_ahead(loop, token, fit)
        if fit < n:
            self._need_room(1)

    def _run_ahead(self, loop: TokenLoop, token: int, n: int) -> Iterator[int]:
        first, launched = self.position, 0
        loop.start(token, first)
        try:
            for given in range(n):
                while launched < min(given + 1 + loop.ahead, n):
                    loop.launch(self.tracer, f"{self.label}decode {first + launched}")
                    launched += 1
                token = loop.take()
                self.position += 1
                yield token
        finally:
            loop.stop()

    def kv(self) -> dict[str, np.ndarray]:
        """The KV cache up to the current position: region -> f32 (rows, cols)."""
        return self.device.kv(self.position)

    def rewind(self, position: int = 0) -> None:
        """Forget every token from `position` on."""
        self.position = position

    def _need_room(self, n: int) -> None:
        if self.position + n > self.n_ctx:
            raise UserError(
                f"{self.position + n} tokens do not fit the context of {self.n_ctx}: "
                f"shorten the prompt or raise --ctx (the model was trained for {self.hp.n_ctx_train})"
            )

    def _check(self, tokens: Sequence[int]) -> None:
        n_vocab = self.gguf.tensors["token_embd.weight"].rows
        if bad := next((t for t in tokens if not 0 <= t < n_vocab), None):
            raise UserError(f"token id {bad} is outside the vocabulary (0 to {n_vocab - 1})")

    def _run(self, kind: str, tokens: Sequence[int], greedy: bool) -> np.ndarray:
        self._check(tokens)
        step = f"{self.label}{kind} {self.position}"
        output = self._program(len(tokens), greedy).run(self.tracer, step, tokens, self.position)
        self.position += len(tokens)
        if self.dump_folder is not None:
            write_dump(self.dump_folder, step, output, self.kv())
        return output

    def _build(self, nt: int, greedy: bool) -> Program:
        lowering = self.device.lowering
        plan = plan_pass(self.gguf, self.hp, lowering, nt=nt, n_kv=self.n_ctx, n_ctx=self.n_ctx, greedy=greedy)
        return self.device.bind(plan)
