"""Evidence that the emulated tests bite: break one line at a time, in a copy, and see the suites go red.

    python tests/mutate_kernels.py            # all, 3 minutes on one core
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
    "kernels": ["tests/cpu/test_cuda_kernels.py", "tests/cpu/test_cuda_bitwise.py"],
    "decode step": ["tests/cpu/test_emulated_engine.py"],
}


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    line: str  # occurs once in the file
    wrong: str

    def place(self) -> str:
        """file:line of what is broken."""
        text = (ROOT / self.file).read_text()
        pairs = zip(self.line.split("\n"), self.wrong.split("\n"), strict=False)
        context = next(i for i, (good, wrong) in enumerate(pairs) if good != wrong)
        return f"{Path(self.file).name}:{text[: text.index(self.line)].count(chr(10)) + 1 + context}"


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
    """Suite -> its first failure with this mutation; the file is whole again afterwards."""
    file = folder / mutation.file
    good = file.read_text()
    assert good.count(mutation.line) == 1, f"{mutation.name}: its line is not in {mutation.file} once"
    file.write_text(good.replace(mutation.line, mutation.wrong))
    try:
        return {name: first_failure(folder, tests) for name, tests in SUITES.items()}
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
    print(f"{len(chosen)} mutations, {survived} suites stayed green")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
