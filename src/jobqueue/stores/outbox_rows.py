"""The outbox of stores that keep it in an SQL table, and events with their parts.

Both stores select the same columns in the same order (``changes`` in their queries).
"""

from __future__ import annotations

import json
from typing import Any

from jobqueue.core.lifecycle import State
from jobqueue.core.stream import (
    CancelRequested,
    Created,
    DeadLetter,
    Failed,
    Finished,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
    StreamItem,
)
from jobqueue.stores.queue_rows import read_queue_body
from jobqueue.stores.rows import Rows, read_spec

# 1 to 3: see QueueChange. Never changed: rows keep these numbers.
CANCEL = 4
DELETED = 5


def outbox_item(kind: int, number: int, at: float, body: str) -> StreamItem:
    """An entry of the outbox."""
    said = json.loads(body)
    if kind == CANCEL:
        return CancelRequested(said["job_id"], said["queue"], said["version"], at)
    if kind == DELETED:
        return JobDeleted(said["job_id"], said["queue"], said["version"], at, said["key_freed"])
    return QueueEvent(QueueChange(kind), read_queue_body(said), number, at)


def job_event(rows: Rows, row: Any) -> JobEvent:
    """An event with the part of the job that it wrote."""
    item = JobEvent(rows.event(row[:10]))
    event = item.event
    (started_at, due, retries, seq, created_at, key_expires_at, result, cancel, *spec) = row[10:]
    if event.version == 1:
        asked = read_spec(event.queue, *spec)
        item.created = Created(
            seq=seq,
            spec=asked,
            created_at=created_at,
            expires_at=None if asked.ttl is None else created_at + asked.ttl,
            key_expires_at=key_expires_at,
        )
    elif event.to_state is State.FAILED:
        item.failed = Failed(retries, started_at, due)
    elif event.to_state in (State.DONE, State.DEAD_LETTERED):
        item.finished = Finished(retries, started_at, result, bool(cancel))
        if event.to_state is State.DEAD_LETTERED:
            item.letter = DeadLetter(*spec[:2])
    return item
