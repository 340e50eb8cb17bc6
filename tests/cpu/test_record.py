"""`census record`: any command under a stand-in for nsys that answers with real recordings; what is kept and said."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from census_data import change, trace

from analysis.cli import main
from census import provenance, record
from census.errors import CensusError
from cli import run_main

ECHO = 'case "$*" in *--version) echo NVIDIA Nsight Systems version 2025.3.2; exit;; esac\n'
ANSWER = """
for word; do case "$word" in --cuda-graph-trace=*) mode=${word#*=};; esac; done
while [ "$1" != -o ]; do shift; done
out=$2; shift 2
"$@"; code=$?
cp "%s/$mode.sqlite" "$out.sqlite"
exit $code
"""


@pytest.fixture
def census(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *args: run_main(main, "census", args, monkeypatch, capsys)


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """Puts an `nsys` on PATH that notes its arguments in `args`, a line per call, and then runs the given script."""

    def install(script: str) -> Path:
        tool = tmp_path / "bin" / "nsys"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\n{ECHO}echo "$@" >> {tmp_path}/args\n{script}\n')
        tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
        return tmp_path

    return install


@pytest.fixture
def answering(nsys, tmp_path):
    """An nsys that runs the command and answers with recordings of one program: nodes, and whole graphs."""
    answers = tmp_path / "answers"
    answers.mkdir()
    shutil.copy(trace("probe-nsys2025.3-graphnodes"), answers / "node.sqlite")
    shutil.copy(trace("probe-nsys2025.3-wholegraph"), answers / "graph.sqlite")
    nsys(ANSWER % answers)
    return answers


def run_json(folder: Path):
    return json.loads((folder / "run.json").read_text())


def test_nsys_gets_the_flags_that_show_graph_nodes(answering, tmp_path):
    code = record.record(["true", "--flag"], record.recorder_for("cuda"), tmp_path / "t.sqlite")
    words = (tmp_path / "args").read_text().split()
    assert words[:4] == ["profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node"] and words[-2:] == ["true", "--flag"]
    assert words[4:6] == ["--export", "sqlite"] and not any(w.startswith(("--delay", "--duration")) for w in words)
    assert code == 0 and (tmp_path / "t.sqlite").read_bytes() == (answering / "node.sqlite").read_bytes()


def test_record_keeps_trace_and_run_json_and_prints_the_ledger(census, answering, tmp_path):
    """The probe: 544 replayed and 546 eager kernels, 16 steps of each kind in its ranges."""
    done = census("record", "--delay", "1", "--duration", "2.5", "--out", "kept", "--", "echo", "-n", "hello")
    assert done.code == 0 and "1,090 kernels" in done.out and done.out.rstrip().endswith("kept in kept")
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["run.json", "trace.sqlite"]
    facts = run_json(tmp_path / "kept")
    assert facts["command"] == ["echo", "-n", "hello"] and facts["date"].endswith("Z") and facts["recorder"] == "nsys"
    assert facts["device"] == ["NVIDIA H200"]  # no NVML here: from the trace
    assert facts["versions"]["nsys"] == "2025.3.2" and facts["versions"]["driver"] is None
    assert facts["runs"] == [{"trace": "trace.sqlite", "graphs": "node", "exit_code": 0, "messages": []}]
    words = (tmp_path / "args").read_text().split()
    assert {"--delay=1", "--duration=2.5", "--cuda-graph-trace=node"} <= set(words)


def test_the_device_is_the_one_that_nvml_sees_where_there_is_one(census, answering, monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "devices", lambda: ["Another GPU"])
    assert census("record", "--out", "kept", "--", "true").code == 0
    assert run_json(tmp_path / "kept")["device"] == ["Another GPU"]


def test_both_runs_the_command_twice_and_takes_the_step_time_from_whole_graphs(census, answering, tmp_path):
    done = census("record", "--graphs", "both", "--out", "kept", "--", "sh", "-c", "echo ran >> count")
    assert done.code == 0 and (tmp_path / "count").read_text() == "ran\nran\n"
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == [
        "run.json", "trace-graph.sqlite", "trace-node.sqlite"]  # fmt: skip
    assert [r["graphs"] for r in run_json(tmp_path / "kept")["runs"]] == ["node", "graph"]
    assert "traced / true = " in done.out and "whole-graph replays in kept/trace-graph.sqlite" in done.out


def test_both_without_replays_says_that_there_is_no_true_time(census, answering, tmp_path):
    shutil.copy(answering / "node.sqlite", answering / "graph.sqlite")
    done = census("record", "--graphs", "both", "--out", "kept", "--", "true")
    assert done.code == 0 and "no true step time: " in done.out and "needs a whole-graph recording" in done.out


def test_json_holds_run_and_ledger_and_the_commands_output_is_not_in_it(census, answering):
    done = census("record", "--json", "--graphs", "graph", "--out", "kept", "--", "echo", "noise")
    data = json.loads(done.out)
    assert data["run"] == "kept" and data["ledger"]["trace"] == "kept/trace.sqlite"
    assert data["runs"][0]["graphs"] == "graph"


def test_the_options_of_the_command_are_its_own(census, answering, tmp_path):
    done = census("record", "--out", "kept", "echo", "--json", "--out", "x")
    assert done.code == 0 and run_json(tmp_path / "kept")["command"] == ["echo", "--json", "--out", "x"]


def test_paths_of_this_machine_do_not_reach_run_json(tmp_path):
    model = tmp_path / "m.gguf"
    model.touch()
    said = provenance.shown([sys.executable, "-m", str(model), f"--model={model}", "a/b", "--lr=1/2"])
    assert said == [Path(sys.executable).name, "-m", "m.gguf", "--model=m.gguf", "a/b", "--lr=1/2"]


def test_a_failing_command_is_one_line_and_its_complete_trace_is_kept(census, answering, tmp_path):
    done = census("record", "--out", "kept", "--", "sh", "-c", "exit 3")
    assert done.code == 2 and done.err.count("\n") == 1
    assert done.err == "census: sh -c exit 3 ended with exit code 3; its trace is complete and kept in kept\n"
    assert run_json(tmp_path / "kept")["runs"][0]["exit_code"] == 3 and "1,090 kernels" in done.out


@pytest.mark.parametrize(("duration", "code"), [([], 2), (["--duration", "1"], 0)])
def test_a_command_that_nsys_ended_after_its_duration_did_not_fail(census, answering, duration, code):
    assert census("record", *duration, "--out", "kept", "--", "sh", "-c", "kill -TERM $$").code == code


def test_lost_events_are_said_first_and_kept_in_run_json(census, answering, tmp_path):
    change(answering / "node.sqlite", "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INT, severity INT, text TEXT)",
           "INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 1, 'Number of CUDA events collected: 1090.')",
           "INSERT INTO DIAGNOSTIC_EVENT VALUES (2, 4, 'chatter')",
           "INSERT INTO DIAGNOSTIC_EVENT VALUES (3, 2, 'Not all NVTX events might have been collected.')",
           "INSERT INTO DIAGNOSTIC_EVENT VALUES (4, 3, 'CPU sampling is not allowed here')",
           "INSERT INTO DIAGNOSTIC_EVENT VALUES (5, 1, '12 buffers dropped')")  # fmt: skip
    done = census("record", "--out", "kept", "--", "true")
    said = ["Not all NVTX events might have been collected.", "12 buffers dropped", "CPU sampling is not allowed here"]
    assert run_json(tmp_path / "kept")["runs"][0]["messages"] == said
    assert [line for line in done.out.split("\n") if line.startswith("profiler: ")] == [f"profiler: {s}" for s in said]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--", "nosuch-engine"], "nosuch-engine: no such command"),
        (["--graphs", "some", "--", "true"], "--graphs some: unknown; allowed are node, graph, both"),
        (["--out", "answers", "--", "true"], "answers: exists; give another --out"),
        (["--delay", "-1", "--", "true"], "--delay"),
        (["--speed", "--", "true"], "--speed"),
        ([], "Missing argument"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_recorded(census, answering, tmp_path, args, message):
    done = census("record", *args)
    assert done.code == 2 and done.err.count("\n") == 1 and done.err.startswith("census: ") and message in done.err
    assert not (tmp_path / "args").exists() and not list(tmp_path.glob(".*"))


def test_without_nsys_it_is_one_line(census, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = census("record", "--", "true")
    assert done.code == 2 and done.err.count("\n") == 1 and "census record needs nsys on PATH" in done.err


def test_a_command_without_gpu_work_leaves_nothing(census, answering, tmp_path):
    change(answering / "node.sqlite", "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    done = census("record", "--out", "kept", "--", "true")
    assert done.code == 2 and "no GPU work was recorded" in done.err
    assert not (tmp_path / "kept").exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("script", "message"), [
    ("", "nsys ended without an sqlite export"),
    ("exit 5", "true ended with exit code 5, and left no trace; its message is above"),
])  # fmt: skip
def test_nsys_without_an_export_is_said_in_one_line(nsys, tmp_path, script, message):
    nsys(script)
    with pytest.raises(CensusError, match=message):
        record.record(["true"], record.NSYS, tmp_path / "t.sqlite")
    assert not list(tmp_path.glob("*.sqlite")) and not list(tmp_path.glob(".*"))


def test_a_ledger_that_cannot_be_made_does_not_lose_the_recording(census, answering, tmp_path):
    change(answering / "node.sqlite", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x'")
    done = census("record", "--out", "kept", "--", "true")
    assert done.code == 2 and done.err.count("\n") == 1 and "the recording is kept in kept" in done.err
    assert (tmp_path / "kept" / "trace.sqlite").exists()


def test_ctrl_c_ends_the_command_and_leaves_no_folder(answering, tmp_path):
    """Only the recorder is told; nsys' child hears of it and does not live on."""
    code = "from analysis.cli import main; main()"
    engine = "trap 'echo told > told; exit 1' INT; echo up > up; for i in $(seq 600); do sleep 0.05; done"
    child = subprocess.Popen([sys.executable, "-c", code, "record", "--out", "kept", "--", "sh", "-c", engine],
                             cwd=tmp_path, stderr=subprocess.PIPE, text=True)  # fmt: skip
    deadline = time.time() + 30
    while not (tmp_path / "up").exists() and time.time() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130 and err.endswith("census: interrupted\n") and (tmp_path / "told").exists()
    assert not (tmp_path / "kept").exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("backend", "tools", "expected"), [
    ("cpu", {"nsys", "cupti"}, "in-process"), ("cpu", set(), "in-process"), ("cuda", {"nsys", "cupti"}, "nsys"),
    ("cuda", {"nsys"}, "nsys"), ("cuda", {"cupti"}, "cupti"),
])  # fmt: skip
def test_the_recorder_is_the_best_that_is_there(monkeypatch, backend, tools, expected):
    monkeypatch.setattr(record.shutil, "which", lambda name: name if name in tools else None)
    monkeypatch.setattr(record, "find_spec", lambda name: name if name in tools else None)
    assert record.recorder_for(backend).name == expected


def test_a_gpu_backend_without_a_recorder_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(record, "find_spec", lambda name: None)
    with pytest.raises(CensusError, match="'cuda' is recorded by nsys or CUPTI, and neither is here"):
        record.recorder_for("cuda")
