"""The CUDA engine against the CPU reference, on a GPU: `pytest -m gpu`.

f32-activation routes compute the reference's sums in another order: 0.002 in log-probability is room for f32 RoPE
angles and rounding. q8-activation routes round activations to 8 bits, as llama.cpp does: there the question is whether
our error is larger than llama.cpp's own on the same file (tests/data/peer_rows.json, made where the peer runs).
"""

import itertools
import json

import numpy as np
import pytest

from minfer import gates
from minfer.cuda import cupy_module, probes
from minfer.devices import CPU, Where
from minfer.engine import Engine, plan_step
from minfer.errors import UserError
from minfer.gguf import open_gguf
from minfer.options import Options
from minfer.pull import resolve
from minfer.sampler import log_softmax
from minfer.switches import SWITCHES
from minfer.synth import synth
from peer_rows import FILE, peer_error

pytestmark = pytest.mark.gpu
CTX = 512
NO = "MINFER_NO_"
PLAN_SWITCHES = [name for name, row in SWITCHES.items() if row.plan]


def cuda(*off, kv="f32"):
    return Where("cuda", Options(frozenset(NO + o for o in off), kv))


EXACT = {
    "eager": cuda("MMVQ", "F16_PREFILL", "CUDA_GRAPH"),
    "graph": cuda("MMVQ", "F16_PREFILL"),
    "unfused": cuda("MMVQ", "F16_PREFILL", "FUSE_QKV", "POS_MEMO", "WIDE_RMS", "DECODE_A_FUSE"),
}
ROUNDED = {
    "q8": cuda("F16_PREFILL", "STREAM"),
    "q8 eager": cuda("F16_PREFILL", "STREAM", "CUDA_GRAPH"),
    "q8 unfused": cuda("F16_PREFILL", "STREAM", "FUSE_QKV", "DECODE_A_FUSE", "POS_MEMO"),
    "stream": cuda("F16_PREFILL"),
    "stream eager": cuda("F16_PREFILL", "CUDA_GRAPH"),
    "stream plain launches": cuda("F16_PREFILL", "DEPENDENT_LAUNCH"),
    "stream unfused": cuda("F16_PREFILL", "STREAM_QKV", "STREAM_GLU", "STREAM_ADD", "STREAM_NORM", "ONE_ATTENTION"),
    "default": cuda(kv="f16"),
}


@pytest.fixture(scope="module", params=["tiny_qwen2", "smollm2"])
def model(request, tmp_path_factory):
    if request.param == "tiny_qwen2":
        path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
        synth("tiny-qwen2", path)
    else:
        try:
            path = resolve("smollm2-135m")
        except UserError:
            pytest.skip("smollm2-135m is not pulled on this machine")
    return request.param, open_gguf(path)


@pytest.fixture(scope="module")
def reference(model):
    """64 greedy steps of the CPU backend after 24 seeded tokens: ids and log-probabilities before each."""
    engine = Engine(model[1], CTX, CPU)
    rows, ids = [log_softmax(engine.prefill(gates.seeded_prompt(model[1], 1, 24)))], []
    for _ in range(64):
        ids.append(int(rows[-1].argmax()))
        rows.append(log_softmax(engine.decode(ids[-1])))
    return ids, np.array(rows)


@pytest.mark.parametrize("name", EXACT)
def test_f32_routes_agree_with_the_cpu(model, reference, name):
    ids, want = reference
    engine = Engine(model[1], CTX, EXACT[name])
    logits = engine.prefill(gates.seeded_prompt(model[1], 1, 24))
    top = np.argsort(-want, axis=1)[:, :5]
    worst = 0.0
    for step, token in enumerate(ids):
        got = log_softmax(logits)
        assert int(got.argmax()) == token, f"step {step}"
        worst = max(worst, float(np.abs(got[top[step]] - want[step][top[step]]).max()))
        logits = engine.decode(token)
    assert worst < 0.002, worst


@pytest.mark.parametrize("off", [("MMVQ", "F16_PREFILL"), ("F16_PREFILL",)], ids="+".join)
def test_a_prompt_of_more_tokens_than_a_block_has_threads(model, off):
    """300 tokens in one pass, then a step: positions, rows of the cache and logits are the CPU's."""
    prompt = gates.seeded_prompt(model[1], 2, 300)
    want, got = (Engine(model[1], CTX, where) for where in (CPU, cuda(*off)))
    expected = log_softmax(want.prefill(prompt))
    top = np.argsort(-expected)[:5]
    tolerance = 0.002 if "MMVQ" in off else 0.2  # the last matmul of a prompt takes q8 activations
    np.testing.assert_allclose(log_softmax(got.prefill(prompt))[top], expected[top], rtol=0, atol=tolerance)
    for name, rows in want.kv().items():
        np.testing.assert_allclose(got.kv()[name], rows, rtol=0, atol=1e-3 * np.abs(rows).max(), err_msg=name)


@pytest.mark.parametrize("name", ROUNDED)
def test_q8_routes_are_no_further_off_than_llama_cpp(model, name):
    rows = json.loads(FILE.read_text())[model[0]]
    engine, errors = Engine(model[1], CTX, ROUNDED[name]), []
    for row in rows:
        engine.rewind()
        got = log_softmax(engine.prefill(row["prompt"]))
        for step, token in zip(row["steps"], row["forced"], strict=True):
            want = np.array(step["reference"])
            errors.append(np.abs(got[step["ids"]] - want).mean())
            if want[0] - want[1] > 1.0:
                assert int(got.argmax()) == step["ids"][0]
            got = log_softmax(engine.decode(token))
    print(f"{model[0]} {name}: mean error {np.mean(errors):.4f}, llama.cpp's {peer_error(rows):.4f}")
    assert np.mean(errors) <= peer_error(rows)


@pytest.mark.parametrize("shape", ["small", "7b", "14b"])
def test_probes_are_bitwise(shape):
    rows = probes.run_probes(cupy_module.runner(), probes.SHAPES[shape])
    assert len(rows) == 32 and [r for r in rows if r["differ"]] == []


@pytest.mark.parametrize("switch", ["FUSE_QKV", "DECODE_A_FUSE", "POS_MEMO", "WIDE_RMS", "CUDA_GRAPH"])
def test_bitwise_switches_change_no_byte_of_logits_or_cache(model, switch):
    sides = gates.switch_settings(cuda("STREAM", kv="f16"), NO + switch)
    found = gates.dump(model[1], sides, tokens=6, tolerance=0)
    assert found["passed"], found["differing"][:3]
    streams = gates.streams(model[1], sides, range(3), 48, temp=0.8, margin=0)
    assert streams["passed"], streams["streams"]


def test_greedy_steps_choose_the_argmax_of_the_logits(model):
    engine = Engine(model[1], CTX, cuda())
    logits = engine.prefill([5, 6, 7])
    ids = [int(logits.argmax())]
    for _ in range(8):
        ids.append(engine.greedy(ids[-1]))
    engine.rewind()
    logits = engine.prefill([5, 6, 7])
    for token, following in itertools.pairwise(ids):
        assert int(engine.decode(token).argmax()) == following


@pytest.mark.parametrize("off", [(), ("TOKEN_LOOP",), ("CUDA_GRAPH",)])
def test_a_greedy_run_is_that_many_greedy_steps(model, off):
    """To its end, and from where an early end left the engine: what ran on behind it counts for nothing."""
    single, engine = Engine(model[1], CTX, cuda("TOKEN_LOOP", kv="f16")), Engine(model[1], CTX, cuda(*off, kv="f16"))
    token = gates.seeded_prompt(model[1], 1, 1)[0]
    ids = [token, *(token := single.greedy(token) for _ in range(64))]
    assert list(engine.greedy_run(ids[0], 64)) == ids[1:] and engine.position == 64
    engine.rewind()
    run = engine.greedy_run(ids[0], 64)
    assert [next(run) for _ in range(10)] == ids[1:11]
    run.close()
    assert engine.position == 10 and engine.greedy(ids[10]) == ids[11]
    assert int(engine.decode(ids[11]).argmax()) == ids[12]
    assert list(engine.greedy_run(ids[12], 52)) == ids[13:]


@pytest.mark.parametrize("nt", [2, 5, 16, 17, 33, 130])
def test_prefill_of_any_length(model, nt):
    """f32: as single steps give. f16: the same to the precision of f16 products (measured: under 0.01)."""
    prompt = gates.seeded_prompt(model[1], 2, nt)
    single = Engine(model[1], CTX, cuda("MMVQ"))
    for token in prompt:
        want = log_softmax(single.decode(token))
    exact = log_softmax(Engine(model[1], CTX, cuda("F16_PREFILL", "MMVQ")).prefill(prompt))
    np.testing.assert_allclose(exact, want, atol=0.002)
    fast = log_softmax(Engine(model[1], CTX, cuda("MMVQ", kv="f16")).prefill(prompt))
    top = np.argsort(-want)[:5]
    np.testing.assert_allclose(fast[top], want[top], atol=0.03)


def test_scratch_that_grows_captures_the_graph_again(model):
    """A longer context moves nothing, a wider plane does: the decode program must follow the moved pointers."""
    engine = Engine(model[1], CTX, cuda())
    first = [engine.greedy(3), engine.greedy(3), engine.greedy(3)]
    engine.device.scratch("q8", 1 << 20)
    engine.rewind()
    assert [engine.greedy(3), engine.greedy(3), engine.greedy(3)] == first


def test_what_does_not_fit_is_said_with_the_numbers(model, monkeypatch):
    cp = cupy_module.load()
    monkeypatch.setattr(cp.cuda.runtime, "memGetInfo", lambda: (1000, 10**9))
    with pytest.raises(UserError, match=r"need .* GB, .* of the GPU's 1.0 GB are free"):
        Engine(model[1], CTX, cuda())


def test_the_context_is_checked(model):
    engine = Engine(model[1], 4, cuda())
    engine.prefill([1, 2, 3, 4])
    with pytest.raises(UserError, match="5 tokens do not fit the context of 4"):
        engine.greedy(1)


def test_pairs_of_switches_plan_and_run(model):
    """Every pair of switches: the run follows the plan and gives a number."""
    for i, a in enumerate(PLAN_SWITCHES):
        for b in PLAN_SWITCHES[i + 1 :]:
            where = Where("cuda", Options(frozenset({a, b}), "f16"))
            engine = Engine(model[1], 64, where)
            engine.prefill([1, 2, 3])
            engine.greedy(4)
            engine.greedy(5)
            program = engine._program(1, True)
            planned = [x.kernel for x in plan_step(model[1], where, 0).launches]
            assert [x.kernel for x, _ in program.work] == planned, (a, b)
