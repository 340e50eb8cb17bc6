"""The recorded crossover: whole, right, and what the gate table says, or the gate says why not."""

import json
from pathlib import Path

import pytest

from minfer.cuda import crossover as cross
from minfer.cuda import crossover_table as tables

TABLES = sorted((Path(__file__).parents[2] / "traces").glob("crossover*.jsonl"))


@pytest.fixture(params=TABLES, ids=lambda path: path.stem)
def table(request):
    return tables.parse(request.param, request.param.read_text())


def test_every_shape_of_the_catalogue_was_measured_and_right(table):
    assert set(cross.catalogued()) <= table.done()
    assert all(r["checked"] and r["us"] for r in table.rows)
    assert all(r["copies"] * r["bytes"] > 3 * table.headers[0]["l2_bytes"] for r in table.rows)


def test_no_kernel_reads_faster_than_memory(table):
    assert max(r["share"] for r in table.rows) < 1.05


def test_the_gates_are_what_it_measured_or_say_why_not(table):
    for choice in tables.choices(table.rows):
        gate = choice.gate
        said = choice.proposed == gate.min_elements or "crossover" in gate.reason
        assert said, f"{gate.type}: {gate.min_elements:,} loses {choice.loss_us:.1f} µs, best is {choice.best:,}"


def test_nothing_of_the_machine_is_in_it(table):
    assert not any(part.startswith("/") for part in table.headers[0]["command"].split())
    assert set(table.headers[0]) == {"crossover", "device", "l2_bytes", "bandwidth_gbs", "cupy", "cuda_runtime",
                                     "cuda_driver", "date", "seed", "command"}  # fmt: skip
    assert json.dumps(table.headers).isascii()
