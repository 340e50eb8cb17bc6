"""The guards on a real GPU: what NVML answers there, and a short window that is not contaminated by itself."""

import json
import sys

import pytest

from analysis.cli import main
from census.ab import gpu, guards
from census.ab.plan import Limits
from cli import run_main

pytestmark = pytest.mark.gpu


def test_nvml_answers():
    with gpu.opened() as gpus:
        first = gpu.state(gpus)[0]
        assert gpus.why is None and gpu.identity(gpus)[0]["name"]
        assert all(first[key] is not None for key in ("sm_mhz", "reasons", "utilization_pct", "memory_mb", "pids"))


def test_an_idle_run_is_clean():
    with gpu.opened() as gpus:
        start = guards.before(gpus, Limits())
        seen = guards.after(gpus, start, [gpu.state(gpus)])
    run = {"pair": 0, "arm": "A", "failed": None, "began": 0.0, "ended": 1.0}
    record = run | {"machine": seen | {"others_cpu_s": 0.0}}
    assert guards.contaminated([record], Limits(), 1.0) == {}


WORK = """
import cupy, json, time
x = cupy.random.rand(4096, 4096, dtype=cupy.float32)
x @ x
cupy.cuda.Device().synchronize()
start = time.perf_counter()
while time.perf_counter() - start < 1.5:
    x @ x
    cupy.cuda.Device().synchronize()
print(json.dumps({"ms": 1.0 + time.perf_counter() % 0.001}))
"""


def test_our_own_work_does_not_contaminate(tmp_path, monkeypatch, capsys):
    """The GPU is busy during the runs and counts as idle before the next: no pair is dropped."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(WORK)
    command = f"{sys.executable} work.py"
    words = ["ab", "--a", command, "--b", command, "--metric", "json:ms", "--lower", "--pairs", 2, "--gap", 1,
             "--host-load", 64, "--out", "w", "--json"]  # fmt: skip
    done = run_main(main, "census", words, monkeypatch, capsys)
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert [row["counts"] for row in data["rows"]] == ["yes", "yes"]
    assert data["machine"]["gpu"] == "read through NVML" and data["cycles_pct"] is not None
