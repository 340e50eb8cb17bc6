"""False claims and power of the whole verdict, on windows drawn by the thousand.

Nominal is what the rule declares: 0.05 for a difference in either direction, 0.025 for one. The block order is there to
show that the simulator sees the fault that the balanced order guards against.
"""

import numpy as np
import pytest

from ab_windows import CONDITIONS, claims, in_blocks, simulate, simulated, tally
from census.ab.plan import shuffled
from census.ab.verdict import judge

WINDOWS, PAIRS = 2000, 10


def outcome(condition, effect=0.0, null=False, windows=WINDOWS, seed=0):
    orders = [shuffled(PAIRS, 1000 * seed + i, null) for i in range(windows)]
    values = simulate(orders, np.random.default_rng(seed), effect=effect, **CONDITIONS[condition])
    return tally(judge(w) for w in simulated(values, orders))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_equal_arms_are_rarely_told_apart(condition):
    shares = outcome(condition)
    assert claims(shares) <= 0.05
    assert claims(shares, "A") <= 0.025 and claims(shares, "B") <= 0.025


@pytest.mark.parametrize("condition", ["drift", "slow noise"])
def test_the_block_order_sees_differences_that_are_not_there(condition):
    values = in_blocks(WINDOWS, PAIRS, np.random.default_rng(1), **CONDITIONS[condition])
    shares = tally(judge(w) for w in simulated(values, [["AB"] * PAIRS] * WINDOWS))
    assert claims(shares) > (0.4 if condition == "drift" else 0.05)


def test_a_fixed_order_takes_the_slot_for_an_effect():
    orders = [["AB"] * PAIRS] * WINDOWS
    values = simulate(orders, np.random.default_rng(2), **CONDITIONS["first slot"])
    assert claims(tally(judge(w) for w in simulated(values, orders))) > 0.4


def test_power():
    """10 pairs, run sd 0.5%: P(win) = Phi(theta / (0.5% sqrt 2)); 1% -> 0.921, P(>= 9 of 10) = 0.82; 2% -> 1.0."""
    assert claims(outcome("quiet", 0.01), "B") == pytest.approx(0.82, abs=0.03)
    assert claims(outcome("quiet", 0.02), "B") > 0.99
    assert claims(outcome("slow noise", 0.01), "B") > 0.95  # pairing takes slow noise out


def test_a_window_with_null_claims_less_and_seldom_calls_its_own_a_a_invalid():
    shares = outcome("quiet", null=True)
    assert claims(shares) <= 0.01
    assert shares.get(("INVALID", ""), 0.0) <= 0.05
    assert claims(outcome("quiet", 0.01, null=True), "B") > 0.5


def test_equal_arms_with_small_noise_are_equivalent():
    """[d(2), d(9)] lies within ln 1.01 = 1.41 pair sds: at most one of 10 beyond either end, p = 0.080 each.

    0.84^10 + 20 p 0.84^9 + 90 p^2 0.84^8 = 0.176 + 0.334 + 0.143 = 0.653.
    """
    assert outcome("quiet")[("EQUIV", "")] == pytest.approx(0.653, abs=0.04)
