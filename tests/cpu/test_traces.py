"""The published recordings: every one is in the manifest, and each recorded step is the plan, launch for launch."""

import itertools
import json
from functools import cache
from pathlib import Path

import pytest

from census import ledger, run, sources
from census import trace as tr
from census.reconcile import reconcile
from minfer.devices import Where
from minfer.engine import plan_step
from minfer.gguf import open_gguf
from minfer.options import Options
from minfer.plan import launch_dict
from minfer.synth import synth

TRACES = Path(__file__).parents[2] / "traces"
MANIFEST = json.loads((TRACES / "manifest.json").read_text())
STREAM = "2026-11-30"  # a recording from before this day is of a plan under MINFER_NO_STREAM
NODE = [e for e in MANIFEST if e["graphs"] == "node"]
WHOLE = [e for e in MANIFEST if e["graphs"] == "graph" and e["switch"] != "MINFER_NO_CUDA_GRAPH"]


def ids(entry):
    return entry["file"].removesuffix(".sqlite.gz")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("headers")

    @cache
    def plan(model, depth, *switches):
        path = folder / f"{model}.gguf"
        if not path.exists():
            synth(f"qwen2-{model}", path, header_only=True)
        where = Where("cuda", Options(frozenset(switches), "f16"))
        return [launch_dict(x) for x in plan_step(open_gguf(path), where, depth).launches]

    return plan


def test_the_manifest_lists_every_recording_and_how_it_was_made():
    assert {e["file"] for e in MANIFEST} == {p.name for p in TRACES.glob("*.gz")}
    for entry in MANIFEST:
        assert entry["device"] == ["NVIDIA H200"] and entry["date"].endswith("Z")
        assert entry["command"][:2] == ["minfer", "bench"] and entry["versions"]["nsys"]
        assert not any(part.startswith("/") for part in entry["command"])


def test_of_the_reports_path_there_are_both_models_both_depths_every_switch_both_modes():
    old = [(e["model"], e["depth"], e["switch"], e["graphs"]) for e in MANIFEST if e["date"] < STREAM]
    switches = {switch for _, _, switch, _ in old}
    assert len(old) == len(set(old))
    assert set(old) == set(itertools.product(("7b", "14b"), (0, 3254), switches, ("node", "graph")))
    assert len(switches) == 8 and None in switches


def test_of_the_default_since_there_is_the_same_without_switches_or_nothing_yet():
    new = [(e["model"], e["depth"], e["switch"], e["graphs"]) for e in MANIFEST if e["date"] >= STREAM]
    assert len(new) == len(set(new))
    assert set(new) in (set(), set(itertools.product(("7b", "14b"), (0, 3254), (None,), ("node", "graph"))))


@pytest.mark.parametrize("entry", NODE, ids=ids)
def test_every_recorded_step_is_the_plan_launch_for_launch(planned, entry):
    switches = [entry["switch"], "MINFER_NO_STREAM" if entry["date"] < STREAM else None]
    plan = planned(entry["model"], entry["depth"], *filter(None, switches))
    held = reconcile(plan, run.step_kernels(TRACES / entry["file"]))
    assert held.holds and held.steps == entry["steps"] and held.planned == len(plan), held.differences
    made = ledger.of_file(str(TRACES / entry["file"]), by="layer")
    layers = 28 if entry["model"] == "7b" else 48
    assert sum(r.key.startswith("layer ") for r in made.rows) == layers
    assert made.identity.without_launch == 0


@pytest.mark.parametrize("entry", WHOLE, ids=ids)
def test_whole_graph_recordings_give_the_true_step_time(entry):
    """A step is one replay; it takes no more than the step recorded node by node, tracing included."""
    graph = ledger.of_file(str(TRACES / entry["file"]))
    node = ledger.of_file(str(TRACES / entry["file"].replace("-graph.", "-node.")))
    assert graph.steps.count == entry["steps"] == node.steps.count
    assert 0.5 * node.total.step_us < graph.total.step_us < 1.02 * node.total.step_us


def test_nothing_of_the_recorded_machine_is_in_them():
    for entry in MANIFEST[::9]:
        opened = sources.open_source(str(TRACES / entry["file"]))
        try:
            assert not tr.secrets(opened)
        finally:
            tr.close(opened)
