"""Asks a person before something is done that cannot be taken back, or to many jobs at once."""

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
        "--yes", "-y", help="Do not ask first. Without a terminal nothing is asked anyway."
    ),
]


def is_asked(yes: bool) -> bool:
    """Whether a person is there to be asked. A script is not: its author has decided."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def ask(consequence: str) -> None:
    """Say what would happen, and go on only after a yes. On stderr, in no pipe's way."""
    Console(stderr=True, highlight=False).print(Text(clean(consequence)))
    if not typer.confirm("Go on?", default=False, err=True):
        note("Nothing was changed.")
        raise typer.Exit(_DECLINED)
