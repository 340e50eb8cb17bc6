"""The runner: plans, replacements, and a window that is killed at every point and goes on.

The kills are real (SIGKILL of a forked process): before and after everything that touches the disk, in the middle of
every line that is written, and at a sample of all executed lines.
"""

import builtins
import collections
import io
import json
import os
import shutil
import signal
import sys

import pytest

from ab_clockwork import plan, tick, world
from census.ab import log, runner, verdict, window
from census.ab import plan as planning
from census.ab.plan import ARMS
from census.errors import CensusError


def start_or_resume(folder, made, **how):
    if not folder.exists():
        log.create(folder, planning.as_data(made))
    made = planning.from_data(log.read_json(folder / log.PLAN), folder)
    runner.run(folder, made, world(folder, **how), tick)
    return log.read_json(folder / log.WINDOW)


def before(order, first, second):
    arms = ARMS.findall(order)
    return arms.index(first) < arms.index(second)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("pairs", [2, 4, 7, 8, 10, 16])
def test_orders_are_balanced_and_seeded(pairs, null):
    orders = planning.shuffled(pairs, 5, null)
    first = collections.Counter(before(o, "A", "B") for o in orders)
    assert orders == planning.shuffled(pairs, 5, null) and len(orders) == pairs
    assert abs(first[True] - first[False]) == pairs % 2
    if null:
        assert abs(2 * sum(before(o, "A", "A'") for o in orders) - pairs) <= pairs % 2


def test_seeds_give_different_orders():
    assert len({planning.shuffled(10, seed) for seed in range(50)}) > 40


def test_the_plan_is_on_disk_before_the_first_run(tmp_path):
    folder, made = tmp_path / "w", plan()
    seen = []

    def execute(arm, plan, poll):
        seen.append(json.loads((folder / log.PLAN).read_text())["order"])
        raise KeyboardInterrupt

    log.create(folder, planning.as_data(made))
    stopped = runner.World(**vars(world(folder)) | {"execute": execute})
    with pytest.raises(KeyboardInterrupt):
        runner.run(folder, made, stopped, tick)
    assert seen == [list(made.order)]


def test_a_plan_survives_its_file(tmp_path):
    log.create(tmp_path / "w", planning.as_data(plan(null=True)))
    assert planning.from_data(log.read_json(tmp_path / "w" / log.PLAN), "w") == plan(null=True)


def test_runs_follow_the_plan(tmp_path):
    made = plan(null=True)
    done = start_or_resume(tmp_path / "w", made)
    ran = [(r["pair"], r["arm"]) for r in done["runs"]]
    assert ran == [(i, arm) for i, order in enumerate(made.order) for arm in ARMS.findall(order)]


def test_a_contaminated_pair_is_replaced_with_the_same_order(tmp_path):
    made = plan(pairs=8)
    done = start_or_resume(tmp_path / "w", made, dirty={5, 6})  # pairs 2 and 3, one run each
    assert [(d["pair"], d["replaced_by"]) for d in done["dropped"]] == [(2, 8), (3, 9)]
    assert done["order"][8:] == [made.order[2], made.order[3]]
    assert "other processes used 9.0 CPU cores" in done["dropped"][0]["why"][0]
    read = window.load(tmp_path / "w")
    made = verdict.judge(read)
    assert made.figures.pairs == 8 and made.everything.pairs == 10 and made.winner == "B"


def test_more_than_a_quarter_of_dirty_pairs_is_no_window(tmp_path):
    done = start_or_resume(tmp_path / "w", plan(pairs=8), dirty={1, 5, 9})
    assert len(done["runs"]) == 16 and [d["replaced_by"] for d in done["dropped"]] == [None] * 3
    assert verdict.judge(window.load(tmp_path / "w")).grade.reason == "machine"


def test_a_dirty_replacement_is_replaced_too_within_the_cap(tmp_path):
    done = start_or_resume(tmp_path / "w", plan(pairs=8), dirty={0, 16})
    assert [(d["pair"], d["replaced_by"]) for d in done["dropped"]] == [(0, 8), (8, 9)]


def test_a_failed_run_stops_the_window_and_its_pair_is_replaced(tmp_path):
    folder = tmp_path / "w"
    with pytest.raises(CensusError, match=r"pair 2, arm .*exit code 1: out of memory; the pair is dropped"):
        start_or_resume(folder, plan(), failing={2})
    done = start_or_resume(folder, plan(), failing={2})
    assert [d["pair"] for d in done["dropped"]] == [1] and done["dropped"][0]["replaced_by"] == 4
    assert verdict.judge(window.load(folder)).figures.pairs == 4


def test_two_failures_of_four_pairs_end_the_window(tmp_path):
    folder = tmp_path / "w"
    for _ in range(2):
        with pytest.raises(CensusError):
            start_or_resume(folder, plan(), failing={2, 3})
    start_or_resume(folder, plan(), failing={2, 3})
    assert verdict.judge(window.load(folder)).grade.reason == "machine"


def test_a_finished_window_is_not_run_again(tmp_path):
    folder = tmp_path / "w"
    first = start_or_resume(folder, plan())
    assert start_or_resume(folder, plan()) == first
    assert len(folder.with_suffix(".executed").read_text().split()) == 8
    with pytest.raises(CensusError, match="a finished window, and a window is not run again under its name"):
        log.create(folder, {})


def test_two_processes_cannot_run_one_window(tmp_path):
    log.create(tmp_path / "w", planning.as_data(plan()))
    with log.opened(tmp_path / "w" / log.RUNS), pytest.raises(CensusError, match="another process is running"):
        start_or_resume(tmp_path / "w", plan())


def test_a_line_that_is_not_json_is_named(tmp_path):
    log.create(tmp_path / "w", planning.as_data(plan()))
    (tmp_path / "w" / log.RUNS).write_text('{"event": "start"}\nrubbish\n{"event": "start"}\n')
    with pytest.raises(CensusError, match="line 2 is not JSON"):
        start_or_resume(tmp_path / "w", plan())


def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path, monkeypatch):
    """The fifth line does not fit: half of it is written, then the disk is full."""
    folder, real, lines = tmp_path / "w", os.write, []

    def write(descriptor, data):
        lines.append(data)
        if len(lines) == 5:
            return real(descriptor, data[: len(data) // 2])
        if len(lines) == 6:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(CensusError, match=r"cannot be written \(No space left on device\); the runs before are kept"):
        start_or_resume(folder, plan())
    monkeypatch.undo()
    assert (folder / log.RUNS).read_text().endswith("}\n") and len(log.read(folder / log.RUNS)) == 4
    start_or_resume(folder, plan())
    assert (folder / log.WINDOW).read_bytes() == reference(tmp_path)


def reference(tmp_path, **how):
    """window.json of the same window, uninterrupted."""
    folder = tmp_path / "reference" / "w"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        start_or_resume(folder, plan(), **how)
    return (folder / log.WINDOW).read_bytes()


TOUCHING = {os: ("write", "fsync", "ftruncate", "replace", "rename", "mkdir", "open"), io: ("open",)}


def count_and_kill(at, torn):
    """Count what touches the disk; at number `at` be killed: before it, after it, or after a part of a write."""
    seen = [0]

    def counted(real):
        def call(*args, **more):
            mine, seen[0] = seen[0], seen[0] + 1
            if mine == at and torn is None:
                os.kill(os.getpid(), signal.SIGKILL)
            if mine == at and real is REAL_WRITE:
                real(args[0], args[1][: round(len(args[1]) * torn)])
                os.kill(os.getpid(), signal.SIGKILL)
            out = real(*args, **more)
            if mine == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return out

        return call

    for module, names in TOUCHING.items():
        for name in names:
            setattr(module, name, counted(getattr(module, name)))
    builtins.open = io.open
    return seen


REAL_WRITE = os.write


def count_lines(at):
    """Count executed lines of this package; at number `at` be killed."""
    seen = [0]

    def trace(frame, event, arg):
        if "census/ab" not in frame.f_code.co_filename:
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    return seen


def killed(folder, install, report=None):
    """Run the window in a fork with a kill installed; True when it was killed, False when it came to its end."""
    child = os.fork()
    if not child:
        try:
            seen = install()
            start_or_resume(folder, plan(), dirty={3})
            sys.settrace(None)
            if report:
                REAL_WRITE(report, str(seen[0]).encode())
        finally:
            os._exit(0)  # a fork of the test runner must not go on as one
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def points(tmp_path, install):
    """How many points an uninterrupted window passes."""
    read, write = os.pipe()
    assert not killed(tmp_path / "count", install, write)
    return int(os.read(read, 100))


def check_resumed(tmp_path, install, name):
    folder = tmp_path / "killed" / "w"
    folder.parent.mkdir(exist_ok=True)
    assert killed(folder, install), name
    recorded = runner.runs(log.read(folder / log.RUNS)) if folder.exists() else []
    start_or_resume(folder, plan(), dirty={3})
    assert (folder / log.WINDOW).read_bytes() == reference(tmp_path, dirty={3}), name
    after = runner.runs(log.read(folder / log.RUNS))
    assert after[: len(recorded)] == recorded, name  # none lost
    assert len({(r["pair"], r["arm"]) for r in after}) == len(after) == 10, name  # none twice
    executed = folder.with_suffix(".executed").read_text().split()
    twice = [i for i in executed if executed.count(i) > 1]
    assert set(twice) <= {str(len(recorded))}, name  # only the run that was under way or not yet recorded ran again
    shutil.rmtree(folder.parent)


@pytest.fixture
def fast_disk(monkeypatch):
    """A killed process loses nothing that it has written, so waiting for the disk would add only time here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("torn", [None, 0.01, 0.5, 0.999, 1.0])
def test_killed_at_everything_that_touches_the_disk(tmp_path, torn, fast_disk):
    """torn None: before the operation; otherwise after it, a log line being written to that part."""
    total = points(tmp_path, lambda: count_and_kill(-1, torn))
    assert total > 50
    for at in range(total):
        check_resumed(tmp_path, lambda at=at: count_and_kill(at, torn), f"operation {at} of {total}")


def test_killed_at_a_sample_of_all_lines(tmp_path, fast_disk):
    total = points(tmp_path, lambda: count_lines(-1))
    assert total > 500
    for at in range(1, total, max(1, total // 150)):
        check_resumed(tmp_path, lambda at=at: count_lines(at), f"line {at} of {total}")
