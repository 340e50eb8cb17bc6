"""The CUDA plan, without a GPU: it reproduces the launch arithmetic of the three reports from headers alone.

The model of the reports: a 48-layer Qwen2 14B in Q4_K_M, whose q, k, v have one type on 24 layers and not on the other
24 (attn_v in Q6_K).
"""

import json
from dataclasses import replace

import pytest

from cli import run_main
from minfer.cli import main
from minfer.cuda import dispatch
from minfer.cuda.binding import check_planes
from minfer.cuda.kernels import KERNELS
from minfer.cuda.lowering import CudaLowering
from minfer.cuda.prefill import LIBRARY
from minfer.cuda.walk import resident_bytes
from minfer.devices import Where
from minfer.engine import plan_pass, plan_step
from minfer.gguf import open_gguf
from minfer.gpu import H200, Gpu
from minfer.models import load_hparams
from minfer.options import Options
from minfer.surface import surface
from minfer.switches import SWITCHES
from minfer.synth import synth
from tiny import write_llama

LAYERS, SAME, MIXED = 48, 24, 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("14b") / "14b.gguf"
    synth("qwen2-14b", path, header_only=True)
    return open_gguf(path)


REPORTS = frozenset({"MINFER_NO_STREAM"})  # decode as the reports have it


def plan(model, *off, kv="f16"):
    return plan_step(model, Where("cuda", Options(REPORTS | {f"MINFER_NO_{o}" for o in off}, kv)), depth=0)


def test_fused_qkv_is_minus_312_launches(model):
    """Report 73: -8 on each same-type layer, -6 on each mixed one, +24 standalone quantizes."""
    on, off = plan(model), plan(model, "FUSE_QKV")
    assert len(on.launches) - len(off.launches) == -8 * SAME - 6 * MIXED + SAME == -312
    count, base = on.by_kernel(), off.by_kernel()
    assert count["attn_bias_rope_store_f16"] == LAYERS
    assert (base["add_bias_f32"], base["rope_neox_f32"], base["kv_store_f16"]) == (3 * LAYERS, 2 * LAYERS, 2 * LAYERS)
    assert count["quantize_pad40"] - base["quantize_pad40"] == SAME


def test_positions_are_converted_once_instead_of_240_times(model):
    """Report 72: two ropes, two stores and attention on each of 48 layers read them."""
    assert plan(model, "POS_MEMO", "FUSE_QKV").by_kernel()["f32_bits_to_i32"] == 5 * LAYERS == 240
    assert plan(model, "FUSE_QKV").by_kernel()["f32_bits_to_i32"] == 1


def test_standalone_quantizes_fall_by_what_the_layout_predicts(model):
    """Report 70: q, k, v, o, gate, up, down and the head each quantize; only o's producer cannot do it for them."""
    alone = plan(model, "DECODE_A_FUSE", "FUSE_QKV").by_kernel()
    fused = plan(model, "FUSE_QKV").by_kernel()
    assert alone["quantize_pad40"] == 7 * LAYERS + 1 and fused["quantize_pad40"] == LAYERS
    assert fused["rms_norm_quant_pad40"] == 2 * LAYERS + 1 and fused["swiglu_quant_pad40"] == LAYERS
    assert "rms_norm_f32" not in fused and "rms_norm_quant_pad40" not in alone


def test_every_matmul_reads_the_plane_it_was_planned_on(model):
    for off in ((), ("FUSE_QKV",), ("DECODE_A_FUSE",), ("KQ_MMVQ",)):
        held = None
        for launch in plan(model, *off).launches:
            params = launch.args.params
            assert params.get("q8_reads") in (None, held)
            held = params.get("q8_writes", held)


def test_the_surface_names_both_arms_of_kq_mmvq(qwen2_7b_header):
    """Report 72's trap, made visible: on the 7B the switch moves the Q6_K ffn_down of 14 layers and the head."""
    changed = surface(open_gguf(qwen2_7b_header), Where("cuda", Options(REPORTS, "f16")), "MINFER_NO_KQ_MMVQ")
    rows = {r["kernel"]: (r["off"], r["on"]) for r in changed["rows"]}
    assert rows["mmvq_q6_k"] == (15, 0) and rows["matmul_q6_k_f32"] == (14, 29)
    assert changed["layers"] == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]


def test_surface_json_has_the_fields_that_windows_read(model, monkeypatch, capsys):
    path = model.path
    monkeypatch.setenv("MINFER_NO_STREAM", "1")
    done = run_main(main, "minfer", ["surface", "MINFER_NO_FUSE_QKV", path, "--json"], monkeypatch, capsys)
    data = json.loads(done.out)
    assert data["switch"] == "MINFER_NO_FUSE_QKV"
    assert data["launches_per_step"] == {"off": 749, "on": 1061, "delta": 312}
    assert all(set(r) == {"kernel", "off", "on"} for r in data["rows"])
    typo = run_main(main, "minfer", ["surface", "MINFER_NO_FUSE_QVK", path], monkeypatch, capsys)
    assert typo.code == 2 and "did you mean MINFER_NO_FUSE_QKV?" in typo.err


def test_a_launch_per_change_of_geometry_is_a_surface_too(model):
    changed = surface(model, Where("cuda", Options(REPORTS)), "MINFER_NO_WIDE_RMS")
    assert changed["rows"] == []
    assert {g["kernel"] for g in changed["geometry"]} == {"rms_norm_f32", "rms_norm_quant_pad40"}


@pytest.mark.parametrize("nt", [1, 2, 16, 17, 40, 512])
@pytest.mark.parametrize("off", [(), ("F16_PREFILL", "MMVQ"), ("STREAM",)])
def test_every_planned_kernel_exists_with_its_arguments(model, qwen2_7b_header, tmp_path, nt, off):
    options = Options(frozenset(f"MINFER_NO_{o}" for o in off), "f16")
    for gguf in (model, open_gguf(qwen2_7b_header), open_gguf(write_llama(tmp_path / "m.gguf", quant="Q4_0"))):
        hp = load_hparams(gguf)
        for x in plan_pass(gguf, hp, CudaLowering(options), nt=nt, n_kv=nt, n_ctx=4096, greedy=nt == 1).launches:
            if x.kernel in LIBRARY:
                continue
            for word in KERNELS[x.kernel].args.split():
                if word[:2] in ("i:", "f:"):
                    assert word[2:] in x.args.params, f"{x.kernel} needs {word}"
            assert min(x.grid) >= 1 and x.block[0] in (32, KERNELS[x.kernel].block)


def test_tokens_beyond_a_batch_are_more_launches_over_all_rows(qwen2_7b_header):
    gguf = open_gguf(qwen2_7b_header)
    lowering = CudaLowering(Options(frozenset({"MINFER_NO_F16_PREFILL"})))
    planned = plan_pass(gguf, load_hparams(gguf), lowering, nt=40, n_kv=40, n_ctx=64)
    parts = [x for x in planned.launches if x.name == "attn_q" and x.layer == 0]
    assert [(x.args.params["nt"], x.args.inputs[0].offset, x.args.out.offset) for x in parts] == [
        (16, 0, 0), (16, 16 * 3584, 16 * 3584), (8, 32 * 3584, 32 * 3584),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "od", "id", "off", "kernel"),
    [
        ("Q6_K", 1024, 5120, (), "mmvq_q6_k"),  # 14B attn_v, 5.24M: report 72 moved it here
        ("Q6_K", 512, 3584, (), "matmul_q6_k_f32"),  # 7B attn_v, 1.8M
        ("Q6_K", 1024, 5120, ("KQ_MMVQ",), "matmul_q6_k_f32"),
        ("Q5_K", 1024, 5120, (), "matmul_q5_k_f32"),
        ("Q5_K", 5120, 5120, (), "mmvq_q5_k"),  # 26M
        ("Q4_K", 512, 3584, ("KQ_MMVQ",), "mmvq_q4_k"),
        ("Q4_K", 512, 3584, ("MMVQ",), "matmul_q4_k_f32"),
        ("Q8_0", 64, 48, (), "matmul_q8_0_f32"),  # rows are not whole q8 blocks
        ("Q4_1", 5120, 5120, (), "matmul_q4_1_f32"),
    ],
)
def test_gates(kind, od, id, off, kernel):
    off = {f"MINFER_NO_{o}" for o in off}
    assert dispatch.kernel_name(dispatch.route(kind, od, id, 1, off), kind) == kernel


def test_every_gate_has_a_reason_a_date_and_known_switches():
    for gate in dispatch.GATES:
        assert gate.reason and gate.date.count("-") == 2 and all(SWITCHES[s].plan for s in gate.switches)


def test_the_token_loop_is_another_kernel_in_the_place_of_argmax(model):
    """Of a greedy step only, and off with everything that the reports do not have."""
    loop = plan_step(model, Where("cuda", Options(kv_type="f16")), 0)
    for off in ({"MINFER_NO_TOKEN_LOOP"}, REPORTS):
        held = plan_step(model, Where("cuda", Options(frozenset(off), "f16")), 0)
        assert held.launches[-1].kernel == "argmax_f32" and held.launches[-1].op == loop.launches[-1].op
    assert loop.launches[-1].kernel == "next_token" and loop.by_kernel()["next_token"] == 1
    changed = surface(model, Where("cuda", Options()), "MINFER_NO_TOKEN_LOOP")
    assert changed["rows"] == [{"kernel": "argmax_f32", "off": 0, "on": 1}, {"kernel": "next_token", "off": 1, "on": 0}]
    assert changed["launches_per_step"]["delta"] == 0 and changed["layers"] == []


def test_layers_without_a_bias_or_with_interleaved_rope_keep_their_chain(tmp_path):
    gguf = open_gguf(write_llama(tmp_path / "m.gguf"))
    changed = surface(gguf, Where("cuda", Options()), "MINFER_NO_FUSE_QKV")
    assert changed["rows"] == [] and changed["launches_per_step"]["delta"] == 0


# --- decode by kernels that stream ------------------------------------------------------------------------------------

# of a layer, and of a step
STREAM = {"stream_norm_qkv_f16": 1, "attention_quads_f16": 1, "stream_norm_glu": 1, "stream_quads_add": 2}
ONCE = {"embed_rows_q4_k": 1, "stream_norm_store": 1, "next_token": 1}
SMALL = Gpu(multiprocessors=128, shared=99 << 10)


def on_gpu(gguf, gpu):
    lowering = CudaLowering(Options(kv_type="f16"), gpu=gpu)
    return plan_pass(gguf, load_hparams(gguf), lowering, nt=1, n_kv=1, n_ctx=4096, greedy=True)


def test_a_step_is_five_launches_a_layer_and_three(model, qwen2_7b_header):
    """Every weight is read once, as on the reports' path."""
    for gguf, layers, launches in ((open_gguf(qwen2_7b_header), 28, 143), (model, LAYERS, 243)):
        planned, reports = (plan_step(gguf, Where("cuda", Options(frozenset(off), "f16")), 0) for off in ((), REPORTS))
        assert planned.by_kernel() == {name: n * layers for name, n in STREAM.items()} | ONCE
        assert planned.totals()["launches"] == launches
        assert planned.totals()["weight_bytes"] == reports.totals()["weight_bytes"]


SURFACES = {  # switch -> launches of the 7B with it, kernels that come and go
    "STREAM_QKV": (424, {"stream_plane_store": 84, "add_bias_f32": 84, "rope_neox_f32": 56, "kv_store_f16": 56,
                         "rms_norm_quant_pad40": 28, "f32_bits_to_i32": 1, "stream_norm_qkv_f16": -28}),
    "STREAM_GLU": (227, {"stream_plane_store": 56, "rms_norm_quant_pad40": 28, "swiglu_quant_pad40": 28,
                         "stream_plane_add": 28, "stream_norm_glu": -28, "stream_quads_add": -28}),
    "STREAM_ADD": (199, {"add_f32": 56, "stream_quads_store": 56, "stream_quads_add": -56}),
    "STREAM_NORM": (228, {"rms_norm_quant_pad40": 57, "quantize_pad40": 28, "stream_plane_qkv_f16": 28,
                          "stream_plane_add": 28, "stream_plane_glu": 28, "stream_plane_store": 1,
                          "attention_one_f16": 28, "stream_norm_qkv_f16": -28, "stream_quads_add": -28,
                          "attention_quads_f16": -28, "stream_norm_glu": -28, "stream_norm_store": -1}),
    "ONE_ATTENTION": (172, {"attention_split_f16": 28, "attention_combine_f32": 28, "f32_bits_to_i32": 1,
                            "stream_quant_add": 28, "attention_quads_f16": -28, "stream_quads_add": -28}),
    "ATTENTION_QUADS": (143, {"attention_one_f16": 28, "stream_quant_add": 28, "attention_quads_f16": -28,
                              "stream_quads_add": -28}),
    "DEPENDENT_LAUNCH": (143, {}),
    "TOKEN_LOOP": (143, {"argmax_f32": 1, "next_token": -1}),
}  # fmt: skip


@pytest.mark.parametrize("switch", SURFACES)
def test_the_surface_of_each_part_of_streaming(qwen2_7b_header, switch):
    """What a switch leaves of the others' work shows which rewrites build on its own."""
    changed = surface(open_gguf(qwen2_7b_header), Where("cuda", Options(kv_type="f16")), f"MINFER_NO_{switch}")
    launches, kernels = SURFACES[switch]
    assert changed["launches_per_step"] == {"off": 143, "on": launches, "delta": launches - 143}
    assert {r["kernel"]: r["on"] - r["off"] for r in changed["rows"]} == kernels
    assert changed["totals"]["weight_bytes"] == {"off": 4_370_560_992, "on": 4_370_560_992}


def test_the_reports_path_is_one_switch(qwen2_7b_header):
    """And it is all of it: no kernel that was built after them is left."""
    changed = surface(open_gguf(qwen2_7b_header), Where("cuda", Options(kv_type="f16")), "MINFER_NO_STREAM")
    assert changed["launches_per_step"] == {"off": 143, "on": 439, "delta": 296}
    assert changed["totals"]["weight_bytes"] == {"off": 4_370_560_992, "on": 4_370_560_992}
    gone = {k for k in (*STREAM, *ONCE) if k != "embed_rows_q4_k"}
    assert {r["kernel"] for r in changed["rows"] if r["on"] == 0} == gone
    assert not any(KERNELS[r["kernel"]].dependent for r in changed["rows"] if r["on"])


@pytest.fixture(scope="module")
def longest(tmp_path_factory):
    """Rows of 27648 in ffn_down: their activations leave no room for rings in 99 KB."""
    path = tmp_path_factory.mktemp("32b") / "32b.gguf"
    synth("qwen2-32b", path, header_only=True)
    return open_gguf(path)


def test_rows_too_long_for_a_gpus_shared_memory_take_mmvq(model, qwen2_7b_header, longest):
    """ffn_down alone: gate and up stream each by itself then, since nobody reads a plane of quads."""
    for gguf in (model, open_gguf(qwen2_7b_header)):
        assert on_gpu(gguf, SMALL).by_kernel() == on_gpu(gguf, H200).by_kernel()
    assert on_gpu(longest, H200).by_kernel() == {name: 64 * n for name, n in STREAM.items()} | ONCE
    small = on_gpu(longest, SMALL)
    assert small.by_kernel() == ONCE | {
        "stream_norm_qkv_f16": 64, "attention_quads_f16": 64, "stream_quads_add": 64, "rms_norm_quant_pad40": 64,
        "stream_plane_store": 128, "swiglu_quant_pad40": 64, "mmvq_q4_k": 32, "mmvq_q6_k": 32, "add_f32": 64,
    }  # fmt: skip
    assert {x.name for x in small.launches if x.kernel.startswith("mmvq")} == {"ffn_down"}


@pytest.mark.parametrize("gpu", [H200, SMALL, Gpu(20, 99 << 10), Gpu(46, 99 << 10), Gpu(108, 163 << 10)])
def test_a_block_a_multiprocessor_asks_for_no_more_shared_memory_than_there_is(model, qwen2_7b_header, longest, gpu):
    """With room for what the largest of these kernels has as static memory."""
    for gguf in (model, open_gguf(qwen2_7b_header), longest):
        mine = [x for x in on_gpu(gguf, gpu).launches if x.kernel.startswith("stream")]
        assert {x.grid for x in mine} == {(gpu.multiprocessors, 1, 1)}
        assert max(x.args.params["shared"] for x in mine) + 1024 <= gpu.shared


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_resident_bytes_are_rows_of_whole_sixteens(model):
    tensor = model.tensors["blk.0.attn_v.weight"]  # 20 superblocks a row: 40 bytes of their d become 48
    assert tensor.type == "Q6_K" and resident_bytes(tensor) == tensor.rows * (tensor.row_nbytes + 8)


def test_kv_type_halves_what_attention_reads(model):
    plans = (plan_step(model, Where("cuda", Options(REPORTS, t)), 999) for t in ("f32", "f16"))
    wide, half = (next(x for x in p.launches if "attention_split" in x.kernel) for p in plans)
    kv = 1000 * 2 * 1024
    assert wide.bytes_read - half.bytes_read == kv * 2


@pytest.mark.parametrize("off", [(), REPORTS], ids=["quads", "q8"])
def test_a_plane_that_is_not_the_planned_one_is_refused(qwen2_7b_header, off):
    """Before anything runs: a launch between a plane's writer and its reader would leave the wrong numbers, quietly."""
    planned = plan_step(open_gguf(qwen2_7b_header), Where("cuda", Options(frozenset(off), "f16")), 0)
    check_planes(planned)
    plane = "q8" if off else "quads"
    rows = [(i, x) for i, x in enumerate(planned.launches) if f"{plane}_writes" in x.args.params]
    at, first = rows[0]
    other = next(x for _, x in rows if x.args.params[f"{plane}_writes"] != first.args.params[f"{plane}_writes"])
    launches = (*planned.launches[: at + 1], other, *planned.launches[at + 1 :])
    with pytest.raises(AssertionError, match=f"reads the {plane} of .*, the buffer holds"):
        check_planes(replace(planned, launches=launches))
