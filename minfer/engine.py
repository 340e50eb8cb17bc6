"""Prefill and decode over one model: graphs are built once per batch size, positions are data."""

import functools
from collections.abc import Sequence

import numpy as np

from minfer.cpu.backend import CpuDevice, CpuLowering, Program, Progress
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.instrument import Tracer, open_tracer, walk
from minfer.models import build_graph, load_hparams
from minfer.models.decoder import HParams
from minfer.plan import Plan, make_plan

N_UBATCH = 512  # tokens a prefill pass takes at most


def plan_pass(gguf: GGUF, hp: HParams, *, nt: int, n_kv: int, n_ctx: int) -> Plan:
    """The plan of one pass over nt tokens whose attention reads n_kv rows. Needs the header only."""
    return make_plan(build_graph(gguf, hp, nt, n_ctx), CpuLowering(), n_kv)


class Engine:
    """One sequence at a time. `position` counts the tokens already in the KV cache."""

    def __init__(self, gguf: GGUF, n_ctx: int, progress: Progress | None = None) -> None:
        self.hp = load_hparams(gguf)
        self.gguf, self.n_ctx, self.position = gguf, n_ctx, 0
        build_graph(gguf, self.hp, 1, n_ctx)  # refuse an unsupported model before loading its weights
        self.device = CpuDevice(gguf, progress)
        self.tracer: Tracer = open_tracer(self.device.description)
        self.label = ""  # put before the step's range name: "warmup " keeps a step out of a census
        # one decode program; of prefill only the latest two sizes (whole chunk, remainder) keep their scratch
        self._program = functools.lru_cache(maxsize=3)(self._build)
        self._program(1)

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Process a prompt from `position` on; logits (vocab,) of its last token. Raises UserError past the context."""
        if not tokens:
            raise UserError("the prompt is empty: give at least one token")
        self._need_room(len(tokens))
        for first in range(0, len(tokens), N_UBATCH):
            logits = self._run("prefill", tokens[first : first + N_UBATCH])
        return logits

    def decode(self, token: int) -> np.ndarray:
        """One step: one token in, logits (vocab,) of the next out."""
        self._need_room(1)
        return self._run("decode", (token,))

    def rewind(self, position: int = 0) -> None:
        """Forget every token from `position` on."""
        self.position = position

    def _need_room(self, n: int) -> None:
        if self.position + n > self.n_ctx:
            raise UserError(
                f"{self.position + n} tokens do not fit the context of {self.n_ctx}: "
                f"shorten the prompt or raise --ctx (the model was trained for {self.hp.n_ctx_train})"
            )

    def _run(self, kind: str, tokens: Sequence[int]) -> np.ndarray:
        n_vocab = self.gguf.tensors["token_embd.weight"].rows
        if bad := next((t for t in tokens if not 0 <= t < n_vocab), None):
            raise UserError(f"token id {bad} is outside the vocabulary (0 to {n_vocab - 1})")
        program = self._program(len(tokens))
        program.tokens[:, 0] = tokens
        program.positions[:, 0] = np.arange(self.position, self.position + len(tokens))
        walk(self.tracer, f"{self.label}{kind} {self.position}", program.work)
        self.position += len(tokens)
        logits: np.ndarray = program.output[0]
        return logits

    def _build(self, nt: int) -> Program:
        plan = plan_pass(self.gguf, self.hp, nt=nt, n_kv=self.n_ctx, n_ctx=self.n_ctx)
        return self.device.bind(plan)
