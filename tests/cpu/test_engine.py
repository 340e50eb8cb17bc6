"""Prefill, decode, rewind: one sequence gives one answer however it is cut into passes."""

import numpy as np
import pytest

from minfer.engine import Engine
from minfer.errors import UserError
from minfer.gguf import open_gguf
from tiny import VOCAB, write_llama

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
CLOSE = {"rtol": 0, "atol": 1e-5}  # f32 sums of 64 terms near 1 in another order


@pytest.fixture
def engine(tmp_path):
    return Engine(open_gguf(write_llama(tmp_path / "m.gguf")), n_ctx=16)


def test_a_prompt_gives_the_logits_that_single_steps_give(engine):
    whole = engine.prefill(TOKENS).copy()
    engine.rewind()
    for token in TOKENS:
        step = engine.decode(token)
    np.testing.assert_allclose(step, whole, **CLOSE)
    assert engine.position == len(TOKENS)


def test_a_prompt_longer_than_a_pass_is_cut_into_passes(engine, monkeypatch):
    whole = engine.prefill(TOKENS).copy()
    monkeypatch.setattr(engine.device, "max_pass", 3)
    engine.rewind()
    np.testing.assert_allclose(engine.prefill(TOKENS), whole, **CLOSE)


def test_rewind_forgets(engine):
    first = engine.prefill(TOKENS[:4]).copy()
    engine.prefill([7, 7, 7])
    engine.rewind(2)
    np.testing.assert_allclose(engine.prefill(TOKENS[2:4]), first, **CLOSE)


def test_a_greedy_run_is_that_many_greedy_steps(engine):
    single = [token := 3, *(token := engine.greedy(token) for _ in range(6))]
    assert engine.position == 6
    engine.rewind(2)
    assert list(engine.greedy_run(single[2], 4)) == single[3:] and engine.position == 6
    engine.rewind()
    run = engine.greedy_run(3, 6)
    assert [next(run), next(run)] == single[1:3]
    run.close()
    assert engine.position == 2 and list(engine.greedy_run(single[2], 0)) == []
    assert engine.greedy(single[2]) == single[3]


def test_a_greedy_run_gives_what_fits_the_context_first(engine):
    engine.prefill([1] * 13)
    run = engine.greedy_run(1, 5)
    assert len([next(run) for _ in range(3)]) == 3
    with pytest.raises(UserError, match="17 tokens do not fit the context of 16"):
        next(run)


def test_the_context_holds_what_it_says_and_no_more(engine):
    engine.prefill([1] * 16)
    with pytest.raises(UserError, match="17 tokens do not fit the context of 16"):
        engine.decode(1)


@pytest.mark.parametrize("tokens", [[VOCAB], [-1]])
def test_a_token_outside_the_vocabulary_is_refused(engine, tokens):
    with pytest.raises(UserError, match=f"token id {tokens[0]} is outside the vocabulary"):
        engine.prefill(tokens)


def test_an_empty_prompt_is_refused(engine):
    with pytest.raises(UserError, match="the prompt is empty"):
        engine.prefill([])


def test_a_model_larger_than_memory_is_refused_with_the_numbers(tmp_path, monkeypatch):
    path = write_llama(tmp_path / "m.gguf", quant="F16")
    monkeypatch.setattr("minfer.cpu.backend.available_memory", lambda: 1000)
    with pytest.raises(UserError, match=r"m\.gguf as f32 needs 0\.0 GB, 0\.0 GB of memory is available"):
        Engine(open_gguf(path), 16)


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_weight_type_runs(tmp_path, quant):
    """The quantized matrix is all zero bytes here: what matters is that it loads and multiplies."""
    engine = Engine(open_gguf(write_llama(tmp_path / "m.gguf", quant=quant)), 16)
    assert np.isfinite(engine.prefill(TOKENS)).all()
