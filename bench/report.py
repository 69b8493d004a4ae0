"""Measurements as rows, and the table a person sees."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jobqueue.bench.machine import fsync_milliseconds


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured. ``target`` is the least (rates, shares of them) or the most."""

    what: str
    value: float
    unit: str
    target: float | None = None
    conditions: str = ""
    command: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.more_is_better else self.value <= self.target

    @property
    def more_is_better(self) -> bool:
        """Whether the target is the least that will do."""
        return self.unit.endswith(("/s", "of the rate"))


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def conditions(folder: Path) -> str:
    """The machine, in a line."""
    return (
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{os.cpu_count()} cores, fdatasync {fsync_milliseconds(folder):.2f} ms (median)"
    )


def show(title: str, figures: list[Figure]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    table.add_column("result", justify="right")
    table.add_column("target", justify="right")
    table.add_column("conditions", overflow="fold")
    for figure in figures:
        mark = {None: "", True: " ✓", False: " ✗"}[figure.met]
        sign = "≥" if figure.more_is_better else "≤"
        target = "" if figure.target is None else f"{sign} {number(figure.target)}{mark}"
        style = "red" if figure.met is False else None
        table.add_row(
            figure.what,
            f"{number(figure.value)} {figure.unit}",
            target,
            figure.conditions,
            style=style,
        )
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console.width = 150
    console.print(table)


def write_json(path: Path, where: str, figures: list[Figure]) -> None:
    """Keep the raw figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"conditions": where, "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(document, indent=2) + "\n")


def number(value: float) -> str:
    """As people read it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
