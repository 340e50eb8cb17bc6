"""`minfer bench` with a known slowdown: each decode step is followed by a sleep, or work, of a share of its time.

    AB_SLOWER=sleep:5 python tests/ab_slow_bench.py MODEL -p 0 -n 8 -r 5 -t 1 -o json
    AB_SLOWER=burn:50 python tests/ab_slow_bench.py MODEL -p 0 -n 8 -r 5 -t 1 -o json

Its rows also carry best_ns, the best repetition, and cpu_ns, the median CPU time of one: on a machine with other work
they vary less than the median wall time. A sleep takes no CPU time; `burn` spends it.
"""

import os
import statistics
import sys
import time

from minfer import bench, engine
from minfer.cli import main

HOW, PERCENT = os.environ["AB_SLOWER"].split(":")
CLOCK = {"sleep": time.perf_counter_ns, "burn": time.process_time_ns}[HOW]
step, once, report = engine.Engine.greedy, bench._once, bench.report
spent = []  # CPU ns of each repetition


def slowed(self, token):
    start = CLOCK()
    out = step(self, token)
    wait = int((CLOCK() - start) * float(PERCENT) / 100)
    if HOW == "sleep":
        time.sleep(wait / 1e9)
    else:
        until = CLOCK() + wait
        while CLOCK() < until:
            pass
    return out


def timed(*args):
    start = time.process_time_ns()
    sample = once(*args)
    spent.append(time.process_time_ns() - start)
    return sample


def with_more(engine, test, samples):
    cpu = round(statistics.median(spent[-len(samples) :]))
    return report(engine, test, samples) | {"cpu_ns": cpu, "best_ns": min(s.ns for s in samples)}


engine.Engine.greedy, bench._once, bench.report = slowed, timed, with_more
sys.argv[1:1] = ["bench"]
main()
