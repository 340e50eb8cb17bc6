"""The other forms of a trace: gzip, parquet folders, .nsys-rep through nsys."""

import gzip
import sys
from dataclasses import replace

import pytest
from census_data import DATA, build, kernel, sql, trace

from census import ledger
from census.errors import CensusError

PROBE = "probe-nsys2025.3-graphnodes"


def test_gzip_reads_as_the_file_in_it():
    packed = ledger.of_file(str(DATA / f"{PROBE}.sqlite.gz"))
    plain = ledger.of_file(str(trace(PROBE)))
    assert replace(packed, trace=plain.trace) == plain and packed.trace.endswith(".gz")


def test_broken_gzip(tmp_path):
    path = tmp_path / "t.sqlite.gz"
    path.write_bytes((DATA / f"{PROBE}.sqlite.gz").read_bytes()[:5000])
    with pytest.raises(CensusError, match="not a complete gzip file"):
        ledger.of_file(str(path))
    with gzip.open(path, "wb") as f:
        f.write(b"no sqlite at all" * 20)
    with pytest.raises(CensusError, match=r"t\.sqlite\.gz: not an sqlite file"):
        ledger.of_file(str(path))


def parquet(path, folder):
    """Every table of an sqlite export as a parquet file, as `nsys export --type parquetdir` lays them out."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    for (table,) in sql(path, "SELECT name FROM sqlite_master WHERE type = 'table'"):
        names = [r[1] for r in sql(path, f"PRAGMA table_info({table})")]
        rows = sql(path, f"SELECT * FROM {table}")
        columns = {n: [r[i] for r in rows] for i, n in enumerate(names)}
        pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    return folder


@pytest.mark.parametrize("name", [PROBE, "probe-nsys2023.4-graphnodes", "llamacpp-qwen2-14b-h200-wholegraph"])
def test_parquet_folder_gives_the_same_ledger(tmp_path, name):
    folder = parquet(trace(name), tmp_path / "export.parquetdir")
    for by in ("kernel", "layer"):
        got, plain = ledger.of_file(str(folder), by=by), ledger.of_file(str(trace(name)), by=by)
        assert replace(got, trace=plain.trace) == plain


def test_broken_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(CensusError, match="not a readable parquet table"):
        ledger.of_file(str(tmp_path))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "StringIds.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CensusError, match=r"pip install 'launch-census\[parquet\]'"):
        ledger.of_file(str(tmp_path))


def fake_nsys(folder, script: str):
    """An executable called nsys, to stand for the real one."""
    folder.mkdir()
    tool = folder / "nsys"
    tool.write_text(f"#!{sys.executable}\nimport shutil, sys\n{script}\n")
    tool.chmod(0o755)
    return str(folder)


def test_nsys_report_goes_through_nsys_export(tmp_path, monkeypatch):
    exported = build(tmp_path / "exported.sqlite", kernels=[kernel(0, 10)])
    script = f"""assert sys.argv[1:4] == ["export", "--type", "sqlite"], sys.argv
shutil.copy({str(exported)!r}, sys.argv[sys.argv.index("--output") + 1])"""
    monkeypatch.setenv("PATH", fake_nsys(tmp_path / "bin", script))
    (tmp_path / "run.nsys-rep").write_bytes(b"report")
    made = ledger.of_file(str(tmp_path / "run.nsys-rep"), steps="none")
    assert made.identity.kernels == 1 and made.trace.endswith("run.nsys-rep")


def test_nsys_report_without_nsys_or_with_one_that_fails(tmp_path, monkeypatch):
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"report")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CensusError, match="needs nsys on PATH"):
        ledger.of_file(str(report))
    monkeypatch.setenv("PATH", fake_nsys(tmp_path / "bin", "sys.exit('Importer error: wrong version')"))
    with pytest.raises(CensusError, match="nsys export failed: Importer error: wrong version"):
        ledger.of_file(str(report))
