"""Headers by name: files, folders, repositories of the Hugging Face hub, the catalogue. Weights are never read.

    model.gguf                     a file; of a split model, any part's folder or its first part
    folder                         every .gguf below it
    hf:ORG/REPO, hf:ORG/REPO:GLOB  the first megabytes of each .gguf there, through HTTP range requests (remote.py)
    catalogue:GLOB[:MIX]           published configurations (catalogue.py)
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path

from census import catalogue, remote
from census.errors import CensusError
from census.shapes import Model
from minfer.gguf import SPLIT_NAME, GGUFError, open_gguf

ALONE = 24  # files that one process reads in the time that others need to start
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Refused:
    """A header that was refused, and why; the reason starts with the file."""

    file: str
    reason: str


def read(sources: Sequence[str], progress: Progress = lambda done, total: None) -> tuple[list[Model], list[Refused]]:
    """The models that the arguments name, in their order, and those whose headers are damaged.

    Raises CensusError for an argument that names nothing, and when every header is refused.
    """
    models: list[Model] = []
    refused: list[Refused] = []
    for source in sources:
        found = _from(source, progress)
        models += [m for m in found if isinstance(m, Model)]
        refused += [r for r in found if isinstance(r, Refused)]
    if refused and not models:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise CensusError(f"{refused[0].reason}{more}")
    return models, refused


def _from(source: str, progress: Progress) -> Sequence[Model | Refused]:
    if source.startswith("catalogue:"):
        return catalogue.models(source)
    if source.startswith("hf:"):
        with remote.headers(source, progress) as files:
            return [read_one((str(path), name)) for name, path in files]
    if Path(source).is_dir():
        return _many(_folder(Path(source)), progress)
    return [read_one((source, source))]


def read_one(named: tuple[str, str]) -> Model | Refused:
    """The header of (file, name to show)."""
    path, name = named
    try:
        with open_gguf(Path(path)) as gguf:
            return Model(name, tuple(gguf.tensors.values()))
    except GGUFError as error:
        return Refused(name, str(error).replace(path, name))


def _folder(folder: Path) -> list[tuple[str, str]]:
    """Every model below a folder; of a split one, the first part stands for all."""
    found = []
    for path in sorted(folder.rglob("*.gguf")):
        part = SPLIT_NAME.fullmatch(path.name)
        if part is None or int(part["no"]) == 1:
            found.append((str(path), str(path)))
    if not found:
        raise CensusError(f"{folder}: holds no .gguf file; name a folder that does, or a file")
    return found


def _many(files: Sequence[tuple[str, str]], progress: Progress) -> list[Model | Refused]:
    if len(files) < ALONE:
        return [read_one(f) for f in files]
    workers = min(cpu_count() or 1, 16)
    found: list[Model | Refused] = []
    # spawned, not forked: the caller may have threads, e.g. of a progress bar
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for model in pool.map(read_one, files, chunksize=4):
            found.append(model)
            progress(len(found), len(files))
    return found
