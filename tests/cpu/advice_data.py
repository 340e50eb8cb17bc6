"""Steps made by hand for the advice's tests: every time is a round number that can be added up in a comment."""

from pathlib import Path

from analysis.planned import Planned
from analysis.sequence import Launch, Step

ROOT = Path(__file__).parents[2]
DATA, TRACES = ROOT / "tests" / "data", ROOT / "traces"
UNFUSED, FUSED, WHOLE = (str(DATA / f"llamacpp-qwen2-14b-h200{tail}.sqlite.gz") for tail in ("-nofusion", "",
                                                                                              "-wholegraph"))
WINDOW = DATA / "window-llamacpp-fusion-14b-h200.json"
BENCH = str(DATA / "llama-bench-qwen2-14b-h200.json")


def launch(kernel, us, *, grid=1, block=128, registers=32, gap=0.0, duration=None, layer=None, op=None):
    lasts = us if duration is None else duration
    return Launch(kernel, layer, op, (grid, 1, 1), (block, 1, 1), registers, us, gap, lasts)


def step(*launches, spread=0.0, host=None, sms=100):
    total = sum(x.cost_us for x in launches)
    least, most = total - spread, total + spread
    return Step("hand.sqlite", "0" * 64, "GPU", sms, 1000.0, launches, 4, total, least, most, host, ())


def planned(kernel, op, name, layer=0, *, grid=1, block=128, size=1000, inputs=(), out="", weights=(), elements=0):
    return Planned(kernel, op, name, layer, (grid, 1, 1), (block, 1, 1), size, 0, 0, tuple(inputs), out, tuple(weights),
                   elements)
