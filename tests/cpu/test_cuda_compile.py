"""Every kernel compiles for every architecture, and needs what the golden table says.

Table: tests/data/cuda-resources.txt, a line per kernel, a column per architecture, cells
registers/shared/stack/spill bytes. After a deliberate change, look at the .got file written beside it and rename it.
"""

import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from minfer.cuda.kernels import FOLDER, KERNELS, source
from nvrtc import VERSION, Resources, compile_file, version

ARCHS = (80, 86, 89, 90, 100, 120)
FILES = sorted({k.file for k in KERNELS.values()})
GOLDEN = Path(__file__).parents[1] / "data" / "cuda-resources.txt"
SPILLS: dict[str, str] = {}  # kernel -> why it may spill
REGISTERS_PER_SM = 65536
SHARED_WITHOUT_OPT_IN = 48 * 1024  # bytes

Table = dict[str, dict[int, Resources]]


@pytest.fixture(scope="module")
def compiled() -> Table:
    table: Table = {}
    jobs = [(file, arch) for file in FILES for arch in ARCHS]
    with ProcessPoolExecutor() as pool:  # NVRTC compiles one program at a time in a process
        for (_, arch), kernels in zip(jobs, pool.map(compile_file, *zip(*jobs, strict=True)), strict=True):
            for name, needs in kernels.items():
                table.setdefault(name, {})[arch] = needs
    return table


def show(table: Table) -> str:
    head = ["kernel", *(f"sm_{a}" for a in ARCHS)]
    rows = [[name, *(str(table[name][a]) for a in ARCHS)] for name in sorted(table)]
    lines = ["".join(f"{cell:<16}" if i else f"{cell:<32}" for i, cell in enumerate(row)) for row in [head, *rows]]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_the_files_hold_the_kernels_of_the_table_and_no_others(compiled):
    assert sorted(compiled) == sorted(KERNELS)
    assert all(set(archs) == set(ARCHS) for archs in compiled.values())


def test_no_kernel_spills_without_a_reason(compiled):
    spilled = {name: archs for name, archs in compiled.items() if any(r.spill for r in archs.values())}
    assert spilled.keys() == SPILLS.keys(), {n: {a: str(r) for a, r in archs.items()} for n, archs in spilled.items()}


def test_every_kernel_can_be_launched_with_its_block(compiled):
    for name, archs in compiled.items():
        for needs in archs.values():
            assert needs.registers * KERNELS[name].block <= REGISTERS_PER_SM, name
            assert needs.shared <= SHARED_WITHOUT_OPT_IN, name


def test_resources_are_those_of_the_golden_table(compiled):
    got = GOLDEN.with_suffix(".got")
    got.unlink(missing_ok=True)
    assert version() == VERSION, f"the golden table belongs to NVRTC {VERSION}, this is {version()}"
    text = show(compiled)
    if text != GOLDEN.read_text():
        got.write_text(text)
        changed = sorted(set(text.splitlines()) ^ set(GOLDEN.read_text().splitlines()))
        pytest.fail(f"look at {got.name} and rename it if the change is meant:\n" + "\n".join(changed))


def test_a_kernels_parameters_are_those_of_its_row(compiled):
    types = {"i": "u32", "f": "f32"}
    for name, archs in compiled.items():
        expected = tuple(types[a[0]] if ":" in a else "u64" for a in KERNELS[name].args.split())
        assert archs[ARCHS[0]].parameters == expected, name


def test_source_is_one_string_without_our_includes():
    for file in FILES:
        text = source(file)
        assert re.findall(r"#include .*", text) == ["#include <cuda_fp16.h>"], file
        assert text.count("#define BODY") == 1
    assert {p.name for p in FOLDER.glob("*.cu")} == set(FILES)
