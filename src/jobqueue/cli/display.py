"""Print the output of the programs: tables and colours on a terminal, plain columns in a pipe."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

import rich.progress
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from jobqueue.cli.program import clean, clean_line, json_text
from jobqueue.core.job import WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.progress import Progress
from jobqueue.documents import as_json

NONE = "-"
NO_TYPE = "(no type)"
_STYLES = {
    State.PENDING.name: "cyan",
    State.ASSIGNED.name: "blue",
    State.RUNNING.name: "bold blue",
    State.DONE.name: "green",
    State.FAILED.name: "yellow",
    State.DEAD_LETTERED.name: "red",
    WorkerStatus.ONLINE.value: "green",
    WorkerStatus.DRAINING.value: "yellow",
    WorkerStatus.STOPPING.value: "yellow",
    WorkerStatus.OFFLINE.value: "red",
    "ok": "green",
    "failing": "red",
    "unreachable": "red",
    "paused": "yellow",
    "waiting": "dim",
    "starting": "cyan",
    "restarting": "yellow",
    "given up": "red",
    "stopping": "yellow",
    "stopped": "dim",
}
_DECLINED = 1  # the exit status after a no
_MINUTE = 60
_HOUR = 3600
_DAY = 86_400
_GAP = 2  # between the columns of a table
_GOOD_WIDTH, _LEAST_WIDTH = 32, 12  # the preferred and the least width of a column that may be cut
_MOST_LINES, _MOST_LETTERS = 24, 2_000  # of a payload or result on a terminal

YesOption = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Do not ask for a yes. Without a terminal nothing is asked anyway."
    ),
]


def style_of(cell: str) -> str:
    """Return the style in which a state, status or health is shown; "" for any other text."""
    return _STYLES.get(cell, "")


def on_terminal() -> bool:
    """Return True if stdout is a terminal."""
    return sys.stdout.isatty()


def print_json(document: object) -> None:
    """Print a document as JSON: indented on a terminal, else on one line."""
    typer.echo(json_text(document, 2 if on_terminal() else None))


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    empty: str,
    *,
    spare: Sequence[str] = (),
    elastic: str = "",
) -> None:
    """Print rows under headers. Without rows, print the text ``empty``, on a terminal only.

    If the terminal is too narrow, columns named in ``spare`` are left out, in that order, and the
    column named ``elastic`` is cut. All other columns are always shown in full.
    """
    if not rows:
        if on_terminal():
            typer.echo(empty)
        return
    rows = [[clean_line(cell) for cell in row] for row in rows]
    widths = {
        header: max(cell_len(cell) for cell in (header, *(row[n] for row in rows)))
        for n, header in enumerate(headers)
    }
    console = Console(soft_wrap=True, highlight=False)
    if not on_terminal():
        _print_columns(console, headers, rows, widths)
        return
    shown = _fitting(widths, console.width, spare, elastic)
    _print_columns(console, headers, rows, shown)
    hidden = [header for header in headers if header not in shown]
    if hidden:
        words = f"No room for {', '.join(hidden)}; --output json shows all columns."
        console.print(Text(words, "dim"), soft_wrap=False)


def _fitting(
    widths: Mapping[str, int], space: int, spare: Sequence[str], elastic: str
) -> dict[str, int]:
    """Return the widths of the columns that are shown in ``space``, by header.

    A column in ``spare`` is shown if the columns that come after it in ``spare`` leave room.
    """
    least = dict(widths)
    if elastic in least:
        least[elastic] = min(least[elastic], _GOOD_WIDTH)
    chosen = {header for header in widths if header not in spare}

    def taken() -> int:
        return sum(least[header] + _GAP for header in chosen) - _GAP

    for header in reversed([header for header in spare if header in widths]):
        chosen.add(header)
        if taken() > space:
            chosen.discard(header)
    if elastic in chosen:
        room = least[elastic] + space - taken()
        least[elastic] = min(widths[elastic], max(_LEAST_WIDTH, room))
    return {header: least[header] for header in widths if header in chosen}


def _print_columns(
    console: Console,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    shown: Mapping[str, int],
) -> None:
    """Print the columns in ``shown``. On a terminal, numbers are aligned to the right."""
    numeric = {
        header
        for n, header in enumerate(headers)
        if on_terminal() and all(row[n].isdigit() for row in rows)
    }
    for number, row in enumerate([headers, *rows]):
        line = Text()
        for header, cell in zip(headers, row, strict=True):
            if header not in shown:
                continue
            width = shown[header]
            text = set_cell_size(cell, width - 1) + "…" if cell_len(cell) > width else cell
            room = " " * (width - cell_len(text))
            style = "bold" if number == 0 else _STYLES.get(cell, "")
            line.append(room if header in numeric else "")
            line.append(text, style=style)
            line.append("" if header in numeric else room)
            line.append(" " * _GAP)
        line.rstrip()
        console.print(line)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair on a line. Further lines of a value are indented."""
    named = [(clean_line(name), value) for name, value in fields]
    width = max(len(name) for name, _ in named) + 1
    console = Console(soft_wrap=True, highlight=False)
    for name, value in named:
        shown = clean(value, width + 1) or NONE
        text = Text()
        text.append(f"{name + ':':<{width}} ", style="bold")
        text.append(shown, style=_STYLES.get(shown, ""))
        console.print(text)


def say(line: str) -> None:
    """Print one line on stdout. A server may have sent a part of the line, so it is cleaned."""
    typer.echo(clean_line(line))


def note(message: str) -> None:
    """Print a remark for people on stderr, so that stdout contains only the output."""
    typer.echo(clean(message), err=True)


def is_asked(yes: bool) -> bool:
    """Return True if a command must ask first: a person is at the terminal and gave no --yes."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def ask(consequence: str) -> None:
    """Show the consequence on stderr, and exit with status 1 unless the person answers yes."""
    Console(stderr=True, highlight=False).print(Text(clean(consequence)))
    if not typer.confirm("Go on?", default=False, err=True):
        note("Nothing was changed.")
        raise typer.Exit(_DECLINED)


def content(data: bytes | None, *, pretty: bool = True) -> str:
    """Return a payload or result as JSON if it is JSON, else as text, else as hexadecimal bytes."""
    if not data:
        return NONE
    is_json, value = as_json(data)
    if is_json:
        compact = json.dumps(value, ensure_ascii=False)
        limit = 80
        if pretty and len(compact) > limit and isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False, indent=2)
        return compact
    try:
        return data.decode()
    except UnicodeDecodeError:
        shown = data[:64].hex(" ")
        return f"{len(data)} bytes: {shown}{' …' if len(data) > len(data[:64]) else ''}"


def content_for_people(data: bytes | None) -> str:
    """Return a payload or result as ``content`` does; on a terminal, cut a long text."""
    text = content(data)
    if data is None or not on_terminal():
        return text
    lines = text[:_MOST_LETTERS].split("\n")
    if len(text) <= _MOST_LETTERS and len(lines) <= _MOST_LINES:
        return text
    return "\n".join([*lines[:_MOST_LINES], f"… cut ({len(data)} bytes); --output json shows all"])


def local_time(moment: float | None, *, precise: bool = False) -> str:
    """Return a time in the local time zone, with the zone's name; "-" if ``moment`` is None."""
    if moment is None:
        return NONE
    try:
        local = datetime.fromtimestamp(moment).astimezone()
    except (OverflowError, ValueError, OSError):  # in this zone, the year 10000 has begun
        return f"{moment:.0f} s after 1970"
    fraction = f".{local.microsecond // 1000:03d}" if precise else ""
    return f"{local:%Y-%m-%d %H:%M:%S}{fraction} {local:%Z}"


def ago(moment: float) -> str:
    """Return the time since ``moment`` as text, like ``5 min ago``."""
    seconds = max(0.0, time.time() - moment)
    if seconds < _MINUTE:
        return f"{seconds:.0f} s ago"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min ago"
    if seconds < _DAY:
        return f"{seconds / _HOUR:.0f} h ago"
    return f"{seconds / _DAY:.0f} days ago"


def duration(seconds: float) -> str:
    """Return a span of time as text in milliseconds, seconds or whole days."""
    if seconds and seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds and seconds % _DAY == 0:
        return counted(int(seconds // _DAY), "day")
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural, like ``2 jobs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def staying(number: int, which: str = "") -> str:
    """Return a text like ``2 dead letters stay behind``.

    ``which`` is a word before the noun, like ``other``.
    """
    noun = f"{which} dead letter".strip()
    return f"{counted(number, noun)} {'stays' if number == 1 else 'stay'} behind"


def progress_line(told: Progress) -> str:
    """Return the progress of a running job as text, like ``40 %  12 of 30 files``."""
    # Rounded down, so that only an ended job shows 100 %; but 0.29 * 100 is slightly less than 29.
    percent = "" if told.value is None else f"{math.floor(told.value * 100 + 1e-6)} %"
    return clean_line("  ".join(filter(None, (percent, told.text))))


class JobBar:
    """Shows the progress of a running job as a bar below the printed lines, on a terminal."""

    def __init__(self) -> None:
        columns = (BarColumn(), TextColumn("{task.description}", markup=False))
        self._bar = rich.progress.Progress(*columns, console=Console(), transient=True)
        self._task = self._bar.add_task("", total=1.0)

    def show(self, told: Progress) -> None:
        """Draw the bar with the given progress."""
        total = None if told.value is None else 1.0
        self._bar.update(
            self._task, total=total, completed=told.value or 0.0, description=progress_line(told)
        )
        self._bar.start()

    def hide(self) -> None:
        """Remove the bar, so that the next line is printed in its place."""
        self._bar.stop()


class Bar:
    """A progress bar that the caller advances."""

    def __init__(self, bar: rich.progress.Progress, total: int | None, label: str) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=total)

    def advance(self, count: int = 1) -> None:
        """Advance the bar by ``count`` items. The total grows if more items come than expected."""
        self._bar.advance(self._task, count)
        task = self._bar.tasks[self._task]
        if task.total is not None and task.completed > task.total:
            self._bar.update(self._task, total=task.completed)


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Bar]:
    """Show a progress bar on stderr during a ``with`` block, if stderr is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with rich.progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield Bar(bar, total, label)
