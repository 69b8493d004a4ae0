"""Ask a person for a yes before a command changes many jobs or cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from jobqueue.cli.display import note
from jobqueue.cli.program import clean

_DECLINED = 1

YesOption = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Do not ask for a yes. Without a terminal nothing is asked anyway."
    ),
]


def is_asked(yes: bool) -> bool:
    """Return True if a person at a terminal has to be asked: without --yes, and not in a script."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def ask(consequence: str) -> None:
    """Show the consequence on stderr, and exit with status 1 unless the person answers yes."""
    Console(stderr=True, highlight=False).print(Text(clean(consequence)))
    if not typer.confirm("Go on?", default=False, err=True):
        note("Nothing was changed.")
        raise typer.Exit(_DECLINED)
