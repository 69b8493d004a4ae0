"""The named statements of ``queries.sql``, and running them over many rows at once.

A statement over many rows is one step of SQLite's machine, during which Python's other threads
run; row by row, the interpreter lock would change hands for every row. Rows go in chunks of a few
fixed sizes, so that each statement is compiled once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

from jobqueue.stores.named_sql import load_statements
from jobqueue.stores.queue_rows import queue_statements

_CHUNKS = (256, 64, 16, 4, 1)
_ARMS = (2, 4, 16, 64)
Row = tuple[Any, ...]


SQL = load_statements(__package__, queue_statements(lambda n, _: f"?{n}"))


@cache
def _rows(name: str, count: int, width: int) -> str:
    row = "(" + ", ".join("?" * width) + ")"
    return SQL[name].replace("{rows}", ", ".join([row] * count))


@cache
def _marks(name: str, count: int) -> str:
    return SQL[name].replace("{marks}", ", ".join("?" * count))


@cache
def _merged(name: str, arms: int) -> str:
    each = (SQL[name].replace("{mark}", f"?{6 + n}") for n in range(arms))
    return f"{' UNION ALL '.join(each)} ORDER BY 1, 2 LIMIT ?5"


def read_merged(
    connection: sqlite3.Connection, name: str, values: Row, limit: int, each: Sequence[str]
) -> list[Row]:
    """Run a ``{mark}`` query for each of some texts; its first rows by its first two columns.

    ``values`` are its first four parameters.
    """
    found: list[Row] = []
    most = _ARMS[-1]
    for start in range(0, len(each), most):
        chunk = tuple(each[start : start + most])
        size = min(size for size in _ARMS if size >= len(chunk))
        padded = chunk + (None,) * (size - len(chunk))  # which equals nothing
        found += connection.execute(_merged(name, size), (*values, limit, *padded)).fetchall()
    return found if len(each) <= most else sorted(found)[:limit]


def write_rows(connection: sqlite3.Connection, name: str, rows: Sequence[Row]) -> None:
    """Run a ``{rows}`` statement over rows of one width."""
    start = 0
    for size in _CHUNKS:
        while len(rows) - start >= size:
            chunk = rows[start : start + size]
            connection.execute(_rows(name, size, len(chunk[0])), tuple(chain.from_iterable(chunk)))
            start += size


def _padded(values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    largest = _CHUNKS[0]
    for start in range(0, len(values), largest):
        chunk = tuple(values[start : start + largest])
        size = min(size for size in _CHUNKS if size >= len(chunk))
        yield chunk + (chunk[-1],) * (size - len(chunk))


def read_marked(connection: sqlite3.Connection, name: str, values: Sequence[Any]) -> Iterable[Row]:
    """Run a ``{marks}`` query for a set of values."""
    for chunk in _padded(values):
        yield from connection.execute(_marks(name, len(chunk)), chunk).fetchall()


def write_marked(connection: sqlite3.Connection, name: str, values: Sequence[Any]) -> None:
    """Run a ``{marks}`` statement for a set of values."""
    for chunk in _padded(values):
        connection.execute(_marks(name, len(chunk)), chunk)
