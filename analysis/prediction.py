"""A prediction as a file: written before anything is measured, with its date and the hash of what it says.

`sha256` is over the canonical JSON of everything else in the file, so that an edited prediction is refused; `inputs`
name the files that it was made from, with their hashes.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from census import provenance, timing
from census.errors import CensusError


@dataclass(frozen=True)
class Interval:
    """µs per step. Bounds, not a confidence: each end is named in the reasons."""

    low: float
    point: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def width(self) -> float:
        return self.high - self.low


def inputs(digests: dict[str, str]) -> list[dict[str, str]]:
    """[{file, sha256}] of what a prediction was made from: name -> digest."""
    return [{"file": name, "sha256": sha} for name, sha in digests.items()]


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """The data with its date and hash."""
    body = {"date": provenance.now(), **data}
    return body | {"sha256": _hash(body)}


def save(path: Path, data: dict[str, Any]) -> None:
    """Write a sealed prediction. Raises CensusError when the file is there: a prediction is not made twice."""
    try:
        with path.open("x") as file:
            file.write(json.dumps(data, indent=1) + "\n")
    except FileExistsError:
        raise CensusError(f"{path}: is there already, and a prediction is not replaced; give another name") from None
    except OSError as err:
        raise CensusError(f"{path}: cannot be written ({err.strerror})") from None


def load(path: Path) -> dict[str, Any]:
    """A prediction as it was saved. Raises CensusError for another file, and for one that was changed since."""
    data = timing.load_json(path)
    if not isinstance(data, dict) or "sha256" not in data or "date" not in data:
        raise CensusError(f"{path}: is no prediction; `census predict` and `census fusions` write one with --save-to")
    if _hash({k: v for k, v in data.items() if k != "sha256"}) != data["sha256"]:
        raise CensusError(f"{path}: was changed after it was made: its hash does not match what it says")
    return data


def _hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def as_dict(interval: Interval) -> dict[str, float]:
    """{low, point, high}, rounded to a nanosecond."""
    return {k: round(v, 3) for k, v in asdict(interval).items()}
