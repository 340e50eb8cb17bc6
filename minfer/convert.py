"""`minfer dequantize IN OUT`: a copy of a model with every tensor in f32, the exact side of an oracle."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from minfer.gguf import GGUF, GGUFError, open_gguf
from minfer.gguf_write import NewFile, NewTensor, copy_metadata, write_gguf
from minfer.progress import Progress, silent

CHUNK_ELEMENTS = 1 << 22  # weights held as f32 at a time: 16 MB


def dequantize(src: Path, dst: Path, progress: Progress = silent, force: bool = False) -> None:
    """Write `dst`, one file with src's metadata and f32 tensors. UserError for a bad src or an existing dst."""
    with open_gguf(src) as model:
        model.require_data()
        architecture = model.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise GGUFError(f"{src}: general.architecture is {architecture!r}, not a name; fetch the file again")

        def fill(writer: gguf.GGUFWriter) -> None:
            copy_metadata(model, writer)
            writer.add_file_type(gguf.LlamaFileType.ALL_F32)

        tensors = [NewTensor(t.name, "F32", t.shape) for t in model.tensors.values()]
        write_gguf(dst, NewFile(architecture, fill, tensors, lambda t: _weights(model, t.name)), progress, force)


def _weights(model: GGUF, name: str) -> Iterator[np.ndarray]:
    tensor = model.tensors[name]
    step = max(1, CHUNK_ELEMENTS // tensor.shape[0])
    for start in range(0, tensor.rows, step):
        yield model.f32(tensor, slice(start, start + step))
