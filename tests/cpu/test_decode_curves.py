"""benchmarks/decode_curves.py end to end on tiny models, its figure; benchmarks/decode_steps.py on recordings."""

import contextlib
import json
import subprocess
import sys

import pytest
from advice_data import ROOT, TRACES

from analysis import cli, clock, plots
from minfer.devices import where
from minfer.engine import plan_step
from minfer.gguf import open_gguf
from minfer.synth import PRESETS, synth
from tiny import KV, LAYERS, write_llama

sys.path.insert(0, str(ROOT / "benchmarks"))
import decode_curves
import decode_steps

DEPTHS = [0, 16, 48]
WINDOW = TRACES / "windows" / "7b-d0-no-fuse-qkv.json"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    synth("nano-qwen2", folder / "nano.gguf")
    return [folder / "nano.gguf", write_llama(folder / "llama.gguf")]


@pytest.fixture(scope="module")
def measured(models):
    """(lines, the picture's file, what was said) of a real run."""
    out = models[0].with_name("curves.jsonl")
    command = [sys.executable, str(ROOT / "benchmarks" / "decode_curves.py"), *map(str, models), "--device", "cpu",
               "-d", "0,16,48", "-n", "4", "-r", "2", "--out", str(out), "--plot", str(out.with_suffix(".png"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    return [json.loads(text) for text in out.read_text().splitlines()], out.with_suffix(".png"), done.stderr


def test_a_line_per_model_and_depth(measured):
    lines, _, said = measured
    assert [(line["model"], line["depth"]) for line in lines] == [(m, d) for m in ("nano", "llama") for d in DEPTHS]
    assert "nano: model 1 of 2" in said and said.count("tokens/s") == len(lines)
    for line in lines:
        assert line["n_gen"] == 4 and len(line["samples_ts"]) == 2
        assert line["avg_ts"] == pytest.approx(sum(line["samples_ts"]) / 2)
        assert line["date"].endswith("Z") and line["device"] and line["versions"]["launch-census"]
        assert line["command"][:3] == ["minfer", "bench", f"{line['model']}.gguf"]
        assert not any("/" in word for word in line["command"])


def test_bytes_are_the_plans_and_the_floor_is_theirs(measured, models):
    lines, _, _ = measured
    rows = {"nano": 2 * PRESETS["nano-qwen2"].layers * PRESETS["nano-qwen2"].kv_size, "llama": 2 * LAYERS * KV}
    for line in lines:
        with open_gguf(next(m for m in models if m.stem == line["model"])) as gguf:
            totals = plan_step(gguf, where("cpu", None), line["depth"]).totals()
        assert line["weight_bytes"] == totals["weight_bytes"]
        assert line["bytes_moved"] == totals["bytes_read"] + totals["bytes_written"]
        assert line["kv_bytes"] == 4 * rows[line["model"]] * (line["depth"] + 1)  # f32
        needed = line["weight_bytes"] + line["kv_bytes"]
        assert line["floor_ms"] == pytest.approx(needed / line["bandwidth_gbs"] / 1e6)
        assert line["floor_ms_reference"] == pytest.approx(needed / 4300e6)


@pytest.mark.parametrize("size", ["1.5b", "14b", "32b"])
def test_kv_bytes_of_the_cuda_plan(size, tmp_path):
    synth(f"qwen2-{size}", tmp_path / "m.gguf", header_only=True)
    p = PRESETS[f"qwen2-{size}"]
    with open_gguf(tmp_path / "m.gguf") as gguf:
        made = decode_curves.step_bytes(gguf, where("cuda", None), 16384)
    assert made["kv_bytes"] == 2 * 2 * p.layers * p.kv_size * 16385  # f16 keys and values


def test_the_figure_shows_the_lines(measured, tmp_path):
    lines, picture, _ = measured
    assert picture.read_bytes()[:4] == b"\x89PNG"
    figure = plots.decode_curves(lines)
    speed, cost = figure.axes
    drawn = [(list(x.get_xdata()), list(x.get_ydata()), x.get_linestyle(), x.get_color()) for x in speed.lines]
    for k, model in enumerate(("llama", "nano")):  # the smaller one first
        of = [line for line in lines if line["model"] == model]
        (x, y, _, colour), (floor_x, floor_y, dashes, floor_colour) = drawn[2 * k : 2 * k + 2]
        assert (x, y) == (DEPTHS, [line["avg_ts"] for line in of])
        assert (floor_x, dashes, floor_colour) == (DEPTHS, "--", colour)
        assert floor_y == pytest.approx([1e3 / line["floor_ms"] for line in of])
        (point,) = (x for x in cost.lines if x.get_label() == model)
        gb = (of[0]["weight_bytes"] + of[0]["kv_bytes"]) / 1e9
        assert (point.get_xdata()[0], point.get_ydata()[0]) == pytest.approx((gb, 1e3 / of[0]["avg_ts"]))
        assert point.get_color() == colour
    floor = cost.lines[-1]
    assert list(floor.get_ydata()) == pytest.approx([1e3 * gb / lines[0]["bandwidth_gbs"] for gb in floor.get_xdata()])
    assert "tokens per second" in speed.get_ylabel() and "GB" in cost.get_xlabel() and "ms" in cost.get_ylabel()
    footer = figure.get_supxlabel()
    assert lines[0]["device"] in footer and lines[0]["date"][:10] in footer
    plots.save(figure, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == picture.read_bytes()


@pytest.mark.parametrize(("name", "says"), [("bad.gguf", "not a GGUF file"), ("none.gguf", "no such file")])
def test_a_bad_file_is_one_line_before_anything_runs(models, tmp_path, capsys, name, says):
    (tmp_path / "bad.gguf").write_text("no model\n")
    out = tmp_path / "x.jsonl"
    args = [str(models[0]), str(tmp_path / name), "--device", "cpu", "--out", str(out)]
    assert decode_curves.main(args) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and says in said.err and not out.exists()


def test_what_minfer_refuses_is_its_line(models, tmp_path, capsys):
    args = [str(models[0]), "--device", "cpu", "--n-depth=-1", "--out", str(tmp_path / "x.jsonl")]
    assert decode_curves.main(args) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "-d '-1' is not allowed" in line] == said[-1:]


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", "x\n"])
def test_other_lines_cannot_be_drawn(text, tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text(text)
    assert decode_curves.main(["--out", str(tmp_path / "x.jsonl"), "--plot", str(tmp_path / "x.png")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "holds no lines" in said


def test_lines_of_two_devices_are_not_one_figure(measured, tmp_path, capsys):
    lines = [measured[0][0], measured[0][1] | {"device": "another"}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert decode_curves.main(["--out", str(tmp_path / "x.jsonl"), "--plot", str(tmp_path / "x.png")]) == 2
    assert "several devices" in capsys.readouterr().err


@pytest.fixture(scope="module")
def landed(tmp_path_factory):
    """Ledgers before and after, and the verdict, as the commands print them."""
    folder, made = tmp_path_factory.mktemp("landed"), []
    for name, command in (("before", ["ledger", str(TRACES / "7b-d0-no-fuse-qkv-node.sqlite.gz")]),
                          ("after", ["ledger", str(TRACES / "7b-d0-default-node.sqlite.gz")]),
                          ("verdict", ["verdict", str(WINDOW)])):  # fmt: skip
        made.append(said(command, folder / f"{name}.json"))
    return made


def said(command, path):
    """A file with what `census COMMAND --json` prints."""
    with path.open("w") as out, contextlib.redirect_stdout(out):
        assert cli.run([*command, "--json"]) == 0
    return str(path)


def test_a_landed_step(landed, capsys):
    assert decode_steps.main([*landed, "--predicted", "215.257"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    times = clock.read(WINDOW)
    assert lines[0] == "### 2026-11-29: MINFER_NO_FUSE_QKV" and "- device: NVIDIA H200" in lines
    assert "- after: `MINFER_NO_FUSE_QKV=0 minfer bench" in text and "- predicted saving: 215 µs per step" in lines
    assert f"- measured saving: {times.change_us:,.0f} µs per step, [{times.low_us:,.0f}, {times.high_us:,.0f}]" in text
    assert "**SEP**, A faster, separated; A wins 6 of 6 pairs, +6.50% [+4.22%, +9.90%] (SEP yes); outputs equal" in text
    assert "| add_bias_f32 | 84 | 0 | 112.4 | 0.0 | -112.4 |" in lines
    assert "| all kernels | 621 | 439 | 4,344.0 | 4,094.0 | -250.0 |" in lines
    rows = [line for line in lines if line.startswith("| ")][1:-2]  # without the head, the sum and the step
    changes = [float(line.split("|")[-2].replace(",", "")) for line in rows]
    assert sum(changes) == pytest.approx(-250.0, abs=0.5)  # what is listed and the rest are the whole


def test_the_arms_the_other_way_round(landed, capsys):
    assert decode_steps.main([landed[1], landed[0], landed[2], "--predicted", "1", "--after", "B"]) == 0
    assert "- measured saving: -257 µs per step, [-398, -174]" in capsys.readouterr().out


def test_a_window_of_another_figure_has_no_microseconds(landed, tmp_path, capsys):
    other = str(ROOT / "tests" / "data" / "window-llamacpp-fusion-14b-h200.json")
    assert decode_steps.main([*landed[:2], said(["verdict", other], tmp_path / "v.json"), "--predicted", "1"]) == 0
    text = capsys.readouterr().out
    assert "not in µs per step, the window's figure is avg_ns" in text and "no switch differs" in text


def test_other_files_are_one_line(landed, tmp_path, capsys):
    for files in (landed[::-1], [*landed[:2], str(tmp_path / "none.json")], [str(WINDOW)] * 3):
        assert decode_steps.main([*files, "--predicted", "1"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and err.startswith("decode_steps: ")
