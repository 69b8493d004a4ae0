"""Define the records of the event stream, and the Protocol of its publisher.

``EventStream.changes_after`` returns the changes of a store as these records. All records of a
store are enough to rebuild every job, its history, the queues and the schedules
(``core/rebuild.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jobqueue.core.errors import Conflict
from jobqueue.core.job import ComponentHealth, Event, JobSpec
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.schedule import Schedule, ScheduleState
from jobqueue.core.store import EventStream, Position, Term


@dataclass(slots=True, kw_only=True)
class Created:
    """The part of a job's first event that has the accepted job."""

    seq: int
    spec: JobSpec  # the accepted spec (``JobSpec.accepted``)
    created_at: float
    expires_at: float | None = None
    key_expires_at: float | None = None  # None: no key, or the key had expired already

    @classmethod
    def at(
        cls, at: float, seq: int, spec: JobSpec, created_at: float, key_expires_at: float | None
    ) -> Created:
        """Return the part for a job that was accepted at ``at``, when its TTL began."""
        return cls(
            seq=seq,
            spec=spec,
            created_at=created_at,
            expires_at=None if spec.ttl is None else at + spec.ttl,
            key_expires_at=key_expires_at,
        )


@dataclass(slots=True)
class Failed:
    """The additional fields of a transition into FAILED."""

    retry_count: int
    started_at: float | None = None
    next_retry_at: float | None = None  # None: no retry, or the job is claimable at once


@dataclass(slots=True)
class Finished:
    """The additional fields of a transition into DONE or DEAD_LETTERED."""

    retry_count: int
    started_at: float | None = None  # None: not started, or retried by hand since
    result: bytes | None = None
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The type and payload of a dead letter, for readers of the event stream.

    Replay does not read this part, because the job's first event has the same fields.
    """

    type: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Route:
    """The Kafka partition from which one incarnation of a worker reads its assignments."""

    partition: int
    incarnation: int


@dataclass(slots=True)
class JobEvent:
    """The record of a transition, with the fields of the job that the transition wrote."""

    event: Event
    created: Created | None = None
    failed: Failed | None = None
    finished: Finished | None = None
    letter: DeadLetter | None = None  # into DEAD_LETTERED
    route: Route | None = None  # into ASSIGNED, if its worker has one; no replay reads it

    @property
    def event_id(self) -> str:
        """Return the id by which readers recognise a repeated event."""
        return f"{self.event.job_id}:{self.event.version}"


def job_event(
    event: Event,
    retry_count: int,
    started_at: float | None,
    due: float | None,
    cancelled: bool,
    *,
    created: Created | None = None,
    result: bytes | None = None,
    letter: DeadLetter | None = None,
) -> JobEvent:
    """Return the record of an event, with only the fields that belong to the state entered."""
    item = JobEvent(event)
    if event.version == 1:
        item.created = created
    elif event.to_state is State.FAILED:
        item.failed = Failed(retry_count, started_at, due)
    elif event.to_state is State.DONE:
        item.finished = Finished(retry_count, started_at, result)
    elif event.to_state is State.DEAD_LETTERED:
        item.finished = Finished(retry_count, started_at, None, cancelled)
        item.letter = letter
    return item


@dataclass(slots=True)
class CancelRequested:
    """The record of a cancel request for a running job.

    The request is not a transition, so the job's version does not change.
    """

    job_id: str
    queue: str
    version: int
    at: float

    @property
    def event_id(self) -> str:
        return f"{self.job_id}:{self.version}:cancel"


@dataclass(slots=True)
class JobDeleted:
    """The record of the removal of a job and its history.

    ``key_freed`` is True if an operator removed the job; then its idempotency key is free again.
    """

    job_id: str
    queue: str
    version: int  # its last
    at: float
    key_freed: bool

    @property
    def event_id(self) -> str:
        return f"{self.job_id}:deleted"


class QueueChange(enum.IntEnum):
    """The kind of a queue's change. Stores write the number of the kind."""

    CREATED = 1
    CHANGED = 2
    DELETED = 3


@dataclass(slots=True)
class QueueEvent:
    """The record of a queue's change, with the queue after the change.

    ``number`` grows with each change of the queue.
    """

    change: QueueChange
    queue: Queue
    number: int
    at: float

    @property
    def event_id(self) -> str:
        return f"queue:{self.queue.name}:{self.number}"


class ScheduleChange(enum.IntEnum):
    """The kind of a schedule's change. Stores write the number of the kind."""

    CREATED = 1
    CHANGED = 2  # its definition changed, or it was paused or resumed
    TICKED = 3  # a tick was submitted, skipped or refused, or an operator ran the schedule
    REMOVED = 4


@dataclass(slots=True)
class ScheduleEvent:
    """The record of a schedule's change, with its state after the change.

    ``number`` grows with each change of any schedule or queue. The whole schedule comes with
    CREATED and CHANGED alone, because ticks are frequent and do not change the definition.
    """

    change: ScheduleChange
    name: str
    number: int
    at: float
    state: ScheduleState
    revision: int
    schedule: Schedule | None = None

    @property
    def event_id(self) -> str:
        return f"schedule:{self.name}:{self.number}"

    @classmethod
    def of(
        cls, change: ScheduleChange, schedule: Schedule, number: int, at: float
    ) -> ScheduleEvent:
        """Return the record of a change, with ``schedule`` as it is after the change."""
        whole = change in (ScheduleChange.CREATED, ScheduleChange.CHANGED)
        return cls(
            change, schedule.name, number, at, schedule.state, schedule.revision,
            schedule if whole else None,
        )  # fmt: skip


class WorkerChange(enum.IntEnum):
    """The kind of a worker's change."""

    REGISTERED = 1  # a new incarnation registered, or an OFFLINE incarnation came back
    DEAD = 2


@dataclass(slots=True)
class WorkerEvent:
    """The record of a worker's registration or loss.

    Replay ignores these records, and not every store writes them.
    """

    change: WorkerChange
    worker_id: str
    incarnation: int
    at: float

    @property
    def event_id(self) -> str:
        # The id has the time, because one incarnation may be lost and come back more than once.
        change = self.change.name.lower()
        return f"worker:{self.worker_id}:{self.incarnation}:{change}:{self.at:.6f}"


@dataclass(slots=True)
class AssignmentRepeated:
    """A hint that repeats an assignment, because its worker has not started the job yet."""

    job_id: str
    queue: str
    seq: int
    attempt: int
    worker_id: str
    route: Route
    at: float

    @property
    def event_id(self) -> str:
        return f"{self.job_id}:{self.attempt}:repeated:{self.at:.6f}"


RecordItem = JobEvent | CancelRequested | JobDeleted | QueueEvent | ScheduleEvent
"""The items from which a store is rebuilt; all other items are hints."""

StreamItem = RecordItem | WorkerEvent | AssignmentRepeated


@dataclass(slots=True)
class Changes:
    """A page of changes from the event stream, and the position after the last change."""

    items: list[StreamItem]
    position: Position


_OVERHEAD = 300  # the approximate size in bytes of a record without payload and result


def bytes_of(item: StreamItem) -> int:
    size = _OVERHEAD
    if isinstance(item, JobEvent):
        size += len(item.event.detail)
        if item.created is not None:
            size += len(item.created.spec.payload)
        if item.letter is not None:
            size += len(item.letter.payload)
        if item.finished is not None and item.finished.result is not None:
            size += len(item.finished.result)
    elif isinstance(item, ScheduleEvent) and item.schedule is not None:
        size += len(item.schedule.spec.job.payload)
    return size


def unpublished(job_id: str) -> Conflict:
    return Conflict(
        f"job {job_id} has events that are not in the event stream yet; try again once they are"
        " published"
    )


class StreamRunner(Protocol):
    """Publishes a store's changes while this server is the leader.

    The engine starts and stops the publisher.
    """

    def start(self, stream: EventStream, term: Callable[[], Term | None]) -> None:
        """Start to publish changes of ``stream``, whenever ``term()`` returns a term."""

    async def stop(self) -> None:
        """Stop publishing, in bounded time. The next leader publishes the remaining changes."""

    def wake(self) -> None:
        """Read and publish new changes now, without waiting for the next poll."""

    def flows(self) -> bool:
        """Return True if this server expects new changes to be published soon."""

    async def health(self) -> ComponentHealth:
        """Return the health of the event stream. Jobs also run while the stream is down."""
