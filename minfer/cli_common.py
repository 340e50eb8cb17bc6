"""What the command modules share: common arguments, one way to print, opening a model."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from minfer.gguf import GGUF, open_gguf

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or a name that `minfer pull` fetched.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda or emulated; auto takes a GPU where CuPy finds one. "
        "emulated runs the CUDA kernels on the CPU, slowly and checking every access: for tiny models; needs g++."
    ),
]
Kv = Annotated[
    str | None, typer.Option("--kv", help="KV cache type: f32, or f16 on cuda and emulated, where it is the default.")
]


def emit(data: Any, parts: Sequence[Any], as_json: bool) -> None:
    """Print `data` as JSON, or `parts` (strings and rich tables) for reading."""
    if as_json:
        print(json.dumps(data, indent=1))  # noqa: T201
        return
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    for part in parts:
        console.print(part)


def open_model(model: str) -> GGUF:
    """The open header of a file or of a pulled model."""
    from minfer.pull import resolve

    return open_gguf(resolve(model))
