"""Real windows of `minfer bench` on this machine: equal arms in many seeds, and an arm that is slower by a known share.

    python tests/ab_real.py MODEL FOLDER --seeds 20                               how often do equal arms differ?
    python tests/ab_real.py MODEL FOLDER --seeds 3 --slower sleep:5               is a sleep of 5% of a step found?
    python tests/ab_real.py MODEL FOLDER --seeds 3 --slower sleep:5 --metric json:best_ns --tokens 2 --reps 100
        the same on a busy machine: the best of many short repetitions is what other work disturbs least

One line per window. Too long for the test set: a window of 10 pairs takes about half a minute.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def window(given, seed):
    """One window through the command line; its verdict's JSON. Host load is no guard here: the machine is shared."""
    slow = f"{sys.executable} {HERE / 'ab_slow_bench.py'}"
    bench = f"{slow} {given.model} -p 0 -n {given.tokens} -r {given.reps} -t 1 -o json"
    how = given.slower.split(":")[0]
    metric = ["--metric", given.metric, *(["--lower"] if given.metric.startswith("json") else [])]
    out = given.folder / f"seed{seed}-{given.slower.replace(':', '')}"
    done = subprocess.run(
        [sys.executable, "-c", "from analysis.cli import main; main()", "ab", "--a", f"AB_SLOWER={how}:0 {bench}",
         "--b", f"AB_SLOWER={given.slower} {bench}", "--pairs", str(given.pairs), "--seed", str(seed),
         "--gap", "0.1", "--host-load", "64", *metric, "--out", str(out), "--json"],
        capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("folder", type=Path)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--tokens", type=int, default=8, help="-n of the bench")
    options.add_argument("--reps", type=int, default=5, help="-r of the bench: longer runs vary less")
    options.add_argument("--slower", default="sleep:0", help="sleep:PCT or burn:PCT of a step that B takes on top")
    options.add_argument("--metric", default="bench")
    given = options.parse_args()
    claims = 0
    for seed in range(given.first, given.first + given.seeds):
        said = window(given, seed)
        claims += said["winner"] is not None
        print(seed, said["verdict"], said["winner"], f"{said['wins']}/{said['pairs']} for {said['leader']}",
              f"{said['change_pct']:+.2f}%", said["interval_pct"], said["outputs"], flush=True)
    print(f"{claims} of {given.seeds} windows claim a difference")


main()
