"""What the event stream carries, and who runs it.

A store gives its changes as these objects (``Store.changes_after``); together they are enough to
rebuild every job, its history and the queues (``core/rebuild.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jobqueue.core.errors import Conflict
from jobqueue.core.job import ComponentHealth, Event, JobSpec
from jobqueue.core.queue import Queue
from jobqueue.core.store import Store, Term


@dataclass(slots=True, kw_only=True)
class Created:
    """A job as it was accepted: with the first event."""

    seq: int
    spec: JobSpec  # as it was accepted (``JobSpec.accepted``)
    created_at: float
    expires_at: float | None = None
    key_expires_at: float | None = None  # None: the key was free again when this was read


@dataclass(slots=True)
class Failed:
    """What an event into FAILED knows beside its detail."""

    retry_count: int
    started_at: float | None = None
    next_retry_at: float | None = None  # None: given up, or handed out again at once


@dataclass(slots=True)
class Finished:
    """What an event into DONE or DEAD_LETTERED knows beside its detail."""

    retry_count: int
    started_at: float | None = None  # None: never started, or sent back by hand since
    result: bytes | None = None
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What a job was that entered DEAD_LETTERED. Not part of the record, which has it already."""

    type: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Route:
    """Where a worker reads its assignments: a partition that is its incarnation's."""

    partition: int
    incarnation: int


@dataclass(slots=True)
class JobEvent:
    """A transition, with the part of the job that it wrote."""

    event: Event
    created: Created | None = None
    failed: Failed | None = None
    finished: Finished | None = None
    letter: DeadLetter | None = None  # into DEAD_LETTERED
    route: Route | None = None  # into ASSIGNED, if its worker had one; not part of the record

    @property
    def event_id(self) -> str:
        """Its identity: who reads it twice knows by this."""
        return f"{self.event.job_id}:{self.event.version}"


@dataclass(slots=True)
class CancelRequested:
    """A running job was flagged. No transition: the version is the one that it had."""

    job_id: str
    queue: str
    version: int
    at: float

    @property
    def event_id(self) -> str:
        """Its identity."""
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
        """Its identity."""
        return f"{self.job_id}:deleted"


class QueueChange(enum.IntEnum):
    """What happened to a queue. The number is what stores write."""

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
        """Its identity."""
        return f"queue:{self.queue.name}:{self.number}"


class WorkerChange(enum.IntEnum):
    """What became of a worker."""

    REGISTERED = 1  # a new incarnation, or one that counted as dead
    DEAD = 2


@dataclass(slots=True)
class WorkerEvent:
    """A worker came or was lost. Nothing is rebuilt from it, and not every store tells."""

    change: WorkerChange
    worker_id: str
    incarnation: int
    at: float

    @property
    def event_id(self) -> str:
        """Its identity. One incarnation may be lost and come back."""
        what = self.change.name.lower()
        return f"worker:{self.worker_id}:{self.incarnation}:{what}:{self.at:.6f}"


@dataclass(slots=True)
class AssignmentRepeated:
    """A worker has not started what it was assigned: it may not have heard of it. Only a hint."""

    job_id: str
    queue: str
    seq: int
    attempt: int
    worker_id: str
    route: Route
    at: float

    @property
    def event_id(self) -> str:
        """Its identity."""
        return f"{self.job_id}:{self.attempt}:repeated:{self.at:.6f}"


RecordItem = JobEvent | CancelRequested | JobDeleted | QueueEvent
"""What the record holds; the rest of the stream's items are hints alone."""

StreamItem = RecordItem | WorkerEvent | AssignmentRepeated


@dataclass(slots=True)
class Changes:
    """A page of the stream, and the position after it."""

    items: list[StreamItem]
    position: int


_OVERHEAD = 300  # bytes of a record beside payload and result, about


def bytes_of(item: StreamItem) -> int:
    """About how large it is."""
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
    """Why a job cannot be deleted yet."""
    return Conflict(
        f"job {job_id} has events that are not in the event stream yet; it can be deleted once"
        " they are"
    )


class StreamRunner(Protocol):
    """Publishes a store's changes while its server leads. The engine starts and stops it."""

    def start(self, store: Store, term: Callable[[], Term | None]) -> None:
        """Begin to publish whenever there is a term."""
        ...

    async def stop(self) -> None:
        """Publish no more; returns in bounded time. What is left, the next one publishes."""
        ...

    def wake(self) -> None:
        """Something was written."""
        ...

    def flows(self) -> bool:
        """Whether what is written is published soon, as far as this server knows."""
        ...

    async def health(self) -> ComponentHealth:
        """Whether the stream is well. Jobs go on without it."""
        ...
