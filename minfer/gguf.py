"""GGUF files: a bounds-checked header reader and mmap'd tensors.

The `gguf` package builds one numpy view per string (8 s for a 7B header); this reader walks string arrays once
and keeps only where they start. Every length in the file is checked before it is believed, so a damaged or
hostile header ends in one `GGUFError` line and never in a large allocation. Constants and dequantization come
from `gguf`. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

import contextlib
import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import gguf
import numpy as np

from minfer.errors import UserError

MAX_STRING = 1 << 24  # bytes; the longest real strings are chat templates, tens of kB
MAX_ARRAY = 1 << 24  # elements; the largest real arrays are merges, about 500,000
MAX_ELEMENTS = 1 << 40  # per tensor; the largest real ones (stacked experts) hold about 2**34
MAX_PARTS = 99_999  # what five digits in the name of a split file can say
SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")

_STRING, _ARRAY = 8, 9
# GGUF value type -> struct code; struct and numpy share these letters
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U64 = struct.Struct("<Q")


class GGUFError(UserError):
    """A file that is not the GGUF this reader accepts; the message is one line and starts with the file."""


class GGUFTruncated(GGUFError):
    """A file that ends inside its header: with more of its bytes it may be fine."""


@dataclass(frozen=True)
class Quant:
    """A ggml type: `elements` weights are stored in one block of `nbytes` bytes."""

    name: str
    elements: int
    nbytes: int
    id: int


QUANTS: dict[str, Quant] = {
    t.name: Quant(t.name, elements, nbytes, int(t)) for t, (elements, nbytes) in gguf.GGML_QUANT_SIZES.items()
}
QUANT_BY_ID: dict[int, Quant] = {q.id: q for q in QUANTS.values()}
# the types whose weights can be read as f32, and so run
SUPPORTED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True)
class Tensor:
    """A tensor's place in its file. `shape` is ggml's ne: shape[0] is the row length (id), shape[1] the rows (od)."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of `file`
    nbytes: int
    file: Path

    @property
    def rows(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def row_nbytes(self) -> int:
        return self.nbytes // self.rows


@dataclass(frozen=True)
class Array:
    """A metadata array, decoded when asked for. `code` is the struct letter of its elements, "s" for strings."""

    key: str
    kind: int  # value type of the elements, as gguf.GGUFValueType
    code: str
    count: int
    start: int  # bytes from the start of the file
    where: Path
    buf: mmap.mmap

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def numpy(self) -> np.ndarray:
        """The elements as a read-only view of the file; GGUFError for strings."""
        if self.code == "s":
            raise GGUFError(f"{self.where}: {self.key} holds strings, not numbers; use tolist()")
        return np.frombuffer(self.buf, np.dtype(self.code).newbyteorder("<"), self.count, self.start)

    def tolist(self) -> list[Any]:
        """The elements as Python values; GGUFError for a string that is not UTF-8."""
        if self.code != "s":
            return list(self.numpy().tolist())
        cursor = Cursor(self.where, self.buf, self.start)
        return [cursor.string(self.key) for _ in range(self.count)]


class Cursor:
    """A position in a header that refuses to move past the end of the file."""

    def __init__(self, path: Path, buf: mmap.mmap, pos: int = 0) -> None:
        self.path, self.buf, self.pos, self.end = path, buf, pos, len(buf)

    def fail(self, message: str) -> NoReturn:
        raise GGUFError(f"{self.path}: {message}")

    def truncated(self, what: str) -> NoReturn:
        raise GGUFTruncated(
            f"{self.path}: the file ends at byte {self.end}, inside its header (reading {what}); fetch it again"
        )

    def scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        if self.pos + size > self.end:
            self.truncated(what)
        self.pos += size
        return struct.unpack_from("<" + code, self.buf, self.pos - size)[0]

    def string(self, what: str) -> str:
        if self.pos + 8 > self.end:
            self.truncated(what)
        start = self.pos + 8
        size = _U64.unpack_from(self.buf, self.pos)[0]
        self.check_string(size, start, what)
        self.pos = start + size
        try:
            return self.buf[start : self.pos].decode()
        except UnicodeDecodeError:
            self.fail(f"{what} at byte {start} is not UTF-8; the header is damaged, fetch the file again")

    def check_string(self, size: int, start: int, what: str) -> None:
        if size > MAX_STRING:
            self.fail(f"{what} claims a string of {size} bytes (at most {MAX_STRING}); the header is damaged")
        if start + size > self.end:
            self.truncated(what)

    def skip_strings(self, count: int, what: str) -> None:
        """Move over `count` strings without decoding them; inlined because vocabularies hold 300,000 of them."""
        pos, last, buf, unpack = self.pos, self.end - 8, self.buf, _U64.unpack_from
        for _ in range(count):
            if pos > last:
                self.truncated(what)
            size = unpack(buf, pos)[0]
            if size > MAX_STRING:
                self.check_string(size, pos + 8, what)
            pos += 8 + size
        if pos > self.end:
            self.truncated(what)
        self.pos = pos

    def array(self, key: str) -> Array:
        kind, count = self.scalar("I", key), self.scalar("Q", key)
        if kind == _ARRAY:
            self.fail(f"{key} is an array of arrays; GGUF files of models hold none, the header is damaged")
        if kind != _STRING and kind not in _SCALARS:
            self.fail(f"{key} is an array of value type {kind} (allowed: 0 to 12); the header is damaged")
        if count > MAX_ARRAY:
            self.fail(f"{key} claims {count} elements (at most {MAX_ARRAY}); the header is damaged")
        found = Array(key, kind, _SCALARS.get(kind, "s"), count, self.pos, self.path, self.buf)
        if kind == _STRING:
            self.skip_strings(count, key)
        else:
            self.pos += count * struct.calcsize("<" + found.code)
            if self.pos > self.end:
                self.truncated(key)
        return found

    def value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            self.fail(f"{key} has value type {kind} (allowed: 0 to 12); the header is damaged")
        return self.scalar(_SCALARS[kind], key)


@dataclass(frozen=True)
class GGUF:
    """An open model: its metadata (scalars plain, arrays lazy) and where each tensor lies, over all split files."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: dict[str, Tensor]
    value_types: Mapping[str, int]  # of the metadata, as gguf.GGUFValueType; a copy must keep them
    maps: dict[Path, mmap.mmap]

    def require_data(self) -> None:
        """Raise GGUFError when any tensor's data runs past the end of its file."""
        for tensor in self.tensors.values():
            self._data(tensor)

    def raw(self, tensor: Tensor) -> np.ndarray:
        """The stored bytes as a read-only uint8 view of the file, shape (rows, row_nbytes)."""
        flat = np.frombuffer(self._data(tensor), np.uint8, tensor.nbytes, tensor.offset)
        return flat.reshape(tensor.rows, tensor.row_nbytes)

    def f32(self, tensor: Tensor, rows: slice | list[int] | None = None) -> np.ndarray:
        """Weights as f32, shape (rows, shape[0]), or (n,) for a 1-D tensor; F32 tensors are views of the file."""
        if tensor.type not in SUPPORTED:
            raise GGUFError(
                f"{tensor.file}: tensor {tensor.name} has type {tensor.type}, which cannot be read as f32"
                f" (supported: {' '.join(SUPPORTED)}); use a model quantized to one of these"
            )
        raw = self.raw(tensor) if rows is None else self.raw(tensor)[rows]
        if tensor.type == "F32":
            weights = raw.view("<f4")
        else:
            weights = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(QUANTS[tensor.type].id))
        return weights.reshape(-1) if len(tensor.shape) == 1 and rows is None else weights

    def close(self) -> None:
        for buf in self.maps.values():
            with contextlib.suppress(BufferError):  # views handed out keep their mapping alive until they go
                buf.close()
        self.maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _data(self, tensor: Tensor) -> mmap.mmap:
        buf = self.maps[tensor.file]
        if tensor.offset + tensor.nbytes > len(buf):
            raise GGUFError(
                f"{tensor.file}: the data of tensor {tensor.name} ends at byte {tensor.offset + tensor.nbytes}, the"
                f" file at {len(buf)}: header-only or truncated (enough for plan); fetch the whole file to run it"
            )
        return buf


def open_gguf(path: Path) -> GGUF:
    """Open a model by its file, or by the first of its split files. Raises GGUFError, one line, for anything else."""
    path = Path(path)
    first = _read_file(path)
    count = first.metadata.get("split.count", 0)
    if not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
        raise GGUFError(f"{path}: split.count is {count!r} (allowed: 0 to {MAX_PARTS}); the header is damaged")
    return _join_split(first, count) if count > 1 else first


def _join_split(first: GGUF, count: int) -> GGUF:
    tensors, maps = dict(first.tensors), dict(first.maps)
    for number, path in enumerate(_split_paths(first, count)[1:], start=1):
        part = _read_file(path)
        if part.metadata.get("split.no") != number:
            raise GGUFError(
                f"{path}: says it is part {part.metadata.get('split.no')} by split.no, its name says {number}"
                " (counted from 0); the parts are mixed up, fetch them again"
            )
        if twice := sorted(tensors.keys() & part.tensors.keys()):
            raise GGUFError(f"{path}: tensor {twice[0]} is in an earlier part too; the parts are of different models")
        tensors |= part.tensors
        maps |= part.maps
    expected = first.metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise GGUFError(f"{first.path}: {len(tensors)} tensors in {count} parts, split.tensors.count says {expected}")
    return GGUF(first.path, first.version, first.metadata, tensors, first.value_types, maps)


def _split_paths(first: GGUF, count: int) -> list[Path]:
    name = SPLIT_NAME.fullmatch(first.path.name)
    if not name or int(name["count"]) != count:
        raise GGUFError(
            f"{first.path}: one of {count} parts, but not named NAME-00001-of-{count:05}.gguf; rename it so"
        )
    paths = [first.path.with_name(f"{name['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    if first.metadata.get("split.no") != 0 or int(name["no"]) != 1:
        raise GGUFError(f"{first.path}: part {name['no']} of {count}; open the first part, {paths[0].name}")
    return paths


def _read_file(path: Path) -> GGUF:
    cursor = Cursor(path, _map(path))
    version = _read_magic(cursor)
    n_tensors, n_kv = cursor.scalar("Q", "the tensor count"), cursor.scalar("Q", "the metadata count")
    metadata: dict[str, Any] = {}
    value_types: dict[str, int] = {}
    for _ in range(n_kv):
        key = cursor.string("a metadata key")
        if key in metadata or not key.isprintable():
            cursor.fail(f"metadata key {key[:64]!r} is repeated or not printable; the header is damaged")
        value_types[key] = cursor.scalar("I", key[:64])
        metadata[key] = cursor.value(key[:64], value_types[key])
    infos = [_read_tensor_info(cursor) for _ in range(n_tensors)]
    return GGUF(path, version, metadata, _place_tensors(cursor, infos, metadata), value_types, {path: cursor.buf})


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise GGUFError(f"{path}: no such file; give a GGUF file or a name that `minfer pull` knows") from None
    except IsADirectoryError:
        raise GGUFError(f"{path}: a directory, not a GGUF file; name the .gguf file inside it") from None
    except ValueError:
        raise GGUFError(f"{path}: not a GGUF file, it is empty; fetch it again") from None
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from None


def _read_magic(cursor: Cursor) -> int:
    magic = cursor.buf[:4]
    if magic != b"GGUF":
        cursor.fail(f"not a GGUF file, it starts with {magic!r} instead of b'GGUF'; give a GGUF file")
    cursor.pos = 4
    version: int = cursor.scalar("I", "the version")
    if version and not version & 0xFFFF:
        cursor.fail(f"GGUF version {version:#010x} means a big-endian file (only little-endian is read); convert it")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version} (supported: 2 and 3); convert the model again with a current llama.cpp")
    return version


@dataclass(frozen=True)
class _Info:
    name: str
    quant: Quant
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the data section

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.quant.elements * self.quant.nbytes


def _read_tensor_info(cursor: Cursor) -> _Info:
    name = cursor.string("a tensor name")
    if not name or not name.isprintable() or len(name) > 512:
        cursor.fail(f"tensor name {name[:64]!r} is empty, too long or not printable; the header is damaged")
    n_dims = cursor.scalar("I", name)
    if not 1 <= n_dims <= 4:
        cursor.fail(f"tensor {name} has {n_dims} dimensions (allowed: 1 to 4); the header is damaged")
    shape = tuple(cursor.scalar("q", name) for _ in range(n_dims))
    if min(shape) < 1 or math.prod(shape) > MAX_ELEMENTS:
        cursor.fail(f"tensor {name} has shape {shape} (allowed: 1 to {MAX_ELEMENTS} elements); the header is damaged")
    quant = QUANT_BY_ID.get(type_id := cursor.scalar("I", name))
    if quant is None:
        cursor.fail(
            f"tensor {name} has the unknown type {type_id} (supported: {' '.join(SUPPORTED)}); use another file"
        )
    if shape[0] % quant.elements:
        cursor.fail(f"tensor {name} has rows of {shape[0]}, {quant.name} needs a multiple of {quant.elements}")
    return _Info(name, quant, shape, cursor.scalar("Q", name))


def _place_tensors(cursor: Cursor, infos: list[_Info], metadata: Mapping[str, Any]) -> dict[str, Tensor]:
    """Absolute offsets; like llama.cpp, insists that tensors lie in order with nothing but padding between."""
    align = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(align, int) or align < 1 or align & (align - 1):
        cursor.fail(f"general.alignment is {align!r} (allowed: a power of two); the header is damaged")
    start, expected = _round_up(cursor.pos, align), 0
    tensors: dict[str, Tensor] = {}
    for info in infos:
        if info.name in tensors:
            cursor.fail(f"tensor {info.name} is listed twice; the header is damaged, fetch the file again")
        if info.offset != expected:
            cursor.fail(f"tensor {info.name} has data offset {info.offset}, the tensors before it end at {expected}")
        expected += _round_up(info.nbytes, align)
        tensors[info.name] = Tensor(
            info.name, info.quant.name, info.shape, start + info.offset, info.nbytes, cursor.path
        )
    return tensors


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
