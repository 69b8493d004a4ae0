"""Convert queues to and from stored rows and documents, following ``core.queue.SETTINGS``.

In SQL a setting has its own column or is a field of the JSON column ``more``. New settings go into
``more``: this needs no migration, and servers of older versions leave unknown fields unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jobqueue.core.lifecycle import State
from jobqueue.core.limits import Limits
from jobqueue.core.queue import LIMITS, SETTINGS, Kind, Queue, QueueSettings, QueueStats

COLUMNS = (
    "max_retries", "ttl", "timeout", "capacity", "retry_profile", "retry_base", "retry_max",
    "retry_jitter", "priority_weights", "retention", "dead_letter_retention",
)  # fmt: skip
MORE = tuple(name for name in SETTINGS if name not in COLUMNS)


def queue_statements(mark: Callable[[int, str], str]) -> dict[str, str]:
    """Return fragments of SQL statements with the columns of the settings.

    ``settings`` names the columns. ``settings_from_2`` has a parameter for each column; the first
    of them has the number 2. ``mark`` returns a parameter's SQL, given its number and column.
    ``closed_until`` computes ``Queue.closed_until`` of a row, and ``limited`` is true for a queue
    with ``limits``.
    """
    names = (*COLUMNS, "more")
    found = {
        "closed_until": "(CASE WHEN paused THEN 1e300 ELSE 0 END)",
        "limited": f"({' OR '.join(f'more ->> {one!r} IS NOT NULL' for one in LIMITS)})",
        "settings": ", ".join(names),
        "new_settings": ", ".join(f"excluded.{name}" for name in names),
    }
    for first in (2, 4, 5, 9):
        marks = (mark(n, name) for n, name in enumerate(names, first))
        found[f"settings_from_{first}"] = ", ".join(marks)
    return found


def write_value(kind: Kind, value: Any) -> Any:
    """Convert a setting's value to the form in which stores keep it."""
    if kind in (Kind.WEIGHTS, Kind.KEY_WEIGHTS):
        return json.dumps(dict(value)) if value else None
    return value


def read_value(kind: Kind, value: Any) -> Any:
    """Convert a stored value back to the setting's value. Redis stores all values as texts."""
    if value is None:
        return None
    if kind is Kind.WEIGHTS:
        return read_weights(value)
    if kind is Kind.KEY_WEIGHTS:
        return dict(value) if isinstance(value, Mapping) else json.loads(value)
    if kind is Kind.WHOLE:
        return int(value)
    if kind is Kind.PROFILE:
        return value.decode() if isinstance(value, bytes) else value
    return float(value)


def read_weights(column: str | bytes | None) -> dict[int, int] | None:
    """Return the priority weights from their column, or None if there are none."""
    return {int(k): int(v) for k, v in json.loads(column).items()} if column else None


def read_limits(column: str | None) -> Limits | None:
    """Return the limits of a queue from its column ``more``, or None if it has no limits."""
    if not column:
        return None
    more = json.loads(column)
    return QueueSettings(**{name: more[name] for name in MORE if name in more}).limits


def settings_row(queue: Queue) -> tuple[Any, ...]:
    """Return a queue's values for the columns ``COLUMNS`` and ``more``."""
    row = [write_value(SETTINGS[name].kind, getattr(queue, name)) for name in COLUMNS]
    more = {name: value for name in MORE if (value := getattr(queue, name)) is not None}
    return *row, json.dumps(more, default=dict) if more else None  # a mapping may be any Mapping


def stats_row(row: Sequence[Any]) -> QueueStats:
    """Return the queue and its figures in a row of the query ``stats``."""
    name, paused, created_at, *values = row[: len(COLUMNS) + 4]
    *depth, succeeded, failed, run_seconds, timed = row[len(COLUMNS) + 4 :]
    more = json.loads(values.pop() or "{}")
    said = dict(zip(COLUMNS, values, strict=True)) | {n: more[n] for n in MORE if n in more}
    queue = queue_of(said, name=name, paused=bool(paused), created_at=created_at)
    return queue_stats(queue, depth, succeeded, failed, run_seconds, timed)


def queue_stats(
    queue: Queue,
    depth: Iterable[int],
    succeeded: int,
    failed: int,
    run_seconds: float,
    timed: int | None = None,
) -> QueueStats:
    """Return a queue with its figures. ``depth`` has the number of jobs for each ``State``."""
    return QueueStats(
        queue=queue,
        depth=dict(zip(State, depth, strict=True)),
        processed=succeeded + failed,
        succeeded=succeeded,
        failed=failed,
        run_seconds=run_seconds,
        timed=succeeded + failed if timed is None else timed,
    )


def queue_of(said: Mapping[str, Any], *, name: str, paused: bool, created_at: float) -> Queue:
    """Return a queue from its stored settings. Settings of newer versions are left out."""
    values = {
        setting.name: read_value(setting.kind, said[setting.name])
        for setting in SETTINGS.values()
        if said.get(setting.name) is not None
    }
    return Queue(name=name, paused=paused, created_at=created_at, **values)


def queue_body(queue: Queue) -> str:
    """Return a queue as JSON for an entry of the outbox."""
    said: dict[str, Any] = {
        "name": queue.name, "paused": queue.paused, "created_at": queue.created_at,
        "ttl": None, "timeout": None, "priority_weights": None,
    }  # fmt: skip
    # Servers of older versions cannot read a setting that they do not know, so settings without a
    # value are left out. Only the three above must be present.
    said |= {name: value for name, value in queue.settings().items() if value is not None}
    return json.dumps(said, default=dict)


def read_queue_body(body: Mapping[str, Any]) -> Queue:
    """Return the queue in an entry of the outbox."""
    weights = body["priority_weights"]
    said = {**body, "priority_weights": None if weights is None else json.dumps(weights)}
    return queue_of(said, name=body["name"], paused=body["paused"], created_at=body["created_at"])
