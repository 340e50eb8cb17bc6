"""Headers of files on the Hugging Face hub: their first megabytes through HTTP range requests, never the weights."""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from census.errors import CensusError
from minfer.gguf import SPLIT_NAME, GGUFError, GGUFTruncated, open_gguf

FIRST = 8 << 20  # bytes: most headers, which are vocabularies for the most part, are smaller
MOST = 256 << 20
SPEC = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(:(?P<glob>[^:]+))?")


@contextmanager
def headers(spec: str, progress: Callable[[int, int], None]) -> Iterator[list[tuple[str, Path]]]:
    """(name, a file with the beginning of it) of every model that `hf:ORG/REPO[:GLOB]` names, while the context lasts.

    Of a split model the first part is named, the others lie beside it. Raises CensusError: nothing of that name, no
    hub, no network.
    """
    match = SPEC.fullmatch(spec)
    if not match:
        raise CensusError(f"{spec}: not a hub repository; write hf:ORG/REPO or hf:ORG/REPO:GLOB, e.g. "
                          "hf:Qwen/Qwen2.5-7B-Instruct-GGUF:*q4_k_m*")  # fmt: skip
    repo, glob = match["repo"], match["glob"] or "*"
    with tempfile.TemporaryDirectory(prefix="census-") as folder:
        try:
            hub = _filesystem(spec)
            groups = _models([str(p) for p in hub.find(repo)], repo, glob)
            found = list(_fetched(hub, groups, Path(folder), repo, progress))
        except CensusError:
            raise
        except Exception as error:  # the hub client raises its HTTP library's errors, which differ by version
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise CensusError(f"{spec}: the hub did not give it ({reason}); check name and network") from None
        if not found:
            raise CensusError(f"{spec}: the repository has no .gguf file of that name; see its list of files")
        yield found


def _filesystem(spec: str) -> Any:
    try:
        from huggingface_hub import HfFileSystem
    except ImportError:
        raise CensusError(f"{spec}: needs huggingface_hub; run: pip install 'launch-census[hf]'") from None
    return HfFileSystem()


def _models(paths: Sequence[str], repo: str, glob: str) -> list[list[str]]:
    """The files of each model whose name or path matches; parts of a split one together, the first part first."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        inside = path.removeprefix(f"{repo}/")
        if path.endswith(".gguf") and (fnmatchcase(inside, glob) or fnmatchcase(Path(path).name, glob)):
            part = SPLIT_NAME.fullmatch(Path(path).name)
            found.setdefault(str(Path(path).parent / part["stem"]) if part else path, []).append(path)
    return list(found.values())


def _fetched(hub: Any, groups: Sequence[list[str]], folder: Path, repo: str,
             progress: Callable[[int, int], None]) -> Iterator[tuple[str, Path]]:  # fmt: skip
    for number, paths in enumerate(groups):
        place = folder / str(number)
        place.mkdir()
        files = [(path, place / Path(path).name) for path in paths]
        for path, file in files:
            _extend(hub, path, file, FIRST)
        _complete(hub, files)
        progress(number + 1, len(groups))
        yield f"hf:{repo}:{paths[0].removeprefix(f'{repo}/')}", files[0][1]


def _complete(hub: Any, files: Sequence[tuple[str, Path]]) -> None:
    """Fetch on while the header goes on behind what is there. What else is wrong with it is for the reader to say."""
    size = FIRST
    while size < MOST:
        try:
            open_gguf(files[0][1]).close()
            return
        except GGUFTruncated:
            size *= 2
            grown = [_extend(hub, path, file, size) for path, file in files]
            if not any(grown):
                return
        except GGUFError:
            return


def _extend(hub: Any, path: str, file: Path, size: int) -> bool:
    """Bring a local beginning to `size` bytes or to the file's end; whether it grew."""
    have = file.stat().st_size if file.exists() else 0
    end = min(size, int(hub.info(path)["size"]))
    if end > have:
        # no cache: it would read ahead, and those bytes are weights
        with hub.open(path, "rb", cache_type="none") as source, file.open("ab") as out:
            source.seek(have)
            out.write(source.read(end - have))
    return end > have
