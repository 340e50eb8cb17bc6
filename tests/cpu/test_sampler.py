"""Sampling against probabilities that can be written down."""

import numpy as np
import pytest

from minfer.sampler import Sampling, log_softmax, penalize, sample, softmax

LOGITS = np.log(np.float32([0.5, 0.25, 0.15, 0.1]))


def drawn(how, history=(), n=4000):
    rng = np.random.default_rng(how.seed)
    return np.bincount([sample(LOGITS, history, how, rng) for _ in range(n)], minlength=4) / n


def test_temperature_zero_is_the_argmax():
    assert sample(LOGITS, [], Sampling(temp=0), np.random.default_rng(0)) == 0


@pytest.mark.parametrize(
    ("how", "want"),
    [
        (Sampling(temp=1, top_k=0, top_p=1), [0.5, 0.25, 0.15, 0.1]),
        (Sampling(temp=1, top_k=2, top_p=1), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(temp=1, top_k=0, top_p=0.7), [2 / 3, 1 / 3, 0, 0]),  # 0.5 is short of 0.7, 0.75 is not
        (Sampling(temp=1, top_k=0, top_p=0.01), [1, 0, 0, 0]),
        (Sampling(temp=0.5, top_k=2, top_p=1), [0.8, 0.2, 0, 0]),  # squares: 0.25 to 0.0625
        (Sampling(temp=1, top_k=0, top_p=1, seed=5), [0.5, 0.25, 0.15, 0.1]),
    ],
)
def test_shares_are_the_probabilities(how, want):
    """4000 draws: the deviation of a share is at most 0.008, so 0.04 is five of them."""
    assert np.abs(drawn(how) - want).max() < 0.04


def test_penalty_divides_positive_and_multiplies_negative_logits_once():
    logits = np.float32([2.0, -1.0, 3.0])
    assert penalize(logits, [0, 1, 0], 2.0).tolist() == [1.0, -2.0, 3.0]
    assert logits.tolist() == [2.0, -1.0, 3.0]


def test_penalty_looks_at_the_last_64_tokens_only():
    how = Sampling(temp=0, repeat_penalty=100.0)
    rng = np.random.default_rng(0)
    assert sample(np.float32([2.0, 1.0]), [0], how, rng) == 1
    assert sample(np.float32([2.0, 1.0]), [0] + [1] * 64, how, rng) == 0


def test_softmax_survives_large_logits():
    assert softmax(np.float32([1e4, 1e4])).tolist() == [0.5, 0.5]
    np.testing.assert_allclose(np.exp(log_softmax(LOGITS)), [0.5, 0.25, 0.15, 0.1], rtol=1e-6)
