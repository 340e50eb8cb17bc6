"""Where a recording comes from: command, device, versions, date. What makes its numbers repeatable, without paths."""

import hashlib
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path

from census import doctor
from census.ab import gpu

_PACKAGES = ("launch-census", "numpy", "nvtx", "gguf")
_OPTIONAL = ("cupti-python", "cupy-cuda12x", "cupy-cuda13x")


def now() -> str:
    """The time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def devices() -> list[str]:
    """Names of the GPUs that a command can see, from NVML; empty without one."""
    with gpu.opened() as gpus:
        return [str(row["name"]) for row in gpu.identity(gpus)]


def versions() -> dict[str, str | None]:
    """Versions of what produced the numbers; None for what is not installed, nsys and driver included."""
    with gpu.opened() as gpus:
        driver = next((str(row["driver"]) for row in gpu.identity(gpus)), None)
    packages = {name: doctor.package_version(name) for name in _PACKAGES}
    optional = {name: found for name in _OPTIONAL if (found := doctor.package_version(name))}
    return {"python": platform.python_version(), **packages, **optional, "nsys": doctor.nsys_version(),
            "driver": driver}  # fmt: skip


def tool_version() -> str:
    """This project's version, as recordings name it; "unknown" where it runs from a checkout on PYTHONPATH."""
    return doctor.package_version("launch-census") or "unknown"


def shown(command: Sequence[str]) -> list[str]:
    """A command as a run.json holds it: runs are shared, so a file of this machine is its name, without the path."""
    return [_without_path(word) for word in command]


def _without_path(word: str) -> str:
    option, equals, value = word.rpartition("=")
    return f"{option}{equals}{Path(value).name}" if "/" in value and Path(value).exists() else word


def sha256(path: Path) -> str:
    """Of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_folder(*parts: str) -> Path:
    """traces/<parts>-<UTC time>, safe as a file name."""
    stem = re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-") or "run"
    return Path("traces") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
