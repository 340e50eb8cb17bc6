"""Streams of two settings compared step by step: ties are counted, other differences fail."""

import pytest

from minfer import gates, synth
from minfer.devices import Where
from minfer.gguf import open_gguf
from minfer.options import Options


@pytest.mark.parametrize(
    ("other", "margin", "differences", "ties", "first"),
    [([1, 2, 3], 0.0, 0, 0, None), ([1, 7, 3], 0.1, 1, 1, 1), ([1, 7, 8], 0.1, 2, 1, 1), ([9, 2, 3], 0.0, 1, 0, 0)],
)
def test_a_difference_at_a_near_choice_is_a_tie(other, margin, differences, ties, first):
    a, b = ([1, 2, 3], [0.5, 0.05, 0.4]), (other, [0.5, 0.05, 0.4])
    row = gates._compare_streams(0, a, b, margin)
    assert (row["differences"], row["ties"], row["first_difference"]) == (differences, ties, first)


def test_the_second_side_is_fed_the_firsts_ids(tmp_path, monkeypatch):
    """One side chooses wrongly at one step: that is one difference, not all that follow."""
    synth.synth("nano-qwen2", tmp_path / "nano.gguf")
    gguf, calls, choose = open_gguf(tmp_path / "nano.gguf"), [], gates.sample
    monkeypatch.setattr(gates, "sample", lambda *a: (calls.append(1), (choose(*a) + (len(calls) == 12)) % 1024)[1])
    where = Where("cpu", Options())
    sides = (gates.Setting("a", where), gates.Setting("b", where))
    found = gates.streams(gguf, sides, [0], 8, temp=0.0, margin=0.0)
    assert not found["passed"] and found["streams"][0]["differences"] == 1
    assert found["streams"][0]["first_difference"] == 3  # the 12th choice is the second side's fourth
