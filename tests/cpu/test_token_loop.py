"""The greedy loop on the device, on a stand-in for CuPy whose stream runs behind the host: order is all that is tested.

Kernels run on the emulator, so ids are real; nothing runs before the host polls or waits.
"""

import io

import numpy as np
import pytest

from fake_cupy import QueuedCupy
from minfer.cuda import cupy_module, token_loop
from minfer.cuda.kernels import RING
from minfer.devices import Where
from minfer.emulated.device import runner
from minfer.engine import Engine
from minfer.errors import UserError
from minfer.gguf import open_gguf
from minfer.options import Options
from tiny import VOCAB, write_llama

CTX = 32
NO = "MINFER_NO_"


@pytest.fixture
def fake(monkeypatch):
    made = QueuedCupy(runner())
    monkeypatch.setattr(cupy_module, "load", lambda: made)
    monkeypatch.setattr(cupy_module, "function", made.function)
    return made


@pytest.fixture
def engine(fake, tmp_path):
    def open_engine(*off):
        gguf = open_gguf(write_llama(tmp_path / "m.gguf"))
        return Engine(gguf, CTX, Where("cuda", Options(frozenset(NO + o for o in off))))

    return open_engine


@pytest.fixture
def launched(monkeypatch):
    """The steps that were launched ahead, by name, in order."""
    steps, launch = [], token_loop.TokenLoop.launch

    def record(self, tracer, step):
        steps.append(step)
        launch(self, tracer, step)

    monkeypatch.setattr(token_loop.TokenLoop, "launch", record)
    return steps


def single(engine, token, n):
    return [token := engine.greedy(token) for _ in range(n)]


@pytest.mark.parametrize("off", [(), ("CUDA_GRAPH",), ("POS_MEMO",)])
def test_a_run_gives_the_ids_of_single_steps(engine, launched, off):
    """Eager, captured and replayed steps, more than the ring has entries; then again behind a prompt."""
    want = single(engine("TOKEN_LOOP"), 3, RING + 4)
    one = engine(*off)
    assert list(one.greedy_run(3, RING + 4)) == want and one.position == RING + 4
    assert launched == [f"decode {i}" for i in range(RING + 4)]
    one.rewind(1)
    one.prefill([want[0]])
    assert list(one.greedy_run(want[1], 5)) == want[2:7] and one.position == 7


def test_steps_are_launched_ahead_but_never_past_the_end(engine, launched, fake):
    one = engine()
    run = one.greedy_run(3, token_loop.AHEAD + 3)
    assert token_loop.AHEAD + 1 < RING
    for taken in range(1, token_loop.AHEAD + 4):
        next(run)
        assert len(launched) == min(taken + token_loop.AHEAD, token_loop.AHEAD + 3) and one.position == taken
    assert list(run) == [] and not fake.queue


def test_what_an_early_end_leaves_behind_is_dropped(engine, fake):
    """Four steps run on behind the one that was taken: their rows, tokens and ring entries count for nothing."""
    want = single(engine("TOKEN_LOOP"), 3, 9)
    one = engine()
    for token in one.greedy_run(3, 9):
        if token == want[1]:
            break
    assert one.position == 2 and not fake.queue
    assert list(one.greedy_run(want[1], 2)) == want[2:4]
    assert one.greedy(want[3]) == want[4]
    assert int(np.argmax(one.decode(want[4]))) == want[5] and one.position == 6


def test_a_run_ends_with_the_context(engine, launched):
    one = engine()
    one.rewind(CTX - 2)
    for fits in (2, 0):
        run = one.greedy_run(3, 5)
        assert len([next(run) for _ in range(fits)]) == fits and one.position == CTX
        with pytest.raises(UserError, match=f"{CTX + 1} tokens do not fit the context of {CTX}"):
            next(run)
    assert launched == [f"decode {CTX - 2}", f"decode {CTX - 1}"]


def test_a_token_outside_the_vocabulary_is_refused(engine):
    with pytest.raises(UserError, match=f"token id {VOCAB} is outside the vocabulary"):
        next(engine().greedy_run(VOCAB, 2))


def test_a_token_that_never_comes_is_said(engine, fake):
    one = engine()
    fake.runner = lambda name, *more: None
    with pytest.raises(RuntimeError, match="every launched step has ended, and token 0 is not in the ring"):
        next(one.greedy_run(3, 4))


def test_a_failed_kernel_is_its_own_error(engine, fake):
    def fail(*args):
        raise ValueError("an illegal address")

    one = engine()
    fake.runner = fail
    with pytest.raises(ValueError, match="an illegal address"):
        next(one.greedy_run(3, 4))


def test_a_log_and_a_dump_have_each_step_by_itself(engine, launched, tmp_path):
    want = single(engine("TOKEN_LOOP"), 3, 3)
    logged, dumped = engine(), engine()
    logged.tracer.log = io.StringIO()
    dumped.dump_folder = str(tmp_path / "dump")
    assert list(logged.greedy_run(3, 3)) == list(dumped.greedy_run(3, 3)) == want and launched == []
    assert len(list((tmp_path / "dump").iterdir())) == 3


def test_every_launch_is_in_the_range_of_its_step(engine, monkeypatch):
    said = []
    one = engine()
    monkeypatch.setattr(one.tracer, "push", said.append)
    monkeypatch.setattr(one.tracer, "pop", lambda: said.append("end"))
    one.label = "warmup "
    list(one.greedy_run(3, 6))
    assert said[-4:] == ["warmup decode 4", "end", "warmup decode 5", "end"]


@pytest.mark.parametrize("off", ["TOKEN_LOOP", "STREAM"])
def test_with_the_switch_the_host_is_in_every_step(engine, launched, off):
    one = engine(off)
    assert one._program(1, True).token_loop is None and one._program(1, True).plan.launches[-1].kernel == "argmax_f32"
    assert list(one.greedy_run(3, 3)) == list(engine().greedy_run(3, 3)) and len(launched) == 3
