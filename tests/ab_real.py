"""Real windows of `minfer bench` on this machine: A against A in many seeds, and A against A with a sleep.

    python tests/ab_real.py MODEL FOLDER --seeds 20 --pairs 10        how often does A/A claim a difference?
    python tests/ab_real.py MODEL FOLDER --seeds 3 --sleep 5          is a sleep of 5% of each step found?

One line per window. Too long for the test set: a window of 10 pairs takes about half a minute. On a machine with other
work, --metric json:best_ns (the best repetition of a run) is quieter than the default, the median.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def window(model, folder, seed, pairs, sleep, metric):
    """One window through the command line; its verdict's JSON. Host load is no guard here: the machine is shared."""
    bench = f"{sys.executable} {HERE / 'ab_slow_bench.py'} {model} -p 0 -n 8 -r 5 -t 1 -o json"
    how = ["--metric", metric, *(["--lower"] if metric.startswith("json") else [])]
    done = subprocess.run(
        [sys.executable, "-c", "from analysis.cli import main; main()", "ab", "--a", f"AB_SLEEP_PCT=0 {bench}",
         "--b", f"AB_SLEEP_PCT={sleep} {bench}", "--pairs", str(pairs), "--seed", str(seed), "--gap", "0.1",
         "--host-load", "64", *how, "--out", str(folder / f"seed{seed}-sleep{sleep}"), "--json"],
        capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model")
    options.add_argument("folder", type=Path)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--sleep", type=int, default=0, help="percent of a step that B sleeps")
    options.add_argument("--metric", default="bench")
    given = options.parse_args()
    verdicts = []
    for seed in range(given.first, given.first + given.seeds):
        said = window(given.model, given.folder, seed, given.pairs, given.sleep, given.metric)
        verdicts.append((said["verdict"], said["winner"]))
        print(seed, said["verdict"], said["winner"], f"{said['wins']}/{said['pairs']} for {said['leader']}",
              f"{said['change_pct']:+.2f}%", said["interval_pct"], said["outputs"], flush=True)
    claims = sum(winner is not None for _, winner in verdicts)
    print(f"{claims} of {len(verdicts)} windows claim a difference")


main()
