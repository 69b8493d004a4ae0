"""Run the named statements of ``queries.sql``, also for many rows at once.

Python's other threads run while SQLite executes a statement. With one statement for each row, the
threads would switch at every row, which is slow. So a statement has many rows. Their number is one
of a few fixed sizes, so that SQLite compiles the statement once for each size.
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
# The same of claimable jobs with a concurrency key.
SQL |= {
    f"keyed_{name}": SQL[name].replace("live_ready", "live_keyed").replace("ready = 1", "ready = 2")
    for name in ("ready_types", "waiting_types", "claimable", "claimable_seqs")
}


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
    """Run the query ``name`` once for each text in ``each``, which replaces ``{mark}``.

    Return the first ``limit`` rows of all results, ordered by their first two columns. ``values``
    are the first four parameters of the query.
    """
    found: list[Row] = []
    most = _ARMS[-1]
    for start in range(0, len(each), most):
        chunk = tuple(each[start : start + most])
        size = min(size for size in _ARMS if size >= len(chunk))
        padded = chunk + (None,) * (size - len(chunk))  # NULL equals no value
        found += connection.execute(_merged(name, size), (*values, limit, *padded)).fetchall()
    return found if len(each) <= most else sorted(found)[:limit]


def write_rows(connection: sqlite3.Connection, name: str, rows: Sequence[Row]) -> None:
    """Run the statement ``name``, in which ``rows`` replace ``{rows}``.

    All rows must have the same number of values.
    """
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
    """Run the query ``name``, in which ``values`` replace ``{marks}``, and yield its rows."""
    for chunk in _padded(values):
        yield from connection.execute(_marks(name, len(chunk)), chunk).fetchall()


def write_marked(connection: sqlite3.Connection, name: str, values: Sequence[Any]) -> None:
    """Run the statement ``name``, in which ``values`` replace ``{marks}``. It returns no rows."""
    for chunk in _padded(values):
        connection.execute(_marks(name, len(chunk)), chunk)
