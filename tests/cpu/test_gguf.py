"""The header reader agrees with the `gguf` package, and nothing damaged gets past it."""

import random
import resource
import struct
import time

import gguf
import numpy as np
import pytest

from minfer.errors import UserError
from minfer.gguf import QUANTS, SUPPORTED, Array, GGUFError, open_gguf

S, U32, U64, I64 = (lambda text: struct.pack("<Q", len(text)) + text), *(struct.Struct(f"<{c}").pack for c in "IQq")


def tensor(name=b"t", shape=(32, 2), kind=0, offset=0, n_dims=None):
    dims = b"".join(map(I64, shape))
    return S(name) + U32(len(shape) if n_dims is None else n_dims) + dims + U32(kind) + U64(offset)


def header(*tensors, kv=(), version=3, magic=b"GGUF", n_tensors=None, n_kv=None):
    counts = U64(len(tensors) if n_tensors is None else n_tensors) + U64(len(kv) if n_kv is None else n_kv)
    return magic + U32(version) + counts + b"".join(kv) + b"".join(tensors)


def kv(key, kind, value):
    return S(key) + U32(kind) + value


def assert_same_as_package(path, with_metadata):
    theirs = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        infos = [(t.name, t.type, t.shape, t.offset, t.nbytes) for t in ours.tensors.values()]
        assert infos == [
            (t.name, t.tensor_type.name, tuple(t.shape.tolist()), t.data_offset, t.n_bytes) for t in theirs.tensors
        ]
        fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, field in fields.items() if with_metadata else ():
            value = ours.metadata[key]
            assert (value.tolist() if isinstance(value, Array) else value) == field.contents(), key
            assert ours.value_types[key] == field.types[0]


def test_every_field_is_the_packages(smollm2):
    assert_same_as_package(smollm2, with_metadata=True)


def test_weights_are_the_packages(smollm2):
    theirs = {t.name: t for t in gguf.GGUFReader(smollm2).tensors}
    with open_gguf(smollm2) as ours:
        for name in ("token_embd.weight", "blk.3.attn_v.weight", "blk.3.attn_norm.weight"):
            expected = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
            np.testing.assert_array_equal(ours.f32(ours.tensors[name]), expected)
        some = ours.f32(ours.tensors["token_embd.weight"], [7, 3])
        np.testing.assert_array_equal(some, ours.f32(ours.tensors["token_embd.weight"], slice(3, 8, 4))[::-1])


def test_f32_tensors_are_views_of_the_file(smollm2):
    with open_gguf(smollm2) as model:
        norm = model.f32(model.tensors["output_norm.weight"])
        assert norm.shape == (576,) and not norm.flags.owndata and not norm.flags.writeable
    assert norm.sum() != 0, "a view outlives close"


def test_real_7b_header(qwen2_7b_header):
    """Known answers of that file; and it opens in under 0.5 s (the package takes 8)."""

    def seconds():
        start = time.perf_counter()
        open_gguf(qwen2_7b_header).close()
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.5
    with open_gguf(qwen2_7b_header) as model:
        assert len(model.tensors) == 339 and sum(t.nbytes for t in model.tensors.values()) == 4_677_120_000
        assert model.tensors["blk.0.attn_v.weight"].shape == (3584, 512)
        assert model.tensors["blk.0.attn_v.weight"].type == "Q6_K"
        assert model.tensors["output.weight"].row_nbytes == 3584 // 256 * 210
        assert len(model.metadata["tokenizer.ggml.tokens"]) == 152064
        assert model.metadata["tokenizer.ggml.token_type"].numpy().dtype == np.int32
        with pytest.raises(GGUFError, match=r"output.weight ends at byte 453021408.*header-only"):
            model.require_data()


def test_real_7b_header_is_the_packages(qwen2_7b_header, tmp_path):
    whole = tmp_path / "whole.gguf"  # the package wants data; a sparse file has it
    whole.write_bytes(qwen2_7b_header.read_bytes())
    with whole.open("r+b") as file:
        file.truncate(5_953_248 + 4_677_120_000)
    assert_same_as_package(whole, with_metadata=False)


def test_array_kinds(tmp_path):
    path = tmp_path / "a.gguf"
    entries = [
        kv(b"k%d" % kind, 9, U32(kind) + U64(2) + struct.pack(f"<2{code}", 1, 0))
        for code, kind in [("q", 11), ("d", 12)]
    ]
    entries += [kv(b"bool", 9, U32(7) + U64(2) + b"\1\0"), kv(b"empty", 9, U32(8) + U64(0)), kv(b"yes", 7, b"\1")]
    path.write_bytes(header(kv=entries))
    with open_gguf(path) as model:
        lists = {key: value.tolist() for key, value in model.metadata.items() if isinstance(value, Array)}
    assert lists == {"k11": [1, 0], "k12": [1.0, 0.0], "bool": [True, False], "empty": []}
    assert model.metadata["yes"] is True


def test_quant_table():
    assert (QUANTS["Q4_K"].elements, QUANTS["Q4_K"].nbytes, QUANTS["Q4_K"].id) == (256, 144, 12)
    assert set(SUPPORTED) <= set(QUANTS) and len(SUPPORTED) == 11


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_supported_type_is_read_as_f32(name, tmp_path):
    path, quant = tmp_path / "t.gguf", QUANTS[name]
    ones = np.ones((2, 512), np.float32)
    if name.endswith("_K"):  # the package cannot quantize these: zero blocks stand for zeros
        ones, raw = np.zeros_like(ones), bytes(2 * 512 // quant.elements * quant.nbytes)
    else:
        raw = gguf.quants.quantize(ones, gguf.GGMLQuantizationType[name]).tobytes()
    head = header(tensor(shape=(512, 2), kind=quant.id))
    path.write_bytes(head + bytes(-len(head) % 32) + raw)
    with open_gguf(path) as model:
        weights = model.f32(model.tensors["t"])
    assert weights.shape == (2, 512) and weights.dtype == np.float32
    np.testing.assert_allclose(weights, ones, atol=0.01)


BIG = 1 << 31
REFUSED = {
    "not a GGUF": (b"PK\3\4" + bytes(40), "not a GGUF file, it starts with b'PK"),
    "empty": (b"", "it is empty"),
    "v1": (header(version=1), r"version 1 \(supported: 2 and 3\)"),
    "big-endian": (b"GGUF" + b"\0\0\0\3" + bytes(16), "big-endian"),
    "only a magic": (b"GGUF", "inside its header"),
    "cut in the counts": (header()[:20], "inside its header"),
    "cut in a key": (header(kv=[S(b"general.name")[:12]]), "inside its header"),
    "cut in a tensor": (header(tensor()[:30]), "inside its header"),
    "2 GB string": (header(kv=[kv(b"k", 8, U64(BIG))]), "string of 2147483648 bytes"),
    "2**64 string": (header(kv=[kv(b"k", 8, U64(2**64 - 1))]), "string of 18446744073709551615 bytes"),
    "2 GB key": (header(kv=[U64(BIG)]), "string of 2147483648 bytes"),
    "2 GB string in an array": (header(kv=[kv(b"k", 9, U32(8) + U64(1) + U64(BIG))]), "string of 2147483648"),
    "billion strings": (header(kv=[kv(b"k", 9, U32(8) + U64(10**9))]), "claims 1000000000 elements"),
    "billion numbers": (header(kv=[kv(b"k", 9, U32(5) + U64(10**9))]), "claims 1000000000 elements"),
    "numbers past the end": (header(kv=[kv(b"k", 9, U32(5) + U64(1000))]), "inside its header"),
    "nested array": (header(kv=[kv(b"k", 9, U32(9) + U64(1) + U32(5) + U64(0))]), "array of arrays"),
    "value type 13": (header(kv=[kv(b"k", 13, b"")]), "value type 13"),
    "array of type 13": (header(kv=[kv(b"k", 9, U32(13) + U64(0))]), "value type 13"),
    "repeated key": (header(kv=[kv(b"k", 4, U32(1))] * 2), "'k' is repeated"),
    "key with a line end": (header(kv=[kv(b"a\nb", 4, U32(1))]), r"'a\\nb'"),
    "key that is not UTF-8": (header(kv=[kv(b"\xff", 4, U32(1))]), "not UTF-8"),
    "2**60 entries": (header(n_kv=2**60), "inside its header"),
    "2**60 tensors": (header(n_tensors=2**60), "inside its header"),
    "duplicate tensor": (header(tensor(), tensor(offset=256)), "t is listed twice"),
    "no dimensions": (header(tensor(shape=())), "0 dimensions"),
    "5 dimensions": (header(tensor(shape=(1,) * 5)), "5 dimensions"),
    "2**32 dimensions": (header(tensor(n_dims=2**32 - 1)), "4294967295 dimensions"),
    "negative dimension": (header(tensor(shape=(32, -2))), r"\(32, -2\)"),
    "zero dimension": (header(tensor(shape=(32, 0))), r"\(32, 0\)"),
    "absurd dimension": (header(tensor(shape=(2**62, 2))), "shape"),
    "overflowing product": (header(tensor(shape=(2**32, 2**32, 2, 2))), "shape"),
    "unknown type": (header(tensor(kind=99)), "tensor t has the unknown type 99"),
    "removed type": (header(tensor(kind=4)), "tensor t has the unknown type 4"),
    "row that is no multiple": (header(tensor(shape=(33, 2), kind=2)), "rows of 33, Q4_0 needs a multiple of 32"),
    "offset past the end": (header(tensor(offset=2**63)), "data offset 9223372036854775808"),
    "overlapping": (header(tensor(), tensor(name=b"u", offset=32)), "tensor u has data offset 32"),
    "alignment 3": (header(kv=[kv(b"general.alignment", 4, U32(3))]), "alignment is 3"),
    "alignment of text": (header(kv=[kv(b"general.alignment", 8, S(b"x"))]), "alignment is 'x'"),
    "split of -1": (header(kv=[kv(b"split.count", 3, struct.pack("<h", -1))]), "split.count is -1"),
    "split, wrong name": (header(kv=[kv(b"split.count", 2, struct.pack("<H", 2))]), "rename it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case, tmp_path):
    content, words = REFUSED[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=words) as error:
        open_gguf(path)
    assert "\n" not in str(error.value) and str(error.value).startswith(str(path)) and len(str(error.value)) < 400


def test_no_file_and_directory(tmp_path):
    with pytest.raises(GGUFError, match="no such file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="a directory"):
        open_gguf(tmp_path)


def test_type_that_is_not_supported_opens_but_does_not_run(tmp_path):
    path = tmp_path / "q2.gguf"
    path.write_bytes(header(tensor(shape=(256, 1), kind=10)) + bytes(200))
    with open_gguf(path) as model:
        assert model.tensors["t"].type == "Q2_K" and model.tensors["t"].nbytes == 84
        with pytest.raises(UserError, match=r"tensor t has type Q2_K.*Q4_K"):
            model.f32(model.tensors["t"])


def write_split(folder, no, count, name, tensors=3):
    writer = gguf.GGUFWriter(folder / f"m-{no + 1:05}-of-{count:05}.gguf", "llama")
    writer.add_uint16("split.no", no)
    writer.add_uint16("split.count", count)
    writer.add_int32("split.tensors.count", tensors)
    writer.add_tensor(name, np.full((2, 4), no, np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()


def test_split_files_are_one_model(tmp_path):
    for no in range(3):
        write_split(tmp_path, no, 3, f"t{no}")
    with open_gguf(tmp_path / "m-00001-of-00003.gguf") as model:
        model.require_data()
        assert [float(model.f32(t).mean()) for t in model.tensors.values()] == [0, 1, 2]
        assert [t.file.name[2:7] for t in model.tensors.values()] == ["00001", "00002", "00003"]


@pytest.mark.parametrize(
    ("parts", "first", "words"),
    [
        ([(0, "a"), (1, "b")], 2, "open the first part, m-00001-of-00002"),
        ([(0, "a")], 1, "m-00002-of-00002.gguf: no such file"),
        ([(0, "a"), (1, "a")], 1, "tensor a is in an earlier part"),
        ([(0, "a"), (1, "b")], 1, "2 tensors in 2 parts, split.tensors.count says 3"),
    ],
)
def test_bad_splits(tmp_path, parts, first, words):
    for no, name in parts:
        write_split(tmp_path, no, 2, name)
    with pytest.raises(GGUFError, match=words):
        open_gguf(tmp_path / f"m-0000{first}-of-00002.gguf")


def test_300_mutations_end_in_success_or_one_line(tmp_path):
    """Bytes changed, cut out, doubled, or lengths blown up, in a header with everything in it."""
    entries = [kv(b"general.architecture", 8, S(b"llama")), kv(b"words", 9, U32(8) + U64(3) + S(b"ab") * 3)]
    entries += [
        kv(b"numbers", 9, U32(5) + U64(4) + bytes(16)),
        kv(b"f", 6, bytes(4)),
        kv(b"general.alignment", 4, U32(32)),
    ]
    tensors = [tensor(), tensor(b"q4", (256, 4), 12, 256), tensor(b"one", (8,), 0, 256 + 576)]
    good = header(*tensors, kv=entries)
    path, rng, outcomes = tmp_path / "f.gguf", random.Random(7), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    for _ in range(300):
        path.write_bytes(mutate(bytearray(good), rng))
        outcomes.append(opens(path))
    assert outcomes.count(False) > 100 and outcomes.count(True) > 10
    assert time.perf_counter() - start < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_mutations_of_a_real_header(qwen2_7b_header, tmp_path):
    """Eight bytes overwritten anywhere in 6 MB, where strings are long and arrays large."""
    path, rng = tmp_path / "f.gguf", random.Random(8)
    good = qwen2_7b_header.read_bytes()
    path.write_bytes(good)
    with path.open("r+b", buffering=0) as file:
        for _ in range(60):
            at = rng.choice([rng.randrange(len(good)), rng.randrange(1000), len(good) - rng.randrange(20_000)])
            file.seek(at)
            file.write(U64(rng.choice([2**63, 2**31, 2**20, 10**9, 2**64 - 1, 0]))[: len(good) - at])
            opens(path)
            file.seek(at)
            file.write(good[at : at + 8])
    assert opens(path)


def opens(path):
    """Whether the header is accepted; a refusal must be one line, and any other exception fails the test."""
    try:
        with open_gguf(path) as model:
            for value in model.metadata.values():
                if isinstance(value, Array):
                    value.tolist()
        return True
    except GGUFError as error:
        assert "\n" not in str(error) and len(str(error)) < 500
        return False


def mutate(data, rng):
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at : at + 8] = U64(rng.choice([2**63, 2**31, 10**9, 2**64 - 1, 0, 1]))
        elif kind == 2:
            del data[at : at + rng.randint(1, 40)]
        elif kind == 3:
            data[at:at] = data[at : at + rng.randint(1, 40)]
        else:
            del data[max(at, 1) :]
        if not data:
            return b"G"
    return bytes(data)
