"""Convert rows of SQL tables to domain objects, for the SQLite and the PostgreSQL store.

Both stores select the same columns in the same order, but each has its own format for ids, reasons
and lists of names. Rows of events and of the outbox come from the queries ``changes`` and
``outbox_after`` of each store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobqueue.core import stream
from jobqueue.core.breaker import OpenBreaker, read_breakers
from jobqueue.core.ids import read_key
from jobqueue.core.job import (
    MORE,
    NO_LABELS,
    DeadLetterCause,
    Event,
    Held,
    Job,
    JobSpec,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.progress import Progress
from jobqueue.core.store import BEGINNING, DeadLetters, Position
from jobqueue.core.stream import (
    CancelRequested,
    Created,
    DeadLetter,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
    StreamItem,
)
from jobqueue.core.unique import UniqueKey, read_unique
from jobqueue.stores import schedule_rows
from jobqueue.stores.queue_rows import read_queue_body

MAX_SEQ = 2**63 - 1
_UNSAID = JobSpec(payload=b"")
STATES: dict[int, State] = {int(state): state for state in State}
REASONS: dict[str, Reason] = {reason.value: reason for reason in Reason}

# Kinds of entries of the outbox. For 1 to 3 see QueueChange. Stored rows have these numbers, so
# they must not change.
CANCEL = 4
DELETED = 5
SCHEDULES = 10  # 11 to 14: this and the number of a ScheduleChange


def write_labels(spec: JobSpec) -> str | None:
    """Return a job's labels as JSON for their column, or None for no labels."""
    return json.dumps(dict(spec.labels)) if spec.labels else None


def write_more(spec: JobSpec) -> str | None:
    """Return the job's fields that have no column of their own, as JSON for the column ``more``."""
    if not spec.says_more:
        return None
    more = {n: value for n, value in spec.more().items() if value != getattr(_UNSAID, n)}
    return json.dumps(more, default=UniqueKey.as_list)


def read_more(more: str | bytes | None) -> dict[str, Any]:
    """Return the fields in a column ``more`` by name, without fields of newer versions."""
    said = json.loads(more) if more else {}
    return {name: _as_field(name, said[name]) for name in MORE if name in said}


def _as_field(name: str, value: Any) -> Any:
    if name == "unique":
        return read_unique(value)
    # Specs have tuples where JSON has lists.
    return tuple(value) if isinstance(value, list) else value


def read_spec(
    queue: str,
    type: str,
    payload: bytes,
    priority: int,
    max_retries: int,
    ttl: float | None,
    timeout: float | None,
    run_at: float | None,
    key: str | None,
    labels: str | None,
    more: str | None,
) -> JobSpec:
    """Return a job's spec from the values of its columns."""
    key, owner = read_key(key)
    return JobSpec(
        payload=payload,
        queue=queue,
        type=type,
        priority=priority,
        max_retries=max_retries,
        ttl=ttl,
        run_at=run_at,
        timeout=timeout,
        key=key,
        key_owner=owner,
        labels=json.loads(labels) if labels else NO_LABELS,
        **read_more(more),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """Converts rows to domain objects. Each store defines how ids, reasons and names are read."""

    job_id: Callable[[Any], str]
    reasons: Mapping[Any, Reason]
    names: Callable[[Any], Iterable[str]]

    def dead_letter(self, row: Any) -> DeadLetterCause:
        """Return the dead letter in a row of ``describe``."""
        seq, version, job_id, queue, type, reason, error, at = row
        return DeadLetterCause(
            seq=seq,
            version=version,
            id=self.job_id(job_id),
            queue=queue,
            type=type,
            reason=self.reasons[reason],
            error=error or "",
            at=at,
        )

    def job(self, row: Any) -> Job:
        """Return the job in a row with the columns of ``job_columns``."""
        (job_id, seq, state, version, attempt, retry_count, created_at, updated_at, expires_at,
         worker, cancel, started_at, completed_at, next_retry_at, result, error, reason, progress,
         *spec) = row  # fmt: skip
        return Job(
            id=self.job_id(job_id),
            seq=seq,
            spec=read_spec(*spec),
            state=STATES[state],
            version=version,
            attempt=attempt,
            retry_count=retry_count,
            created_at=created_at,
            updated_at=updated_at,
            expires_at=expires_at,
            worker_id=worker,
            cancel_requested=bool(cancel),
            started_at=started_at,
            completed_at=completed_at,
            next_retry_at=next_retry_at,
            result=result,
            error=error or "",
            reason=self.reasons[reason],
            progress=_progress(progress),
        )

    def event(self, row: Any) -> Event:
        """Return the event in a row of the query ``history``."""
        job_id, version, before, after, reason, at, attempt, worker, detail, queue = row
        return Event(
            self.job_id(job_id),
            version,
            None if before is None else STATES[before],
            STATES[after],
            self.reasons[reason],
            at,
            attempt,
            worker,
            detail or "",
            queue,
        )

    def worker(self, row: Any) -> Worker:
        """Return the worker in a row of the query ``workers``."""
        *info, status, registered_at, last_seen, running, overrun, breakers = row
        return Worker(
            info=self.info(info),
            status=WorkerStatus(status),
            registered_at=registered_at,
            last_seen=last_seen,
            running=running,
            overrun=overrun,
            breakers=stored_breakers(breakers),
        )

    def info(self, row: Any) -> WorkerInfo:
        """Return the registration in a row of the query ``worker_infos``."""
        (worker_id, incarnation, hostname, pid, concurrency, queues, version, link, types,
         owner) = row  # fmt: skip
        return WorkerInfo(
            id=worker_id,
            incarnation=incarnation,
            hostname=hostname,
            pid=pid,
            concurrency=concurrency,
            queues=tuple(self.names(queues)),
            version=version,
            types=None if types is None else frozenset(self.names(types)),
            link=link,
            owner=owner,
        )


def write_breakers(breakers: Sequence[OpenBreaker]) -> str | None:
    """Return the column with a worker's open breakers: JSON, or None if there are none."""
    return json.dumps([one.document() for one in breakers]) if breakers else None


def stored_breakers(column: str | None) -> tuple[OpenBreaker, ...]:
    """Return a worker's open breakers from their column."""
    return read_breakers(json.loads(column)) if column else ()


def _progress(column: str | None) -> Progress | None:
    if column is None:
        return None
    value, text, at = json.loads(column)
    return Progress(None if value is None else float(value), text, float(at))


def held_row(row: Any) -> Held:
    """Return the lease in a row of the query ``held``."""
    seq, lease, worker, state, cancel = row
    return Held(seq, lease, worker, STATES[state], bool(cancel))


def looked(rows: Iterable[Any], limit: int) -> DeadLetters:
    """Return the dead letters that match a filter, newest first.

    A row has the job's number, its version, and True if the job matches the filter. Only the newest
    ``limit`` rows are used.
    """
    ordered = sorted(rows, key=lambda row: -row[0])
    page = ordered[:limit]
    found = [(seq, version) for seq, version, matches in page if matches]
    # A full page may be the last page: then the next page is empty.
    return DeadLetters(found, len(page), page[-1][0] if len(page) == limit else None)


def outbox_item(kind: int, number: int, at: float, body: str) -> StreamItem:
    """Return the stream item for an entry of the outbox."""
    said = json.loads(body)
    if kind == CANCEL:
        return CancelRequested(said["job_id"], said["queue"], said["version"], at)
    if kind == DELETED:
        return JobDeleted(said["job_id"], said["queue"], said["version"], at, said["key_freed"])
    if kind > SCHEDULES:
        return schedule_rows.read_event(kind - SCHEDULES, number, at, said)
    return QueueEvent(QueueChange(kind), read_queue_body(said), number, at)


def job_event(rows: Rows, row: Any) -> JobEvent:
    """Return the event in a row of ``changes``, with the job's fields that it changed."""
    event = rows.event(row[:10])
    (started_at, due, retries, seq, created_at, key_expires_at, result, cancel, *spec) = row[10:]
    created = letter = None
    if event.version == 1:
        asked = read_spec(event.queue, *spec)
        created = Created.at(event.at, seq, asked, created_at, key_expires_at)
    elif event.to_state is State.DEAD_LETTERED:
        letter = DeadLetter(*spec[:2])
    return stream.job_event(
        event, retries, started_at, due, bool(cancel), created=created, result=result, letter=letter
    )


def pack(event: int, entry: int = 0) -> Position:
    """Return the position after the event ``event`` and the outbox entry ``entry``."""
    return f"{event}-{entry}"


def unpack(position: Position) -> tuple[int, int]:
    """Return the numbers of the event and of the outbox entry in a position."""
    if position == BEGINNING:
        return 0, 0
    event, _, entry = position.partition("-")
    return int(event), int(entry)
