"""Evidence that the emulated tests bite: break one line at a time, in a copy, and see the suites go red.

    python tests/mutate_kernels.py            # all, 15 minutes on one core
    python tests/mutate_kernels.py nibble     # those with this word in their name

Prints a table: the mutation, its place, the first test that failed on the kernels alone (test_cuda_*) and on the whole
decode step (test_emulated_engine). Exit code 1 when a suite that should fail stays green. Not collected by pytest; that
every mutation still finds its line is checked in tests/cpu/test_mutations.py.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
KERNELS = "minfer/cuda/kernels/"
SUITES = {
    "kernels": ["tests/cpu/test_stream_kernels.py", "tests/cpu/test_cuda_kernels.py", "tests/cpu/test_cuda_bitwise.py"],
    "decode step": ["tests/cpu/test_emulated_engine.py"],
}
# why the decode step of the nano model, made by synth, with 256 columns and few keys, is right all the same
ONE_ITEM, FEW_KEYS = "no warps share its rows, each of one item", "its keys are one step of one split"
EQUAL_MINS = "its minimums are its scales"
ONE_ROUND = "no block of its has more items than sums are kept of"


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    line: str  # occurs once in the file
    wrong: str
    unseen: str = ""  # why the decode step cannot see it

    def place(self) -> str:
        """file:line of what is broken."""
        text = (ROOT / self.file).read_text()
        pairs = zip(self.line.split("\n"), self.wrong.split("\n"), strict=False)
        context = next(i for i, (good, wrong) in enumerate(pairs) if good != wrong)
        return f"{Path(self.file).name}:{text[: text.index(self.line)].count(chr(10)) + 1 + context}"


STREAM, STREAM_CU, ATTENTION = KERNELS + "stream.cuh", KERNELS + "stream.cu", KERNELS + "attention_one.cu"
PLANE, MAKE_PLANE, TYPES = KERNELS + "plane.cuh", KERNELS + "stream_plane.cuh", KERNELS + "stream_types.cuh"
MUTATIONS = (
    Mutation("a wrong stride", KERNELS + "attention.cu", "cols = s.n_head_kv * s.head_dim;", "cols = s.head_dim;"),
    Mutation("a missing barrier", KERNELS + "norm.cu", "out + row, d, eps);\n    __syncthreads();\n    u8* plane",
             "out + row, d, eps);\n    u8* plane"),
    Mutation("a swapped nibble", KERNELS + "quants.cuh", "return {w & 0x0f0f0f0fu, w >> 4 & 0x0f0f0f0fu};",
             "return {w >> 4 & 0x0f0f0f0fu, w & 0x0f0f0f0fu};"),
    Mutation("an early return before a barrier", KERNELS + "elementwise.cu",
             "    if (i < n) out[i] = swiglu(gate[i], up[i]);\n    __syncthreads();",
             "    if (i >= n) return;\n    out[i] = swiglu(gate[i], up[i]);\n    __syncthreads();"),
    Mutation("a scale off by one block", KERNELS + "mmvq.cu", "Q::scales(block, p % parts)",
             "Q::scales(Q::block(row, p / parts + 1, id / Q::ELEMENTS), p % parts)"),
    Mutation("a dropped tail", KERNELS + "matmul.cu", "u < id / UNIT; u += WARP",
             "u < id / UNIT / WARP * WARP; u += WARP"),
    Mutation("a wrong KV address", KERNELS + "rope.cu", "row = static_cast<size_t>(pos[0]) * nkt;",
             "row = static_cast<size_t>(pos[0]) * hd;"),
    Mutation("bias on the wrong section", KERNELS + "rope.cu", "is_q ? bias_q : bias_k;", "is_q ? bias_q : bias_v;"),
    Mutation("RoPE pair (2j, 2j+1), not (j, j+half)", KERNELS + "rope.cu",
             "(INTERLEAVED ? 2 * j : j), b = INTERLEAVED ? a + 1 : a + half;", "2 * j, b = a + 1;"),
    Mutation("a sum not reset", KERNELS + "attention.cu", "    float sum = 0.0f, acc = 0.0f;\n    for (int s = 0;",
             "    float sum = most, acc = 0.0f;\n    for (int s = 0;"),
    Mutation("Q4_K: min and scale swapped", TYPES, "j % 2 ? 0x7632u : 0x5410u;", "j % 2 ? 0x3276u : 0x1054u;",
             EQUAL_MINS),
    Mutation("Q4_K: the scales of the other two runs", TYPES, "j % 2 ? 0x7632u : 0x5410u;",
             "j % 2 ? 0x5410u : 0x7632u;"),
    Mutation("Q4_K: the high nibbles' scale not a sixteenth", PLANE, "t == 0 ? d : d / 16.0f;", "d;"),
    Mutation("Q6_K: a missing -32", TYPES, "low, 0)), s_low);", "low, 0)), 0.0f);"),
    Mutation("activations without the gap of their chunks", PLANE, "quad + t * CHUNKS + 4 * k",
             "quad + t * LANES * 16 + 4 * k"),
    Mutation("an item read before it is there", STREAM, "wait_for_groups<T::STAGES - 1>();",
             "wait_for_groups<T::STAGES>();"),
    Mutation("an item copied over while lanes read it", STREAM,
             "__syncwarp();\n            copy<T>(walk, rows, place.stage);",
             "copy<T>(walk, rows, place.stage);", ONE_ITEM),
    Mutation("a last item taken whole", STREAM, "lane, superblocks - place.at * T::SPAN);", "lane, T::SPAN);"),
    Mutation("a unit without its last item", STREAM, "for (int i = 1; i < per; i++)",
             "for (int i = 1; i < per - 1; i++)", ONE_ITEM),
    Mutation("a quad's activations for every item of a row", STREAM, "first + place.at * step", "first", ONE_ITEM),
    Mutation("the next item of the same row", STREAM, "if (over) at -= per;", "if (over) at = 0;", ONE_ITEM),
    Mutation("heads that follow each other without the second half", STREAM, "within -= rows.half) row += rows.half;",
             "within -= rows.half) row += 0;"),
    Mutation("sums of a second round behind those of the first", STREAM, "end, first * per)\n", "end, 0)\n", ONE_ROUND),
    Mutation("the second row's sum for both", STREAM, "(upper ? v.y : v.x) +", "v.y +"),
    Mutation("every block's activations at the start of the plane", MAKE_PLANE, "quantize_word({quads}, first / 4 + i,",
             "quantize_word({quads}, i,"),
    Mutation("the neighbour's residual", STREAM_CU, "kept[unit - rows.from];", "kept[max(unit - rows.from - 1, 0)];"),
    Mutation("up and gate swapped", STREAM_CU, "kept[unit - first] = swiglu(a, b);",
             "kept[unit - first] = swiglu(b, a);"),
    Mutation("RoPE pairs of neighbours", STREAM_CU, "half = h.hd / 2;", "half = 1;"),
    Mutation("the bias of the pair's first row for both", STREAM_CU, "bias + apart);", "bias);"),
    Mutation("a first block of v that is one of k", STREAM_CU, "h.blocks[0] + h.blocks[1];\n    const int2 mine",
             "h.blocks[0] + h.blocks[1] - 1;\n    const int2 mine"),
    Mutation("k and v in each other's region", STREAM_CU, "k == 1 ? h.keys : h.values;", "k == 2 ? h.keys : h.values;"),
    Mutation("the next key's values", ATTENTION, "(v + row(at + i) + feature);", "(v + row(at + i + 1) + feature);"),
    Mutation("a KV row of one head", ATTENTION, "cols(c.shape.n_head_kv * c.shape.head_dim),",
             "cols(c.shape.head_dim),"),
    Mutation("earlier weights not scaled down", ATTENTION, "        sum *= keep;\n", "", FEW_KEYS),
    Mutation("splits added up without their weight", ATTENTION, "scaled(part[i], __shfl_sync(ALL_LANES, weight, i))",
             "part[i]", FEW_KEYS),
    Mutation("the next head's place in the plane", ATTENTION, "quantize_word(plane, i / 4, v, real);",
             "quantize_word(plane, i / 4 + 8, v, real);"),
)  # fmt: skip


def first_failure(folder: Path, tests: list[str]) -> str | None:
    """The first test that fails in a copy of the tree, with what it said; None when all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]
    environ = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) \S+?::(\S+)(?: - (.*))?$", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None:
        raise SystemExit(f"pytest did not run:\n{done.stdout}{done.stderr}")
    return f"{failed[1]}: {failed[2] or ''}"[:160]


def break_and_test(folder: Path, mutation: Mutation) -> dict[str, str | None]:
    """Suite that should fail -> its first failure with this mutation; the file is whole again afterwards."""
    file = folder / mutation.file
    good = file.read_text()
    assert good.count(mutation.line) == 1, f"{mutation.name}: its line is not in {mutation.file} once"
    file.write_text(good.replace(mutation.line, mutation.wrong))
    try:
        able = {name: tests for name, tests in SUITES.items() if name == "kernels" or not mutation.unseen}
        return {name: first_failure(folder, tests) for name, tests in able.items()}
    finally:
        file.write_text(good)


def copied(folder: Path) -> None:
    """What the suites need of this tree."""
    for name in ("minfer", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def main() -> int:
    chosen = [m for m in MUTATIONS if all(word in m.name for word in sys.argv[1:])]
    survived = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        for suite, tests in SUITES.items():
            if failure := first_failure(folder, tests):
                raise SystemExit(f"{suite}: red without a mutation: {failure}")
        for mutation in chosen:
            print(f"{mutation.name} [{mutation.place()}]", flush=True)
            for suite, failure in break_and_test(folder, mutation).items():
                survived += failure is None
                print(f"    {suite:12} {failure or 'GREEN: nothing failed'}", flush=True)
            if mutation.unseen:
                print(f"    decode step  not run: {mutation.unseen}", flush=True)
    print(f"{len(chosen)} mutations, {survived} suites stayed green")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
