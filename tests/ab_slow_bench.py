"""`minfer bench` with a known slowdown: each decode step sleeps AB_SLEEP_PCT percent of its own time.

    AB_SLEEP_PCT=5 python tests/ab_slow_bench.py MODEL -p 0 -n 8 -r 5 -o json
"""

import os
import sys
import time

from minfer import engine
from minfer.cli import main

SHARE = float(os.environ["AB_SLEEP_PCT"]) / 100
decode = engine.Engine.decode


def slowed(self, token):
    start = time.perf_counter()
    out = decode(self, token)
    time.sleep(SHARE * (time.perf_counter() - start))
    return out


engine.Engine.decode = slowed
sys.argv[1:1] = ["bench"]
main()
