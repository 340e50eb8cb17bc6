"""Recording on a GPU: nsys and CUPTI see the same launches, the plan's, with their layers and ops; any command records.

Needs nsys on PATH and cupti-python; what is missing is skipped, visibly.
"""

import json
import os
import shutil
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from analysis.cli import main
from census import doctor, ledger, record, run
from census.activity import family_name
from census.reconcile import reconcile
from cli import run_main
from minfer.synth import synth

pytestmark = pytest.mark.gpu

TOKENS, DEPTH = 6, 3
MISSING = {"nsys": not shutil.which("nsys"), "cupti": not find_spec("cupti")}
RECORDERS = [pytest.param(r, marks=pytest.mark.skipif(MISSING[r.name], reason=f"no {r.name} here"))
             for r in (record.NSYS, record.CUPTI)]  # fmt: skip
MODES = {"graph": "0", "eager": "1"}  # values of MINFER_NO_CUDA_GRAPH


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Four layers of qwen2 in Q4_K and Q6_K, random weights."""
    path = tmp_path_factory.mktemp("models") / "tiny-qwen2.gguf"
    synth("tiny-qwen2", path)
    return path


@pytest.fixture(scope="module")
def recorded(model, tmp_path_factory):
    """(recorder, mode) -> (run.json, trace), each recorded once."""
    made = {}

    def get(recorder, mode):
        key = recorder.name, mode
        if key not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MINFER_NO_CUDA_GRAPH", MODES[mode])
                patch.setattr(record, "recorder_for", lambda backend: recorder)
                wanted = run.Run(str(model), TOKENS, DEPTH, tmp_path_factory.mktemp("runs") / "-".join(key))
                facts = run.record_run(wanted, run.predict(wanted.model, TOKENS, DEPTH), overhead=False)
            made[key] = facts, wanted.folder / record.TRACE
        return made[key]

    return get


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("recorder", RECORDERS)
class TestEachRecorder:
    def test_the_trace_is_the_plan_launch_for_launch(self, recorded, recorder, mode):
        facts, trace = recorded(recorder, mode)
        held = reconcile(facts["plan"]["launches"], run.step_kernels(trace))
        assert held.holds and held.matching == TOKENS, held.differences
        assert facts["backend"] == "cuda" and facts["recorder"] == recorder.name

    def test_every_launch_has_its_layer_and_its_op(self, recorded, recorder, mode):
        facts, trace = recorded(recorder, mode)
        planned = facts["plan"]["launches"]
        ops = {r.key: r.launches_per_step for r in ledger.of_file(str(trace), by="op").rows if r.launches_per_step}
        assert ops == Counter(f"{x['op']} {x['name']}" for x in planned)
        layers = {r.key: r.launches_per_step for r in ledger.of_file(str(trace), by="layer").rows
                  if r.launches_per_step}  # fmt: skip
        assert layers == Counter("(no layer)" if x["layer"] is None else f"layer {x['layer']}" for x in planned)

    def test_replays_are_replays_and_nothing_is_missing(self, recorded, recorder, mode):
        facts, trace = recorded(recorder, mode)
        made, n = ledger.of_file(str(trace)), facts["plan"]["totals"]["launches"]
        assert made.identity.replayed == ((TOKENS + 1) * n if mode == "graph" else 0)  # a warm-up step is one too
        assert made.identity.captured == (n if mode == "graph" else 0)
        assert made.identity.without_launch == 0 and made.steps.count == TOKENS
        assert not [text for text in facts["messages"] if doctor.is_loss(text)]

    def test_the_ledger_closes(self, recorded, recorder, mode):
        total = ledger.of_file(str(recorded(recorder, mode)[1])).total
        closed = total.exposed_us_per_step + total.gap_us_per_step + total.residual_us_per_step
        assert total.step_us == pytest.approx(closed, abs=1e-6) and total.step_us > 0


@pytest.mark.skipif(any(MISSING.values()), reason="needs nsys and cupti-python")
@pytest.mark.parametrize("mode", MODES)
def test_nsys_and_cupti_count_the_same_launches_of_every_kernel(recorded, mode):
    """In prefill, warm-up and decode. Families, for the two write template arguments of a library's kernels apart."""

    def counts(recorder):
        steps = run.step_kernels(recorded(recorder, mode)[1], "nvtx:warmup|prefill|decode")
        return Counter(family_name(name) for step in steps for name in step)

    assert counts(record.NSYS) == counts(record.CUPTI)


@pytest.mark.skipif(any(MISSING.values()), reason="needs nsys and cupti-python")
def test_nsys_and_cupti_generate_the_same_tokens(recorded):
    """Recording changes nothing of what is computed."""
    assert len({recorded(r, m)[0]["bench"][0]["output_hash"] for r in (record.NSYS, record.CUPTI) for m in MODES}) == 1


@pytest.fixture
def census(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *args: run_main(main, "census", args, monkeypatch, capsys)


def test_without_nsys_census_run_takes_cupti_and_prints_what_it_costs(census, model, monkeypatch, tmp_path):
    if MISSING["cupti"]:
        pytest.skip("no cupti here")
    folders = [p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "nsys").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    done = census("run", model, "--tokens", "16", "--out", "kept")
    facts = json.loads((tmp_path / "kept" / "run.json").read_text())
    assert done.code == 0, done.err
    assert facts["recorder"] == "cupti" and facts["overhead"]["same_tokens"] and "overhead: " in done.out
    assert facts["versions"]["driver"] and facts["versions"]["nsys"] is None


needs_nsys = pytest.mark.skipif(MISSING["nsys"], reason="no nsys here")


@needs_nsys
def test_record_both_puts_the_true_step_time_beside_the_traced_one(census, model, tmp_path):
    bench = (sys.executable, "-m", "minfer", "bench", model, "-p", "0", "-n", "32", "-r", "1", "-o", "json")
    done = census("record", "--graphs", "both", "--json", "--out", "kept", "--", *bench)
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert data["ledger"]["steps"]["count"] == 32 and data["ledger"]["time"]["true"]["steps"] >= 31
    assert 0.5 < data["ledger"]["time"]["factor"] < 10 and data["device"] and data["versions"]["nsys"]
    assert (tmp_path / "kept" / "trace-graph.sqlite").exists()


WORK = "import cupy, time; x = cupy.arange(1 << 20); [x.sum() for _ in range(50)]; cupy.cuda.Device().synchronize()"


@needs_nsys
def test_a_failing_command_keeps_its_trace(census, tmp_path):
    done = census("record", "--out", "kept", "--", sys.executable, "-c", f"{WORK}; raise SystemExit(3)")
    assert done.code == 2 and "ended with exit code 3; its trace is complete and kept" in done.err
    assert (tmp_path / "kept" / record.TRACE).exists()


@needs_nsys
def test_a_duration_ends_the_command(census, tmp_path):
    done = census("record", "--duration", "15", "--out", "kept", "--", sys.executable, "-c", f"{WORK}; time.sleep(300)")
    assert done.code == 0, done.err
    assert (tmp_path / "kept" / record.TRACE).exists()


@needs_nsys
def test_a_command_without_gpu_work_is_one_line(census, tmp_path):
    done = census("record", "--out", "kept", "--", sys.executable, "-c", "pass")
    assert done.code == 2 and "no GPU work was recorded" in done.err and not (tmp_path / "kept").exists()
