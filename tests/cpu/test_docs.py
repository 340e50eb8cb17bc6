"""The documents stay true: README's commands run, every command has a help text and a page that matches it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from analysis.cli import app as census
from minfer.cli import app as minfer

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from generate import stale, walk  # noqa: E402

APPS = {"minfer": minfer, "census": census}


def commands(name):
    command = typer.main.get_command(APPS[name])
    context = command.make_context(name, [], resilient_parsing=True)
    return {f"{path} {sub.name}": sub for path, sub in walk(name, command, context)}


def readme_commands():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("name", APPS)
def test_every_command_and_option_has_help(name):
    for sub, command in commands(name).items():
        assert command.help and "Example: " in command.help, f"{sub} has no help or no example"
        for param in command.params:
            assert getattr(param, "help", None), f"{sub}: {param.name} has no help"


def test_the_pages_say_what_the_commands_say():
    assert list(stale(ROOT / "docs")) == [], "run `make docs`"


def test_there_is_one_page_per_command_and_none_without_one():
    pages = {p.relative_to(ROOT / "docs").as_posix() for name in APPS for p in (ROOT / "docs" / name).glob("*.md")}
    wanted = {f"{words.split()[0]}/{'-'.join(words.split()[1:])}.md" for name in APPS for words in commands(name)}
    assert pages == wanted


def test_readme_shows_the_two_make_targets_first():
    assert readme_commands()[:2] == ["make census", "make test"]


def test_every_make_target_in_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text()
    for line in readme_commands():
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, re.M), line


def test_every_command_of_the_readme_runs(tmp_path, smollm2):
    """In their order, as a reader would, in a folder that has nothing but the repository's recordings."""
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    bin_folder = Path(sys.executable).parent
    for line in readme_commands():
        if line.startswith("make "):
            continue
        program = bin_folder / line.split()[0]
        assert program.exists(), line
        done = subprocess.run(line.replace(line.split()[0], str(program), 1), shell=True, cwd=tmp_path,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    shutil.rmtree(tmp_path)


def test_links_in_the_documents_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
