"""The commands as a user sees them: golden output, exit codes, one line for every mistake.

A golden file that differs leaves what was printed beside it as NAME.got.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from census_data import BENCH, WINDOW, build, kernel, sql, trace

from analysis import cli

GOLDEN = Path(__file__).parent / "census_golden"
FILES = {"a": "llamacpp-qwen2-14b-h200-nofusion", "b": "llamacpp-qwen2-14b-h200",
         "whole": "llamacpp-qwen2-14b-h200-wholegraph", "probe": "probe-nsys2025.3-graphnodes"}

COMMANDS = {
    "ledger": "ledger b.sqlite",
    "ledger-top": "ledger b.sqlite --top 3 --time-from whole.sqlite",
    "ledger-csv": "ledger probe.sqlite --by layer --csv",
    "ledger-json": "ledger probe.sqlite --by op --json",
    "ledger-lag": "ledger b.sqlite --steps lag --by family",
    "ledger-whole": "ledger whole.sqlite",
    "ledger-none": "ledger probe.sqlite --steps none",
    "diff": "diff a.sqlite b.sqlite --by family --window window.json",
    "diff-json": "diff a.sqlite b.sqlite --top 2 --json",
    "fleet": "ledger many --by family --top 4",
    "scrub": "scrub probe.sqlite out.sqlite",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the traces under short names, so that output has no path of the machine in it."""
    for short, name in FILES.items():
        (tmp_path / f"{short}.sqlite").symlink_to(trace(name))
    (tmp_path / "window.json").symlink_to(WINDOW)
    (tmp_path / "bench.json").symlink_to(BENCH)
    (tmp_path / "many").mkdir()
    for i, short in enumerate(("a", "b", "b", "probe")):
        (tmp_path / "many" / f"{i}.sqlite").symlink_to(tmp_path / f"{short}.sqlite")
    (tmp_path / "many" / "broken.sqlite").write_text("not a trace")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_golden(name, place, capsys):
    code = cli.run(COMMANDS[name].split())
    said = capsys.readouterr()
    text = f"$ census {COMMANDS[name]}\n{said.out}{said.err}exit {code}\n"
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    want = GOLDEN / f"{name}.txt"
    if not want.exists() or want.read_text() != text:
        got = want.with_suffix(".got")
        got.write_text(text)
        pytest.fail(f"{want.name} differs from what was printed; see {got}")


MISTAKES = {
    "ledger": "Missing argument",
    "ledger nowhere.sqlite": "nowhere.sqlite: no such file",
    "ledger window.json": "not an sqlite file",
    "ledger b.sqlite --by colour": "--by colour: unknown key; allowed are kernel, family, shape, op, layer",
    "ledger b.sqlite --steps often": "--steps often: unknown; allowed are auto, nvtx, nvtx:REGEX, graph, lag, none",
    "ledger b.sqlite --steps nvtx:[": "not a regular expression",
    "ledger b.sqlite --steps nvtx": "--steps nvtx finds none: no NVTX ranges; try --steps auto",
    "ledger b.sqlite --top -1": "--top",
    "ledger b.sqlite --top many": "--top",
    "ledger b.sqlite --time-from probe.sqlite": "needs a whole-graph recording",
    "ledger b.sqlite --time-from nowhere.json": "nowhere.json: no such file",
    "ledger b.sqlite --save window.json": "not an sqlite file",
    "ledger empty": "holds no trace",
    "ledger none*.sqlite": "holds no trace",
    "ledger many --workers 0": "--workers 0",
    "ledger many --workers two": "give a number of processes",
    "diff a.sqlite": "Missing argument",
    "diff a.sqlite b.sqlite --window a.sqlite": "not a JSON file",
    "scrub b.sqlite b.sqlite": "is the trace itself",
    "scrub nowhere.sqlite out.sqlite": "no such file",
    "doctor nowhere.sqlite": "no such file",
    "colour": "No such command",
    "ledger b.sqlite --colour": "--colour",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_get_one_line_and_exit_code_2(line, place, capsys):
    (place / "empty").mkdir()
    code = cli.run(line.split())
    said = capsys.readouterr()
    assert code == 2 and said.out == ""
    assert said.err.startswith("census: ") and said.err.count("\n") == 1
    assert MISTAKES[line] in said.err
    assert not (place / "out.sqlite").exists()


def test_save_keeps_the_rows_in_a_table(place, capsys):
    assert cli.run(["ledger", "b.sqlite", "--save", "kept.db", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = sql(place / "kept.db", "SELECT kernel, exposed_us_per_step FROM census_ledger_kernel")
    assert rows == [(r["kernel"], r["exposed_us_per_step"]) for r in printed["rows"]]
    assert cli.run(["ledger", "b.sqlite", "--save", "kept.db", "--top", "2"]) == 0
    assert sql(place / "kept.db", "SELECT count(*) FROM census_ledger_kernel") == [(3,)]  # replaced: 2 rows and other
    assert cli.run(["diff", "a.sqlite", "b.sqlite", "--save", "kept.db"]) == 0
    assert len(sql(place / "kept.db", "SELECT name FROM sqlite_master")) == 2


def test_json_has_the_agreed_keys_and_adds_up(place, capsys):
    assert cli.run(["ledger", "b.sqlite", "--top", "4", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert {"method", "count", "launches_per_step"} <= set(made["steps"])
    assert {"kernel", "launches_per_step", "us_per_launch", "exposed_us_per_step", "share"} <= set(made["rows"][0])
    total = made["total"]
    assert {"launches_per_step", "exposed_us_per_step", "gap_us_per_step", "step_us"} <= set(total)
    assert len(made["rows"]) == 5 and made["rows"][-1]["kernel"] == "other (9 rows)"
    assert sum(r["exposed_us_per_step"] for r in made["rows"]) == pytest.approx(total["exposed_us_per_step"])
    assert sum(r["launches_per_step"] for r in made["rows"]) == total["launches_per_step"] == 918
    assert sum(r["share"] for r in made["rows"]) == pytest.approx(total["exposed_us_per_step"] / total["step_us"])


def test_no_command_prints_the_help(capsys):
    assert cli.run([]) == 0
    assert "ledger" in capsys.readouterr().out


def test_doctor_reports_on_machine_and_trace(place, capsys):
    assert cli.run(["doctor", "probe.sqlite", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {f["where"] for f in found} == {"this machine", "probe.sqlite"}
    assert {"nsys", "GPU", "CuPy", "python nvtx"} <= {f["what"] for f in found}


def test_interrupt_exits_130_and_leaves_no_half_file(tmp_path):
    """Ctrl-C in the middle of a copy, in a process of its own."""
    source = build(tmp_path / "in.sqlite", kernels=[kernel(i, i + 1) for i in range(400_000)])
    code = "from analysis.cli import main; main()"
    child = subprocess.Popen([sys.executable, "-c", code, "scrub", str(source), str(tmp_path / "out.sqlite")],
                             stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 30
    while not list(tmp_path.glob(".out.sqlite.*")) and time.time() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (130, "census: interrupted\n")
    assert [p.name for p in tmp_path.iterdir()] == ["in.sqlite"]
