"""`minfer bench` with a known slowdown: each decode step sleeps AB_SLEEP_PCT percent of its own time.

Its rows also carry best_ns, the best repetition: what other work on a shared machine disturbs least.

    AB_SLEEP_PCT=5 python tests/ab_slow_bench.py MODEL -p 0 -n 8 -r 5 -o json
"""

import os
import sys
import time

from minfer import bench, engine
from minfer.cli import main

SHARE = float(os.environ["AB_SLEEP_PCT"]) / 100
decode, report = engine.Engine.decode, bench.report


def slowed(self, token):
    start = time.perf_counter()
    out = decode(self, token)
    time.sleep(SHARE * (time.perf_counter() - start))
    return out


def with_best(*args):
    row = report(*args)
    return row | {"best_ns": min(row["samples_ns"])}


engine.Engine.decode = slowed
bench.report = with_best
sys.argv[1:1] = ["bench"]
main()
