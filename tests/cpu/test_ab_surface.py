"""The surface of a switch: asked of minfer before the first run, stored in the plan, checked against recordings."""

import json
import sys

import pytest
from census_data import build, kernel

from analysis.cli import main
from census.ab import log, surface
from census.ab.plan import Arm
from cli import run_main
from minfer.switches import SWITCHES

SURFACE = {"switch": "MINFER_NO_FUSE_QKV", "launches_per_step": {"off": 5, "on": 3, "delta": -2},
           "rows": [{"kernel": "gemv", "off": 4, "on": 1}, {"kernel": "gemv_qkv", "off": 0, "on": 1},
                    {"kernel": "norm", "off": 1, "on": 1}]}  # fmt: skip
FAKE = """#!{python}
import json, os, pathlib, sys
with open("asked", "a") as file:
    file.write(" ".join(sys.argv[1:]) + " started=" + str(pathlib.Path("w/runs.jsonl").exists()) + "\\n")
if sys.argv[1] == "surface":
    {surface}
on = os.environ["MINFER_NO_FUSE_QKV"]
row = {{"n_prompt": 0, "n_gen": 4, "avg_ns": 4000000 - 400000 * int(on), "avg_ts": 1, "output_hash": "h",
       "switches": {{"MINFER_NO_FUSE_QKV": on}} if on == "1" else {{}}}}
print(json.dumps([row]))
"""
ANSWER = f"print({json.dumps(json.dumps(SURFACE))}); sys.exit(0)"


@pytest.fixture
def census(monkeypatch, capsys, tmp_path):
    """`census ab` with a fake minfer on PATH that answers `surface` by a line of Python."""
    monkeypatch.chdir(tmp_path)

    def call(answer, *options, switch="MINFER_NO_FUSE_QKV", program="minfer"):
        fake = tmp_path / "bin" / "minfer"
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(FAKE.format(python=sys.executable, surface=answer))
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
        words = ("--cmd", f"{program} bench -n 4 m.gguf -p 0 --kv f32 --device auto -o json", "--switch", switch,
                 "--out", "w", "--pairs", 2, "--gap", 0, "--warmup", 0, "--host-load", 64)  # fmt: skip
        return run_main(main, "census", ["ab", *words, *options], monkeypatch, capsys)

    return call


def plan(tmp_path):
    return json.loads((tmp_path / "w" / log.PLAN).read_text())


def test_the_surface_is_printed_before_the_first_run_and_kept(census, tmp_path):
    done = census(ANSWER)
    assert done.code == 0
    said = done.err.splitlines()
    assert said[0] == "surface of MINFER_NO_FUSE_QKV: 5 -> 3 launches per step (-2)"
    assert said[1:3] == ["  gemv: 4 -> 1 (-3)", "  gemv_qkv: 0 -> 1 (+1)"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "surface MINFER_NO_FUSE_QKV m.gguf --kv f32 --json started=False" and len(asked) == 5
    assert plan(tmp_path)["surface"] == SURFACE | {"device": None}


def test_a_switch_that_changes_nothing_is_warned_about(census):
    same = SURFACE | {"device": "cpu", "rows": [{"kernel": "norm", "off": 1, "on": 1}]}
    done = census(f"print({json.dumps(json.dumps(same))}); sys.exit(0)", "--json")
    said = "MINFER_NO_FUSE_QKV changes no launch in the plan of cpu: both arms run the same kernels"
    assert f"warning: {said}" in done.err.splitlines() and said in json.loads(done.out)["warnings"]
    assert not any("changes no launch" in w for w in json.loads(census(ANSWER, "--json", "--out", "x").out)["warnings"])


@pytest.mark.parametrize(("answer", "said"), [
    ("sys.stderr.write('minfer: No such command surface\\n'); sys.exit(2)", "No such command surface"),
    ("sys.stderr.write('minfer: unknown switch X\\n'); sys.exit(2)", "unknown switch X"),
    ("print('hello'); sys.exit(0)", "answered in another form"),
    ("print('{\"rows\": []}'); sys.exit(0)", "answered in another form"),
])  # fmt: skip
def test_a_minfer_that_cannot_say_is_one_line_and_the_window_runs(census, tmp_path, answer, said):
    done = census(answer)
    assert done.code == 0 and done.err.startswith("surface: not known: ") and said in done.err.splitlines()[0]
    assert said in plan(tmp_path)["surface"]["not_known"]


@pytest.mark.parametrize(("words", "found"), [
    ("minfer bench m.gguf -n 4", (["minfer"], "m.gguf", [])),
    ("/x/minfer bench -n 4 --no-warmup m.gguf", (["/x/minfer"], "m.gguf", [])),
    ("python3 -m minfer bench -o json m.gguf --kv f16", (["python3", "-m", "minfer"], "m.gguf", ["--kv", "f16"])),
    ("minfer plan m.gguf", None), ("llama-bench -m m.gguf", None), ("minfer bench -n 4", None), ("python3 x.py", None),
])  # fmt: skip
def test_which_commands_have_a_surface(words, found):
    assert surface.engine(tuple(words.split())) == found


def test_the_real_minfer_is_asked(qwen2_7b_header):
    """Of each switch that changes plans, the rows add up to the launches; of another it says why not."""
    arm = Arm((sys.executable, "-m", "minfer", "bench", str(qwen2_7b_header), "-p", "0"), {})
    assert surface.ask(arm, "MINFER_NVTX", ".", {}).why.startswith("not known: ")
    known = [name for name in SWITCHES if name.startswith("MINFER_NO_")]
    for name in known[:2]:
        data = surface.ask(arm, name, ".", {}).data
        assert data["switch"] == name
        assert sum(r["on"] - r["off"] for r in data["rows"]) == data["launches_per_step"]["delta"]


def steps(path, *names):
    """A trace of two decode steps, each launching these kernels in order."""
    api, kernels, nvtx = [], [], []
    for step in range(2):
        begin = 1000 * step
        nvtx.append((begin, begin + 500, 59, f"decode {step}", 0))
        for i, name in enumerate(names):
            number = step * len(names) + i + 1
            api.append((begin + 10 * i + 1, begin + 10 * i + 2, number, "cudaLaunchKernel"))
            kernels.append(kernel(begin + 10 * i + 3, begin + 10 * i + 9, corr=number, name=name))
    return build(path, nvtx=nvtx, api=api, kernels=kernels)


OFF = ("norm", "gemv", "gemv", "gemv", "gemv")


def test_recorded_launches_that_changed_as_the_surface_says(census, tmp_path):
    traces = steps(tmp_path / "a.sqlite", *OFF), steps(tmp_path / "b.sqlite", "norm", "gemv_qkv", "gemv")
    done = census(ANSWER, "--trace-a", traces[0], "--trace-b", traces[1])
    assert done.code == 0
    assert "recorded: 5 -> 3 launches per step (-2), exactly as the surface says" in done.err.splitlines()
    assert plan(tmp_path)["launches"]["launches_per_step"] == {"off": 5, "on": 3, "delta": -2}


def test_recorded_launches_that_changed_otherwise_stop_the_window(census, tmp_path):
    """The total is right and a kernel is wrong: the names count."""
    traces = steps(tmp_path / "a.sqlite", *OFF), steps(tmp_path / "b.sqlite", "norm", "gemv_qkv", "gemv_qkv")
    done = census(ANSWER, "--trace-a", traces[0], "--trace-b", traces[1])
    complaint = done.err.splitlines()[-1]
    assert done.code == 2 and not (tmp_path / "w").exists() and done.err.count("census: ") == 1
    assert "gemv: -4, the surface says -3; gemv_qkv: +2, the surface says +1; nothing is timed" in complaint


def test_without_a_surface_recorded_launches_are_shown(census, tmp_path):
    traces = steps(tmp_path / "a.sqlite", *OFF), steps(tmp_path / "b.sqlite", "norm", "gemv")
    done = census("sys.exit(1)", "--trace-a", traces[0], "--trace-b", traces[1])
    assert "recorded: 5 -> 2 launches per step (-3); there is no surface to check it against" in done.err
    assert "  gemv: 4 -> 1 (-3)" in done.err.splitlines()


def test_an_engine_that_finds_another_value_than_the_arm_sets_is_refused(census):
    lie = "pass\nos.environ['MINFER_NO_FUSE_QKV'] = '1'"
    done = census(lie)
    assert done.code == 2 and "found MINFER_NO_FUSE_QKV=1, which is not what this arm sets" in done.err


def test_a_switch_that_no_run_echoes_is_warned_about(census):
    done = census(ANSWER + "\nos.environ.setdefault('MINFER_NO_FUSE_QKV', '0')", "--json", switch="MINFER_OTHER")
    assert any("no run reports that it found MINFER_OTHER set" in w for w in json.loads(done.out)["warnings"])
