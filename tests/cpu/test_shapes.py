"""`census shapes`: which matrices models have, which kernels they take, what another gate constant would change.

Expectations are the header's own sizes, the published sizes of models, and report 72's account of attn_v.
"""

import json
import os
import random
import shutil
import struct
import time
import tracemalloc

import pytest

from analysis import cli
from census import catalogue, headers, shapes
from census.errors import CensusError
from minfer.gguf import open_gguf
from minfer.synth import synth


def census(args, capsys):
    code = cli.run([str(a) for a in args])
    said = capsys.readouterr()
    return code, said.out, said.err


def rows_of(args, capsys):
    code, out, err = census(["shapes", *args, "--json"], capsys)
    assert code == 0, err
    return json.loads(out)["rows"]


@pytest.fixture(scope="module")
def qwen2_14b(tmp_path_factory):
    path = tmp_path_factory.mktemp("14b") / "14b.gguf"
    synth("qwen2-14b", path, header_only=True)
    return path


# --- the acceptance lines of the 7B and the 14B ----------------------------------------


def test_q6_k_of_the_real_7b(qwen2_7b_header, capsys):
    rows = rows_of([qwen2_7b_header, "--type", "Q6_K"], capsys)
    found = [(r["role"], r["od"], r["id"], r["layers"], r["elements"], r["kernel"]) for r in rows]
    assert found == [
        ("output", 152064, 3584, 0, 544_997_376, "mmvq_q6_k"),
        ("attn_v", 512, 3584, 14, 1_835_008, "matmul_q6_k_f32"),
        ("ffn_down", 3584, 18944, 14, 67_895_296, "mmvq_q6_k"),
    ]
    # 512 · 3584 / 256 blocks of 210 bytes, on 14 layers
    assert rows[1]["bytes"] == 512 * 14 * 210 * 14
    assert rows[1]["layer_ids"] == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert (rows[1]["block_elements"], rows[1]["row_blocks"]) == (256, 14)


def test_nothing_of_the_7b_lies_in_the_interval_of_report_72(qwen2_7b_header, capsys):
    assert rows_of([qwen2_7b_header, "--type", "Q6_K", "--between", "4e6,24e6"], capsys) == []


@pytest.mark.parametrize("source", ["synth", "catalogue:qwen2.5-14b"])
def test_exactly_attn_v_of_the_14b_does(source, qwen2_14b, capsys):
    model = qwen2_14b if source == "synth" else source
    rows = rows_of([model, "--type", "Q6_K", "--between", "4e6,24e6"], capsys)
    assert [(r["role"], r["od"], r["id"], r["elements"]) for r in rows] == [("attn_v", 1024, 5120, 5_242_880)]


@pytest.mark.parametrize("change, before, after", [
    ("Q6_K=4e6", "matmul_q6_k_f32", "mmvq_q6_k"),  # the present constant, against the one before it
    ("Q6_K=24e6:4e6", "matmul_q6_k_f32", "mmvq_q6_k"),
    ("Q6_K=24e6", "mmvq_q6_k", "matmul_q6_k_f32"),
])  # fmt: skip
def test_moving_the_gate_reroutes_attn_v_and_nothing_else(change, before, after, qwen2_14b, capsys):
    rows = rows_of([qwen2_14b, "--what-if", change], capsys)
    assert [(r["role"], r["kernel"], r["kernel_then"]) for r in rows] == [("attn_v", before, after)]
    assert rows[0]["layers"] == 24


def test_the_interval_is_what_the_gate_reroutes_to_the_element(qwen2_14b):
    rows = shapes.shapes(headers.read([str(qwen2_14b)])[0][0])
    size = 1024 * 5120
    for lo, hi in ((size, size + 1), (size - 1, size), (size + 1, size + 2)):
        inside = shapes.filtered(rows, "Q6_K", (lo, hi))
        assert [r.role for r in inside] == [r.role for r, _ in shapes.what_if(rows, "Q6_K", lo, hi).rows]


def test_what_is_not_multiplied_has_no_kernel(qwen2_7b_header, capsys):
    kernels = {r["role"]: r["kernel"] for r in rows_of([qwen2_7b_header], capsys)}
    assert kernels["token_embd"] is None and kernels["output"] == "mmvq_q6_k"
    tied = {r["role"]: r["kernel"] for r in rows_of(["catalogue:llama-3.2-1b"], capsys)}
    assert tied["token_embd"] == "mmvq_q6_k" and "output" not in tied
    assert {r["kernel"] for r in rows_of(["catalogue:qwen2.5-7b:IQ4_XS", "--type", "IQ4_XS"], capsys)} == {None}


def test_time_is_bytes_over_bandwidth(qwen2_7b_header, capsys):
    row = rows_of([qwen2_7b_header, "--type", "Q6_K", "--bandwidth", "4430"], capsys)[2]
    assert row["us"] == pytest.approx(3584 * 18944 / 256 * 210 / 4430e9 * 1e6)  # 12.57 µs each


# --- the catalogue ----------------------------------------


def test_the_catalogues_7b_is_the_real_header_tensor_by_tensor(qwen2_7b_header):
    with open_gguf(qwen2_7b_header) as real:
        want = [(t.name, t.type, t.shape, t.nbytes) for t in real.tensors.values()]
    made = catalogue.tensors(catalogue.configs()["qwen2.5-7b"], "Q4_K_M")
    assert [(t.name, t.type, t.shape, t.nbytes) for t in made] == want


def test_the_catalogue_and_synth_agree_on_the_small_and_the_14b(tmp_path):
    """Two writings of one rule; 0.5B has rows that 256-element blocks do not divide."""
    for preset, name in (("qwen2-0.5b", "qwen2.5-0.5b"), ("qwen2-14b", "qwen2.5-14b")):
        synth(preset, tmp_path / "m.gguf", header_only=True, force=True)
        with open_gguf(tmp_path / "m.gguf") as model:
            want = {t.name: (t.type, t.shape) for t in model.tensors.values()}
        assert {t.name: (t.type, t.shape) for t in catalogue.tensors(catalogue.configs()[name], "Q4_K_M")} == want


# billions of parameters as each model's page says; text part only where a model sees images too
PUBLISHED = {
    "qwen2.5-0.5b": 0.494, "qwen2.5-1.5b": 1.54, "qwen2.5-3b": 3.09, "qwen2.5-7b": 7.62, "qwen2.5-14b": 14.8,
    "qwen2.5-32b": 32.8, "qwen2.5-72b": 72.7, "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.02,
    "qwen3-8b": 8.19, "qwen3-14b": 14.8, "qwen3-32b": 32.8, "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21,
    "llama-3.1-8b": 8.03, "llama-3.3-70b": 70.6, "mistral-7b-v0.3": 7.25, "mistral-nemo-12b": 12.2,
    "mistral-small-24b": 23.6, "gemma-2b": 2.51, "gemma-7b": 8.54, "gemma-2-2b": 2.61, "gemma-2-9b": 9.24,
    "gemma-2-27b": 27.2, "gemma-3-1b": 1.00, "gemma-3-4b": 3.88, "gemma-3-12b": 11.8, "gemma-3-27b": 27.0,
    "phi-3-mini-4k": 3.82, "phi-3-medium-4k": 14.0, "phi-4": 14.7,
}  # fmt: skip


def test_every_configuration_has_a_published_size():
    assert set(PUBLISHED) == set(catalogue.configs())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_add_up_to_the_published_size(name):
    made = catalogue.tensors(catalogue.configs()[name], "F16")
    total = sum(t.rows * t.shape[0] for t in made)
    assert total / 1e9 == pytest.approx(PUBLISHED[name], rel=0.005)


def types(name, mix, role):
    made = list(catalogue.tensors(catalogue.configs()[name], mix))
    return [t.type for t in made if t.name.endswith(f".{role}.weight") or t.name == f"{role}.weight"]


def test_rules_of_the_mixes():
    assert set(types("llama-3.3-70b", "Q4_K_M", "attn_v")) == {"Q6_K", "Q5_K"}  # 8 heads share it: Q4_K becomes Q5_K
    assert set(types("qwen2.5-72b", "Q4_K_M", "ffn_down")) == {"Q8_0", "Q5_0"}  # rows of 29568 = 115.5 blocks
    assert types("qwen2.5-7b", "Q4_K_S", "attn_v") == ["Q5_K"] * 4 + ["Q4_K"] * 24
    assert types("qwen2.5-7b", "Q4_K_S", "ffn_down") == ["Q5_K"] * 3 + ["Q4_K"] * 25  # 28 // 8
    assert types("qwen2.5-7b", "Q5_K_M", "attn_q") == ["Q5_K"] * 28
    assert types("qwen2.5-7b", "Q8_0", "output") == ["Q8_0"] and types("qwen2.5-7b", "F16", "output") == ["F16"]
    assert types("qwen2.5-0.5b", "Q4_K_M", "token_embd") == ["Q8_0"]  # tied, rows of 896 = 3.5 blocks
    assert types("gemma-2-9b", "Q4_0", "token_embd") == ["Q6_K"]  # tied: the output's type


def test_globs_of_the_catalogue(capsys):
    rows = rows_of(["catalogue:gemma-3-*:q5_k_?"], capsys)
    assert {r["file"] for r in rows} == {f"gemma-3-{n} Q5_K_{m}" for n in ("1b", "4b", "12b", "27b") for m in "SM"}


# --- folders, splits, damage ----------------------------------------


def test_a_folder_with_a_split_model_and_a_damaged_one(tmp_path, qwen2_7b_header, capsys):
    shutil.copy(qwen2_7b_header, tmp_path / "a.gguf")
    (tmp_path / "broken.gguf").write_bytes(qwen2_7b_header.read_bytes()[:100_000])
    code, out, _ = census(["shapes", tmp_path, "--json"], capsys)
    data = json.loads(out)
    assert code == 2 and {r["file"] for r in data["rows"]} == {str(tmp_path / "a.gguf")}
    assert len(data["refused"]) == 1 and data["refused"][0]["reason"].startswith(str(tmp_path / "broken.gguf"))


def test_two_hundred_headers_in_twenty_seconds(tmp_path, qwen2_7b_header, capsys):
    first = tmp_path / "0.gguf"
    shutil.copy(qwen2_7b_header, first)
    for i in range(1, 200):
        os.link(first, tmp_path / f"{i}.gguf")
    begin = time.perf_counter()
    rows = rows_of([tmp_path, "--type", "Q6_K"], capsys)
    assert len(rows) == 600
    assert time.perf_counter() - begin < 20


def header(tensors, n_tensors=None):
    """A GGUF header with one string and these (name, shape, type, offset)."""
    text = lambda s: struct.pack("<Q", len(s)) + s  # noqa: E731
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors) if n_tensors is None else n_tensors, 1)
    out += text(b"general.architecture") + struct.pack("<I", 8) + text(b"qwen2")
    for name, shape, kind, offset in tensors:
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}q", *shape)
        out += struct.pack("<IQ", kind, offset)
    return out


LIES = {
    "a billion tensors": header([], n_tensors=10**9),
    "a trillion elements": header([(b"w", (1 << 21, 1 << 21), 0, 0)]),
    "a negative dimension": header([(b"w", (256, -256), 0, 0)]),
    "a duplicate tensor": header([(b"w", (32,), 0, 0), (b"w", (32,), 0, 128)]),
    "an offset past the end": header([(b"w", (32,), 0, 1 << 40)]),
    "a string of 2 GB": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2 << 30),
    "an array of arrays": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1),
    "an array of a billion": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    + struct.pack("<IIQ", 9, 4, 10**9),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_one_line(lie, tmp_path, capsys):
    path = tmp_path / "lie.gguf"
    path.write_bytes(LIES[lie])
    tracemalloc.start()
    try:
        with pytest.raises(CensusError):
            headers.read([str(path)])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # nothing of the size that it claims was allocated
    finally:
        tracemalloc.stop()
    code, out, err = census(["shapes", path], capsys)
    assert (code, out) == (2, "") and err.startswith(f"census: {path}: ") and err.count("\n") == 1


def test_three_hundred_mutations_end_in_rows_or_one_line(tmp_path, qwen2_7b_header, capsys):
    """Bytes of the real header's table of tensors and of its first keys, changed; plus cuts at any byte."""
    whole = qwen2_7b_header.read_bytes()
    table = whole.index(b"output.weight") - 8
    small = bytearray(header([(b"blk.0.ffn_down.weight", (256, 256), 14, 0), (b"output.weight", (256, 64), 12, 53760)]))
    rng = random.Random(72)
    path, outcomes = tmp_path / "m.gguf", set()
    for i in range(300):
        if i % 10 == 0:  # of the real header, whose parse is slow, a tenth of the mutations
            data = bytearray(whole)
            data[rng.randrange(table, len(whole))] = rng.randrange(256)
        else:
            data = bytearray(small)
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            data = data[: rng.choice((len(data), rng.randrange(len(data))))]
        path.write_bytes(data)
        try:
            models, _ = headers.read([str(path)])
            shapes.shapes(models[0])
            outcomes.add("read")
        except CensusError as error:
            assert "\n" not in str(error) and str(error).startswith(str(path))
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("args, said", [
    (["nowhere.gguf"], "no such file"),
    (["catalogue:qwen9"], "no such model"),
    (["catalogue:qwen2.5-7b:Q9"], "no such mix"),
    (["catalogue:phi-4", "--type", "Q9"], "no such quant type"),
    (["catalogue:phi-4", "--between", "24e6,4e6"], "two counts"),
    (["catalogue:phi-4", "--between", "1.5,nan"], "two counts"),
    (["catalogue:phi-4", "--what-if", "Q6_K"], "TYPE=ELEMENTS"),
    (["catalogue:phi-4", "--what-if", "Q6_K=1:2:3"], "TYPE=ELEMENTS"),
    (["catalogue:phi-4", "--what-if", "F16=1"], "no gate"),
])  # fmt: skip
def test_mistakes_are_one_line(args, said, capsys):
    code, out, err = census(["shapes", *args], capsys)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
