"""Candidates from one trace: honest lower ends, no saving larger than what is there, data flow where a plan says."""

import json
from dataclasses import replace

import pytest
from advice_data import BENCH, FUSED, TRACES, UNFUSED, WINDOW, launch, planned, step

from analysis import classes, cli, fusions, sequence
from analysis.landing import Recorded
from minfer.cuda.kernels import KERNELS

ADDS = "k_bin_bcast<&op_add> into mul_mat_vec_q"


@pytest.fixture(scope="module")
def unfused():
    return sequence.read(UNFUSED)


def by_name(found):
    return {c.name: c for c in found}


def test_adds_into_the_matrix_vector_kernels_are_no_sure_gain(unfused):
    """What llama.cpp did, and lost by: from the trace before it, the interval reaches below zero."""
    found = by_name(fusions.find(unfused))[ADDS]
    assert found.saving_us.low < 0 < found.saving_us.high and found.launches_removed == 239
    assert any("9 blocks per multiprocessor" in r for r in found.reasons)
    # and the trace after it shows that the block was lost: 64 registers, 8 blocks
    host = next(x for x in sequence.read(FUSED).launches if "mul_mat_vec_q" in x.kernel)
    assert (host.registers, fusions.resident(host)) == (64, 8)


def test_without_the_squeezed_host_the_same_candidate_would_look_better(unfused):
    """The check bites: a host that could not lose a block (unknown number of multiprocessors) has a higher low."""
    honest, blind = (by_name(fusions.find(s))[ADDS].saving_us.low for s in (unfused, replace(unfused, sms=None)))
    assert blind - honest > 200


@pytest.mark.parametrize("path", [UNFUSED, FUSED, str(TRACES / "7b-d0-no-fuse-qkv-node.sqlite.gz"),
                                  str(TRACES / "14b-d3254-default-node.sqlite.gz")])
def test_no_saving_is_larger_than_the_chain(path):
    recorded = sequence.read(path)
    found = fusions.find(recorded)
    assert found
    for c in found:
        assert c.saving_us.low <= c.saving_us.point <= c.saving_us.high <= c.chain_us <= recorded.step_us
        assert c.basis == "adjacency" and any("--plan" in r for r in c.reasons)
    lows = [c.saving_us.low for c in found]
    assert lows == sorted(lows, reverse=True)


def test_parts_of_an_interval_by_hand():
    """4 x (matmul 90 on a full device, add 3, norm of which 0.5 ran beside the add); the launch costs 1 (8 copies).

    high = 4 x 3 = 12; work that stays 4 x (3 - 1) = 8; 32 registers, 256 threads: 8 blocks, one less costs 90/7 each;
    overlap 4 x 0.5 = 2.
    """
    layer = [launch("mmvq", 90, grid=10_000, block=256), launch("add_f32", 3), launch("rms_norm", 5, duration=5.5),
             launch("argmax", 1), launch("argmax", 1)]
    found = by_name(fusions.find(step(*layer * 4)))["add_f32 into mmvq"]
    assert found.saving_us.high == pytest.approx(12)
    assert found.saving_us.low == pytest.approx(12 - 8 - 4 * 90 / 7 - 2)
    assert found.chain_us == pytest.approx(4 * 93)
    few = [replace(x, grid=(100, 1, 1)) for x in layer]  # one block per multiprocessor: nothing to lose
    assert by_name(fusions.find(step(*few * 4)))["add_f32 into mmvq"].saving_us.low == pytest.approx(12 - 8 - 2)


def test_tracing_is_taken_off():
    """Recorded 404, truly 363.6: the tracer adds 10% = 2.02 µs per each of 20 launches; 4 go."""
    layer = [launch("rms_norm", 90), launch("quantize", 5), *[launch("argmax", 2)] * 3]
    name, recorded = "quantize into rms_norm", step(*layer * 4)
    plain = by_name(fusions.find(recorded))[name].saving_us
    told = by_name(fusions.find(recorded, true=Recorded(363.6)))[name].saving_us
    assert told.low == pytest.approx(plain.low - 4 * 40.4 / 20) and told.high == plain.high
    assert told.point == pytest.approx(plain.point * 0.9)


def test_work_takes_longer_on_fewer_threads():
    """An add of 20 blocks goes into a norm of one: its 2 µs beyond the launch may take 20 times as long there."""
    layer = [launch("rms_norm", 9), launch("add_f32", 3, grid=20), *[launch("argmax", 1)] * 2]
    found = by_name(fusions.find(step(*layer * 4)))["add_f32 into rms_norm"].saving_us
    assert (found.low, found.high) == pytest.approx((4 * (3 - 20 * 2), 12))


def layers(*rows, n=4):
    """Rows (kernel, op, inputs, out) of one layer, n times, as (step, plan)."""
    made = [planned(k, op, f"{op}{i}", layer, inputs=inputs, out=out)
            for layer in range(n) for i, (k, op, inputs, out) in enumerate(rows)]
    return step(*(launch(p.kernel, 5, layer=f"layer {p.layer}") for p in made)), made


def test_a_plan_drops_neighbours_that_are_not_connected():
    recorded, plan = layers(("mmvq_q4_k", "matmul", ("slot:0",), "slot:1"), ("add_f32", "add", ("slot:2",), "slot:2"))
    assert "add_f32 into mmvq_q4_k" in by_name(fusions.find(recorded))
    assert "add_f32 into mmvq_q4_k" not in by_name(fusions.find(recorded, plan))


def test_a_second_reader_keeps_the_value_alive():
    rows = [("mmvq_q4_k", "matmul", ("slot:0",), "slot:1"), ("add_f32", "add", ("slot:1",), "slot:2")]
    name = "add_f32 into mmvq_q4_k"
    assert name in by_name(fusions.find(*layers(*rows)))
    assert name not in by_name(fusions.find(*layers(*rows, ("rms_norm", "rms_norm", ("slot:1",), "slot:3"))))


def test_what_is_computed_again_is_found_with_a_plan():
    again = ("f32_bits_to_i32", "positions", ("input:positions",), "scratch:pos")
    found = by_name(fusions.find(*layers(again, ("rope", "rope", ("slot:1",), "slot:1"), n=8)))["f32_bits_to_i32"]
    assert found.launches_removed == 7 and found.saving_us.low == pytest.approx(35)


@pytest.mark.parametrize(("kernel", "kind"), [
    ("k_bin_bcast<&op_add, float>", classes.ELEMENTWISE), ("mul_mat_vec_q<(ggml_type)12>", classes.MATMUL),
    ("rms_norm_quant_pad40", classes.NORM), ("swiglu_quant_pad40", classes.ELEMENTWISE),
    ("attn_bias_rope_store_f16", classes.ROPE), ("quantize_q8_1", classes.QUANTIZE),
    ("flash_attn_combine_results<128>", classes.ATTENTION), ("k_set_rows<float>", classes.STORE),
    ("stream_norm_qkv_f16", classes.MATMUL), ("stream_quads_add", classes.MATMUL), ("stream_quant_add", classes.MATMUL),
    ("stream_plane_glu", classes.MATMUL), ("attention_one_f16", classes.ATTENTION),
    ("attention_quads_f16", classes.ATTENTION), ("next_token", classes.OTHER),
    ("stream_compaction_add", classes.ELEMENTWISE), ("something_new", classes.UNKNOWN),
])
def test_classes(kernel, kind):
    assert classes.of(kernel) == kind


def test_every_matmul_that_streams_is_one():
    assert {classes.of(k) for k in KERNELS if k.startswith("stream_")} == {classes.MATMUL}


def test_every_kernel_of_the_recordings_has_a_class(unfused):
    steps = [unfused, sequence.read(FUSED), *(sequence.read(str(p)) for p in TRACES.glob("7b-d0-*-node.sqlite.gz"))]
    assert not {x.kernel for s in steps for x in s.launches if x.kind == classes.UNKNOWN}


def test_json_and_window(capsys, tmp_path):
    out = tmp_path / "f.json"
    assert cli.run(["fusions", UNFUSED, "--window", str(WINDOW), "--save-to", str(out), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    first = data["candidates"][0]
    assert {"name", "layers", "launches_removed", "saving_us", "reasons"} <= first.keys()
    assert set(first["saving_us"]) == {"low", "point", "high"} and json.loads(out.read_text()) == data
    assert cli.run(["fusions", UNFUSED, "--window", str(WINDOW)]) == 0
    assert "too small for it" in capsys.readouterr().out
    assert cli.run(["reconcile", str(out), "--pre", UNFUSED, "--post", FUSED, "--window", str(WINDOW),
                    "--candidate", ADDS]) == 0
    assert cli.run(["reconcile", str(out), "--pre", UNFUSED, "--post", FUSED, "--window", str(WINDOW)]) == 2
    assert "--candidate" in capsys.readouterr().err


@pytest.mark.parametrize(("args", "says"), [
    (f"fusions {UNFUSED} --to {BENCH}", "--to needs --plan"), (f"fusions {UNFUSED} --plan {BENCH}", "is no plan"),
    ("fusions nowhere.sqlite", "nowhere.sqlite"),
])
def test_mistakes_are_one_line(args, says, capsys):
    assert cli.run(args.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and says in said
