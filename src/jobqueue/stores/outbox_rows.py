"""The outbox of stores that keep it in an SQL table, and events with their parts.

Both stores select the same columns in the same order (``changes`` in their queries).
"""

from __future__ import annotations

import json
from typing import Any

from jobqueue.core.job import NO_LABELS
from jobqueue.core.key_owner import read_key
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
from jobqueue.stores.rows import Rows

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
    (started_at, due, retries, seq, kind, payload, priority, max_retries, created_at, ttl, timeout,
     run_at, key, key_expires_at, labels, result, cancel) = row[10:27]  # fmt: skip
    if event.version == 1:
        key, owner = read_key(key)
        item.created = Created(
            seq=seq,
            type=kind,
            payload=payload,
            priority=priority,
            max_retries=max_retries,
            created_at=created_at,
            ttl=ttl,
            timeout=timeout,
            run_at=run_at,
            expires_at=None if ttl is None else created_at + ttl,
            key=key,
            key_owner=owner,
            key_expires_at=key_expires_at,
            labels=json.loads(labels) if labels else NO_LABELS,
        )
    elif event.to_state is State.FAILED:
        item.failed = Failed(retries, started_at, due)
    elif event.to_state in (State.DONE, State.DEAD_LETTERED):
        item.finished = Finished(retries, started_at, result, bool(cancel))
        if event.to_state is State.DEAD_LETTERED:
            item.letter = DeadLetter(kind, payload)
    return item
