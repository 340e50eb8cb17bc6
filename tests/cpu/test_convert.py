"""The f32 copy holds the same weights and metadata, and arrives whole or not at all."""

import numpy as np
import pytest

from minfer.convert import dequantize
from minfer.errors import UserError
from minfer.gguf import Array, open_gguf


def plain(metadata):
    return {key: value.tolist() if isinstance(value, Array) else value for key, value in metadata.items()}


def test_same_weights_and_metadata(tiny_qwen2, tmp_path):
    calls = []
    dequantize(tiny_qwen2, tmp_path / "f32.gguf", lambda done, total: calls.append((done, total)))
    with open_gguf(tiny_qwen2) as src, open_gguf(tmp_path / "f32.gguf") as dst:
        dst.require_data()
        assert list(dst.tensors) == list(src.tensors)
        for name, tensor in dst.tensors.items():
            assert tensor.type == "F32" and tensor.shape == src.tensors[name].shape
            np.testing.assert_array_equal(dst.f32(tensor), src.f32(src.tensors[name]))
        changed = {"general.file_type", "general.quantization_version"}
        kept = {key: value for key, value in plain(src.metadata).items() if key not in changed}
        assert plain(dst.metadata) == kept | {"general.file_type": 0}
        assert all(dst.value_types[key] == src.value_types[key] for key in kept)
    assert calls[-1][0] == calls[-1][1] == sum(t.nbytes for t in dst.tensors.values())


def test_existing_target_is_kept_unless_forced(tiny_qwen2, tmp_path):
    dst = tmp_path / "f32.gguf"
    dst.write_bytes(b"precious")
    with pytest.raises(UserError, match="exists already"):
        dequantize(tiny_qwen2, dst)
    assert dst.read_bytes() == b"precious"
    dequantize(tiny_qwen2, dst, force=True)
    assert dst.read_bytes()[:4] == b"GGUF"


def test_failures_leave_nothing(tiny_qwen2, qwen2_7b_header, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dequantize(tiny_qwen2, tmp_path / "a.gguf", interrupt)
    with pytest.raises(UserError, match="header-only"):
        dequantize(qwen2_7b_header, tmp_path / "b.gguf")
    with pytest.raises(UserError, match="cannot be written"):
        dequantize(tiny_qwen2, tmp_path / "none" / "c.gguf")
    assert list(tmp_path.iterdir()) == []
