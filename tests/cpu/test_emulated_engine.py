"""The whole decode step on the emulated GPU: plan, dispatch gates, fusions and kernels, without a GPU.

The reference is the CPU backend, told to round what these kernels round: the activations of a q8 matmul, the rows of
an f16 KV cache. So what is left of a difference is the order of f32 sums, and tolerances are small.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cli import run_main
from minfer import gates, synth
from minfer.cli import main
from minfer.cpu.backend import CpuDevice
from minfer.cuda import dispatch, probes
from minfer.cuda.kernels import FOLDER, KERNELS, source
from minfer.devices import Where, resolve
from minfer.emulated import build, emulate
from minfer.emulated.device import runner
from minfer.engine import Engine, plan_step
from minfer.errors import UserError
from minfer.fusions import stream
from minfer.gguf import open_gguf
from minfer.options import Options
from minfer.sampler import log_softmax
from minfer.switches import SWITCHES
from on_cpu import q8_plane, q8_values
from tiny import HEADS, HIDDEN, write_llama

CTX = 16
NO = "MINFER_NO_"
PLAN_SWITCHES = [name.removeprefix(NO) for name, row in SWITCHES.items() if row.plan]
BITWISE = ["FUSE_QKV", "DECODE_A_FUSE", "POS_MEMO", "WIDE_RMS", "CUDA_GRAPH", "F16_PREFILL", "STREAM_ADD", "TOKEN_LOOP",
           "ATTENTION_QUADS", "DEPENDENT_LAUNCH"]  # fmt: skip
PROMPT, STEPS = [7, 3], 2
# largest difference of a log-probability; 5e-6 is measured in every case
SUMS = 5e-5  # f32 sums in another order
ROUNDED = 2e-2  # room for one q8 or f16 rounding that falls to the other side on another processor


def emulated(*off, kv="f32"):
    return Where("emulated", Options(frozenset(NO + o for o in off), kv))


@dataclass
class Reference:
    """The CPU backend, rounding what the CUDA kernels round under these options: q8 activations, f16 KV rows."""

    options: Options

    def open(self, gguf, progress):
        return RoundingCpu(gguf, self.options)


class RoundingCpu(CpuDevice):
    def __init__(self, gguf, options):
        self.options = options
        super().__init__(gguf)

    def _call(self, op, args, locate):
        call, out = super()._call(op, args, locate), locate(args.out)

        def product():
            out[:] = q8_values(q8_plane(x)).reshape(x.shape).astype(np.float32) @ self.weights[args.weights[0]].T

        def store():
            call()
            out[:] = out.astype(np.float16)

        if op == "matmul":
            tensor, x = self.gguf.tensors[args.weights[0]], locate(args.inputs[0])
            q8 = dispatch.route(tensor.type, tensor.rows, tensor.shape[0], 1, self.options.off).q8
            streams = self.options.on(stream.ROOT) and tensor.type in stream.TYPES
            return product if q8 or streams else call
        return store if op == "kv_store" and self.options.kv_type == "f16" else call


def compare(gguf, where, tolerance):
    """Log-probabilities of a prompt and a few greedy steps against the reference's; both follow the reference."""
    engine, reference = Engine(gguf, CTX, where), Engine(gguf, CTX, Reference(where.options))
    got, want = engine.prefill(PROMPT), reference.prefill(PROMPT)
    for _ in range(STEPS):
        token = int(want.argmax())
        assert int(got.argmax()) == token
        np.testing.assert_allclose(log_softmax(got), log_softmax(want), rtol=0, atol=tolerance)
        got, want = engine.decode(token), reference.decode(token)
    np.testing.assert_allclose(log_softmax(got), log_softmax(want), rtol=0, atol=tolerance)
    return engine, reference


# --- against the CPU --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [(), ("FUSE_QKV", "POS_MEMO", "WIDE_RMS", "DECODE_A_FUSE")])
@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_f32_routes(nano, off, kv):
    engine, reference = compare(nano, emulated("MMVQ", *off, kv=kv), SUMS if kv == "f32" else ROUNDED)
    for name, rows in reference.kv().items():
        np.testing.assert_allclose(engine.kv()[name], rows, rtol=0, atol=1e-5 if kv == "f32" else 5e-3)


STREAM_SWITCHES = [row.name.removeprefix(NO) for row in SWITCHES.values() if row.needs == stream.ROOT]


@pytest.mark.parametrize("off", [("STREAM",), ("STREAM", "FUSE_QKV", "DECODE_A_FUSE")], ids="+".join)
@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_q8_routes(nano, off, kv):
    compare(nano, emulated(*off, kv=kv), ROUNDED)


@pytest.mark.parametrize("off", [(), *((s,) for s in STREAM_SWITCHES), ("STREAM_NORM", "DECODE_A_FUSE")], ids="+".join)
@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_stream_routes(nano, off, kv):
    compare(nano, emulated(*off, kv=kv), ROUNDED)


@pytest.mark.parametrize("kind", [None, "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_llama_with_interleaved_rope(tmp_path, kind):
    """Every type that the gguf package can write, RoPE factors, a tied embedding, no biases: nothing fuses q, k, v."""
    freqs = {"rope_freqs.weight": (HIDDEN // HEADS // 2,)} if kind is None else None
    gguf = open_gguf(write_llama(tmp_path / "m.gguf", matrices=kind, extra=freqs))
    compare(gguf, emulated(), ROUNDED if kind == "Q8_0" else SUMS)


def test_a_large_head_takes_the_q6_k_form_through_its_gate(tmp_path, monkeypatch):
    """4 million weights and more: a vocabulary of 16384."""
    monkeypatch.setitem(synth.PRESETS, "wide", replace(synth.PRESETS["nano-qwen2"], layers=1, vocab=16384))
    synth.synth("wide", tmp_path / "wide.gguf")
    gguf = open_gguf(tmp_path / "wide.gguf")
    for off, kernel in ((("STREAM",), "mmvq_q6_k"), (("STREAM", "KQ_MMVQ"), "matmul_q6_k_f32")):
        where = emulated(*off)
        assert plan_step(gguf, where, 0).launches[-2].kernel == kernel
        got = Engine(gguf, CTX, where).decode(5)
        want = Engine(gguf, CTX, Reference(where.options)).decode(5)
        np.testing.assert_allclose(log_softmax(got), log_softmax(want), rtol=0, atol=ROUNDED)


def test_a_greedy_step_chooses_the_likeliest_token(nano):
    engine = Engine(nano, CTX, emulated("MMVQ"))
    ids = [7, *(engine.greedy(t) for t in [7])]
    ids += [engine.greedy(ids[-1])]
    engine.rewind()
    assert [int(engine.decode(t).argmax()) for t in ids[:-1]] == ids[1:]


def test_a_greedy_run_is_that_many_greedy_steps(nano):
    """The kernel's own next inputs are written over by the host here: with and without it the ids are the same."""
    ids = []
    for off in ((), ("TOKEN_LOOP",), ("STREAM",)):
        engine = Engine(nano, CTX, emulated("MMVQ", *off))
        ids.append(list(engine.greedy_run(7, 3)))
        engine.rewind(1)
        assert engine.greedy(ids[0][0]) == ids[0][1]
    assert ids[0] == ids[1] == ids[2]


# --- switches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", BITWISE)
def test_bitwise_switches_change_no_byte_of_logits_or_cache(nano, switch):
    where = emulated(*(() if switch in STREAM_SWITCHES else ("STREAM",)), kv="f16")  # each where it acts
    found = gates.dump(nano, gates.switch_settings(where, NO + switch), 2, tolerance=0, prompt=1)
    assert found["passed"] and found["identical"] == found["compared"] == 7, found["differing"]


@pytest.fixture
def launched(monkeypatch):
    """(kernel, grid, block) of every launch since, in order."""
    rows, launch = [], emulate.Module.launch

    def record(self, kernel, grid, block, *more):
        rows.append((kernel, tuple(grid), tuple(block)))
        return launch(self, kernel, grid, block, *more)

    monkeypatch.setattr(emulate.Module, "launch", record)
    return rows


@pytest.mark.parametrize("pair", list(itertools.combinations(PLAN_SWITCHES, 2)), ids="+".join)
def test_every_pair_of_switches_runs_its_plan(nano, launched, pair):
    where = emulated(*pair)
    token = Engine(nano, CTX, where).greedy(5)
    assert launched == [(x.kernel, x.grid, x.block) for x in plan_step(nano, where, 0).launches]
    assert token == int(Engine(nano, CTX, Reference(where.options)).decode(5).argmax())


# --- probes -----------------------------------------------------------------------------------------------------------


def test_probes_are_bitwise():
    rows = probes.run_probes(runner(), probes.SHAPES["small"])
    assert len(rows) == 32 and [r for r in rows if r["differ"]] == []


BROKEN = [  # probe, kernel, a line of its file, the same line a little wrong
    ("rms-quant", "rms_norm_quant_pad40", "quantize_pad40_block(out + row", "quantize_pad40_block(x + row"),
    ("swiglu-quant", "swiglu_quant_pad40", "return gate / __fadd_rn(1.0f, expf(-gate)) * up;",
     "return gate * up / (1.0f + expf(-gate));"),
    ("wide-rms", "rms_norm_f32", "sum = warp_sum(sum);", "sum = warp_sum(sum) * (blockDim.x == WARP ? 1.000001f : 1);"),
    ("concat-rows", "mmvq_q4_k", "sum = block_sum(sum, s_sum);", "sum = block_sum(sum, s_sum) + blockIdx.x * 1e-6f;"),
    ("qkv-epilogue", "attn_bias_rope_store_f16", "rotate(x[a] + bias[a]", "rotate(x[a] * 1.0000001f + bias[a]"),
]  # fmt: skip


@pytest.mark.parametrize(("probe", "kernel", "line", "wrong"), BROKEN)
def test_a_probe_sees_one_broken_kernel(probe, kernel, line, wrong):
    code = source(KERNELS[kernel].file)
    assert code.count(line) == 1

    def run(name, grid, args, block=0):
        module = emulate.load(code.replace(line, wrong) if name == kernel else FOLDER / KERNELS[name].file)
        module.launch(name, grid, block or KERNELS[name].block, args)

    rows = probes.run_probes(run, probes.SHAPES["small"])
    assert {r["probe"] for r in rows if r["differ"]} == {probe}


# --- faults and the command line --------------------------------------------------------------------------------------


def test_a_launch_that_asks_for_too_much_is_a_fault_with_its_line(nano):
    """The plan's own mistakes are caught too: here a matmul of one row more than there is."""
    engine = Engine(nano, CTX, emulated("MMVQ"))
    program = engine._program(1, False)
    launch = program.plan.launches[-1]
    args = replace(launch.args, params=launch.args.params | {"od": launch.args.params["od"] + 1})
    x, *_ = launch.grid
    program.work[-1] = (launch, program._call(replace(launch, args=args, grid=(x + 1, 1, 1))))
    with pytest.raises(emulate.KernelFault, match=r"matmul\.cu:\d+: .* outside argument 0 `w`.*kernel matmul_q6_k_f32"):
        engine.decode(5)


def test_without_gxx_it_is_one_line(nano, monkeypatch, capsys):
    monkeypatch.setattr(build, "GXX", None)
    with pytest.raises(UserError, match=r"g\+\+, which is not here"):
        runner()
    done = run_main(main, "minfer", ["bench", nano.path, "--device", "emulated"], monkeypatch, capsys)
    assert done.code == 2 and done.err.count("\n") == 1 and "g++" in done.err


def test_a_machine_that_refuses_the_emulator_is_one_line(nano, monkeypatch):
    def refuse():
        raise MemoryError("136 GB of address space\nare refused")

    monkeypatch.setattr(emulate, "machine", refuse)
    with pytest.raises(UserError, match=r"^device emulated cannot start: 136 GB of address space; use cpu$"):
        Engine(nano, CTX, emulated())


def test_auto_is_never_emulated():
    assert resolve("auto") in ("cpu", "cuda")


def test_bench_on_the_emulated_gpu(nano, monkeypatch, capsys):
    words = ["bench", nano.path, "-p", 1, "-n", 1, "-r", 1, "--no-warmup", "-o", "jsonl", "--device", "emulated"]
    done = run_main(main, "minfer", words, monkeypatch, capsys)
    assert done.code == 0 and '"backends": "CUDA emulated"' in done.out and '"n_ubatch": 1' in done.out
