"""The contents of the event stream, and the Protocol of its publisher.

A store returns its changes as these objects (``EventStream.changes_after``). Together they are
enough to rebuild every job, its history and the queues (``core/rebuild.py``).
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
from jobqueue.core.store import EventStream, Position, Term


@dataclass(slots=True, kw_only=True)
class Created:
    """A job as it was accepted; part of its first event."""

    seq: int
    spec: JobSpec  # as it was accepted (``JobSpec.accepted``)
    created_at: float
    expires_at: float | None = None
    key_expires_at: float | None = None  # None: the key was free again when this was read

    @classmethod
    def at(
        cls, at: float, seq: int, spec: JobSpec, created_at: float, key_expires_at: float | None
    ) -> Created:
        """Return the job as it was accepted at that time, from which its TTL counts."""
        return cls(
            seq=seq,
            spec=spec,
            created_at=created_at,
            expires_at=None if spec.ttl is None else at + spec.ttl,
            key_expires_at=key_expires_at,
        )


@dataclass(slots=True)
class Failed:
    """The part of an event into FAILED beside its detail."""

    retry_count: int
    started_at: float | None = None
    next_retry_at: float | None = None  # None: given up, or handed out again at once


@dataclass(slots=True)
class Finished:
    """The part of an event into DONE or DEAD_LETTERED beside its detail."""

    retry_count: int
    started_at: float | None = None  # None: not started, or retried by hand since
    result: bytes | None = None
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The type and payload of a dead letter. Its other records have them, so no replay reads it."""

    type: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Route:
    """The partition in which one incarnation of a worker reads its assignments."""

    partition: int
    incarnation: int


@dataclass(slots=True)
class JobEvent:
    """A transition, with the fields of the job that it wrote."""

    event: Event
    created: Created | None = None
    failed: Failed | None = None
    finished: Finished | None = None
    letter: DeadLetter | None = None  # into DEAD_LETTERED
    route: Route | None = None  # into ASSIGNED, if its worker has one; no replay reads it

    @property
    def event_id(self) -> str:
        """Readers recognise a repeated event by this id."""
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
    """Return an event with those of these fields that an event into its state writes."""
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
    """A cancel of a running job was requested; that is no transition, its version stays."""

    job_id: str
    queue: str
    version: int
    at: float

    @property
    def event_id(self) -> str:
        return f"{self.job_id}:{self.version}:cancel"


@dataclass(slots=True)
class JobDeleted:
    """A job was removed with its history, and its key if an operator did it."""

    job_id: str
    queue: str
    version: int  # its last
    at: float
    key_freed: bool

    @property
    def event_id(self) -> str:
        return f"{self.job_id}:deleted"


class QueueChange(enum.IntEnum):
    """A kind of change of a queue. Stores write the number."""

    CREATED = 1
    CHANGED = 2
    DELETED = 3


@dataclass(slots=True)
class QueueEvent:
    """A queue as it is after a change. The numbers of one queue's changes grow."""

    change: QueueChange
    queue: Queue
    number: int
    at: float

    @property
    def event_id(self) -> str:
        return f"queue:{self.queue.name}:{self.number}"


class WorkerChange(enum.IntEnum):
    """A kind of change of a worker."""

    REGISTERED = 1  # a new incarnation, or one that was counted as dead
    DEAD = 2


@dataclass(slots=True)
class WorkerEvent:
    """A worker registered or was lost. No replay reads it, and not every store gives it."""

    change: WorkerChange
    worker_id: str
    incarnation: int
    at: float

    @property
    def event_id(self) -> str:
        # With its time: one incarnation may be lost and come back more than once.
        change = self.change.name.lower()
        return f"worker:{self.worker_id}:{self.incarnation}:{change}:{self.at:.6f}"


@dataclass(slots=True)
class AssignmentRepeated:
    """A worker has not started its assignment and is told of it again. Only a hint."""

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


RecordItem = JobEvent | CancelRequested | JobDeleted | QueueEvent
"""The items from which a store is rebuilt; the others are hints."""

StreamItem = RecordItem | WorkerEvent | AssignmentRepeated


@dataclass(slots=True)
class Changes:
    """A page of the stream, and the position after it."""

    items: list[StreamItem]
    position: Position


_OVERHEAD = 300  # about the bytes of a record without payload and result


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
    return size


def unpublished(job_id: str) -> Conflict:
    return Conflict(
        f"job {job_id} has events that are not in the event stream yet; it can be deleted once"
        " they are"
    )


class StreamRunner(Protocol):
    """Publishes a store's changes while its server leads. The engine starts and stops it."""

    def start(self, stream: EventStream, term: Callable[[], Term | None]) -> None:
        """Begin to publish; it goes on whenever there is a term."""

    async def stop(self) -> None:
        """Stop publishing, in bounded time. The next leader publishes the rest."""

    def wake(self) -> None:
        """Look for changes now."""

    def flows(self) -> bool:
        """Return True if new changes are published soon, as far as this server knows."""

    async def health(self) -> ComponentHealth:
        """Return the health of the stream. Jobs go on without it."""
