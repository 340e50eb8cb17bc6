"""Ledgers of traces small enough to add up by hand. Times in ns in the traces, µs in the ledgers."""

import numpy as np
import pytest
from census_data import build, change, kernel

from census import activity, ledger
from census import trace as tr
from census.errors import CensusError


def read(path, **options) -> ledger.Ledger:
    return ledger.of_file(str(path), **options)


def rows(made: ledger.Ledger) -> dict[str, float]:
    return {r.key: r.exposed_us_per_step for r in made.rows}


def test_overlap_gap_and_copy(tmp_path):
    # a: 1000-5000 adds 4000. b: 2000-7000 waits inside a until 5000, adds 2000. idle 7000-8000.
    # copy 8000-8500 adds 500. c: 8200-9000 adds 500 (8500-9000). d lies inside b: adds nothing.
    path = build(tmp_path / "t.sqlite", kernels=[
        kernel(1000, 5000, name="a"), kernel(2000, 7000, name="b", stream=2), kernel(6000, 6500, name="d", stream=3),
        kernel(8200, 9000, name="c"),
    ], copies=[(8000, 8500, -1, 1)])
    made = read(path, steps="none")
    assert rows(made) == pytest.approx({"a": 4.0, "b": 2.0, "d": 0.0, "c": 0.5, "[memcpy host to device]": 0.5})
    total = made.total
    assert (total.exposed_us_per_step, total.gap_us_per_step, total.step_us) == pytest.approx((7.0, 1.0, 8.0))
    assert total.duration_us_per_step == pytest.approx(4 + 5 + 0.5 + 0.8 + 0.5)
    assert total.launches_per_step == 4  # a copy is no launch
    assert made.rows[-1].key == "d" and made.rows[-1].us_per_launch == 0.5


def test_rows_in_any_order_and_negative_times(tmp_path):
    work = [kernel(-3000, -2000, name="a"), kernel(-2500, -1000, name="b"), kernel(0, 500, name="c")]
    sorted_ = read(build(tmp_path / "s.sqlite", kernels=work), steps="none")
    shuffled = read(build(tmp_path / "r.sqlite", kernels=work[::-1]), steps="none")
    assert rows(sorted_) == rows(shuffled) == pytest.approx({"a": 1.0, "b": 1.0, "c": 0.5})
    assert sorted_.total == shuffled.total


def test_devices_do_not_hide_each_other(tmp_path):
    # On each device one kernel of 1000 ns at the same time: both are exposed in full.
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 1000, device=0), kernel(0, 1000, device=1),
                                                 kernel(3000, 4000, device=1)])
    made = read(path, steps="none")
    assert made.total.exposed_us_per_step == pytest.approx(3.0)
    assert made.total.gap_us_per_step == pytest.approx(2.0)
    assert made.devices == 2 and any("2 devices" in w for w in made.warnings)


def test_processes_number_their_gpus_from_0(tmp_path):
    # Two processes, each with one kernel of 1000 ns on its device 0 at the same time.
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 1000), kernel(0, 1000, name="other")])
    change(path, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = {9 << 24} WHERE demangledName = 2")
    made = read(path, steps="none")
    assert made.total.exposed_us_per_step == pytest.approx(1.0)
    assert any("several processes use one device number" in w for w in made.warnings)
    change(path, "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid)",
           "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (2, 0, 7), (3, 0, 9)",
           "CREATE TABLE TARGET_INFO_GPU (id, name, cuDevice)", "INSERT INTO TARGET_INFO_GPU VALUES (2, 'H200', 0)")
    made = read(path, steps="none")
    assert made.total.exposed_us_per_step == pytest.approx(2.0) and (made.devices, made.device) == (2, "H200")
    assert not any("several processes" in w for w in made.warnings)


def nvtx_trace(path, *, foreign=()):
    """Two steps `decode 0`, `decode 1` (API at 100..400 and 1100..1400), two launches each, after a warm-up."""
    return build(
        path,
        nvtx=[(0, 50, 59, "warmup decode 0", 0), (100, 400, 59, "decode 0", 0), (1100, 1400, 59, "decode 1", 0),
              (110, 200, 59, "layer 0", 0), (120, 150, 59, "matmul attn_q", 0), (1110, 1200, 59, "layer 0", 0),
              (1500, 1600, 59, "prefill 7", 0)],
        api=[(10, 11, 1, "cudaLaunchKernel"), (130, 131, 2, "cudaLaunchKernel"), (300, 301, 3, "cudaLaunchKernel"),
             (1130, 1131, 4, "cudaLaunchKernel"), (1300, 1301, 5, "cudaLaunchKernel"),
             (1550, 1551, 6, "cudaLaunchKernel")],
        kernels=[kernel(20, 30, corr=1, name="w"), kernel(1000, 1600, corr=2, name="m"),
                 kernel(1700, 1900, corr=3, name="n"), kernel(3000, 3500, corr=4, name="m"),
                 kernel(3600, 3700, corr=5, name="n"), kernel(4000, 4100, corr=6, name="p"), *foreign],
    )


def test_nvtx_steps(tmp_path):
    made = read(nvtx_trace(tmp_path / "t.sqlite"))
    assert (made.steps.method, made.steps.count, made.steps.launches_per_step) == ("nvtx", 2, 2)
    assert made.steps.excluded == {"warm-up and prefill": 2}
    # step 0: m 600 + gap 100 + n 200 = 900; step 1: m 500 + gap 100 + n 100 = 700. Between them 3000 - 1900 = 1100.
    assert rows(made) == pytest.approx({"m": 0.55, "n": 0.15})
    total = made.total
    assert (total.step_us, total.step_us_min, total.step_us_max) == pytest.approx((0.8, 0.7, 0.9))
    assert (total.gap_us_per_step, total.residual_us_per_step, total.between_us) == pytest.approx((0.1, 0.0, 1.1))
    assert [r.share for r in made.rows] == pytest.approx([0.55 / 0.8, 0.15 / 0.8])


def test_work_that_is_no_part_of_the_step_is_residual(tmp_path):
    # A kernel of no known launch runs 1620-1660 inside step 0's window 1000-1900.
    made = read(nvtx_trace(tmp_path / "t.sqlite", foreign=[kernel(1620, 1660, name="x")]))
    assert made.total.residual_us_per_step == pytest.approx(0.020)  # 40 ns in one of two steps
    assert made.total.gap_us_per_step == pytest.approx(0.080)
    assert made.total.step_us == pytest.approx(0.8)
    assert any("residual" in w for w in made.warnings)
    assert any("1 kernels have no launch call" in w for w in made.warnings)


def test_layer_and_op_of_eager_launches(tmp_path):
    path = nvtx_trace(tmp_path / "t.sqlite")
    assert rows(read(path, by="layer")) == pytest.approx({"layer 0": 0.55, "(no layer)": 0.15})
    # Only step 0 has the op range; the count of its row varies and is flagged, never averaged away.
    made = read(path, by="op")
    op = next(r for r in made.rows if r.key == "matmul attn_q")
    assert (op.launches_per_step, op.launches_min, op.launches_median, op.launches_max) == (0.5, 0, 0.5, 1)
    assert any("varies" in w and "matmul attn_q 0/0.5/1" in w for w in made.warnings)


def test_replayed_kernels_belong_to_the_ranges_at_their_nodes_birth(tmp_path):
    # Captured at 15 (layer 3) and 25 (layer 4) as nodes 1 and 2; instantiated at 50 as nodes 101 and 102, outside.
    node = 5 << 32
    path = build(
        tmp_path / "t.sqlite",
        nvtx=[(10, 20, 59, "layer 3", 0), (20, 30, 59, "layer 4", 0), (100, 200, 59, "decode 0", 0),
              (300, 400, 59, "decode 1", 0)],
        births=[(15, 1, None), (25, 2, None), (50, node | 1, 1), (50, node | 2, 2)],
        api=[(12, 13, 1, "cudaStreamBeginCapture"), (15, 16, 2, "cudaLaunchKernel"), (25, 26, 3, "cudaLaunchKernel"),
             (40, 41, 4, "cudaStreamEndCapture"), (110, 111, 5, "cudaGraphLaunch"), (310, 311, 6, "cudaGraphLaunch")],
        kernels=[kernel(120, 130, corr=5, node=node | 1), kernel(130, 150, corr=5, node=node | 2),
                 kernel(320, 330, corr=6, node=node | 1), kernel(330, 350, corr=6, node=node | 2)],
    )
    made = read(path, by="layer")
    assert made.steps.method == "nvtx" and made.steps.count == 2
    assert rows(made) == pytest.approx({"layer 4": 0.020, "layer 3": 0.010})
    ident = made.identity
    assert (ident.kernels, ident.eager, ident.replayed, ident.captured) == (4, 0, 4, 2)
    assert (ident.replays, ident.graph_launches, ident.launches_without_kernel) == (2, 2, 0)
    assert read(path, steps="graph").steps.count == 2


def test_a_node_without_birth_is_charged_to_its_replay_and_said(tmp_path):
    path = build(tmp_path / "t.sqlite", nvtx=[(0, 99, 59, "layer 9", 0)], api=[(5, 6, 1, "cudaGraphLaunch")],
                 kernels=[kernel(10, 20, corr=1, node=1 << 32)])
    made = read(path, by="layer", steps="graph")
    assert rows(made) == pytest.approx({"layer 9": 0.010})
    assert any("1 replayed launches have no recorded node birth" in w for w in made.warnings)


def test_clipped_launches_are_named(tmp_path):
    path = build(tmp_path / "t.sqlite", api=[(0, 1, 1, "cudaLaunchKernel"), (2, 3, 2, "cudaGraphLaunch")],
                 kernels=[kernel(10, 20, corr=9)])
    made = read(path, steps="none")
    assert made.identity.without_launch == 1 and made.identity.launches_without_kernel == 1
    assert any("1 launch calls outside a capture left no kernel" in w for w in made.warnings)
    assert any("1 of 1 graph launches left no device work" in w for w in made.warnings)


def test_no_api_calls_means_unknown_not_zero(tmp_path):
    made = read(build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)]), steps="none")
    assert made.identity.captured is None and made.identity.pairs is None
    assert any("no API calls" in w for w in made.warnings)


def test_two_processes_with_one_correlation_id(tmp_path):
    # The other process launched correlation id 1 at 500; ours at 100, inside the step range.
    path = build(tmp_path / "t.sqlite", nvtx=[(90, 110, 59, "decode 0", 0), (190, 210, 59, "decode 1", 0)],
                 api=[(100, 101, 1, "cudaLaunchKernel"), (200, 201, 2, "cudaLaunchKernel")],
                 kernels=[kernel(1000, 1100, corr=1), kernel(2000, 2100, corr=2)])
    other = (9 << 24) | 5
    change(path, f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (50, 51, {other}, 1, 2)",
           f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT 3000, 3300, 1, 1, 1, {9 << 24}, demangledName, NULL, 1,1,1,"
           "32,1,1 FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1")
    made = read(path)
    assert made.identity.pairs == 3
    assert made.steps.count == 2 and made.steps.excluded == {"outside steps": 1}


@pytest.mark.parametrize("how", ["nvtx", "graph", "lag"])
def test_a_method_asked_for_that_finds_nothing_is_an_error(tmp_path, how):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10, name=f"k{i}") for i in range(9)])
    with pytest.raises(CensusError, match=f"--steps {how} finds none"):
        read(path, steps=how)


def test_kernel_names():
    assert activity.kernel_name("void f<(int)1, g(h)>(const T *, int)") == "f<(int)1, g(h)>"
    assert activity.kernel_name("(anonymous namespace)::f(int)") == "(anonymous namespace)::f"
    assert activity.kernel_name("ampere_sgemm_128x64_tn") == "ampere_sgemm_128x64_tn"
    assert activity.family_name("at::<unnamed>::f<a<b>>") == "at::(unnamed)::f"


def test_exposed_time_of_random_work_is_its_union():
    rng = np.random.default_rng(3)
    start = np.sort(rng.integers(0, 2000, 500))
    end = start + rng.integers(1, 60, 500)
    busy = np.zeros(2100, bool)  # the same, by marking every nanosecond
    for s, e in zip(start, end, strict=True):
        busy[s:e] = True
    exposed, gap, reach = activity._expose(np.zeros(500, np.int32), start, end)
    assert exposed.sum() == busy.sum()
    assert exposed.sum() + gap.sum() == reach[-1] - start[0]


def test_not_integers_are_left_out_and_counted(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10), kernel(20, 30), kernel(40, 50)])
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 'soon' WHERE start = 20")
    made = read(path, steps="none")
    assert made.identity.kernels == 2
    assert any("1 of 3 rows of kernels left out" in w for w in made.warnings)


@pytest.mark.parametrize("damage", [
    None, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start = 500",  # a hole in the row numbers
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL WHERE start = 7000",
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 'soon' WHERE start = 9990", "DELETE FROM StringIds"])
def test_the_fast_driver_gives_the_same_columns(tmp_path, monkeypatch, damage):
    pytest.importorskip("adbc_driver_sqlite")
    path = build(tmp_path / "t.sqlite", kernels=[kernel(i * 10, i * 10 + 5, corr=i) for i in range(1000)])
    change(path, *([damage] if damage else []))
    slow = ledger.of_file(str(path), steps="none")
    monkeypatch.setattr(tr, "_FAST_ROWS", 1)
    used = []
    monkeypatch.setattr(tr, "_fast_columns", lambda *a, real=tr._fast_columns: used.append(real(*a)) or used[-1])
    assert ledger.of_file(str(path), steps="none") == slow
    assert used and any(u is None for u in used) == bool(damage and "UPDATE" in damage)
