"""Models that several tests need, made once per session."""

import gzip
import shutil
from pathlib import Path

import pytest

from minfer.convert import dequantize
from minfer.gguf import GGUF, open_gguf
from minfer.pull import pull
from minfer.synth import synth

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, from the user's cache."""
    return pull("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_f32(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights with every tensor in f32: the exact side of the oracles."""
    path = tmp_path_factory.mktemp("smollm2") / "f32.gguf"
    dequantize(smollm2, path)
    yield path
    path.unlink()  # 540 MB


@pytest.fixture(scope="session")
def qwen2_7b_header(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The header of a real Qwen2 7B Q4_K_M file, without its data."""
    path = tmp_path_factory.mktemp("qwen2") / "qwen2-7b-q4_k_m-header.gguf"
    with gzip.open(DATA / "qwen2-7b-q4_k_m-header.gguf.gz") as packed, path.open("wb") as out:
        shutil.copyfileobj(packed, out)
    return path


@pytest.fixture(scope="session")
def tiny_qwen2(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic qwen2 of 4 layers in Q4_K and Q6_K with SmolLM2's vocabulary."""
    path = tmp_path_factory.mktemp("synth") / "tiny-qwen2.gguf"
    synth("tiny-qwen2", path, vocab_from=smollm2)
    return path


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> GGUF:
    """A synthetic qwen2 of 2 layers and 256 columns: for emulated kernels."""
    path = tmp_path_factory.mktemp("nano") / "nano.gguf"
    synth("nano-qwen2", path)
    return open_gguf(path)
