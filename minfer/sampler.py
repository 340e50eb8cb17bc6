"""From logits to a token: repeat penalty, top-k, top-p, temperature, in llama.cpp's order. Temperature 0 is greedy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minfer.errors import UserError

PENALTY_WINDOW = 64  # last tokens that the repeat penalty looks at, llama.cpp's default


@dataclass(frozen=True)
class Sampling:
    temp: float = 0.8
    top_k: int = 40  # 0: all
    top_p: float = 0.95
    repeat_penalty: float = 1.0  # 1: none
    seed: int = 0

    def __post_init__(self) -> None:
        for ok, name, value, allowed in (
            (self.temp >= 0, "temp", self.temp, "0 (greedy) or more"),
            (self.top_k >= 0, "top-k", self.top_k, "0 (all) or more"),
            (0 < self.top_p <= 1, "top-p", self.top_p, "more than 0, at most 1"),
            (self.repeat_penalty > 0, "repeat-penalty", self.repeat_penalty, "more than 0; 1 is none"),
            (self.seed >= 0, "seed", self.seed, "0 or more"),
        ):
            if not ok:
                raise UserError(f"--{name} {value} is not allowed: {allowed}")


def sample(logits: np.ndarray, history: Sequence[int], how: Sampling, rng: np.random.Generator) -> int:
    """The next token id. `history` is every token so far, prompt included; logits (vocab,) are left as they are."""
    logits = penalize(logits, history[-PENALTY_WINDOW:], how.repeat_penalty)
    if how.temp == 0:
        return int(np.argmax(logits))
    ids = _top_k(logits, how.top_k)
    ids = ids[: _nucleus(logits[ids], how.top_p)]
    p = softmax(logits[ids] / how.temp)
    return int(rng.choice(ids, p=p))


def penalize(logits: np.ndarray, recent: Sequence[int], penalty: float) -> np.ndarray:
    """Divide positive and multiply negative logits of recent tokens by `penalty`; a copy unless that is nothing."""
    if penalty == 1 or not recent:
        return logits
    logits, ids = logits.copy(), np.unique(recent)
    logits[ids] = np.where(logits[ids] > 0, logits[ids] / penalty, logits[ids] * penalty)
    return logits


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities in float64, same shape, over the last axis."""
    z = logits.astype(np.float64)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64, same shape, over the last axis."""
    z = logits.astype(np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))


def _top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Ids of the k largest logits (all when k is 0), largest first."""
    if 0 < k < len(logits):
        ids = np.argpartition(logits, -k)[-k:]
        return ids[np.argsort(-logits[ids], kind="stable")]
    return np.argsort(-logits, kind="stable")


def _nucleus(sorted_logits: np.ndarray, top_p: float) -> int:
    """How many of the sorted candidates reach probability top_p together; at least one."""
    return int(np.searchsorted(np.cumsum(softmax(sorted_logits)), top_p)) + 1
