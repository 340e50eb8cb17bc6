"""Windows for tests: made by hand, simulated by the thousand, and run by a clockwork instead of a machine.

The simulator draws ln(time) of every run of a window in the order in which they run, so drift, first-slot penalty and
slow noise act as they do on a machine, and hands the arms to the verdict under test.
"""

import itertools

import numpy as np

from census.ab.plan import ARMS, Rule
from census.ab.window import Pair, Run, Window

RUN_SD = 0.005  # of ln(time), per run
CONDITIONS = {  # name -> what acts on ln(time) besides the noise of a run
    "quiet": {},
    "drift": {"drift": 0.001},  # 0.1% per run
    "first slot": {"slot": 0.01},  # the first run of a pair is 1% slower
    "spikes": {"spikes": 0.1},  # a tenth of the runs is hit by exp(5%)
    "slow noise": {"slow": 0.8},  # AR(1)
    "all": {"drift": 0.001, "slot": 0.005, "spikes": 0.05, "slow": 0.5},
}
BLOCKS = "blocks"  # the design that this tool does not use: all of A, then all of B


def run(value, **more):
    fields = {"resolution": 0.0, "output_hash": None, "switches": None, "reported": {}, "sm_mhz": None}
    return Run(float(value), **fields | more)


def window(a, b, null=None, order=None, dropped=(), rule=None, **more):
    """A window of given values, pair by pair; `dropped` pairs do not count."""
    order = order or [("AB", "BA")[i % 2] for i in range(len(a))] if null is None else ["AA'B", "BA'A"] * len(a)
    columns = {"A": a, "B": b} | ({"A'": null} if null is not None else {})
    pairs = tuple(Pair(i, order[i], {arm: v if isinstance(v, Run) else run(v) for arm, v in
                                     ((arm, values[i]) for arm, values in columns.items())},
                       ("A: for a test",) if i in dropped else ()) for i in range(len(a)))  # fmt: skip
    fields = {"rule": Rule(len(a) - len(dropped), False), "switch": None, "guards": {}, "broken": None, "warnings": ()}
    fields |= ({"rule": rule} if rule else {}) | more
    return Window("test", "a", "b", None, None, None, "bench", "ms/token", pairs=pairs, **fields)


def simulate(orders, rng, effect=0.0, drift=0.0, slot=0.0, spikes=0.0, slow=0.0):
    """ln(time) of every run of len(orders) windows: {arm: array of (windows, pairs)}. B is faster by `effect`.

    `orders` holds one label per pair and window; all labels have the same length.
    """
    labels = [[ARMS.findall(label) for label in window] for window in orders]
    windows, pairs, width = len(labels), len(labels[0]), len(labels[0][0])
    noise = rng.normal(0, RUN_SD, (windows, pairs * width))
    for i in range(1, pairs * width):
        noise[:, i] = slow * noise[:, i - 1] + np.sqrt(1 - slow**2) * noise[:, i]
    noise += drift * np.arange(pairs * width)
    noise += rng.exponential(0.05, noise.shape) * (rng.random(noise.shape) < spikes)
    noise = noise.reshape(windows, pairs, width)
    noise[:, :, 0] += slot
    arms = np.array(labels)
    out = {arm: np.empty((windows, pairs)) for arm in labels[0][0]}
    for arm, values in out.items():
        at = np.argmax(arms == arm, axis=2)
        values[:] = np.take_along_axis(noise, at[:, :, None], 2)[:, :, 0] - effect * (arm == "B")
    return out


def in_blocks(windows, pairs, rng, **condition):
    """The same arms timed in blocks: the runs of A, then those of B, paired afterwards."""
    alone = simulate([["A"] * pairs * 2] * windows, rng, **condition)["A"]
    return {"A": alone[:, :pairs], "B": alone[:, pairs:]}


def simulated(values, orders):
    """The simulated arms as windows, one by one."""
    for i, order in enumerate(orders):
        times = {arm: np.exp(v[i]).tolist() for arm, v in values.items()}
        yield window(times["A"], times["B"], times.get("A'"), order=list(order))


def tally(verdicts):
    """How often each (verdict, winner) came out, as a share."""
    said = sorted((v.grade.verdict, v.winner or "") for v in verdicts)
    return {key: len(list(group)) / len(said) for key, group in itertools.groupby(said)}


def claims(shares, winner=None):
    """The share of windows that claimed a difference, for `winner` or for either arm."""
    return sum(share for (_, who), share in shares.items() if who and winner in (None, who))
