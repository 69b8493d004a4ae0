"""A line that says what is being measured."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Say = Callable[[str], None]


@contextlib.contextmanager
def progress(first: str) -> Iterator[Say]:
    """A line that changes on a terminal; elsewhere a new line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(first)
        yield lambda text: shown.update(task, description=text)


def _lines(every: float = 10.0) -> Say:
    before, at = "", 0.0

    def say(text: str) -> None:
        nonlocal before, at
        stem = text.partition(":")[0]
        if stem != before or time.monotonic() > at + every:
            before, at = stem, time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return say
