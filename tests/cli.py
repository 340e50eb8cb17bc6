"""Run a command in this process the way a shell would: (exit code, stdout, stderr)."""

import sys
from typing import NamedTuple

from minfer import switches


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run_main(main, name, args, monkeypatch, capsys) -> Done:
    """`main` is the entry point of the console script `name`."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
    switches.current.cache_clear()
    capsys.readouterr()
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        switches.current.cache_clear()
    return Done(code, *capsys.readouterr())
