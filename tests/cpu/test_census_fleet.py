"""Two hundred traces: one table from one process, from two, and from a Dask cluster; dead workers lose nothing."""

import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
from census_data import OURS, build, kernel, trace

from census import fleet, fleet_report
from census.errors import CensusError

COPIES = 200


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> list[str]:
    """Copies of the recorded traces (links: a copy is what its bytes are) and one that is broken."""
    folder = tmp_path_factory.mktemp("many")
    for i in range(COPIES):
        (folder / f"{i:03}.sqlite").symlink_to(trace(OURS[i % len(OURS)]))
    (folder / "broken.sqlite").write_text("not a trace")
    return fleet.expand(str(folder))


@pytest.fixture(scope="module")
def alone(many) -> fleet.Fleet:
    return fleet.run(many, by="family", workers="1")


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made:
        yield made


def test_one_process(many, alone):
    assert len(many) == COPIES + 1 and [o.trace for o in alone.outcomes] == many
    failed = [o for o in alone.outcomes if o.error]
    assert [o.trace for o in failed] == [many[-1]] and "not an sqlite file" in failed[0].error
    # 200 = 6 x 33 + 2: the first two kinds of trace have 34 copies, the others 33.
    counts = {r.key: (r.traces, r.launches_seen) for r in alone.rows}
    assert counts["mul_mat_vec_q"] == (68, (289, 337))
    assert counts["k_stream"] == (99, (2, 4))
    fused = next(r for r in alone.rows if r.key == "unary_gated_op_kernel")
    assert (fused.traces, fused.launches_per_step) == (34, 48)


def test_medians_and_spread(tmp_path):
    for i, ns in enumerate((1000, 3000, 8000)):
        build(tmp_path / f"{i}.sqlite", kernels=[kernel(0, ns)])
    (tmp_path / "run.json").write_text('{"host": "node-1"}')
    made = fleet.run(fleet.expand(str(tmp_path)), steps="none", workers="1")
    row = made.rows[0]
    assert (row.exposed_us_min, row.exposed_us_median, row.exposed_us_max) == pytest.approx((1.0, 3.0, 8.0))
    assert (row.launches_per_step, row.traces, row.hosts) == (1, 3, 1)


def test_two_processes_give_the_same(many, alone):
    assert fleet.run(many, by="family", workers="2") == alone


def test_a_killed_process_loses_no_trace(many, alone):
    killed = []

    def kill_one(done: int, total: int) -> None:
        if done >= 20 and not killed:
            killed.append(multiprocessing.active_children()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    assert fleet.run(many, by="family", workers="2", progress=kill_one) == alone
    assert killed


def test_a_trace_that_kills_every_worker_is_a_failure_and_the_rest_goes_on(many, monkeypatch):
    monkeypatch.setattr(fleet, "read_one", deadly)
    made = fleet.run(many[:8], workers="2")
    assert {o.trace: bool(o.error) for o in made.outcomes} == {p: p.endswith("003.sqlite") for p in many[:8]}
    assert "its worker died 3 times" in next(o.error for o in made.outcomes if o.error)


_read_one = fleet.read_one


def deadly(path: str, steps: str, by: str) -> fleet.Outcome:
    if path.endswith("003.sqlite"):
        os.kill(os.getpid(), signal.SIGKILL)
    return _read_one(path, steps, by)


def test_dask_gives_the_same(many, alone, cluster):
    assert fleet.run(many, by="family", workers=cluster.scheduler_address) == alone


def test_a_killed_dask_worker_loses_no_trace(many, alone, cluster):
    killed = []

    def kill_one(done: int, total: int) -> None:
        if done >= 20 and not killed:
            killed.append(next(iter(cluster.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    assert fleet.run(many, by="family", workers=cluster.scheduler_address, progress=kill_one) == alone
    assert killed


def test_report_has_every_trace_and_reason(alone):
    report = fleet_report.fleet(alone, 5)
    assert len(report.data["traces"]) == COPIES and len(report.data["failed"]) == 1
    assert len(report.table) == 5 and report.data["summary"][0]["device"] == "NVIDIA H200"
    assert {r["trace"] for r in report.rows} == {o.trace for o in alone.outcomes if o.ledger}


def test_all_failed_is_an_error(tmp_path):
    (tmp_path / "a.sqlite").write_text("no trace")
    with pytest.raises(CensusError, match=r"none of 1 traces can be read; the first: .*not an sqlite file"):
        fleet.run(fleet.expand(str(tmp_path)), workers="1")


def test_order_of_paths_does_not_matter(many, alone):
    some = set(many[:12])
    made = fleet.run(many[:12][::-1], by="family", workers="1")
    assert made.outcomes == tuple(replace(o) for o in alone.outcomes if o.trace in some)
