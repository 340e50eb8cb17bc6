"""llama.cpp's own rounding, kept: what it answers on the quantized files, for machines that have a GPU and no peer.

`python tests/peer_rows.py` writes tests/data/peer_rows.json; a test checks that the file is what the peer says.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from minfer.engine import Engine
from minfer.gguf import open_gguf
from minfer.pull import pull
from minfer.sampler import log_softmax
from minfer.synth import synth
from minfer.tokenizer import load_tokenizer

FILE = Path(__file__).parent / "data" / "peer_rows.json"
STEPS, TOP, CTX = 43, 5, 512  # 258 steps in all
ASKED = 500  # of the peer's largest: a whole vocabulary takes it a second
TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "今天天气很好，我们一起去公园散步，然后",
    "Party 🎉🥳👩‍👩‍👧 time!\t\t  \n\n   Then \r\n we  go…",
    "Once upon a time, in a land far away, there lived a",
    "The census counted every launch of the decode step, and the ledger closed. " * 6,
)


def rows_of(path: Path, tokenizer) -> list[dict]:
    """Per prompt: its ids, the reference's greedy ids, and per step the top ids with both log-probabilities.

    The reference is the CPU backend on the same file: exact arithmetic on the quantized weights.
    """
    from peer import Peer  # here: a GPU machine reads the file without having the peer

    engine, found = Engine(open_gguf(path), CTX), []
    with Peer(path, n_ctx=CTX) as peer:
        for text in TEXTS:
            ids = tokenizer.encode(text)
            engine.rewind()
            row, steps, forced = log_softmax(engine.prefill(ids)), [], []
            for _ in range(STEPS):
                steps.append(_step(row, lambda n, at=ids + forced: peer.top(at, n)))
                forced.append(steps[-1]["ids"][0])
                row = log_softmax(engine.decode(forced[-1]))
            found.append({"prompt": ids, "forced": forced, "steps": steps})
    return found


def _step(reference: np.ndarray, ask) -> dict:
    """ask(n): the peer's n largest log-probabilities by id; all of them, where the reference's top is not among few."""
    top = np.argsort(-reference)[:TOP]
    peer = ask(ASKED)
    if any(int(i) not in peer for i in top):
        peer = ask(len(reference))
    return {
        "ids": top.tolist(),
        "reference": [round(float(reference[i]), 5) for i in top],
        "llama_cpp": [round(float(peer[int(i)]), 5) for i in top],
    }


def make(smollm2: Path, tiny: Path) -> dict[str, list[dict]]:
    tokenizer = load_tokenizer(open_gguf(smollm2).metadata)
    return {"smollm2": rows_of(smollm2, tokenizer), "tiny_qwen2": rows_of(tiny, tokenizer)}


def peer_error(rows: list[dict]) -> float:
    """Mean |llama.cpp - reference| over the top log-probabilities of every step."""
    steps = [s for r in rows for s in r["steps"]]
    return float(np.mean([np.abs(np.subtract(s["llama_cpp"], s["reference"])) for s in steps]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder) / "tiny.gguf"
        synth("tiny-qwen2", tiny, vocab_from=pull("smollm2-135m"))  # the weights do not depend on it
        made = make(pull("smollm2-135m"), tiny)
    FILE.write_text(json.dumps(made) + "\n")
    sys.stdout.write(f"{FILE}: " + ", ".join(f"{k} {peer_error(v):.4f}" for k, v in made.items()) + "\n")
