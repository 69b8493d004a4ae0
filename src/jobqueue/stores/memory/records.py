"""What the memory store keeps, and how it looks from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from jobqueue.core.decide import Live
from jobqueue.core.job import Event, Held, Job, JobSpec
from jobqueue.core.lifecycle import TERMINAL, Reason, State
from jobqueue.core.progress import Progress
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.core.store import JobFilter
from jobqueue.stores.memory.ready import Ready


class Record(Live):
    """A job: what changes (``Live``), what does not, and its events."""

    __slots__ = ("created_at", "events", "home", "id", "ready", "spec")

    id: str
    spec: JobSpec  # as it was accepted
    home: Home
    ready: bool  # claimable now: PENDING, and not waiting for run_at
    created_at: float
    events: list[Entry]


Entry = tuple[
    str, int, State | None, State, Reason, float, int, str | None, str, str,
    float | None, float | None, int,
]  # fmt: skip
"""An event (see ``core.job.Event``); of a FAILED one when its attempt began and when it is retried;
and its position. No cycle: counting alone frees a job."""


class Home:
    """A queue with its claimable jobs and its figures."""

    __slots__ = ("depth", "failed", "queue", "ready", "run_seconds", "succeeded", "timed")

    def __init__(self, queue: Queue, type_of: Callable[[int], str | None]) -> None:
        self.queue = queue
        self.ready = Ready(type_of)
        self.depth = dict.fromkeys(State, 0)
        self.succeeded = 0
        self.failed = 0
        self.run_seconds = 0.0
        self.timed = 0

    def count(self, steps: Iterable[tuple[State, Reason]], ran_for: float | None) -> None:
        """Add an attempt that ended."""
        if ran_for is None:
            return
        if any(state is State.DONE for state, _ in steps):
            self.succeeded += 1
        else:
            self.failed += 1
        self.run_seconds += ran_for
        self.timed += 1

    def stats(self) -> QueueStats:
        """The figures."""
        return QueueStats(
            queue=self.queue,
            depth=dict(self.depth),
            processed=self.succeeded + self.failed,
            succeeded=self.succeeded,
            failed=self.failed,
            run_seconds=self.run_seconds,
            timed=self.timed,
        )


class Log:
    """Every event in the order it was written; removed jobs leave gaps, old gaps are dropped."""

    def __init__(self) -> None:
        self._first = 1
        self._entries: list[Entry | None] = []
        self._gaps = 0

    def next_position(self) -> int:
        """The position of the entry that is appended next."""
        return self._first + len(self._entries)

    def append(self, entry: Entry) -> None:
        """Write an event."""
        self._entries.append(entry)

    def remove(self, entries: Iterable[Entry]) -> None:
        """Forget a removed job's events."""
        for entry in entries:
            self._entries[entry[-1] - self._first] = None
            self._gaps += 1
        if self._gaps * 2 > len(self._entries):
            kept = next(
                (n for n, entry in enumerate(self._entries) if entry is not None),
                len(self._entries),
            )
            del self._entries[:kept]
            self._first += kept
            self._gaps -= kept

    def after(self, position: int, limit: int) -> list[tuple[int, Event]]:
        """Events past a position."""
        found = islice(self.entries_after(position), limit)
        return [(entry[-1], event_of(entry)) for entry in found]

    def entries_after(self, position: int) -> Iterator[Entry]:
        """Entries past a position, as long as nothing is written or removed meanwhile."""
        for place in range(max(0, position + 1 - self._first), len(self._entries)):
            entry = self._entries[place]
            if entry is not None:
                yield entry


def held_of(record: Record) -> Held:
    """The lease on a record."""
    return Held(
        record.seq,
        record.lease or 0,
        record.worker_id or "",
        record.state,
        record.cancel_requested,
    )


def job_of(record: Record, told: Mapping[int | None, Progress]) -> Job:
    """A record as callers see it. ``told`` is the progress of attempts, by lease."""
    return Job(
        id=record.id,
        seq=record.seq,
        spec=replace(record.spec, run_at=record.run_at),
        state=record.state,
        version=record.version,
        attempt=record.attempt,
        retry_count=record.retry_count,
        created_at=record.created_at,
        updated_at=record.events[-1][5],
        expires_at=None if record.state in TERMINAL else record.expires_at,
        worker_id=record.worker_id,
        cancel_requested=record.cancel_requested,
        started_at=record.started_at,
        completed_at=record.completed_at,
        next_retry_at=record.due if record.state is State.FAILED else None,
        result=record.result,
        error=record.error,
        reason=record.reason,
        progress=told.get(record.lease) if record.state is State.RUNNING else None,
    )


def event_of(entry: Entry) -> Event:
    """An event as callers see it."""
    return Event(*entry[:10])


def matches(record: Record, wanted: JobFilter) -> bool:
    """What a filter asks beside queue, state and place."""
    if wanted.type is not None and record.spec.type != wanted.type:
        return False
    if wanted.reasons and record.reason not in wanted.reasons:
        return False
    if wanted.error and wanted.error not in record.error:
        return False
    if wanted.since is None and wanted.until is None:
        return True
    ended = record.completed_at
    if ended is None:
        return False
    return (wanted.since is None or ended >= wanted.since) and (
        wanted.until is None or ended < wanted.until
    )
