"""How fast kernels are charged to NVTX ranges: a million kernels under a hundred nested ranges, in 10 s.

    python benchmarks/ranges_speed.py

Two shapes: one stack of 100 ranges around everything, and the same stack entered anew for every hundred kernels
(a million ranges). Each answer is checked against the depth it was made with. Exit code 1 when a limit is missed.
"""

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from census import ledger

KERNELS, DEPTH, LIMIT_S = 1_000_000, 100, 10.0
PID = 7 << 24


def make(path: Path, groups: int) -> None:
    """KERNELS kernels in `groups` groups, each inside DEPTH ranges; a kernel's launch is 20 ns after the last."""
    per = KERNELS // groups
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        names = [(1, "k"), (2, "cudaLaunchKernel"), *((10 + d, f"range {d}") for d in range(DEPTH))]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        columns = "start, end, deviceId, correlationId, globalPid, demangledName"
        db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns})")
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)")
        db.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId)")
        span = 4 * DEPTH + 20 * per
        launch = [(g * span + 2 * DEPTH + 20 * i, g * per + i) for g in range(groups) for i in range(per)]
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 2)",
                       ((t, t + 1, PID | 1, c) for t, c in launch))
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, ?, 1)",
                       ((t + 5, t + 15, c, PID) for t, c in launch))
        db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, 0)",
                       ((g * span + d, (g + 1) * span - 1 - d, PID | 1, 10 + d) for g in range(groups)
                        for d in range(DEPTH)))


def main() -> int:
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for groups in (1, KERNELS // 100):
            path = Path(folder) / f"{groups}.sqlite"
            make(path, groups)
            began = time.perf_counter()
            made = ledger.of_file(str(path), steps="none", by="range")
            wall = time.perf_counter() - began
            assert [(r.key, r.launches_per_step) for r in made.rows] == [(f"range {DEPTH - 1}", KERNELS)], made.rows[:3]
            print(f"{KERNELS:,} kernels under {DEPTH} nested ranges, {groups * DEPTH:,} ranges in all: {wall:.2f} s")
            failed |= wall > LIMIT_S
    print("limit missed" if failed else "within limits")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
