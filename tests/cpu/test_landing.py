"""What a planned change saves: each rule by hand, minfer's own switches from their switch-off recordings, the table."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
from advice_data import ROOT, TRACES, launch, planned, step

from analysis import cli, landing, prediction, scores, sequence
from analysis import planned as plans
from analysis.landing import Recorded
from census.errors import CensusError

sys.path.insert(0, str(ROOT / "benchmarks"))
import predict_switches


def predict(now, then, us, **more):
    """Saving of going from one plan to another; `us` are the recorded times, a launch costs 1 µs (8 argmax)."""
    floor = [planned("argmax", "argmax", f"a{i}", None) for i in range(8)]
    recorded = step(*(launch(p.kernel, t, grid=p.grid[0], block=p.block[0]) for p, t in zip(now, us, strict=True)),
                    *[launch("argmax", 1.0)] * 8)
    return landing.predict(recorded, [*now, *floor], [*then, *floor], **more)


def ends(made):
    return made.saving_us.low, made.saving_us.point, made.saving_us.high


def test_a_launch_that_goes_saves_what_it_was_recorded_with():
    now = [planned("f32_bits_to_i32", "positions", f"p{i}", i) for i in range(3)]
    assert ends(predict(now, now[:1], [2, 2, 2])) == (4, 4, 4)


def test_other_block():
    """20 µs with 32 threads: all but the launch scales to a quarter (1 + 19/4 = 5.75), or nothing does."""
    now = [planned("rms_norm", "rms_norm", "n", block=32)]
    assert ends(predict(now, [replace(now[0], block=(128, 1, 1))], [20])) == pytest.approx((0, 14.25 / 2, 14.25))


def matmul(kernel, rows, id=100, size=None, name="w"):
    return planned(kernel, "matmul", name, grid=rows, size=size or rows * id, elements=rows * id)


def test_other_size_lies_between_its_neighbours():
    """3 µs at 10 rows and 7 at 30: 20 rows take 5, at most twice the 10 rows' 3, at least two thirds of 7."""
    now = [matmul("mmvq_q4_k", 10, name="a"), matmul("mmvq_q4_k", 30, name="b"), planned("add_f32", "add", "c")]
    made = predict(now, [*now[:2], matmul("mmvq_q4_k", 20, name="d")], [3, 7, 9])
    assert ends(made) == pytest.approx((9 - 6, 9 - 5, 9 - 14 / 3))


def test_other_type_takes_its_time_per_element_or_per_byte():
    """q4_k takes 8 µs for the same matrix; q6_k has 1.5 times the bytes: 8 to 12, where the f32 route took 20."""
    now = [matmul("mmvq_q4_k", 10, name="a"), matmul("matmul_q6_k_f32", 10, size=1500, name="b")]
    made = predict(now, [now[0], matmul("mmvq_q6_k", 10, size=1500, name="b")], [8, 20])
    assert ends(made) == pytest.approx((8, 10, 12))


def test_other_type_with_fewer_bytes_may_be_faster():
    """The other way round: q6_k takes 9 µs, q4_k has two thirds of its bytes: 6 to 9, where the f32 route took 20."""
    now = [matmul("mmvq_q6_k", 10, size=1500, name="a"), matmul("matmul_q4_k_f32", 10, name="b")]
    made = predict(now, [now[0], matmul("mmvq_q4_k", 10, name="b")], [9, 20])
    assert ends(made) == pytest.approx((11, 12.5, 14))


def test_other_family_is_between_the_bandwidth_and_what_it_replaces():
    """4,000 bytes at 1 GB/s take 4 µs."""
    now = [matmul("matmul_q4_k_f32", 40)]
    made = predict(now, [matmul("mmvq_q4_k", 40)], [10], bandwidth_gbs=1)
    assert ends(made) == pytest.approx((0, 3, 6))


def test_a_producer_takes_the_quantize_along():
    """Norm 8, two quantizes of 3 that read it: both go (6), the norm grows by one of them at most."""
    norm = planned("rms_norm_f32", "rms_norm", "n", out="slot:1", inputs=("slot:0",))
    quantize = [planned("quantize_pad40", "quantize", f"q{i}", inputs=("slot:1",), out="scratch:q8") for i in range(2)]
    made = predict([norm, *quantize], [replace(norm, kernel="rms_norm_quant_pad40")], [8, 3, 3])
    assert ends(made) == pytest.approx((3, 4.5, 6))


def test_a_kernel_in_place_of_several():
    """Works of 1, 2 and 3 µs behind launches of 1: one launch with 3 to 6 µs of work instead of 9 µs."""
    now = [planned("add_bias_f32", "add_bias", "b"), planned("rope_neox_f32", "rope", "r"),
           planned("kv_store_f16", "kv_store", "s")]
    made = predict(now, [planned("attn_bias_rope_store_f16", "qkv_epilogue", "e")], [2, 3, 4])
    assert ends(made) == pytest.approx((9 - 7, 9 - 5.5, 9 - 4))


def test_the_clock_sees_neither_the_tracer_nor_less_than_the_spread():
    """Traced 50, truly 40: 10 launches each 1 µs slower; 4 go. Steps differ by 2 x 3 µs. Host: 0.5 µs a launch."""
    recorded = step(*[launch("add", 5)] * 10, spread=3)
    made, why = landing.as_clocked(prediction.Interval(10, 20, 30), recorded, 4, Recorded(40, 5))
    assert (made.low, made.point, made.high) == pytest.approx((10 - 6 - 4, 20 * 0.8, 30 + 6 + 2))
    assert any("1.00 µs per launch" in w for w in why)


def test_no_saving_is_larger_than_the_chain():
    now = [planned("rms_norm", "rms_norm", "n", block=32)]
    made = predict(now, [], [20], true=Recorded(5, 1000))
    assert made.saving_us.high <= made.chain_us == 21  # itself and the launch behind it


MANIFEST = json.loads((TRACES / "manifest.json").read_text())
STEMS = sorted(p.stem for p in (TRACES / "predictions").glob("*.json"))


@pytest.mark.parametrize("stem", ["7b-d0-no-fuse-qkv", "14b-d3254-no-decode-a-fuse"])
def test_a_stored_prediction_is_what_its_files_say_today(stem, tmp_path):
    data = prediction.load(TRACES / "predictions" / f"{stem}.json")
    node, graph = (TRACES / f"{stem}-{mode}.sqlite.gz" for mode in ("node", "graph"))
    recorded = sequence.read(str(node))
    (entry,) = (e for e in MANIFEST if e["file"] == node.name)
    now, then = (predict_switches.plan(tmp_path, entry, s) for s in (data["switch"], None))
    plans.check(recorded, now, stem)
    made = landing.predict(recorded, now, then, bandwidth_gbs=data["bandwidth_gbs"], true=landing.recorded(str(graph)))
    assert prediction.as_dict(made.saving_us) == pytest.approx(data["saving_us"], abs=0.002)
    assert {i["file"]: i["sha256"] for i in data["inputs"]} == {f.name: sequence.digest(str(f)) for f in (node, graph)}
    with pytest.raises(CensusError, match="is not the plan of"):
        plans.check(recorded, then, stem)


def test_a_prediction_is_made_from_the_switch_off_recording_alone():
    for stem in STEMS:
        data = prediction.load(TRACES / "predictions" / f"{stem}.json")
        assert {i["file"] for i in data["inputs"]} == {f"{stem}-node.sqlite.gz", f"{stem}-graph.sqlite.gz"}


@pytest.fixture(scope="module")
def made():
    return scores.of_folder(TRACES)


def test_six_switches_against_whole_graph_recordings(made):
    """5 of 6 inside, the median point 25% off at most, for both models at both depths, in device time."""
    assert len(made) == 24
    for case in ("7b-d0-", "7b-d3254-", "14b-d0-", "14b-d3254-"):
        mine = [s for s in made if s.name.startswith(case)]
        told = scores.summary(mine)["device"]
        assert told["measured"] == 6 and told["inside"] >= 5 and told["median_error_pct"] <= 25


def test_predictions_are_older_than_their_windows(made):
    for s in made:
        window = TRACES / "windows" / f"{s.name}.json"
        if window.exists():
            assert s.made < json.loads(window.read_text())["date"]


def test_measured_windows_against_predictions(made):
    """The isolation windows of six switches, run after the predictions were committed."""
    told = scores.summary([s for s in made if s.clock_us is not None])["clock"]
    assert told["measured"] >= 6 and told["inside"] >= told["measured"] - 1 and told["median_error_pct"] <= 25


def test_the_table_is_one_command(capsys, tmp_path):
    assert cli.run(["table", str(TRACES)]) == 0
    said = capsys.readouterr().out
    assert "14b-d0-no-fuse-qkv" in said and "inside their interval" in said
    assert cli.run(["table", str(tmp_path)]) == 2
    assert "holds no predictions" in capsys.readouterr().err


@pytest.mark.parametrize(("b_ms", "inside"), [(4.2, True), (4.1, False), (4.4, False)])
def test_a_window_joins_the_table(tmp_path, b_ms, inside):
    """A window of 6 pairs at exactly 4.0 and B ms a token: a saving of 200, 100 or 400 µs against [125.9, 306.3]."""
    (tmp_path / "predictions").mkdir()
    (tmp_path / "windows").mkdir()
    shutil.copy(TRACES / "predictions" / "7b-d0-no-fuse-qkv.json", tmp_path / "predictions")
    runs = [{"pair": i, "order": "AB", "arm": arm, "value": v, "unit": "ms/token"} for i in range(6)
            for arm, v in (("A", 4.0), ("B", b_ms))]
    file = tmp_path / "windows" / "7b-d0-no-fuse-qkv.json"
    file.write_text(json.dumps({"A": "X=0 b", "B": "X=1 b", "runs": runs, "date": "2026-11-30"}))
    (score,) = scores.of_folder(tmp_path)
    saved = 1e3 * (b_ms - 4.0)
    assert score.clock_us == pytest.approx(saved) and score.clock_inside is inside and score.device_us is None
    assert score.clock_error_pct == pytest.approx(100 * (score.point - saved) / saved)


def test_the_command_keeps_a_prediction(tmp_path, capsys):
    now, then = tmp_path / "now.json", tmp_path / "then.json"
    for path, switch in ((now, "MINFER_NO_POS_MEMO"), (then, None)):
        header = tmp_path / "7b.gguf"
        if not header.exists():
            predict_switches._minfer("synth", "qwen2-7b", str(header), "--header-only")
        env = predict_switches.setting(MANIFEST[0]["date"], switch)
        path.write_text(predict_switches._minfer("plan", str(header), "--device", "cuda", "--json", env=env))
    trace, out = str(TRACES / "7b-d0-no-pos-memo-node.sqlite.gz"), tmp_path / "p.json"
    args = ["fusions", trace, "--plan", str(now), "--to", str(then), "--time-from", trace.replace("-node", "-graph")]
    assert cli.run([*args, "--save-to", str(out)]) == 0
    assert "f32_bits_to_i32" in capsys.readouterr().out
    stored = prediction.load(TRACES / "predictions" / "7b-d0-no-pos-memo.json")
    assert prediction.load(out)["saving_us"] == pytest.approx(stored["saving_us"], abs=0.002)
    assert cli.run(["fusions", trace, "--plan", str(then)]) == 2
    assert "is not the plan of" in capsys.readouterr().err
