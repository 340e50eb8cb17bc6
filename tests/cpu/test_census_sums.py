"""Totals per kernel equal a direct sum in SQL, on every recorded trace; and a ledger always closes."""

import pytest
from census_data import OURS, THEIRS, sql, trace

from census import activity, ledger

SUM = """SELECT s.value, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k
         JOIN StringIds s ON s.id = k.demangledName GROUP BY s.value"""


@pytest.mark.parametrize("name", OURS + THEIRS)
def test_totals_per_kernel(name: str):
    path = trace(name)
    expected: dict[str, list[int]] = {}
    for text, count, duration in sql(path, SUM):  # names that differ only in what a ledger leaves out are one
        at = expected.setdefault(activity.kernel_name(text), [0, 0])
        at[0] += count
        at[1] += duration
    made = ledger.of_file(str(path), steps="none")
    got = {r.key: [r.launches_per_step, round(r.duration_us_per_step * 1000)] for r in made.rows if r.kind == "kernel"}
    assert got == expected


def union_ns(path) -> int:
    """Union of all device activity per device, the plain way: merge sorted intervals."""
    tables = {t for (t,) in sql(path, "SELECT name FROM sqlite_master")}
    wanted = [f"CUPTI_ACTIVITY_KIND_{t}" for t in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")]
    query = " UNION ALL ".join(f"SELECT deviceId, start, end FROM {t}" for t in wanted if t in tables)
    total, device, reach = 0, None, 0
    for d, start, end in sql(path, f"SELECT * FROM ({query}) ORDER BY deviceId, start"):
        if d != device:
            device, reach = d, start
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


@pytest.mark.parametrize("name", OURS + THEIRS)
def test_exposed_time_is_the_union_of_device_activity(name: str):
    path = trace(name)
    assert round(ledger.of_file(str(path), steps="none").total.exposed_us_per_step * 1000) == union_ns(path)


@pytest.mark.parametrize("by", ["kernel", "family", "shape", "op", "layer", "range", "stream"])
@pytest.mark.parametrize("name", OURS + THEIRS)
def test_every_ledger_closes(name: str, by: str):
    made = ledger.of_file(str(trace(name)), by=by)
    total = made.total
    assert sum(r.exposed_us_per_step for r in made.rows) == pytest.approx(total.exposed_us_per_step, rel=1e-9)
    parts = total.exposed_us_per_step + total.gap_us_per_step + total.residual_us_per_step
    assert parts == pytest.approx(total.step_us, rel=1e-9)
    if total.launches_per_step is not None:
        assert sum(r.launches_per_step for r in made.rows) == pytest.approx(total.launches_per_step, rel=1e-9)
    ident = made.identity
    assert ident.kernels == ident.eager + ident.replayed + ident.without_launch
