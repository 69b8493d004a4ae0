"""Read settings from the command line: from their flags, or from ``--set KEY=VALUE``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from jobqueue.config import keys
from jobqueue.core.errors import InvalidArgument
from jobqueue.redaction import redact_value

_NAME = re.compile(r"[\w.-]*")
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting by its full name, like queue.max_retries=5; may be repeated.",
    ),
]


ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML file with settings.")
]


def text_flag(name: str, about: str, *names: str, metavar: str | None = None) -> tuple[str, object]:
    """Return a name and a command-line option with a text value, for ``with_options``.

    ``name`` is a setting's full name, or any name if ``metavar`` is given. ``about`` is the help
    text. ``names`` are the option's names, if they differ from ``name``.
    """
    shown = metavar or keys()[name].metavar
    return name, Annotated[str | None, typer.Option(*names, metavar=shown, help=about)]


LOG_FLAGS = (
    text_flag("log.level", "Least severe messages that are logged."),
    text_flag("log.format", "auto is text on a terminal, JSON elsewhere."),
)


def parse_sets(items: Sequence[str] | None) -> dict[str, str]:
    """Return the settings in the values of ``--set``, by full name.

    Raise InvalidArgument for an unknown or malformed setting, and for a secret: other users can
    read a command line.
    """
    found: dict[str, str] = {}
    for item in items or ():
        name, sep, value = item.partition("=")
        name = name.strip()
        if not sep or not _NAME.fullmatch(name):
            raise InvalidArgument("--set", f"{redact_value(item)!r} is not KEY=VALUE")
        key = keys().get(name)
        if key is None:
            near = difflib.get_close_matches(name, keys(), n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InvalidArgument(
                "--set", f"unknown key {name}{hint}; allowed: {', '.join(keys())}"
            )
        if key.secret:
            raise InvalidArgument(
                "--set",
                f"{name} is a secret, and other users can read a command line; set the environment"
                f" variable {key.env} instead",
            )
        found[name] = value
    return found
