"""`minfer crossover` without a GPU: kernels run on the emulator, time is a formula with a known crossing."""

import importlib.util
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from census import catalogue
from cli import run_main
from fake_cupy import FakeCupy
from minfer import cli, crossover_cli
from minfer.cuda import crossover as cross
from minfer.cuda import crossover_table as tables
from minfer.cuda import dispatch
from minfer.cuda.crossover import Shape
from minfer.errors import UserError
from on_cpu import packed

L2 = 20_000
CROSSING = 100_000  # elements from where the fake machine's mmvq is the faster one


class Emulated:
    """The kernels' own source on the CPU; a launch takes bytes µs, mmvq as many more or fewer as it is off CROSSING."""

    def __init__(self, broken="", device="fake"):
        from minfer.emulated.device import runner

        self.facts = {"device": device, "l2_bytes": L2, "bandwidth_gbs": 1000.0}
        self.execute, self.broken, self.captured, self.pools = runner(), broken, [], {}

    def fits(self, nbytes):
        return nbytes < 1 << 30

    def load(self, shape, rows, nbytes):
        self.pools[shape.type] = np.resize(packed(rows, shape.type, shape.id), nbytes)

    def quantize(self, x):
        plane = np.zeros(x.size // 32 * 40, np.uint8)
        self.execute("quantize_pad40", (-(-x.size // 32 // 64),), [x, plane, np.int32(x.size // 32)])
        return plane

    def run(self, call):
        shape, out = call.shape, np.full(call.shape.od, np.nan, np.float32)
        weights = self.pools[shape.type][: shape.nbytes].copy()
        self.execute(call.kernel, call.grid, [weights, call.source, out, np.int32(shape.id), np.int32(shape.od)])
        if call.kernel == self.broken:
            out[-1] += 1
        return out

    def capture(self, call, copies, launches):
        self.captured.append((call.kernel, call.shape, copies, launches))
        size = call.shape.od * call.shape.id
        us = 10.0 if call.kernel.startswith("matmul") else 10.0 * CROSSING / size
        noise = iter([0, *np.tile([-0.1, 0, 0.1], 10)])  # the first replay is not counted
        return lambda: launches * (us + next(noise))


SMALL = [Shape("Q6_K", 40, 512), Shape("Q6_K", 130, 1024), Shape("Q4_K", 33, 256), Shape("Q8_0", 9, 64)]


@pytest.fixture(scope="module")
def lines():
    machine = Emulated()
    session = cross.Session(machine, SMALL, seed=1)
    return machine, [row for shape in SMALL for row in session.measure(shape)]


def test_every_kernel_is_checked_and_timed(lines):
    _, rows = lines
    kernels = [f"{stem}_{t}{end}" for t in ("q6_k", "q6_k", "q4_k", "q8_0")
               for stem, end in (("mmvq", ""), ("matmul", "_f32"))]  # fmt: skip
    assert [r["kernel"] for r in rows] == kernels
    assert all(r["checked"] and r["error"] < cross.TOLERANCE and r["us"] is not None for r in rows)


def test_figures_of_a_line(lines):
    _, rows = lines
    row = rows[3]  # matmul_q6_k_f32, 130x1024: 10 µs, spread 0.1
    assert (row["us"], row["us_min"], row["us_max"], row["rounds"]) == pytest.approx((10, 9.9, 10.1, cross.ROUNDS))
    assert row["bytes"] == 130 * (4 * 208 + 16)  # rows of 4 superblocks
    assert row["gbs"] == 11.0 and row["share"] == 0.011  # 110,240 bytes in 10 µs, of 1000 GB/s


def test_weights_go_by_three_times_the_l2_before_they_come_again(lines):
    machine, _ = lines
    for _, shape, copies, launches in machine.captured:
        assert copies * shape.nbytes > 3 * L2 and launches % copies == 0 and launches >= cross.LEAST_LAUNCHES
        assert shape.stride >= shape.nbytes and shape.stride % 256 == 0
        assert machine.pools[shape.type].nbytes >= copies * shape.stride


def test_a_wrong_kernel_gets_no_time():
    session = cross.Session(Emulated(broken="mmvq_q6_k"), SMALL[:1], seed=1)
    mmvq, matmul = session.measure(SMALL[0])
    assert mmvq["us"] is None and not mmvq["checked"] and mmvq["error"] > cross.TOLERANCE
    assert matmul["us"] is not None


def test_an_element_that_is_not_written_is_wrong():
    out = np.array([1, np.nan], np.float32)
    assert cross.error(out, [0], np.ones((1, 1)), np.ones(1, np.float32)) == np.inf


def test_order_is_random_models_first():
    shapes = cross.plan(["Q6_K"], [256, 512], [256, 512], [("Q6_K", 7, 256), ("Q6_K", 9, 256), ("Q4_K", 1, 256)], 3)
    assert {s.key for s in shapes[:2]} == {("Q6_K", 7, 256), ("Q6_K", 9, 256)} and len(shapes) == 6
    orders = {tuple(cross.plan(["Q6_K"], range(1, 9), [256], [], seed)) for seed in range(5)}
    assert len(orders) == 5

    calls = {"a": cross.Call("mmvq_q6_k", SMALL[0], np.zeros(1)), "b": cross.Call("matmul_q6_k_f32", SMALL[0], None)}
    said = []

    class Told(Emulated):
        def capture(self, call, copies, launches):
            return lambda: said.append(call.kernel) or 1.0

    cross.time_calls(Told(), calls, random.Random(0))
    turns = [tuple(said[i : i + 2]) for i in range(0, len(said), 2)]
    assert len(set(turns)) == 2 and all(len(set(t)) == 2 for t in turns)  # both orders, each kernel once a turn


def test_the_gpus_side_on_a_stand_in(monkeypatch):
    """Copies in turn inside the graphs, nothing loads while capturing, the outputs are right."""
    from minfer.cuda import crossover_gpu
    from minfer.emulated.device import runner

    def weights_bytes(name, od, id):
        return Shape(name.split("_", 1)[1].removesuffix("_f32").upper(), int(od), int(id)).nbytes

    fake = FakeCupy(runner(), weights_bytes)
    monkeypatch.setattr(crossover_gpu.cupy_module, "load", lambda: fake)
    monkeypatch.setattr(crossover_gpu.cupy_module, "function", fake.function)
    monkeypatch.setattr(crossover_gpu, "measure_bandwidth", lambda: 100.0)
    shape = Shape("Q6_K", 9, 512)  # 3888 bytes: 3 · 4096 / 3888 + 1 = 4 copies, twice round for 8 launches
    rows = cross.Session(crossover_gpu.Gpu(), [shape], seed=1).measure(shape)
    assert [(r["kernel"], r["checked"], r["us"]) for r in rows] == [
        ("mmvq_q6_k", True, 1.0), ("matmul_q6_k_f32", True, 1.0)]  # fmt: skip
    places = [place for name, place in fake.launched if name == "mmvq_q6_k"]
    assert [p - places[0] for p in places[1:9]] == [i % 4 * shape.stride for i in range(8)]
    assert len(places) == 1 + 8 * (cross.ROUNDS + 1)  # the check, and the replays


# --- the table ------------------------------------------------------------------------------------------------------


def fake_rows(shape, factor=1.0):
    """mmvq wins from 5,000,000 elements on."""
    elements = shape.od * shape.id
    times = {f"mmvq_{shape.type.lower()}": 5e6 / elements * 10 * factor, f"matmul_{shape.type.lower()}_f32": 10.0}
    return [{"type": shape.type, "od": shape.od, "id": shape.id, "kernel": k, "elements": elements, "us": us,
             "us_min": us, "us_max": us, "checked": True} for k, us in times.items()]  # fmt: skip


def test_a_run_goes_on_where_it_stopped(tmp_path):
    path, shapes, facts = tmp_path / "t.jsonl", [Shape("Q6_K", n, 256) for n in range(1, 11)], Emulated().facts
    ticks = iter(range(100))
    table = tables.open_table(path)
    table.begin(facts)
    assert tables.run(table, shapes, fake_rows, lambda: next(ticks), 4, lambda done, total: None) == 7
    with path.open("a") as file:
        file.write('{"type": "Q6_K", "od": 4')  # killed while writing
    again = tables.open_table(path)
    again.begin(facts)
    assert tables.run(again, shapes, fake_rows, lambda: 0, 1, lambda done, total: None) == 0
    text = [json.loads(line) for line in path.read_text().splitlines()]
    assert len([r for r in text if "crossover" in r]) == 2 and len([r for r in text if "od" in r]) == 20
    with pytest.raises(UserError, match="other"):
        tables.open_table(path).begin(facts | {"device": "other"})


@pytest.mark.parametrize("text", ["nonsense\n", "[1]\n", '{"type": "Q6_K"}\n', "3\n"])
def test_another_file_is_refused(text, tmp_path):
    (tmp_path / "t").write_text(text)
    with pytest.raises(UserError, match="line 1"):
        tables.open_table(tmp_path / "t")


def table_with(sizes, kind="Q6_K"):
    return [row for od in sizes for row in fake_rows(Shape(kind, od, 1000))]


def test_the_constant_is_where_the_times_cross():
    # crossing at 5,000,000 elements: between 4,900,000 and 5,100,000 the round number is the constant
    (choice,) = tables.choices(table_with([100, 3000, 4500, 4900, 5100, 9000, 30000]))
    assert (choice.best, choice.best_loss_us, choice.shapes) == (5_000_000, 0, 7)
    # at 4,000,000 the shapes of 4.5 and 4.9 million take mmvq, 10 µs · (5 / 4.5 - 1) and 10 µs · (5 / 4.9 - 1) too slow
    assert choice.loss_us == pytest.approx(10 * (5 / 4.5 - 1) + 10 * (5 / 4.9 - 1))


def test_a_shape_of_exactly_the_constant_takes_the_gates_kernel():
    rows = [row for od in (4000, 9000) for row in fake_rows(Shape("Q6_K", od, 1000), factor=2)]
    (choice,) = tables.choices(rows)  # 4,000,000 elements: mmvq takes 10 · 2 · 5 / 4 = 25 µs, the other 10
    assert choice.gate.min_elements == 4_000_000 and choice.loss_us == pytest.approx(15 + (2 * 50 / 9 - 10))


def test_a_constant_that_is_as_good_stays():
    (choice,) = tables.choices(table_with([1000, 9000, 30000]))  # 4,000,000 parts these as 5,000,000 does
    assert choice.loss_us == 0 and choice.proposed == choice.gate.min_elements


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_the_proposal_is_a_diff_that_applies(tmp_path):
    rows = table_with([100, 4200, 4500, 4900, 5100, 9000]) + table_with([100, 4900, 5100, 9000, 20000], "Q5_K")
    source = Path(dispatch.__file__).read_text()
    diff = tables.proposal(tables.choices(rows), source, "H200", "2026-12-01")
    place = tmp_path / "minfer/cuda/dispatch.py"
    place.parent.mkdir(parents=True)
    place.write_text(source)
    subprocess.run(["patch", "-p1"], input=diff, text=True, cwd=tmp_path, check=True, capture_output=True)
    spec = importlib.util.spec_from_file_location("patched_dispatch", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    changed = [g for g in module.GATES if g not in _as(module, dispatch.GATES)]
    assert [(g.type, g.min_elements, g.was, g.date, g.reason) for g in changed] == [
        ("Q6_K", 5_000_000, 4_000_000, "2026-12-01", "crossover on H200, 6 shapes"),
        ("Q5_K", 5_000_000, 24_000_000, "2026-12-01", "crossover on H200, 5 shapes"),
    ]
    assert len(module.GATES) == len(dispatch.GATES)
    assert Path(dispatch.__file__).read_text() == source  # proposed, never edited


def _as(module, gates):
    return [module.Gate(**vars(g)) for g in gates]


def test_the_catalogue_on_disk_is_what_the_generator_writes():
    assert cross.CATALOGUED.read_text() == catalogue.measured_csv(), "run python -m census.catalogue"
    assert ("Q6_K", 1024, 5120) in cross.catalogued() and ("Q4_K", 7168, 5120) in cross.catalogued()  # q, k, v of one


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def minfer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return lambda *args: run_main(cli.main, "minfer", args, monkeypatch, capsys)


def test_command_from_measuring_to_a_proposal(minfer, tmp_path, monkeypatch):
    monkeypatch.setattr(crossover_cli, "_machine", Emulated)
    args = ("crossover", "--types", "Q6_K", "--od", "20,100,400", "--id", "256,512", "--no-models", "--out", "t.jsonl")
    done = minfer(*args)
    assert done.code == 0 and "6 shapes in t.jsonl" in done.out and done.err == ""
    data = json.loads(minfer(*args, "--json").out)  # nothing is measured twice
    assert data["left"] == 0 and data["shapes"] == 6
    assert data["gates"][0]["best"] == CROSSING  # between 400x256 = 102,400, faster with mmvq, and 51,200
    diff = minfer("crossover", "--apply", "--out", "t.jsonl").out
    assert '+        "Q6_K", "mmvq_{t}", True, _ONE, 100_000, (_NO_KQ, _NO_MMVQ),' in diff.splitlines()


def test_a_wrong_kernel_is_named_and_the_exit_code_says_so(minfer, monkeypatch):
    monkeypatch.setattr(crossover_cli, "_machine", lambda: Emulated(broken="mmvq_q6_k"))
    done = minfer("crossover", "--types", "Q6_K", "--od", "20", "--id", "256", "--no-models")
    assert done.code == 1 and "WRONG: mmvq_q6_k 20x256" in done.out


@pytest.mark.parametrize("args, said", [
    (["--types", "Q9"], "--types Q9"), (["--types", "F16"], "--types F16"), (["--od", "x"], "--od"),
    (["--id", "0"], "--id"), (["--apply", "--out", "nowhere"], "nowhere"),
])  # fmt: skip
def test_mistakes_are_one_line(args, said, minfer):
    done = minfer("crossover", *args)
    assert (done.code, done.out) == (2, "") and said in done.err and done.err.count("\n") == 1
