"""Every kernel compiles for every architecture, and needs what the golden table says.

Table: tests/data/cuda-resources.txt, a line per kernel, a column per architecture, cells
registers/shared/stack/spill bytes. After a deliberate change, look at the .got file written beside it and rename it.
"""

import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from minfer.cuda.kernels import (
    BLOCK,
    FOLDER,
    KERNELS,
    OPTIONS,
    STREAM_RINGS,
    compile_options,
    plane_quads,
    source,
    stream_ring,
    stream_shared,
)
from minfer.fusions.stream import KEPT
from minfer.gpu import H200, Gpu
from nvrtc import VERSION, Resources, compile_file, version

ARCHS = (80, 86, 89, 90, 100, 120)
FILES = sorted({k.file for k in KERNELS.values()})
GOLDEN = Path(__file__).parents[1] / "data" / "cuda-resources.txt"
SPILLS = {  # kernel -> why it may spill, elsewhere than on MEASURED
    "attention_one_f16": "512 threads leave 128 registers each: 8 bytes, stores and loads, on sm_100",
    "attention_quads_f16": "as it",
    "attention_one_f32": "as f16, up to 40 bytes; the f32 KV cache is not the default",
}
MEASURED = 90
DEPENDENT = 90  # the first architecture with programmatic dependent launch
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
    assert not any(archs[MEASURED].spill for archs in spilled.values())


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


def test_the_kernels_marked_dependent_and_no_others_wait_for_the_one_before(compiled):
    """Marked without the wait would be a race on the GPU alone; a wait without the mark is a chance not taken."""
    for name, archs in compiled.items():
        waits = {arch for arch, needs in archs.items() if needs.waits}
        assert waits == ({a for a in ARCHS if a >= DEPENDENT} if KERNELS[name].dependent else set()), name


@pytest.mark.parametrize(
    ("arch", "kilobytes", "ring"), [(80, 163, 6912), (86, 99, 3456), (89, 99, 3456), (120, 99, 3456)]
)
def test_the_stream_kernels_with_shallow_rings(compiled, arch, kilobytes, ring):
    """On the architectures whose blocks have less shared memory than an H100's."""
    options = set(compile_options(Gpu(shared=kilobytes << 10))) - set(OPTIONS)
    assert options == {f"-DSTREAM_RING={ring}"} and compile_options(H200) == OPTIONS
    small = compile_file("stream.cu", arch, *options)
    assert small.keys() == {k.name for k in KERNELS.values() if k.file == "stream.cu"}
    for name, needs in small.items():
        assert needs.spill == 0 and needs.registers * BLOCK["stream"] <= REGISTERS_PER_SM, name
        assert needs.shared == compiled[name][arch].shared


def test_the_geometry_of_the_stream_kernels_is_that_of_their_source():
    text = source("stream.cu")
    deep = int(re.search(r"#define STREAM_RING (\d+)", text)[1])
    for least, ring in STREAM_RINGS:
        assert stream_ring(least) == ring and (least == 0 or stream_ring(least - 1) < ring <= deep)
    warps, quad, super_, lanes, room = (
        int(re.search(rf"constexpr int {n} = (\d+)", text)[1])
        for n in ("STREAM_WARPS", "QUAD", "SUPER", "LANES", "ROOM")
    )
    names = {"LANES": lanes}  # struct Plane: each constant by those before it
    body = text[text.index("struct Plane {") :].partition("u8* quads")[0]
    for name, value in re.findall(r"([A-Z]+) = ([^,;]+)", body):
        names[name] = eval(value, {}, names)
    assert names["BYTES"] == plane_quads(1) == plane_quads(quad * super_) == 4 * (16 * 16 + 64) + 2 * 16 * 16
    assert plane_quads(quad * super_ + 1) == 2 * names["BYTES"]
    assert stream_shared(1, 0, deep) == names["BYTES"] + warps * deep + 8 * room and BLOCK["stream"] == 32 * warps


@pytest.mark.parametrize("id", [3584, 5120, 13824, 18944])
def test_rows_of_the_7b_and_the_14b_fit_into_shared_memory(id):
    """The deep ring on an H200 and the shallow one in 99 KB, with the static part of the largest kernel."""
    for gpu in (H200, Gpu(shared=99 << 10)):
        assert stream_shared(id, KEPT, stream_ring(gpu.shared)) + 1024 <= gpu.shared


def test_source_is_one_string_without_our_includes():
    for file in FILES:
        text = source(file)
        assert re.findall(r"#include .*", text) == ["#include <cuda_fp16.h>"], file
        assert text.count("#define BODY") == 1
    assert {p.name for p in FOLDER.glob("*.cu")} == set(FILES)
