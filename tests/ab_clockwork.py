"""A machine made of clockwork: every run's outcome follows from how many runs the log holds, so a window that is killed
and goes on must end in the same bytes as one that is not.
"""

import json

from census.ab import log
from census.ab.plan import Arm, Limits, Plan, Rule, shuffled
from census.ab.process import Finished
from census.ab.runner import World, runs

QUIET = {"seconds": 1.0, "others_cpu_s": 0.0, "suspended_s": 0.0, "clock_step_s": 0.0, "gpus": None, "xid": []}


def plan(pairs=4, seed=3, null=False, **more):
    """A plan of two arms whose commands are never started."""
    fields = {"metric": "json:ms", "rule": Rule(pairs, False), "limits": Limits(), "warmup": 0, "gap_s": 0.0} | more
    return Plan(Arm(("engine",), {"X": "0"}), Arm(("engine",), {"X": "1"}), shuffled(pairs, seed, null), seed,
                created="2026-01-01T00:00:00Z", cwd=".", watched={}, **fields)  # fmt: skip


def world(folder, dirty=(), failing=(), machine=QUIET):
    """Run number i takes 100 + i ms in A and 5 less in B; those in `dirty` meet a busy machine, `failing` exit with 1.

    Each execution also leaves a line in FOLDER.executed.
    """
    def number():
        return len(runs(log.read(folder / log.RUNS)))

    def execute(arm, plan, poll):
        i = number()
        with folder.with_suffix(".executed").open("a") as file:
            file.write(f"{i}\n")
        if i in failing:
            return Finished(1, "", "out of memory\n")
        return Finished(0, json.dumps({"ms": 100.5 + i - 5 * int(arm.env["X"]), "output_hash": "same"}), "")

    def after(start, polled):
        return machine | ({"others_cpu_s": 9.0} if number() in dirty else {})

    return World(execute, dict, lambda: None, after, lambda s: None, lambda: 1000.0 + 10 * number(),
                 {"devices": [], "cpu": None, "guards": {}})  # fmt: skip


def tick(done, total):
    """Progress that nobody watches."""
