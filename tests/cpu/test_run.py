"""`census run`: one real recording of SmolLM2, and everything that must add up in it."""

import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from analysis.cli import main
from census import doctor, ledger, record, run, runlog
from census import trace as tr
from census.errors import CensusError
from census.reconcile import reconcile
from cli import run_main
from tiny import write_llama


@pytest.fixture
def census(monkeypatch, capsys):
    return lambda *args: run_main(main, "census", args, monkeypatch, capsys)


@pytest.fixture(scope="module")
def smollm2_run(smollm2, tmp_path_factory):
    """(run.json, trace) of four recorded steps after a prompt of three tokens."""
    folder = tmp_path_factory.mktemp("runs") / "smollm2"
    wanted = run.Run(str(smollm2), tokens=4, depth=3, folder=folder)
    run.record_run(wanted, run.predict(wanted.model, wanted.tokens, wanted.depth), overhead=False)
    return json.loads((folder / "run.json").read_text()), folder / "trace.sqlite"


def test_launches_per_step_are_the_plans_exactly(smollm2_run):
    facts, trace = smollm2_run
    made = ledger.of_file(str(trace))
    assert made.steps.method == "nvtx" and made.steps.count == 4
    assert made.steps.launches_per_step == facts["plan"]["totals"]["launches"] == 30 * 17 + 4
    planned = {row["kernel"]: row["launches"] for row in facts["plan"]["kernels"]}
    assert {r.key: r.launches_per_step for r in made.rows} == planned
    held = reconcile(facts["plan"]["launches"], run.step_kernels(trace))
    assert held.holds and held.matching == 4 and not held.differences


def test_the_ledger_total_is_the_sum_of_its_rows_and_closes_with_the_step(smollm2_run):
    total, rows = (made := ledger.of_file(str(smollm2_run[1]))).total, made.rows
    assert total.exposed_us_per_step == pytest.approx(sum(r.exposed_us_per_step for r in rows), abs=1e-6)
    assert total.launches_per_step == sum(r.launches_per_step for r in rows)
    closed = total.exposed_us_per_step + total.gap_us_per_step + total.residual_us_per_step
    assert total.step_us == pytest.approx(closed, abs=1e-6)


def test_warm_up_and_prefill_are_left_out_and_counted(smollm2_run):
    """Two warm-up steps of 514 launches; the prefill of three tokens has a last_row more and no argmax."""
    assert ledger.of_file(str(smollm2_run[1])).steps.excluded == {"warm-up and prefill": 2 * 514 + 514}


def test_every_launch_has_its_layer_and_its_op(smollm2_run):
    facts, trace = smollm2_run
    layers = {r.key: r.launches_per_step for r in ledger.of_file(str(trace), by="layer").rows}
    assert {n for key, n in layers.items() if key.startswith("layer ")} == {17} and len(layers) == 31
    ops = {r.key: r.launches_per_step for r in ledger.of_file(str(trace), by="op").rows}
    planned: dict[str, int] = {}
    for x in facts["plan"]["launches"]:
        planned[f"{x['op']} {x['name']}"] = planned.get(f"{x['op']} {x['name']}", 0) + 1
    assert ops == planned


def test_the_trace_says_who_recorded_it_and_on_what(smollm2_run):
    trace = tr.open_trace(smollm2_run[1])
    assert "in-process recorder" in trace.product and trace.schema == "3.20.3"
    assert trace.devices[0].name.startswith("CPU (")
    tr.close(trace)


def test_run_json_holds_what_makes_a_number_repeatable(smollm2_run, smollm2):
    facts, _ = smollm2_run
    assert facts["command"][:2] == ["minfer", "bench"] and facts["command"][-2:] == ["--save", "bench.json"]
    assert facts["model"]["sha256"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert facts["recorder"] == "in-process" and facts["device"] and facts["date"].endswith("Z")
    assert {"python", "launch-census", "numpy", "nvtx"} <= set(facts["versions"])
    assert facts["bench"][0]["n_gen"] == 4 and len(facts["bench"][0]["output_hash"]) == 64
    assert str(Path.home()) not in json.dumps(facts)  # no path of this machine


def test_the_command_prints_prediction_ledger_and_reconciliation(census, tmp_path):
    model = write_llama(tmp_path / "m.gguf")
    done = census("run", model, "--tokens", "3", "--out", tmp_path / "r")
    assert done.code == 0, done.err
    for text in ("predicted: 38 launches per step", "3 steps of 38 launches by nvtx", "step (wall)",
                 "reconciled: 3 of 3 steps launch the plan's 38 kernels", "tok/s, recorder on"):  # fmt: skip
        assert text in done.out
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["run.json", "trace.sqlite"]


def test_the_command_as_json(census, tmp_path):
    model = write_llama(tmp_path / "m.gguf")
    data = json.loads(census("run", model, "--tokens", "2", "--out", tmp_path / "r", "--json").out)
    assert data["ledger"]["steps"]["count"] == 2 and data["reconciliation"]["matching"] == 2
    assert data["prediction"]["totals"]["launches"] == data["ledger"]["total"]["launches_per_step"] == 38


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nosuch.gguf"], "nosuch.gguf: no such file"),
        (["{cut}"], "header-only or truncated"),
        (["{good}", "--tokens", "0"], "--tokens"),
        (["{good}", "--out", "{taken}"], "exists; give another --out"),
        (["{good}", "--out", "/proc/nosuch/run"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_left(census, monkeypatch, tmp_path, args, message):
    good = write_llama(tmp_path / "good.gguf")
    cut, taken = tmp_path / "cut.gguf", tmp_path / "taken"
    cut.write_bytes(good.read_bytes()[:-1000])
    taken.mkdir()
    monkeypatch.chdir(tmp_path)
    files = {"good": good, "cut": cut, "taken": taken}
    before = sorted(tmp_path.iterdir())
    done = census("run", *(files.get(a.strip("{}"), a) for a in args))
    assert done.code == 2 and done.err.count("\n") == 1 and done.err.startswith("census: ") and message in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_failing_engine_leaves_no_trace(tmp_path):
    with pytest.raises(CensusError, match="ended with exit code 3"):
        record.record([sys.executable, "-c", "raise SystemExit(3)"], record.IN_PROCESS, tmp_path / "t.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_the_same_command_unrecorded_before_and_after_says_what_recording_costs(census, tmp_path):
    model = write_llama(tmp_path / "m.gguf")
    done = census("run", model, "--tokens", "3", "--out", tmp_path / "r")
    facts = json.loads((tmp_path / "r" / "run.json").read_text())
    cost, row = facts["overhead"], facts["bench"][0]
    assert cost["recorded_ms"] == row["avg_ns"] / 1e6 / 3 and len(cost["unrecorded_ms"]) == 2
    assert cost["ratio"] == pytest.approx(cost["recorded_ms"] / (sum(cost["unrecorded_ms"]) / 2))
    assert cost["same_tokens"] is True and f"ratio {cost['ratio']:.3f}" in done.out


def test_without_overhead_the_command_runs_once(census, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_bench", lambda *args: pytest.fail("ran unrecorded"))
    done = census("run", write_llama(tmp_path / "m.gguf"), "--tokens", "2", "--out", tmp_path / "r", "--no-overhead")
    assert done.code == 0 and "overhead: " not in done.out
    assert json.loads((tmp_path / "r" / "run.json").read_text())["overhead"] is None


def test_the_ratio_is_over_the_median_of_the_unrecorded_runs_and_other_tokens_are_named():
    """3 tokens: 12 ms recorded is 4 a token; 9 and 15 ms are 3 and 5, median 4; then 6 and 6: 2 and 2."""

    def row(ms, tokens="a"):
        return {"avg_ns": ms * 1_000_000, "n_gen": 3, "output_hash": tokens}

    cost = run._overhead(row(12), [row(9), row(15)])
    assert cost["ratio"] == 1.0 and cost["ratio_range"] == [4 / 5, 4 / 3]
    assert run.overhead_lines(cost) == ["overhead: 4.000 ms per token recorded, 3.000 and 5.000 not recorded (before, "
                                        "after); ratio 1.000 (0.800 to 1.333)"]  # fmt: skip
    cost = run._overhead(row(12), [row(6), row(6, "b")])
    assert cost == {"recorded_ms": 4.0, "unrecorded_ms": [2.0, 2.0], "ratio": 2.0, "ratio_range": [2.0, 2.0],
                    "same_tokens": False}  # fmt: skip
    assert run.overhead_lines(cost)[1].startswith("mismatch: the recorded run chose other tokens")


def test_an_interrupted_run_leaves_no_folder(monkeypatch, tmp_path):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "record", interrupt)
    wanted = run.Run(str(write_llama(tmp_path / "m.gguf")), 1, 0, tmp_path / "runs" / "r")
    with pytest.raises(KeyboardInterrupt):
        run.record_run(wanted, run.predict(wanted.model, 1, 0))
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_log_cut_by_a_kill_keeps_its_whole_lines(tmp_path):
    head = {"log": "minfer-launches", "version": 1, "pid": 9, "tid": 9, "clock": "monotonic ns", "device": "CPU (x)"}
    launch = ["launch", "add_f32", [4, 1, 1], [1, 1, 1], 1000, 1500]
    log = tmp_path / "l.jsonl"
    log.write_text(json.dumps(head) + "\n" + json.dumps(launch) + "\n" + '["range", "decode 0", 900, 16')
    read = runlog.read_log(log)
    assert read.launches == (runlog.Launch("add_f32", (4, 1, 1), (1, 1, 1), 1000, 1500),) and read.ranges == ()
    assert read.head == runlog.Head(9, 9, "CPU (x)")


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"log": "minfer-launches", "version": 2}'])
def test_another_file_is_no_launch_log(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(CensusError, match="not a log of kind minfer-launches, version 1"):
        runlog.read_log(tmp_path / "x")


class TestReconcile:
    PLAN = tuple(
        {"kernel": k, "name": n, "layer": layer}
        for k, n, layer in [("a", "embed", None), ("b", "q", 0), ("c", "k", 0), ("d", "out", None)]
    )

    def test_equal(self):
        held = reconcile(self.PLAN, [["a", "b", "c", "d"]] * 3)
        assert held.holds and (held.steps, held.planned, held.matching) == (3, 4, 3)

    def test_a_difference_names_its_launches(self):
        held = reconcile(self.PLAN, [["a", "b", "c", "d"], ["a", "x", "c"]])
        assert not held.holds and held.matching == 1
        assert held.differences == (
            "step 1, launch 1: the plan has b (q of layer 0); the trace has x",
            "step 1, launch 3: the plan has d (out); the trace has nothing",
        )

    def test_many_differences_are_counted_not_listed(self):
        held = reconcile(self.PLAN, [["x"]] * 25)
        assert len(held.differences) == 10 and held.more == 15

    def test_no_steps_is_no_proof(self):
        assert not reconcile(self.PLAN, []).holds


def test_the_emulated_gpu_is_recorded_like_any_backend(census, tmp_path):
    """Its plan is CUDA's: the recorded launches are the emulated kernels', one by one."""
    model = write_llama(tmp_path / "m.gguf")
    args = ("--device", "emulated", "--tokens", "2", "--no-overhead", "--out", tmp_path / "r", "--json")
    data = json.loads(census("run", model, *args).out)
    assert data["backend"] == "emulated" and data["reconciliation"]["matching"] == 2
    assert {r["kernel"] for r in data["ledger"]["rows"]} >= {"attention_one_f16", "next_token", "rms_norm_f32"}


def test_a_checkout_that_is_not_installed_records_all_the_same(census, tmp_path, monkeypatch):
    """On PYTHONPATH alone, as on a borrowed GPU machine: the version of this project is not known, the rest is."""
    found = doctor.version

    def version(name):
        if name == "launch-census":
            raise PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(doctor, "version", version)
    args = ("--device", "cpu", "--tokens", "2", "--no-overhead", "--out", tmp_path / "r", "--json")
    data = json.loads(census("run", write_llama(tmp_path / "m.gguf"), *args).out)
    assert data["reconciliation"]["matching"] == 2
    assert data["versions"]["launch-census"] is None and data["versions"]["numpy"]
