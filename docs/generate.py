"""Write one page per command, and an index per program, from the commands' own help texts: `make docs`.

A test compares the files with what this prints, so help and documentation cannot drift apart.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

INTRO = {
    "minfer": "The decode engine under study. `MODEL` is a GGUF file or a name that `minfer pull` fetched.\n\n"
    "Switches are environment variables; a name or a value that is not in this table is an error.\n\n{switches}",
    "census": "From traces of any engine to ledgers. `TRACE` is an nsys sqlite export or a recording of `census run`.",
}


def pages() -> dict[str, str]:
    """File name -> text of every generated page."""
    from analysis.cli import app as census
    from minfer.cli import app as minfer

    return program("minfer", minfer) | program("census", census)


def program(name: str, app: typer.Typer) -> dict[str, str]:
    """The index of a program, its introduction and a line per command, and the page of each command."""
    command: Any = typer.main.get_command(app)
    context = command.make_context(name, [], resilient_parsing=True)
    found = {f"{path} {sub.name}": (f"{name}/{'-'.join([*path.split()[1:], sub.name])}.md", path, sub)
             for path, sub in walk(name, command, context)}  # fmt: skip
    lines = [f"| [{words}]({file}) | {summary(sub)} |" for words, (file, _, sub) in found.items()]
    listed = "\n".join(["| command | what it does |", "|---|---|", *lines])
    intro = INTRO[name].format(switches=switch_table())
    index = f"# {name}\n\n{command.help}\n\n{listed}\n\n{intro}\n"
    return {f"{name}.md": index} | {file: section(path, sub) for file, path, sub in found.values()}


def summary(command: Any) -> str:
    """The first sentence or two of a command's help, on one line."""
    return " ".join(command.help.partition("Example: ")[0].split())


def walk(name: str, command: Any, context: Any) -> Iterator[tuple[str, Any]]:
    """Every command below `command`, groups opened: (the words before its name, the command)."""
    for sub in command.list_commands(context):
        child = command.get_command(context, sub)
        if hasattr(child, "list_commands"):
            yield from walk(f"{name} {sub}", child, context)
        else:
            yield name, child


def section(name: str, command: Any) -> str:
    """One command's page: its help, its example, a table of arguments and options."""
    text, _, example = command.help.partition("Example: ")
    shown = f"\n```sh\n{example.strip()}\n```\n" if example else ""
    rows = [option(p) for p in command.params]
    table = "\n".join(["| option | what it does |", "|---|---|", *rows])
    return f"# {name} {command.name}\n\n{text.strip()}\n{shown}\n{table}\n"


def option(param: Any) -> str:
    """A table row: spellings, help and default."""
    named = param.opts if param.param_type_name == "option" else [param.metavar or param.name.upper()]
    spelled = ", ".join(f"`{text}`" for text in named)
    default = "" if param.default in (None, False) or param.required else f" Default: {param.default}."
    return f"| {spelled} | {param.help}{default} |"


def switch_table() -> str:
    """The table of MINFER_* switches."""
    from minfer.switches import SWITCHES

    rows = (f"| `{s.name}` | {s.kind} | {s.default or 'unset'} | {s.help} |" for s in SWITCHES.values())
    return "\n".join(["| switch | kind | default | what it does |", "|---|---|---|---|", *rows])


def stale(folder: Path) -> Iterator[str]:
    """Names of pages in `folder` that differ from the commands."""
    for name, text in pages().items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            yield name


if __name__ == "__main__":
    here = Path(__file__).parent
    for page_name, page_text in pages().items():
        (here / page_name).parent.mkdir(exist_ok=True)
        (here / page_name).write_text(page_text)
    sys.stdout.write(f"wrote {len(pages())} pages\n")
