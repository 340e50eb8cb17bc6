"""Writing GGUF files: atomic, tensor by tensor, with little memory, through the `gguf` package's writer."""

import math
import tempfile
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from minfer.errors import UserError
from minfer.gguf import GGUF, QUANTS, Array
from minfer.progress import Progress

# the writer puts these itself, or they are not true of a copy
REWRITTEN = {"general.architecture", "general.alignment", "general.file_type", "general.quantization_version"}


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write. `shape` is ggml's ne: shape[0] is the row length."""

    name: str
    type: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        quant = QUANTS[self.type]
        return math.prod(self.shape) // quant.elements * quant.nbytes


Data = Callable[[NewTensor], Iterable[np.ndarray]]


@dataclass(frozen=True)
class NewFile:
    """A file to write: who fills in the metadata, the tensors in order, and (unless header-only) their bytes."""

    architecture: str
    fill: Callable[[gguf.GGUFWriter], None]
    tensors: list[NewTensor]
    data: Data | None


def write_gguf(dst: Path, new: NewFile, progress: Progress, force: bool = False) -> None:
    """Write `dst` beside its place and rename it when whole. UserError when it exists (without force) or cannot be."""
    if dst.is_dir():
        raise UserError(f"{dst}: a directory; name the GGUF file to write")
    if dst.exists() and not force:
        raise UserError(f"{dst}: exists already and is kept; remove it, name another file, or use --force")
    try:
        with tempfile.TemporaryDirectory(dir=dst.parent, prefix=".minfer-") as folder:
            part = Path(folder) / "model.part"
            _write(part, new, progress)
            part.replace(dst)
    except OSError as error:
        raise UserError(f"{dst}: cannot be written ({error.strerror or error}); nothing was kept") from None


def copy_metadata(model: GGUF, writer: gguf.GGUFWriter, prefix: str = "", without: Set[str] = REWRITTEN) -> None:
    """Copy the metadata whose keys start with `prefix`, value types kept, except `without` and how a file is split."""
    for key, value in model.metadata.items():
        if key in without or key.startswith("split.") or not key.startswith(prefix):
            continue
        kind = gguf.GGUFValueType(model.value_types[key])
        if not isinstance(value, Array):
            writer.add_key_value(key, value, kind)
        elif len(value):  # the writer refuses empty arrays, and a missing one means the same
            writer.add_key_value(key, value.tolist(), kind, sub_type=gguf.GGUFValueType(value.kind))


def _write(part: Path, new: NewFile, progress: Progress) -> None:
    writer = gguf.GGUFWriter(part, new.architecture)
    try:
        new.fill(writer)
        for tensor in new.tensors:
            kind = gguf.GGMLQuantizationType[tensor.type]
            # numpy's order of dimensions is the reverse of ggml's
            writer.add_tensor_info(tensor.name, tensor.shape[::-1], np.dtype("f4"), tensor.nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if new.data:
            _write_data(writer, new.tensors, new.data, progress)
    finally:
        writer.close()


def _write_data(writer: gguf.GGUFWriter, tensors: list[NewTensor], data: Data, progress: Progress) -> None:
    assert writer.fout, "the writer opens its file with the header"
    out = writer.fout[0]
    done, total = 0, sum(tensor.nbytes for tensor in tensors)
    for tensor in tensors:
        writer.write_padding(out, out.tell())
        end = out.tell() + tensor.nbytes
        for chunk in data(tensor):
            out.write(chunk.data)
            done += chunk.nbytes
            progress(done, total)
        assert out.tell() == end, f"{tensor.name}: wrote up to byte {out.tell()}, planned {end}"
    writer.write_padding(out, out.tell())
