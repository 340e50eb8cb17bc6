"""The plan of a real 7B from its header alone, and the arithmetic that it must obey."""

import json
from collections import Counter

import pytest

from minfer.cpu.backend import CpuLowering
from minfer.engine import plan_pass
from minfer.gguf import open_gguf
from minfer.models import load_hparams
from minfer.show import plan_dict, ranges, weight_rows

MIXED = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]  # layers with Q6_K attn_v and ffn_down


@pytest.fixture(scope="module")
def header(qwen2_7b_header):
    return open_gguf(qwen2_7b_header)


@pytest.fixture(scope="module")
def plan(header):
    return plan_pass(header, load_hparams(header), CpuLowering(), nt=1, n_kv=1, n_ctx=32768)


def test_weight_bytes_per_step_are_every_tensor_but_the_embedding_plus_one_row(header, plan):
    without_embedding = sum(t.nbytes for t in header.tensors.values() if t.name != "token_embd.weight")
    assert without_embedding == 4_370_558_976
    assert plan.totals()["weight_bytes"] == 4_370_560_992 == without_embedding + 3584 // 256 * 144


def test_attn_v_is_q6_k_on_exactly_14_layers(header):
    rows = {(r["role"], r["type"]): r for r in weight_rows(header.tensors)}
    assert rows["attn_v", "Q6_K"]["layer_ids"] == MIXED == rows["ffn_down", "Q6_K"]["layer_ids"]
    assert rows["attn_v", "Q4_K"]["layers"] == 14
    assert load_hparams(header).n_layer == 28


def test_launches_follow_from_the_architecture(plan):
    """Per layer: 2 norms, 7 matmuls, 3 biases, 2 ropes, 2 stores, attention, swiglu, 2 adds = 20; 3 around them."""
    assert Counter(x.op for x in plan.launches) == {
        "embed_rows": 1, "rms_norm": 57, "matmul": 197, "add_bias": 84, "rope": 56, "kv_store": 56,
        "attention": 28, "swiglu": 28, "add": 56,
    }  # fmt: skip
    assert plan.totals()["launches"] == 28 * 20 + 3 == len(plan.launches)


def test_flops_of_a_step_are_twice_the_weights_that_are_multiplied(header, plan):
    matrices = [t for t in header.tensors.values() if len(t.shape) == 2 and t.name != "token_embd.weight"]
    multiplied = sum(t.rows * t.shape[0] for t in matrices)
    assert sum(x.flops for x in plan.launches if x.op == "matmul") == 2 * multiplied


def test_prefill_reads_weights_once_and_scores_one_row(header):
    plan = plan_pass(header, load_hparams(header), CpuLowering(), nt=64, n_kv=64, n_ctx=32768)
    head = plan.launches[-1]
    assert (head.name, head.args.inputs[0].rows, head.args.out.rows) == ("output", 1, 1)
    assert plan.totals()["weight_bytes"] == 4_370_558_976 + 64 * 2016


def test_floor_is_bytes_over_bandwidth_and_absent_without_one(header, plan):
    floors = plan_dict(header, plan, 4300.0)["floor_ms"]
    assert floors["weights_as_stored"] == pytest.approx(4_370_560_992 / 4300e9 * 1e3)
    assert plan_dict(header, plan, None)["floor_ms"] == {"weights_as_stored": None, "as_this_backend_moves": None}


def test_the_plan_is_plain_data(header, plan):
    data = json.loads(json.dumps(plan_dict(header, plan, None)))
    assert len(data["launches"]) == 563
    assert sum(k["launches"] for k in data["kernels"]) == 563
    assert sum(x["bytes_read"] + x["bytes_written"] for x in data["launches"]) == data["totals"]["bytes_moved"]


def test_ranges_of_layers():
    assert ranges([]) == "" and ranges([3]) == "3" and ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
