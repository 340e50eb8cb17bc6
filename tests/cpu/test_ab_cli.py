"""`census ab` and `census verdict` as a user meets them: real processes, one line for every mistake, surface first."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from analysis.cli import main
from census.ab import log, runner
from cli import run_main

DATA = Path(__file__).parents[1] / "data"
RECORDING = DATA / "window-llamacpp-fusion-14b-h200.json"
FAST = ("--pairs", 2, "--gap", 0, "--warmup", 0, "--host-load", 64, "--seed", 1)


@pytest.fixture
def census(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *args: run_main(main, "census", args, monkeypatch, capsys)


def engine(folder, nth=0, then=""):
    """A shell engine: 5 ms in A, 4 in B (X=1); its run number `nth` does `then` first. One --a and one --b."""
    script = folder / "engine.sh"
    script.write_text(f"""n=$(cat count 2>/dev/null || echo 0); n=$((n+1)); echo $n > count
if [ $n = {nth} ]; then {then or ":"}; fi
echo "{{\\"ms\\": $((50 - 10 * X + n % 2)), \\"output_hash\\": \\"h\\"}}"
""")
    return ("--a", f"X=0 sh {script}", "--b", f"X=1 sh {script}", "--metric", "json:ms", "--lower", "--out", "w")


KEYS = {"verdict", "winner", "wins", "pairs", "p_two_sided", "p_one_sided", "change_pct", "interval_pct", "coverage",
        "sep", "floor_pct", "warnings"}  # fmt: skip


def test_verdict_of_the_recording(census):
    done = census("verdict", RECORDING, "--json")
    data = json.loads(done.out)
    assert done.code == 0 and data.keys() >= KEYS
    assert (data["verdict"], data["winner"], data["wins"], data["pairs"], data["sep"]) == ("SEP", "A", 8, 8, True)
    assert (data["p_two_sided"], data["floor_pct"]) == (0.0078125, None)
    assert [round(v, 2) for v in (data["change_pct"], *data["interval_pct"])] == [8.36, 5.81, 8.62]
    assert round(data["coverage"], 4) == 0.9922


def test_verdict_for_reading_is_the_golden_one(census):
    """A golden file that differs leaves what was printed beside it as NAME.got."""
    golden = DATA / "window-llamacpp-fusion-14b-h200.txt"
    out = census("verdict", RECORDING).out
    if out != golden.read_text():
        golden.with_suffix(".got").write_text(out)
    assert out == golden.read_text()


def test_verdict_as_csv_has_a_line_per_pair(census):
    lines = census("verdict", RECORDING, "--csv").out.splitlines()
    assert lines[0] == "pair,order,B,A,b_over_a,counts" and len(lines) == 9


def test_a_window_of_real_processes(census, tmp_path):
    done = census("ab", *engine(tmp_path), *FAST[2:], "--pairs", 6, "--bar", 1, "--guard", "ms<=45", "--json")
    data = json.loads(done.out)
    assert (done.code, data["verdict"], data["winner"], data["lands"]) == (0, "SEP", "B", True)
    assert data["guards"] == [{"guard": "ms<=45", "value": pytest.approx(40.5, abs=0.5), "holds": True}]
    assert data["outputs"] == "equal" and data["machine"].keys() == {"gpu", "xid", "host load"}
    assert data["device"]
    plan = json.loads((tmp_path / "w" / log.PLAN).read_text())
    assert plan["rule"]["bar_pct"] == 1 and plan["order"] == data["order"]
    assert census("verdict", "w", "--json").out == census("verdict", "w/window.json", "--json").out == done.out


def test_with_null_runs_three_arms_a_pair(census, tmp_path):
    data = json.loads(census("ab", *engine(tmp_path), *FAST, "--with-null", "--json").out)
    assert sorted(data["order"][0].replace("A'", "N")) == ["A", "B", "N"] and data["null"]["pairs"] == 2


def test_a_finished_window_cannot_be_run_again(census, tmp_path):
    census("ab", *engine(tmp_path), *FAST)
    again = census("ab", *engine(tmp_path), *FAST)
    assert again.code == 2 and "w: is a finished window" in again.err
    before = (tmp_path / "count").read_text()
    assert "is finished; nothing was run" in census("ab", "--resume", "w").err
    assert (tmp_path / "count").read_text() == before


FAULTS = [
    ("fails", "echo no memory >&2; exit 3", "ended with exit code 3: no memory"),
    ("hangs", "sleep 30", "had not ended after 0.5 s (--timeout) and was stopped"),
    ("no JSON", "echo nothing; exit 0", "it printed no JSON on standard output"),
    ("no metric", "echo '{}'; exit 0", "it printed no number at json:ms"),
    ("two metrics", "echo '[{\"ms\": 4}, {\"ms\": 5}]'; exit 0", "it printed 2 numbers at json:ms"),
    ("NaN", "echo '{\"ms\": NaN}'; exit 0", "its json:ms is nan"),
    ("zero", "echo '{\"ms\": 0}'; exit 0", "its json:ms is 0.0"),
]


@pytest.mark.parametrize(("name", "then", "said"), FAULTS)
def test_a_run_that_goes_wrong_is_one_line_and_the_window_goes_on(census, tmp_path, name, then, said):
    options = ("--pairs", 4, *FAST[2:], "--timeout", 0.5)
    done = census("ab", *engine(tmp_path, 3, then), *options)
    complaint = done.err.splitlines()[-1]
    assert done.code == 2 and done.err.count("census: ") == 1 and done.out == ""
    assert complaint.startswith("census: pair 2, arm ") and said in complaint and "--resume w" in complaint
    done = census("ab", "--resume", "w", "--json")
    data = json.loads(done.out)
    assert done.code == 0 and data["pairs"] == 4 and [r["counts"] == "yes" for r in data["rows"]].count(False) == 1
    assert (tmp_path / "count").read_text().strip() == "9"  # 4 pairs and the run that went wrong


def test_a_command_that_cannot_be_measured_shows_it_before_any_run(census, tmp_path):
    done = census("ab", *engine(tmp_path, 1, "exit 1"), "--pairs", 2, "--gap", 0)
    assert done.code == 2 and "census: warm-up of arm A: " in done.err
    assert (tmp_path / "w" / log.RUNS).read_text() == ""


def test_a_clock_that_is_set_back_drops_the_pair_and_says_so(census, tmp_path, monkeypatch):
    """time.time jumps back an hour in the third run: its pair is replaced, and the window ends well."""
    real, count = time.time, tmp_path / "count"
    count.write_text("0\n")
    monkeypatch.setattr(time, "time", lambda: real() - 3600 * (int(count.read_text() or 0) >= 3))
    done = census("ab", *engine(tmp_path), "--pairs", 4, *FAST[2:], "--json")
    said = [line for line in done.err.splitlines() if "does not count" in line]
    assert done.code == 0 and len(said) == 1 and "pair 2 does not count: " in said[0]
    assert "the clock was set back by 3600.0 s" in said[0]
    assert json.loads(done.out)["pairs"] == 4


def test_the_window_is_killed_with_its_run_and_goes_on(census, tmp_path):
    """SIGKILL of `census ab` while a run sleeps: the run dies with it, and only that run is repeated."""
    words = [*map(str, engine(tmp_path, 2, "echo $$ > pid; sleep 60")), *map(str, FAST)]
    command = [sys.executable, "-c", "from analysis.cli import main; main()", "ab", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    until = time.monotonic() + 30
    while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while running(int(pid.read_text())) and time.monotonic() < until:
        time.sleep(0.02)
    assert not running(int(pid.read_text()))
    done = census("ab", "--resume", "w", "--json")
    assert done.code == 0 and "1 runs were cut short and ran again" in done.err
    assert (tmp_path / "count").read_text().strip() == "5"
    assert len(runner.runs(log.read(tmp_path / "w" / log.RUNS))) == 4


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_says_how_to_go_on(census, tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "execute", interrupted)
    done = census("ab", *engine(tmp_path), *FAST)
    assert done.code == 130 and "stopped; go on with `census ab --resume w`" in done.err
    monkeypatch.undo()
    os.chdir(tmp_path)
    assert census("ab", "--resume", "w").code == 0


def test_a_slowdown_of_the_real_engine_is_found(census, tiny_qwen2):
    """`minfer bench` against itself with every step's work done one and a half times, in CPU time."""
    slow = Path(__file__).parents[1] / "ab_slow_bench.py"
    bench = f"{sys.executable} {slow} {tiny_qwen2} -p 0 -n 4 -r 3 -t 1 --device cpu -o json"
    words = ("--a", f"AB_SLOWER=burn:00 {bench}", "--b", f"AB_SLOWER=burn:50 {bench}",
             "--env", "OPENBLAS_NUM_THREADS=1", "--metric", "json:cpu_ns", "--lower", "--out", "w",
             "--pairs", 6, *FAST[2:])  # fmt: skip
    data = json.loads(census("ab", *words, "--json").out)
    assert (data["winner"], data["wins"], data["outputs"]) == ("A", 6, "equal")
    assert 30 < data["change_pct"] < 70


MISTAKES = [
    (["--a", "x"], "--a does not make two arms"),
    (["--cmd", "x"], "--cmd does not make two arms"),
    (["--cmd", "x", "--switch", "A B"], "--switch 'A B' is not allowed"),
    (["--cmd", "MINFER_X=1 x", "--switch", "MINFER_X"], "sets MINFER_X='1' too"),
    (["--a", "x | y", "--b", "x"], "no shell runs it"),
    (["--a", "x 'y", "--b", "x"], "check its quotes"),
    (["--a", "X=1", "--b", "x"], "names no program"),
    (["--a", "nsys profile x", "--b", "x"], "runs under nsys"),
    (["--a", "sh -c '/opt/nvidia/ncu x'", "--b", "x"], "runs under ncu"),
    (["--a", "x", "--b", "x", "--env", "Y"], "--env 'Y' is not allowed"),
    (["--a", "x", "--b", "x", "--metric", "ms"], "--metric 'ms' is not allowed"),
    (["--a", "x", "--b", "x", "--metric", "json:ms"], "--lower or --higher"),
    (["--a", "x", "--b", "x", "--metric", "regex:(", "--lower"], "is not an expression"),
    (["--a", "x", "--b", "x", "--higher"], "lower is better"),
    (["--a", "x", "--b", "x", "--guard", "tg128>5"], "--guard 'tg128>5' is not allowed"),
    (["--a", "x", "--b", "x", "--trace-a", "t"], "belong together"),
    (["--a", "no-such-program", "--b", "x", "--gap", "0"], "no-such-program: cannot be started"),
    (["--resume", "nowhere"], "plan.json: cannot be read"),
    (["--resume", "w", "--pairs", "4"], "--pairs cannot be changed by --resume"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_mistakes_are_one_line(census, words, said):
    done = census("ab", *words)
    assert done.code == 2 and said in done.err.splitlines()[-1] and done.err.count("census: ") == 1


@pytest.mark.parametrize(("text", "said"), [
    ("{", "is not JSON"), ("[]", "holds a JSON list"), ("{}", "has no list `runs`"), (None, "cannot be read"),
])  # fmt: skip
def test_a_verdict_needs_a_window(census, tmp_path, text, said):
    if text is not None:
        (tmp_path / "w.json").write_text(text)
    done = census("verdict", "w.json")
    assert done.code == 2 and said in done.err and len(done.err.splitlines()) == 1


def test_nothing_is_timed_under_nsys(census, tmp_path, monkeypatch):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "77")
    done = census("ab", *engine(tmp_path), *FAST)
    assert done.code == 2 and "nothing is timed under a profiler" in done.err and not (tmp_path / "w").exists()


def test_doubtful_plans_are_warned_about(census, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/lib/injection.so")
    script = engine(tmp_path)[1].removeprefix("X=0 ")
    done = census("ab", "--a", f"X=0 Y= {script}", "--b", f"X=1 Z=10 {script}", *engine(tmp_path)[4:], *FAST, "--json")
    warnings = " ".join(json.loads(done.out)["warnings"])
    for said in ("Y is empty in A", "Y is set in one arm only and unset in B", "Z is set in one arm only",
                 "CUDA_INJECTION64_PATH is in the environment", "2 pairs can never show a difference"):  # fmt: skip
        assert said in warnings and said in done.err


def test_the_parity_window_of_two_engines(census, tmp_path):
    """llama-bench's own rows against a minfer row, 5 ms a token against 4: both read by the same metric."""
    theirs = json.loads((DATA / "llama-bench-qwen2-14b-h200.json").read_text())
    row = next(r for rows in theirs.values() for r in rows if r["n_gen"] == 128 and not r["n_prompt"])
    ours = {"n_prompt": 0, "n_gen": 8, "avg_ns": 1, "samples_ns": [30, 32, 34], "avg_ts": 1.0, "output_hash": "h"}
    row["samples_ns"] = [128 * 5] * 3
    for name, value in (("llama", row), ("minfer", ours)):
        (tmp_path / f"{name}.json").write_text(json.dumps([value]))
    words = ("--a", "cat llama.json", "--b", "cat minfer.json", "--allow-different-output", "--pairs", 6, *FAST[2:])
    data = json.loads(census("ab", *words, "--out", "w", "--json").out)
    assert (data["winner"], data["outputs"], data["metric"]) == ("B", "unknown", "bench")
    assert data["change_pct"] == pytest.approx(25.0)


def test_a_window_without_one_whole_pair_is_invalid(census, tmp_path):
    run = {"pair": 0, "order": "AB", "arm": "A", "avg_ns": 5}
    (tmp_path / "w.json").write_text(json.dumps({"runs": [run]}))
    data = json.loads(census("verdict", "w.json", "--json").out)
    assert (data["verdict"], data["reason"], data["p_two_sided"]) == ("INVALID", "missing_runs", None)
    assert data.keys() >= KEYS
    assert "VERDICT  INVALID" in census("verdict", "w.json").out


def test_secrets_are_not_written_down(census, tmp_path, monkeypatch):
    monkeypatch.setenv("NVIDIA_API_KEY", "hush")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    census("ab", *engine(tmp_path), *FAST)
    text = (tmp_path / "w" / log.PLAN).read_text() + (tmp_path / "w" / log.WINDOW).read_text()
    assert "hush" not in text and "PCI_BUS_ID" in text


def test_a_full_temporary_folder_is_one_line(census, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    done = census("ab", *engine(tmp_path), *FAST)
    assert done.code == 2 and "cannot hold a run's output (No space left on device)" in done.err.splitlines()[-1]


def test_a_changed_environment_cannot_resume(census, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert census("ab", *engine(tmp_path, 2, "exit 1"), *FAST).code == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    done = census("ab", "--resume", "w")
    assert done.code == 2 and "OMP_NUM_THREADS is '2' now and was '1'" in done.err


def test_different_tokens_are_a_verdict_unless_declared(census, tmp_path):
    side = "sh -c 'echo {\\\"ms\\\": %d, \\\"output_hash\\\": \\\"%s\\\"}'"
    arms = ("--a", side % (50, "x"), "--b", side % (40, "y"))
    words = (*arms, "--metric", "json:ms", "--lower", "--pairs", 6, *FAST[2:])
    assert json.loads(census("ab", *words, "--out", "w1", "--json").out)["verdict"] == "DIFFERENT OUTPUT"
    declared = json.loads(census("ab", *words, "--out", "w2", "--allow-different-output", "--json").out)
    assert (declared["verdict"], declared["outputs"]) == ("SEP", "declared different")
