"""Entry point of the `census` command: the census app with the commands of this package added to it."""

import os
import sys
from typing import Any

import typer

from analysis import commands, shapes_cli
from census import cli, record_cli
from census.ab import cli as ab_cli
from census.app import app
from census.errors import CensusError

COMMANDS = (cli, record_cli, ab_cli, shapes_cli, commands)  # modules whose commands joined the app as they were loaded

# Typer may carry its own copy of click; the base of its exported errors is the one that its parser raises.
_ParserError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def main() -> None:
    """Run the command line. A user's mistake is one line on standard error and exit code 2; Ctrl-C exits 130."""
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = typer.main.get_command(app).main(args, prog_name="census", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # some versions of Typer turn Ctrl-C into this exit code
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except CensusError as err:
        return _say(str(err), 2)
    except _ParserError as err:
        return _say(f"{err.format_message()} (see `census {' '.join(args[:1])} --help`)", 2)
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except BrokenPipeError:  # `census ... | head`: nobody reads on, which is no mistake
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"census: {' '.join(message.split())}\n")
    return code
