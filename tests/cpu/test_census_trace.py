"""Opening exports of every shape: schema differences are absorbed, and what is no export gets one clear line."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from census_data import OURS, THEIRS, build, change, kernel, sql, trace

import census
from census import doctor, ledger, ranges
from census import trace as tr
from census.errors import CensusError
from census.schema import EXPORT_TABLES


def test_versions_and_graph_modes():
    seen = {}
    for name in OURS:
        opened = tr.open_trace(trace(name))
        seen[name] = (opened.schema, opened.graph_mode, opened.devices[0].name)
        tr.close(opened)
    assert seen["probe-nsys2023.4-graphnodes"] == ("3.7.2", "Node", "NVIDIA H200")
    assert seen["llamacpp-qwen2-14b-h200-wholegraph"] == ("3.20.3", "Graph", "NVIDIA H200")


@pytest.mark.parametrize("name", THEIRS)
def test_kernel_rows_of_public_traces(name):
    path = trace(name)
    opened = tr.open_trace(path)
    assert opened.rows["kernels"] == sql(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")[0][0]
    tr.close(opened)


def test_opening_writes_nothing(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)])
    before = path.read_bytes()
    ledger.of_file(str(path))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


def test_text_that_is_not_utf8(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)])
    change(path, "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)",
           "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_TIME_LOCAL', CAST(x'2b30313030cff0e8' AS TEXT))",
           "UPDATE StringIds SET value = CAST(x'6bff' AS TEXT)")
    assert ledger.of_file(str(path), steps="none").rows[0].key == "k\ufffd"


def test_names_from_the_first_column_that_has_one(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10, name="long"), kernel(20, 30, name="short")])
    change(path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD shortName INTEGER",
           "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = demangledName, demangledName = NULL WHERE start = 20")
    assert {r.key for r in ledger.of_file(str(path), steps="none").rows} == {"long", "short"}


def test_empty_tables_are_absent_tables(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)])
    change(path, "CREATE TABLE NVTX_EVENTS (start, end, eventType, text)",
           "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end)")
    opened = tr.open_trace(path)
    assert set(opened.rows) == {"kernels", "strings"} and opened.graph_mode is None
    tr.close(opened)


def test_suffixed_tables(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)])
    change(path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V2")
    assert ledger.of_file(str(path), steps="none").identity.kernels == 1


BAD = {
    "missing": (lambda p: None, "no such file"),
    "folder": (lambda p: p.mkdir(), "is a folder"),
    "empty": (lambda p: p.write_bytes(b""), "not an sqlite file"),
    "text": (lambda p: p.write_text("kernel,time\n" * 50), "not an sqlite file"),
    "zeroed": (lambda p: p.write_bytes(bytes(8192)), "not an sqlite file"),
    "other": (lambda p: change(p, "CREATE TABLE notes (x)"), "holds no kernels"),
    "api only": (lambda p: build(p, api=[(0, 1, 1, "cudaMalloc")]), "holds no kernels; it has 1 api"),
    "nvtx only": (lambda p: build(p, nvtx=[(0, 1, 59, "decode", 0)]), "holds no kernels; it has 1 nvtx"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_export_gets_one_line(tmp_path, case):
    make, words = BAD[case]
    make(tmp_path / "t.sqlite")
    with pytest.raises(CensusError, match=words) as caught:
        ledger.of_file(str(tmp_path / "t.sqlite"))
    assert "\n" not in str(caught.value) and str(tmp_path / "t.sqlite") in str(caught.value)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_truncated(tmp_path, keep):
    data = trace("probe-nsys2025.3-graphnodes").read_bytes()
    path = tmp_path / "t.sqlite"
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(CensusError, match="truncated"):
        ledger.of_file(str(path))


def test_write_export_makes_every_table_of_the_schema_and_reads_back(tmp_path):
    path = tmp_path / "t.sqlite"
    gpu = (0, 0, "a CPU", *[None] * (len(EXPORT_TABLES["TARGET_INFO_GPU"]) - 3))
    tr.write_export(path, {
        "META_DATA_EXPORT": [("EXPORT_PRODUCT_NAME", "recorder"), ("EXPORT_SCHEMA_VERSION", "3.20.3")],
        "StringIds": [(1, "k")], "TARGET_INFO_GPU": [gpu],
    })
    opened = tr.open_trace(path)
    assert (opened.product, opened.schema, opened.devices[0].name) == ("recorder", "3.20.3", "a CPU")
    tr.close(opened)


def test_write_export_has_the_columns_of_a_real_export(tmp_path):
    tr.write_export(tmp_path / "t.sqlite", {})
    real = trace("probe-nsys2025.3-graphnodes")
    for table in EXPORT_TABLES.keys() - {"DIAGNOSTIC_EVENT"}:  # messages of the machine: scrubbed from the recording
        query = f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')"
        assert sql(tmp_path / "t.sqlite", query) == sql(real, query), table


def test_write_export_leaves_nothing_half_written(tmp_path):
    with pytest.raises(CensusError):
        tr.write_export(tmp_path / "t.sqlite", {"StringIds": [(1, "k"), (1, "twice the same key")]})
    with pytest.raises(CensusError, match="no export table Kernels; known are META_DATA_EXPORT"):
        tr.write_export(tmp_path / "t.sqlite", {"Kernels": []})
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_the_flag(tmp_path):
    def advice(path) -> dict[str, str]:
        return {f.what: f.advice for f in doctor.of_file(str(path)) if f.state == doctor.LACKS}

    bare = advice(build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)]))
    assert "-t cuda" in bare["api"] and "-t cuda,nvtx" in bare["NVTX"]
    assert "--cuda-graph-trace=node" in advice(trace("probe-nsys2025.3-wholegraph"))["CUDA graphs"]
    assert advice(trace("probe-nsys2025.3-graphnodes")) == {}


def test_doctor_sees_a_domain_without_ranges(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)], nvtx=[(0, None, 75, "minfer", 1)])
    found = next(f for f in doctor.of_file(str(path)) if f.what == "NVTX")
    assert found.state == doctor.LACKS and "domain minfer" in found.seen and "nvtx<0.2.13" in found.advice


def test_doctor_passes_on_what_the_profiler_said(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)])
    change(path, "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)",
           "INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 'Number of CUDA events dropped: 12'), (1, 'Profiling started')")
    said = [f.seen for f in doctor.of_file(str(path)) if f.what == "profiler message"]
    assert said == ["Number of CUDA events dropped: 12"]


def test_ranges_nest_per_thread_and_domain(tmp_path):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 1)], nvtx=[
        (0, 100, 59, "outer", 0), (10, 50, 59, "inner", 0), (20, 90, 59, "other domain", 1),
        (60, 70, 60, "start/end", 0), (95, None, 59, "never closed", 0), (1, None, 75, "lib", 1)])
    change(path, f"INSERT INTO NVTX_EVENTS VALUES (0, 100, 59, 'other thread', 0, {(7 << 24) | 6}, NULL, NULL)")
    opened = tr.open_trace(path)
    spans = ranges.load(opened)
    tid = (7 << 24) | 5

    def at(*times):
        ids = ranges.innermost(spans, np.full(len(times), tid), np.array(times))
        return [spans.text[i] if i >= 0 else None for i in ids]

    assert at(-1, 5, 15, 30, 55, 65, 80, 95, 100) == [
        None, "outer", "inner", "other domain", "other domain", "start/end", "other domain", "outer", None]
    assert dict(zip(spans.text, spans.domain, strict=True))["other domain"] == "lib"
    tr.close(opened)


def test_ranges_match_a_plain_search(tmp_path):
    rng, rows, now = np.random.default_rng(4), [], 0
    for depth in range(40):  # nested, with siblings
        rows.append((now, 10_000 - now, 59, f"d{depth}", 0))
        rows.append((now + 2, now + 4, 59, f"s{depth}", 0))
        now += 10
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 1)], nvtx=[rows[i] for i in rng.permutation(len(rows))])
    opened = tr.open_trace(path)
    spans, times = ranges.load(opened), rng.integers(-5, 10_100, 400)
    got = ranges.innermost(spans, np.full(400, (7 << 24) | 5), times)
    for time, index in zip(times, got, strict=True):
        open_ = [r for r in rows if r[0] <= time < r[1]]
        assert (spans.text[index] if index >= 0 else None) == (max(open_)[3] if open_ else None)
    tr.close(opened)


def test_sql_stays_in_one_module():
    """The house rule: only census/trace.py speaks SQL."""
    for file in Path(census.__file__).parent.rglob("*.py"):
        if file.name != "trace.py":
            text = file.read_text()
            assert "import sqlite3" not in text and "SELECT " not in text, file


def test_a_file_that_is_locked_or_odd_is_one_line(tmp_path, monkeypatch):
    path = build(tmp_path / "t.sqlite", kernels=[kernel(0, 10)])

    def refuse(*args, **kwargs):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(tr, "_views", refuse)
    with pytest.raises(CensusError, match="disk I/O error"):
        tr.open_trace(path)
