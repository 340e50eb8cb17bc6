"""Known answers of recorded traces, published or measured when they were recorded (µs to 0.1, counts exact)."""

import pytest
from census_data import BENCH, WINDOW, sql, trace

from census import diff, ledger, timing

LLAMA = "llamacpp-qwen2-14b-h200"


def read(name: str, **options) -> ledger.Ledger:
    return ledger.of_file(str(trace(name)), **options)


def exposed(made: ledger.Ledger, key: str) -> float:
    return next(r.exposed_us_per_step for r in made.rows if r.key == key)


def test_llamacpp_steps_by_lag_and_by_graph():
    by_lag = read(LLAMA, steps="lag").steps
    assert (by_lag.count, by_lag.launches_per_step, by_lag.layer_period, by_lag.match) == (25, 918, 19, 1.0)
    found = read(LLAMA).steps
    assert (found.method, found.count, found.launches_per_step) == ("graph", 24, 918)


def test_llamacpp_identity_of_launches():
    ident = read(LLAMA).identity
    assert (ident.kernels, ident.eager, ident.replayed, ident.captured) == (22_950, 918, 22_032, 918)
    assert ident.kernels == ident.eager + ident.replayed
    assert (ident.without_launch, ident.launches_without_kernel, ident.replays) == (0, 0, 24)


def test_llamacpp_exposed_time_of_a_replay():
    made = read(LLAMA, by="family")
    total = made.total
    assert total.exposed_us_per_step == pytest.approx(7244.3, abs=0.1)
    assert total.gap_us_per_step == pytest.approx(0.1, abs=0.1)
    assert total.duration_us_per_step == pytest.approx(8962.1, abs=0.1)
    assert exposed(made, "quantize_q8_1") == pytest.approx(303.9, abs=0.1)
    assert exposed(made, "rms_norm_f32") == pytest.approx(438.1, abs=0.1)
    assert exposed(made, "mul_mat_vec_q") == pytest.approx(6076.7, abs=0.1)
    assert any("durations add up to 8,962.1" in w for w in made.warnings)


def test_llamacpp_durations_of_the_whole_trace():
    made = read(LLAMA, steps="none")
    kernels = sum(r.duration_us_per_step for r in made.rows if r.kind == "kernel")
    assert round(kernels * 1000) == 224_316_636
    assert made.steps.count == 0 and made.unit == "trace"


def test_nofusion():
    made = read(f"{LLAMA}-nofusion")
    assert (made.steps.count, made.steps.launches_per_step) == (24, 1446)
    assert made.total.duration_us_per_step == pytest.approx(9329.1, abs=0.1)
    assert made.total.exposed_us_per_step == pytest.approx(6758.5, abs=0.1)
    assert made.total.gap_us_per_step == pytest.approx(0.9, abs=0.1)


def test_fusion_is_slower_although_durations_fall():
    made = diff.ledgers(read(f"{LLAMA}-nofusion"), read(LLAMA), WINDOW)
    assert (made.a.total.launches_per_step, made.b.total.launches_per_step) == (1446, 918)
    assert made.exposed_us_change == pytest.approx(485.8, abs=0.1)
    assert made.duration_us_change == pytest.approx(-367, abs=0.5)
    assert made.clock.us_change == pytest.approx(546, abs=1)
    assert (made.clock.pairs, made.clock.b_slower) == (8, 8)
    assert made.clock.exposed_agrees and not made.clock.durations_agree


def test_wholegraph_recording_says_what_is_missing_and_is_the_true_time():
    made = read(f"{LLAMA}-wholegraph")
    total = made.total
    assert made.steps.count == 24 and made.identity.kernels == 918
    assert (total.step_us_min, total.step_us, total.step_us_max) == pytest.approx((7191, 7202, 7210), abs=0.5)
    assert made.total.launches_per_step is None and all(r.launches_per_step is None for r in made.rows)
    assert any("--cuda-graph-trace=node" in w for w in made.warnings)
    beside = timing.beside(read(LLAMA), str(trace(f"{LLAMA}-wholegraph")))
    assert beside.factor == pytest.approx(7244.4 / 7202.1, abs=1e-4)


def test_true_time_from_a_benchmark():
    true = timing.read(str(BENCH))
    assert true.step_us == pytest.approx(1e6 / 134.5, abs=20) and true.what == "benchmark"
    assert "depths 3254" in true.warnings[0]


PROBES = ("probe-nsys2025.3-graphnodes", "probe-nsys2023.4-graphnodes")


@pytest.mark.parametrize("probe", PROBES)
def test_probe_every_replayed_kernel_has_its_layer(probe: str):
    replayed = read(probe, steps="graph", by="layer")
    assert replayed.identity.replayed == 544 and replayed.identity.kernels == 1090
    assert {r.key for r in replayed.rows} == {f"layer {i}" for i in range(4)}
    assert all(r.launches_min == r.launches_max == 8 for r in replayed.rows)
    steps = read(probe, by="layer")
    assert (steps.steps.method, steps.steps.count, steps.steps.launches_per_step) == ("nvtx", 32, 32)
    assert {r.key: r.launches_per_step for r in steps.rows} == {f"layer {i}": 8 for i in range(4)}


def test_probe_ledgers_of_two_nsys_versions_are_equal_up_to_time():
    def shape(name: str, by: str) -> dict:
        made = read(name, by=by)
        counts = {r.key: (r.kind, r.launches_per_step, r.launches_min, r.launches_max) for r in made.rows}
        return {"rows": counts, "steps": made.steps.count, "identity": made.identity, "excluded": made.steps.excluded}

    for by in ("kernel", "layer", "op", "shape", "range", "stream"):
        assert shape(PROBES[0], by) == shape(PROBES[1], by), by


def test_probe_wholegraph_is_said_loudly():
    made = read("probe-nsys2025.3-wholegraph")
    assert made.identity.kernels == 546 and made.identity.replays == 17
    assert any("17 graph replays" in w and "--cuda-graph-trace=node" in w for w in made.warnings)


def test_llm_forward_without_nvtx():
    steps = read("llm-forward-x10-a100").steps
    assert (steps.method, steps.count, steps.launches_per_step, steps.layer_period) == ("lag", 10, 1832, 57)


def test_llm_forward_lag_and_nvtx_agree():
    steps = read("llm-forward-nvtx-a100").steps
    assert (steps.method, steps.count, steps.launches_per_step) == ("lag", 4, 1832)
    warm = read("llm-forward-nvtx-a100", steps="nvtx:^warmup$").steps
    rest = read("llm-forward-nvtx-a100", steps="nvtx:^benchmark_loop$").steps
    assert (warm.launches_per_step, rest.launches_per_step) == (1832, 3 * 1832)


def test_compiled_wholegraph_is_busy_not_idle():
    made = read("compiled-wholegraph-a100")
    assert made.steps.count == 10 and made.identity.kernels == 30
    assert made.total.exposed_us_per_step * 10 / 1000 == pytest.approx(7811, abs=1)
    assert made.total.between_us < 100  # a published tool called these 7 seconds idle
    whole = read("compiled-wholegraph-a100", steps="none").total
    assert whole.gap_us_per_step < 0.001 * whole.step_us


def test_two_processes_are_joined_by_process_and_id():
    path = trace("two-processes")
    wrong = sql(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
                      " ON k.correlationId = r.correlationId")
    assert wrong == [(4280,)]
    made = ledger.of_file(str(path))
    assert made.identity.pairs == 3986 and made.devices == 2
    assert any("24 kernels have no launch call" in w for w in made.warnings)


def test_tiny():
    ident = read("tiny-known-answer").identity
    assert (ident.kernels, ident.captured, ident.replays) == (3, 1, 2)


def test_empty_tables():
    made = read("empty-tables-2022")
    assert made.identity.kernels == 5 and made.identity.launches_without_kernel == 0


def test_oldest():
    assert read("oldest-no-metadata").identity.kernels == 12
