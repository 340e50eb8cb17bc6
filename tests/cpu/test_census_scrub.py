"""A scrubbed copy gives the same ledger and holds nothing of the machine it was recorded on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from census_data import OURS, build, change, kernel, sql, trace

from analysis.cli import main
from census import ledger, scrub
from census.errors import CensusError
from cli import run_main

WINDOW = Path(__file__).parents[2] / "traces" / "windows" / "7b-d0-no-mmvq.json"
SECRETS = ("hunter2", "alice", "buildbox", "/home/", "AWS_SECRET", "python serve.py", "GPU-1234", "worker-thread",
           "0000:57:00.0", "mallory")


def dirty(path):
    """A trace with everything a real export knows about its machine."""
    build(path, nvtx=[(0, 100, 59, "decode 0", 0), (200, 300, 59, "decode 1 of /home/alice/model.gguf", 0),
                      (0, None, 39, "worker-thread", 0)],
          api=[(10, 11, 1, "cudaLaunchKernel"), (210, 211, 2, "cudaLaunchKernel")],
          kernels=[kernel(20, 30, corr=1, name="void alice::k<(int)1>(int)"), kernel(220, 230, corr=2, name="k2")],
          names=["AWS_SECRET=hunter2 USER=mallory", "python serve.py", "/home/alice/.cache"])
    return change(
        path,
        "CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)",
        "INSERT INTO META_DATA_CAPTURE VALUES ('ENVIRONMENT', 'AWS_SECRET=hunter2 USER=mallory HOSTNAME=buildbox'),"
        " ('USER_NAME', 'alice'), ('PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Node')",
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)",
        "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'buildbox')",
        "CREATE TABLE ProcessStreams (processId INTEGER, filenameId INTEGER, contentId TEXT)",
        "INSERT INTO ProcessStreams VALUES (7, 1, 'hunter2')",
        "CREATE TABLE PROCESSES (globalPid INTEGER, name TEXT)", "INSERT INTO PROCESSES VALUES (1, 'python serve.py')",
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT, busLocation TEXT)",
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 'GPU-1234', '0000:57:00.0')",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 'wrote /home/alice/report.nsys-rep')",
    )


def test_nothing_of_the_machine_stays(tmp_path):
    source, out = dirty(tmp_path / "in.sqlite"), tmp_path / "out.sqlite"
    raw = source.read_bytes()
    assert all(secret.encode() in raw for secret in SECRETS)  # the test would notice if they were never there
    made = scrub.scrub(str(source), out)
    raw = out.read_bytes()
    assert [s for s in SECRETS if s.encode() in raw] == []
    assert made.masked == 2  # the range's path, the kernel's namespace
    assert sql(out, "SELECT value FROM META_DATA_CAPTURE") == [("Node",)]
    assert {v for (v,) in sql(out, "SELECT value FROM StringIds")} == {
        "void [name]::k<(int)1>(int)", "k2", "cudaLaunchKernel"}
    assert source.read_bytes() == dirty(tmp_path / "again.sqlite").read_bytes()  # the original is as it was


@pytest.mark.parametrize("name", OURS)
def test_the_ledger_is_the_same(tmp_path, name):
    path, out = trace(name), tmp_path / "out.sqlite"
    scrub.scrub(str(path), out)
    for by in ("kernel", "layer", "shape"):
        before, after = ledger.of_file(str(path), by=by), ledger.of_file(str(out), by=by)
        assert replace(after, trace=before.trace) == before
    again = tmp_path / "twice.sqlite"
    scrub.scrub(str(out), again)
    assert again.read_bytes() == out.read_bytes()


def test_refusals(tmp_path):
    source = dirty(tmp_path / "in.sqlite")
    with pytest.raises(CensusError, match="is the trace itself"):
        scrub.scrub(str(source), source)
    with pytest.raises(CensusError, match="no such folder"):
        scrub.scrub(str(source), tmp_path / "nowhere" / "out.sqlite")
    with pytest.raises(CensusError, match="no such file"):
        scrub.scrub(str(tmp_path / "none.sqlite"), tmp_path / "out.sqlite")
    assert not (tmp_path / "out.sqlite").exists()


@pytest.mark.parametrize(("text", "clean"), [
    ("load /home/bob/m.gguf now", "load [path] now"), (r"C:\Users\bob\m.gguf", "[path]"),
    ("bob@host.example", "[address]"), ("peer 10.0.0.12", "peer [address]"), ("model/layers/3", "model/layers/3"),
    ("/model/layers.0/MatMul", "/model/layers.0/MatMul"),
    ("f<(int)1, a/b>", "f<(int)1, a/b>"), ("rope bob", "rope [name]"), ("bobcat", "bobcat"),
])
def test_masks(text, clean):
    assert scrub.mask_text(text, {"bob"}) == clean


def test_from_a_range_on_only_later_work_stays_and_keeps_its_layers(tmp_path):
    """Of the probe's 16 replayed steps 13 begin there; their layers come from a capture that was long before."""
    out = tmp_path / "out.sqlite"
    scrub.scrub(str(trace("probe-nsys2025.3-graphnodes")), out, begin="graph_step 3")
    made = ledger.of_file(str(out), by="layer")
    assert made.steps.count == 13 and made.steps.launches_per_step == 32
    assert made.identity.eager == 0 and made.identity.captured == 0
    assert {r.key: r.launches_per_step for r in made.rows} == {f"layer {i}": 8 for i in range(4)}


@pytest.mark.parametrize(("pattern", "message"), [("nosuch", "matches none of its"), ("(", "not a regular expression")])
def test_from_what_is_not_there_is_refused(tmp_path, pattern, message):
    with pytest.raises(CensusError, match=message):
        scrub.scrub(str(trace("probe-nsys2025.3-graphnodes")), tmp_path / "out.sqlite", begin=pattern)
    assert list(tmp_path.iterdir()) == []


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def window(tmp_path):
    """A finished window with everything of its machine that one can hold."""
    data = json.loads(WINDOW.read_text())
    arm = data["plan"]["a"]
    arm["command"][2], arm["env"]["LOG"] = "/home/alice/7b.gguf", "/scratch/alice/log"
    data["A"] = "minfer bench /home/alice/7b.gguf"
    data["plan"]["watched"] = {"CUDA_HOME": "/usr/local/cuda", "PYTHONPATH": "/home/alice/site:", "LANG": "C.UTF-8",
                               "CUDA_VISIBLE_DEVICES": "GPU-12345678-aaaa-bbbb-cccc-0123456789ab"}
    data["devices"][0]["uuid"] = "GPU-12345678-aaaa-bbbb-cccc-0123456789ab"
    path = tmp_path / "window.json"
    path.write_text(json.dumps(data))
    return path


def test_a_windows_verdict_is_the_same_and_nothing_of_the_machine_stays(window, tmp_path, monkeypatch, capsys):
    out = tmp_path / "public.json"
    done = run_main(main, "census", ["scrub", window, out], monkeypatch, capsys)
    assert done.code == 0 and done.out == f"{out}: 14 runs, 7 texts masked\n"
    said = [run_main(main, "census", ["verdict", path, "--json"], monkeypatch, capsys).out for path in (window, out)]
    before, after = (json.loads(text) for text in said)
    assert before.pop("A") == "minfer bench /home/alice/7b.gguf" and after.pop("A") == "minfer bench [path]"
    assert {k: v for k, v in before.items() if k != "window"} == {k: v for k, v in after.items() if k != "window"}
    text = out.read_text()
    assert [s for s in ("alice", "/home", "/usr", "/scratch", "12345678") if s in text] == []
    assert json.loads(text)["plan"]["watched"] == {"LANG": "C.UTF-8"}


def test_what_is_no_window_and_what_a_window_has_not_are_refused(window, tmp_path, monkeypatch, capsys):
    (tmp_path / "other.json").write_text('{"a": 1}')
    for words, message in (
        ([window, window], "is the window itself"), ([tmp_path / "other.json", tmp_path / "o.json"], "no list `runs`"),
        ([window, tmp_path / "o.json", "--from", "x"], "--from is for traces"),
    ):  # fmt: skip
        done = run_main(main, "census", ["scrub", *words], monkeypatch, capsys)
        assert done.code == 2 and message in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "o.json").exists()
