"""Synthetic models have the real layout, and numbers that stay near 1."""

import numpy as np
import pytest

from census import catalogue
from minfer.errors import UserError
from minfer.gguf import open_gguf
from minfer.synth import PRESETS, synth, tensors_of, weight_std
from peer import Peer


def layout(model):
    return [(t.name, t.type, t.shape, t.nbytes) for t in model.tensors.values()]


def test_7b_equals_the_real_header(qwen2_7b_header, tmp_path):
    synth("qwen2-7b", tmp_path / "7b.gguf", header_only=True, vocab_from=qwen2_7b_header)
    with open_gguf(tmp_path / "7b.gguf") as ours, open_gguf(qwen2_7b_header) as real:
        assert layout(ours) == layout(real)
        keys = [k for k in real.metadata if k.startswith("qwen2.") and "rope" not in k and "context" not in k]
        assert [ours.metadata[k] for k in keys] == [real.metadata[k] for k in keys]
        assert ours.metadata["tokenizer.ggml.merges"].tolist() == real.metadata["tokenizer.ggml.merges"].tolist()
        with pytest.raises(UserError, match="header-only"):
            ours.require_data()


def test_14b_layout(tmp_path):
    """48 layers, 24 with mixed types in QKV; bytes and weights as llama-bench reports for the real Q4_K_M file."""
    synth("qwen2-14b", tmp_path / "14b.gguf", header_only=True)
    with open_gguf(tmp_path / "14b.gguf") as model:
        wide = [t for t in model.tensors.values() if t.type == "Q6_K" and "attn_v" in t.name]
        assert len(wide) == 24 and {t.shape for t in wide} == {(5120, 1024)}
        assert sum(t.nbytes for t in model.tensors.values()) == 8_982_142_976
        assert sum(t.rows * t.shape[0] for t in model.tensors.values()) == 14_770_033_664


# billions of parameters as each model's page says; the 7B and the 14B are compared with their files above
PUBLISHED = {"0.5b": 0.494, "1.5b": 1.54, "3b": 3.09, "32b": 32.76}


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameters_add_up_to_the_published_size(size, tmp_path):
    """And every tensor is as the catalogue has it, where the rule of Q4_K_M is written a second time."""
    synth(f"qwen2-{size}", tmp_path / "model.gguf", header_only=True)
    with open_gguf(tmp_path / "model.gguf") as model:
        ours = {t.name: (t.type, t.shape) for t in model.tensors.values()}
        parameters = sum(t.rows * t.shape[0] for t in model.tensors.values())
        assert model.metadata["qwen2.context_length"] >= 16384 + 64
    assert parameters == pytest.approx(PUBLISHED[size] * 1e9, rel=5e-3)
    made = catalogue.tensors(catalogue.configs()[f"qwen2.5-{size}"], "Q4_K_M")
    assert ours == {t.name: (t.type, t.shape) for t in made}


def test_rows_that_256_does_not_divide_fall_back():
    types = {t.name: t.type for t in tensors_of(PRESETS["qwen2-0.5b"])}
    assert types["token_embd.weight"] == "Q8_0" and "output.weight" not in types
    assert types["blk.0.attn_v.weight"] == "Q8_0" and types["blk.0.attn_q.weight"] == "Q5_0"
    assert types["blk.0.ffn_down.weight"] == "Q6_K" and types["blk.3.ffn_down.weight"] == "Q4_K"


def test_tiny_types_and_statistics(tiny_qwen2):
    with open_gguf(tiny_qwen2) as model:
        model.require_data()
        assert [model.tensors[f"blk.{i}.attn_v.weight"].type for i in range(4)] == ["Q6_K", "Q4_K"] * 2
        assert [model.tensors[f"blk.{i}.ffn_down.weight"].type for i in range(4)] == ["Q6_K", "Q4_K"] * 2
        for tensor in model.tensors.values():
            if len(tensor.shape) == 1:
                continue
            weights = model.f32(tensor)
            std = weight_std(tensor, PRESETS["tiny-qwen2"])
            assert weights.std() == pytest.approx(std, rel=0.05), tensor.name
            assert abs(weights.mean()) < 0.01 * std, tensor.name
            assert np.unique(weights[:64], axis=0).shape[0] == 64, "rows repeat"


def test_llama_cpp_runs_it_and_logits_spread(tiny_qwen2):
    with Peer(tiny_qwen2) as peer:
        logprobs = peer.logprobs(peer.tokenize("The capital of France is"), 49152)
    assert logprobs.std() == pytest.approx(3, rel=0.15)


def test_same_seed_same_bytes(tmp_path, smollm2, tiny_qwen2):
    synth("tiny-qwen2", tmp_path / "a.gguf", vocab_from=smollm2)
    assert (tmp_path / "a.gguf").read_bytes() == tiny_qwen2.read_bytes()
    synth("tiny-qwen2", tmp_path / "b.gguf", vocab_from=smollm2, seed=1)
    assert (tmp_path / "b.gguf").read_bytes() != tiny_qwen2.read_bytes()


def test_a_smaller_vocabulary_is_padded_with_unused_tokens(tmp_path, smollm2):
    synth("qwen2-7b", tmp_path / "p.gguf", vocab_from=smollm2, header_only=True)
    with open_gguf(tmp_path / "p.gguf") as model:
        tokens, types = (model.metadata[f"tokenizer.ggml.{key}"].tolist() for key in ("tokens", "token_type"))
    assert len(tokens) == len(types) == 152064 and len(set(tokens)) == 152064
    assert tokens[49152] == "[PAD49152]" and types[49152] == 5


def test_mistakes(tmp_path, qwen2_7b_header):
    with pytest.raises(UserError, match="no such preset; choose one of: nano-qwen2, tiny-qwen2"):
        synth("qwen3", tmp_path / "x.gguf")
    with pytest.raises(UserError, match="152064 tokens do not fit the preset's 49152"):
        synth("tiny-qwen2", tmp_path / "x.gguf", vocab_from=qwen2_7b_header)
    (tmp_path / "there.gguf").touch()
    with pytest.raises(UserError, match="exists already"):
        synth("tiny-qwen2", tmp_path / "there.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["there.gguf"]
