"""The emulator itself: kernels with known answers, and kernels that break one rule each beside a twin that does not.

The faulty kernels are in cuda_on_cpu_faults.cu; the line that must be named ends in `// FAULT`.
"""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from minfer.emulated import build, emulate

pytestmark = pytest.mark.skipif(build.GXX is None, reason="g++ is not installed: the emulator compiles kernels with it")

DATA = Path(__file__).parent.parent / "data"
FAULTS = DATA / "cuda_on_cpu_faults.cu"
ANSWERS = DATA / "cuda_on_cpu_answers.cu"
RNG = np.random.default_rng(8)


@pytest.fixture(scope="module")
def answers() -> emulate.Module:
    return emulate.load(ANSWERS)


@pytest.fixture(scope="module")
def faults() -> emulate.Module:
    return emulate.load(FAULTS)


def fault_line(kernel: str) -> int:
    """The line marked FAULT in a kernel's body."""
    lines = FAULTS.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f"KERNEL({kernel})" in line)
    return next(i for i in range(start, len(lines)) if lines[i].endswith("// FAULT")) + 1


def words(*shape: int) -> np.ndarray:
    return RNG.integers(0, 1 << 32, shape, np.uint32)


# ---- every fault is caught, its twin passes ----

X = np.arange(256, dtype=np.float32)
ONE = np.ones(1, np.int32)
CASES = {
    # name: kind of the fault, what the message says besides the line
    "missing_barrier": ("race", "`buffer`"),
    "global_race": ("race", "`out`"),
    "two_writers": ("race", "write of `flag`"),
    "missing_syncwarp": ("race", "`buffer`"),
    "missing_wait": ("unwritten-read", "`buffer`"),
    "copied_over": ("race", "`buffer`"),
    "named_barrier": ("race", "`buffer`"),
    "divergent_barrier": ("sync", "reached by 128 of 256 threads; 0 returned, 128 wait elsewhere"),
    "early_return": ("sync", "reached by 200 of 256 threads; 56 returned"),
    "two_barriers": ("sync", "threads wait for it at"),
    "divergent_shuffle": ("sync", "not all of its lanes reach"),
    "absent_lane": ("sync", "shuffle reads lane 16"),
    "unwritten_shared": ("unwritten-read", "`buffer`"),
    "unwritten_dynamic": ("unwritten-read", "dynamic shared memory"),
    "read_by_one": ("out-of-bounds", "read outside argument 0 `x` at element 256"),
    "write_by_one": ("out-of-bounds", "write outside argument 1 `out` at element -1"),
    "past_dynamic": ("out-of-bounds", "dynamic shared memory at byte 1024 of 1024"),
    "misaligned": ("misaligned", "not a multiple of 16"),
    "const_write": ("const-write", "argument 0 `x`"),
    "output_read": ("unwritten-read", "argument 1 `out`"),
    "blocks_race": ("block-race", "by an earlier block"),
    "trap": ("trap", "__trap()"),
}


@pytest.mark.parametrize("name", CASES)
def test_fault_is_caught_and_its_twin_passes(faults: emulate.Module, name: str) -> None:
    kind, says = CASES[name]

    def run(kernel: str) -> np.ndarray:
        out = np.zeros(256, np.float32)
        faults.launch(kernel, 2, 256, (X.copy(), out, ONE.copy()), shared=1024, outputs=[1])
        return out

    run(f"{name}_good")
    with pytest.raises(emulate.KernelFault) as caught:
        run(name)
    assert caught.value.kind == kind
    message = str(caught.value)
    assert f"cuda_on_cpu_faults.cu:{fault_line(name)}" in message
    assert says in message and f"kernel {name}," in message


def test_unwritten_output_names_the_first_element(answers: emulate.Module) -> None:
    out = np.zeros(300, np.int32)
    with pytest.raises(emulate.KernelFault, match="44 of 300 elements of argument 0 `out` unwritten, the first at 256"):
        answers.launch("indices", 1, 256, (out, np.int32(300)), outputs=[0])
    assert answers.launch("indices", 1, 256, (out, np.int32(300))).written[0].sum() == 256


def test_misaligned_view_is_caught(answers: emulate.Module) -> None:
    buffer = np.ones(65, np.float32)
    assert answers.launch("copy4", 1, 16, (buffer[:64], np.zeros(64, np.float32)), outputs=[1])
    with pytest.raises(emulate.KernelFault, match="not a multiple of 16"):
        answers.launch("copy4", 1, 16, (buffer[1:], np.zeros(64, np.float32)))


def test_race_names_both_lines_and_threads(faults: emulate.Module) -> None:
    with pytest.raises(emulate.KernelFault, match=r"write at cuda_on_cpu_faults\.cu:\d+ by thread \(\d+, 0, 0\)"):
        faults.launch("missing_barrier", 1, 256, (X, np.zeros(256, np.float32), ONE), shared=1024)


def test_arguments_are_checked(answers: emulate.Module) -> None:
    out = np.zeros(4, np.int32)
    with pytest.raises(KeyError, match="no kernel 'nothing'; the source has"):
        answers.launch("nothing", 1, 1, ())
    with pytest.raises(TypeError, match="takes 2 arguments, got 1"):
        answers.launch("indices", 1, 1, (out,))
    with pytest.raises(TypeError, match="argument 1 `n` is a value of 4 bytes, got int64"):
        answers.launch("indices", 1, 1, (out, np.int64(4)))
    with pytest.raises(TypeError, match="argument 0 `out` is a pointer, got int32"):
        answers.launch("indices", 1, 1, (np.int32(1), np.int32(4)))
    with pytest.raises(ValueError, match="cannot be launched"):
        answers.launch("indices", 1, 1025, (out, np.int32(4)))


def test_build_error_is_the_compilers() -> None:
    with pytest.raises(emulate.BuildError, match=r"kernel\.cu:1:.*missing_name"):
        emulate.load('extern "C" __global__ void k() { missing_name(); }')


# ---- the execution model gives the right answers ----


def test_indices_of_a_grid_in_three_dimensions(answers: emulate.Module) -> None:
    out = np.zeros((2 * 3 * 4 * 5 * 2 * 3, 12), np.uint32)
    answers.launch("geometry", (2, 3, 4), (5, 2, 3), (out,), outputs=[0])
    z, y, x, tz, ty, tx = np.indices((4, 3, 2, 3, 2, 5)).reshape(6, -1)
    sizes = np.broadcast_to([5, 2, 3, 2, 3, 4], (len(x), 6))
    assert (out == np.column_stack([tx, ty, tz, x, y, z, sizes])).all()


def test_block_reduction_and_dynamic_shared_memory(answers: emulate.Module) -> None:
    x = RNG.integers(-99, 99, (3, 256)).astype(np.float32)  # small integers: exact in any order
    out = np.zeros(3, np.float32)
    answers.launch("block_sum", 3, 256, (x, out), shared=256 * 4, outputs=[1])
    assert (out == x.sum(axis=1)).all()


def test_in_place_arguments_share_memory(answers: emulate.Module) -> None:
    x = np.arange(64, dtype=np.float32)
    answers.launch("copy4", 1, 16, (x, x), outputs=[1])
    assert (x == np.arange(64)).all()


@pytest.mark.parametrize("width", [32, 16, 4])
def test_shuffles(answers: emulate.Module, width: int) -> None:
    out = np.zeros((4, 64), np.int32)
    answers.launch("shuffles", 1, 64, (out, np.int32(width)), outputs=[0])
    lane = np.arange(64)
    first, last = lane // width * width, lane // width * width + width - 1
    assert (out[0] == 100 + first + (lane + 3) % width).all()
    assert (out[1] == 100 + np.where(lane - 3 < first, lane, lane - 3)).all()
    assert (out[2] == 100 + np.where(lane + 3 > last, lane, lane + 3)).all()
    assert (out[3] == 100 + (lane ^ 2)).all()


def test_votes_also_of_half_a_warp(answers: emulate.Module) -> None:
    x = RNG.integers(0, 2, 64).astype(np.int32)
    out = np.zeros((4, 64), np.uint32)
    answers.launch("votes", 1, 64, (x, out), outputs=[1])
    warps = x.reshape(2, 32)
    ballot = (warps.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
    halves = np.repeat(x.reshape(4, 16), 16, axis=0).reshape(64, 16)  # odd lanes ask about their half only
    assert (out[0] == np.repeat(ballot, 32)).all()
    assert (out[1] == np.repeat(warps.any(axis=1), 32)).all()
    assert (out[2] == halves.any(axis=1)).all()
    assert (out[3] == x.sum()).all()


def test_atomics(answers: emulate.Module) -> None:
    x = RNG.integers(-1000, 1000, 512).astype(np.int32)
    out = np.array([0, -5000, 5000, 0, 0], np.int32)
    total = np.zeros(1, np.float32)
    answers.launch("atomics", 2, 256, (x, out, total))
    assert out.tolist() == [x.sum(), x.max(), x.min(), 512 % 7, np.bitwise_or.reduce(x)]
    assert total[0] == 512


def test_last_block_sees_the_other_blocks(answers: emulate.Module) -> None:
    """The pattern of a reduction in one launch: partial sums, a fence, a counter, the last block adds."""
    x = RNG.integers(-99, 99, (5, 32)).astype(np.float32)
    partial, counter, out = np.zeros(5, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    answers.launch("last_block", 5, 32, (x, partial, counter, out), outputs=[1, 3])
    assert out[0] == x.sum() and counter[0] == 0


def test_named_barriers_hand_over(answers: emulate.Module) -> None:
    out = np.zeros(64, np.int32)
    answers.launch("handover", 1, 64, (out,), outputs=[0])
    assert (out == np.arange(64) % 32 + 7 * (np.arange(64) >= 32)).all()


# ---- numbers ----


def test_half_to_float_for_all_patterns(answers: emulate.Module) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    out = np.zeros(65536, np.float32)
    answers.launch("half_to_float", 256, 256, (patterns, out), outputs=[1])
    np.testing.assert_array_equal(out, patterns.view(np.float16).astype(np.float32))
    assert (np.signbit(out) == np.signbit(patterns.view(np.float16))).all()


def test_float_to_half_rounds_to_nearest_even(answers: emulate.Module) -> None:
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (finite[:-1] + finite[1:]) / 2  # all of them, each exact in float32
    near = [np.nextafter(ties.astype(np.float32), np.float32(side)) for side in (0, np.inf)]
    edges = [65504, 65519.99, 65520, 1e9, np.inf, np.nan, 2**-24, 2**-25, 2**-26, 1e-45, 0, -0.0]
    x = np.concatenate([ties.astype(np.float32), *near, np.float32(edges), words(50000).view(np.float32)])
    x = np.concatenate([x, -x])
    out = np.zeros(x.size, np.uint16)
    answers.launch("float_to_half", -(-x.size // 256), 256, (x, out, np.int32(x.size)), outputs=[1])
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(np.float16)
    number = ~np.isnan(x)
    assert (out[number] == want[number].view(np.uint16)).all()
    assert np.isnan(out.view(np.float16)[~number]).all()


def test_integer_intrinsics(answers: emulate.Module) -> None:
    a, b, c = words(256), words(256), words(256)
    out = np.zeros((6, 256), np.uint32)
    answers.launch("integers", 1, 256, (a, b, c, out), outputs=[3])
    signed = (a.view(np.int8).astype(np.int64) * b.view(np.int8)).reshape(256, 4).sum(axis=1)
    unsigned = (a.view(np.uint8).astype(np.int64) * b.view(np.uint8)).reshape(256, 4).sum(axis=1)
    assert (out[0] == (signed + c).astype(np.uint32)).all()
    assert (out[1] == (unsigned + c).astype(np.uint32)).all()
    eight = np.column_stack([a.view(np.uint8).reshape(256, 4), b.view(np.uint8).reshape(256, 4)])
    picked = eight[np.arange(256)[:, None], (c[:, None] >> (4 * np.arange(4, dtype=np.uint32))) & 7]
    assert (out[2] == picked.astype(np.uint8).copy().view(np.uint32)[:, 0]).all()
    assert (out[3] == (a.view(np.uint8) - b.view(np.uint8)).view(np.uint32)).all()
    saturated = np.clip(a.view(np.int8).astype(int) - b.view(np.int8), -128, 127).astype(np.int8)
    assert (out[4] == saturated.view(np.uint32)).all()
    assert (out[5] == np.bitwise_count(a) if hasattr(np, "bitwise_count") else [bin(v).count("1") for v in a]).all()


def test_float_intrinsics(answers: emulate.Module) -> None:
    x = RNG.uniform(0.1, 9, 256).astype(np.float32)
    out = np.zeros((6, 256), np.float32)
    answers.launch("floats", 1, 256, (x, out), outputs=[1])
    wide = x.astype(np.float64)
    want = [1 / np.sqrt(wide), np.exp(wide), wide**0.3, np.sin(wide), np.rint(wide * 2), -wide]
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)


# ---- machinery ----


def test_swapcontext_gives_the_same(tmp_path: Path) -> None:
    """The switch of machines other than x86-64, run in a process of its own."""
    script = f"""
import numpy as np
from minfer.emulated import build, emulate
build.RUNTIME_FLAGS += ("-DCUDA_ON_CPU_UCONTEXT",)
out = np.zeros((4, 64), np.int32)
emulate.load(build.Path({str(ANSWERS)!r})).launch("shuffles", 1, 64, (out, np.int32(32)), outputs=[0])
print(*out[3])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=build.HERE.parents[1])
    assert done.stdout.split() == [str(100 + (lane ^ 2)) for lane in range(64)], done.stderr


def test_counters_of_order_wrap(answers: emulate.Module, faults: emulate.Module) -> None:
    """A warp passes more barriers than a clock counts, a block more than there are epochs; races are still found."""
    out = np.zeros(32, np.int32)
    answers.launch("ring", 1, 32, (out, np.int32(2500)), outputs=[0])
    assert (out == 2501).all()
    answers.launch("barriers", 1, 1, (out, np.int32((1 << 20) + 9)))
    test_fault_is_caught_and_its_twin_passes(faults, "missing_barrier")


def test_speed_leaves_room_for_the_suite(answers: emulate.Module) -> None:
    """A block of 256 threads with 10 barriers takes about 0.1 ms; 50 times that would not fit in CI any more."""
    out = np.zeros(100 * 256, np.int32)
    answers.launch("barriers", 1, 256, (out, np.int32(10)))
    start = time.perf_counter()
    answers.launch("barriers", 100, 256, (out, np.int32(10)))
    assert time.perf_counter() - start < 0.5
