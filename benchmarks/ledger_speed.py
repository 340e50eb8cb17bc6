"""How fast `census ledger` is on large exports: a recorded 14B decode repeated until it has millions of kernels.

    python benchmarks/ledger_speed.py                # 0.5, 1, 2.5 and 5 million rows; limits checked at 5 million
    python benchmarks/ledger_speed.py --rows 1e6

Prints wall time, processor time and peak memory of the whole process tree (steps, exposed time and reconciliation
included), and checks the limits: 5 million rows in 8 s and 1.2 GB, time linear in rows. Exit code 1 when one is
missed. Wall time is only worth something on a machine with nothing else to do: the load is printed first.
"""

import argparse
import gzip
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "tests" / "data" / "llamacpp-qwen2-14b-h200.sqlite.gz"
LIMIT_S, LIMIT_GB, LIMIT_ROWS = 8.0, 1.2, 5_000_000
REPEATED = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY")


def make(path: Path, rows: int) -> int:
    """An export with at least `rows` kernels: every repeat later in time and with correlation ids of its own."""
    with gzip.open(SOURCE) as src, path.open("wb") as dst:
        shutil.copyfileobj(src, dst)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        count = db.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
        api = "CUPTI_ACTIVITY_KIND_RUNTIME"
        span, ids = db.execute(f"SELECT max(end) - min(start) + 1000000, max(correlationId) + 1 FROM {api}").fetchone()
        repeats = -(-rows // count)
        for table in REPEATED:
            shift = {"start": span, "end": span, "correlationId": ids}
            names = [r[1] for r in db.execute(f"PRAGMA table_info({table})")]
            shifted = ", ".join(f"{n} + i * {shift[n]}" if n in shift else n for n in names)
            db.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {table}")
            db.execute(f"WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i + 1 < {repeats}) "
                       f"INSERT INTO {table} SELECT {shifted} FROM r CROSS JOIN once WHERE i < {repeats}")
            db.execute("DROP TABLE once")
        db.commit()
        return int(db.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0])


def tree_rss(pid: int) -> int:
    """Resident bytes of a process and its children."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            fields = Path(f"/proc/{one}/statm").read_text().split()
            waiting += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except (OSError, ValueError):
            continue
        total += (int(fields[1]) - int(fields[2])) * 4096  # without pages shared with the file or other processes
    return total


def measure(path: Path) -> tuple[float, float, float, dict]:
    """Wall seconds, processor seconds, peak GB of the tree, and the ledger that was printed."""
    code = "from analysis.cli import main; main()"
    with tempfile.TemporaryFile("w+") as out:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        child = subprocess.Popen([sys.executable, "-c", code, "ledger", str(path), "--json"], stdout=out)
        peak = 0
        while child.poll() is None:
            peak = max(peak, tree_rss(child.pid))
            time.sleep(0.02)
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        out.seek(0)
        return wall, busy, peak / 1e9, json.load(out)


def check(made: dict, rows: int) -> None:
    """The answer must be right before its time counts: 918 launches in each replay, every kernel accounted for."""
    ident = made["identity"]
    assert made["steps"]["launches_per_step"] == 918 and made["steps"]["method"] == "graph", made["steps"]
    assert ident["kernels"] == rows == ident["eager"] + ident["replayed"], ident
    assert abs(made["total"]["exposed_us_per_step"] - 7244.3) < 0.1, made["total"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="*", default=[5e5, 1e6, 2.5e6, 5e6])
    parser.add_argument("--repeat", type=int, default=3, help="runs per size; the fastest counts")
    options = parser.parse_args()
    seconds: dict[int, float] = {}
    failed = False
    print(f"{os.cpu_count()} cores, load before the start {os.getloadavg()[0]:.1f}")
    print(f"{'kernel rows':>12} {'best s':>8} {'worst s':>8} {'cpu s':>8} {'peak GB':>8} {'µs/row':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for wanted in options.rows:
            path = Path(folder) / "big.sqlite"
            rows = make(path, int(wanted))
            runs = [measure(path) for _ in range(options.repeat)]
            check(runs[0][3], rows)
            best, worst, peak = min(r[0] for r in runs), max(r[0] for r in runs), max(r[2] for r in runs)
            seconds[rows] = best
            busy = min(r[1] for r in runs)
            line = f"{rows:>12,} {best:>8.2f} {worst:>8.2f} {busy:>8.2f} {peak:>8.2f} {best / rows * 1e6:>8.2f}"
            print(line, flush=True)
            failed |= rows <= LIMIT_ROWS * 1.01 and (best > LIMIT_S or peak > LIMIT_GB)
            path.unlink()
    if len(seconds) > 1:
        small, large = min(seconds), max(seconds)
        growth = (seconds[large] / seconds[small]) / (large / small)
        print(f"time grows {growth:.2f} times as fast as rows from {small:,} to {large:,} (1 is linear)")
        failed |= growth > 1.5
    print("limits missed" if failed else "within limits")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
