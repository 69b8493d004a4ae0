"""A job from its events: pure, and the proof that the stream holds everything.

What ``core/decide.py`` did to the job when the event was written is done again here, by the event
alone. No clock and no random draw: times that depended on those are in the event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from jobqueue.core.job import Event, Job
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.stream import (
    CancelRequested,
    Created,
    Failed,
    Finished,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
    StreamItem,
)

# A path that only passes through FAILED leaves the error of the attempt before.
_PASSING = frozenset({Reason.HANDED_BACK, Reason.QUEUE_DELETED})


@dataclass(slots=True)
class Rebuilt:
    """A job, its history, and what no answer shows of it."""

    job: Job
    history: list[Event]
    deaths: int = 0  # workers that died under it, since it was last sent back by hand
    key_expires_at: float | None = None
    run_at: float | None = None  # as it was submitted; a retry by hand takes the job's own away
    # What events into FAILED and DEAD_LETTERED said beside their detail, by version.
    said: dict[int, Failed | Finished] = field(default_factory=dict)

    def failed(self, version: int) -> Failed | None:
        """What the event of that version said of a failure, if it was one."""
        found = self.said.get(version)
        return found if isinstance(found, Failed) else None


@dataclass(slots=True)
class Key:
    """An idempotency key that is taken, whether its job is still there or not."""

    queue: str
    key: str  # as stores keep it
    job: Job  # as it was: its payload and type make the fingerprint
    expires_at: float

    @property
    def fingerprint(self) -> bytes:
        """What a submit with this key must be equal in."""
        return self.job.spec.fingerprint()


@dataclass(slots=True)
class Figures:
    """The attempts of a queue that ended, those of removed jobs among them."""

    succeeded: int = 0
    failed: int = 0
    run_seconds: float = 0.0

    def count(self, item: JobEvent) -> None:
        """Add the attempt that an event ended."""
        if item.event.to_state is State.DONE:
            self.succeeded += 1
        else:
            self.failed += 1
        said = item.finished or item.failed
        if said is not None and said.started_at is not None:
            self.run_seconds += max(0.0, item.event.at - said.started_at)


@dataclass(slots=True)
class World:
    """Everything that the stream tells of."""

    jobs: dict[str, Rebuilt] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    gone: dict[str, Queue] = field(default_factory=dict)  # deleted queues, as they were last
    keys: list[Key] = field(default_factory=list)  # of jobs that are gone
    figures: dict[str, Figures] = field(default_factory=dict)  # by queue
    last_seq: int = 0  # the highest number that any job had
    last_number: int = 0  # the highest number of a queue's change
    _numbers: dict[str, int] = field(default_factory=dict)
    _deleted: set[str] = field(default_factory=set)

    def add(self, item: StreamItem) -> bool:
        """Take the next record; False: it was there already, or tells of no job and no queue.

        Raises LookupError when a job's records come with a gap.
        """
        if isinstance(item, QueueEvent):
            return self._queue(item)
        if isinstance(item, JobEvent):
            return self._job(item)
        if isinstance(item, CancelRequested):
            flagged = self.jobs.get(item.job_id)
            return flagged is not None and flag(flagged, item)
        if isinstance(item, JobDeleted):
            return self._delete(item)
        return False  # of workers: they come and go

    def early(self, item: StreamItem) -> bool:
        """Whether records of the same job have to come before this one."""
        if isinstance(item, JobEvent):
            job_id, after = item.event.job_id, item.event.version - 1
        elif isinstance(item, CancelRequested | JobDeleted):
            job_id, after = item.job_id, item.version
        else:
            return False
        known = self.jobs.get(job_id)
        return job_id not in self._deleted and after > (known.job.version if known else 0)

    def discard(self, job_id: str) -> None:
        """Leave a job out: nothing that is said of it counts any more."""
        self._deleted.add(job_id)
        self.jobs.pop(job_id, None)

    def _job(self, item: JobEvent) -> bool:
        event = item.event
        if event.job_id in self._deleted:
            return False
        known = self.jobs.get(event.job_id)
        if known is None:
            self.jobs[event.job_id] = made = begin(item)
            self.last_seq = max(self.last_seq, made.job.seq)
            return True
        if not advance(known, item):
            return False
        if event.from_state is State.RUNNING:
            self.figures.setdefault(event.queue, Figures()).count(item)
        return True

    def _queue(self, item: QueueEvent) -> bool:
        name = item.queue.name
        if item.number <= self._numbers.get(name, 0):
            return False
        self._numbers[name] = item.number
        self.last_number = max(self.last_number, item.number)
        if item.change is QueueChange.DELETED:
            self.queues.pop(name, None)
            self.gone[name] = item.queue
        else:
            self.gone.pop(name, None)
            self.queues[name] = item.queue
        return True

    def _delete(self, item: JobDeleted) -> bool:
        self._deleted.add(item.job_id)
        gone = self.jobs.pop(item.job_id, None)
        if gone is None:
            return False
        job = gone.job
        key = job.spec.stored_key
        if key is not None and gone.key_expires_at is not None and not item.key_freed:
            self.keys.append(Key(job.queue, key, job, gone.key_expires_at))
        return True


def fold(items: Iterable[JobEvent | CancelRequested]) -> Rebuilt:
    """One job from its own records, in their order. Repeated ones change nothing."""
    rebuilt: Rebuilt | None = None
    for item in items:
        if rebuilt is None:
            if isinstance(item, CancelRequested):
                raise LookupError(f"job {item.job_id}: its first record is missing")
            rebuilt = begin(item)
        elif isinstance(item, CancelRequested):
            flag(rebuilt, item)
        else:
            advance(rebuilt, item)
    if rebuilt is None:
        raise LookupError("a job without records")
    return rebuilt


def begin(item: JobEvent) -> Rebuilt:
    """The job as it was accepted."""
    event, created = item.event, item.created
    if created is None or event.version != 1:
        raise LookupError(f"job {event.job_id}: its first record is missing")
    return Rebuilt(
        _accepted(event, created), [event], 0, created.key_expires_at, created.spec.run_at
    )


def _accepted(event: Event, created: Created) -> Job:
    return Job(
        id=event.job_id,
        seq=created.seq,
        spec=created.spec,
        state=event.to_state,
        version=event.version,
        attempt=event.attempt,
        retry_count=0,
        created_at=created.created_at,
        updated_at=event.at,
        expires_at=created.expires_at,
        reason=event.reason,
    )


def flag(rebuilt: Rebuilt, item: CancelRequested) -> bool:
    """A cancel was accepted while it ran; a repeated record comes when it has moved on."""
    job = rebuilt.job
    if job.version != item.version or job.state is not State.RUNNING or job.cancel_requested:
        return False
    job.cancel_requested = True
    return True


def advance(rebuilt: Rebuilt, item: JobEvent) -> bool:
    """Do what the event says; False: it was done already."""
    job, event = rebuilt.job, item.event
    if event.version <= job.version:
        return False
    if event.version != job.version + 1:
        raise LookupError(
            f"job {job.id}: version {event.version} follows {job.version}; there is a gap"
        )
    before = job.state
    job.state, job.version, job.attempt = event.to_state, event.version, event.attempt
    job.reason, job.updated_at = event.reason, event.at
    rebuilt.history.append(event)
    _ENTER[event.to_state](rebuilt, item, before)
    return True


def _assigned(rebuilt: Rebuilt, item: JobEvent, before: State) -> None:
    rebuilt.job.worker_id = item.event.worker_id


def _running(rebuilt: Rebuilt, item: JobEvent, before: State) -> None:
    job = rebuilt.job
    job.set_start(item.event.at)
    job.expires_at = None  # the TTL ends at the first start


def _failed(rebuilt: Rebuilt, item: JobEvent, before: State) -> None:
    job, event = rebuilt.job, item.event
    job.error = event.detail or job.error if event.reason in _PASSING else event.detail
    if event.reason is Reason.WORKER_LOST:
        rebuilt.deaths += 1
    if item.failed is not None:
        rebuilt.said[event.version] = item.failed
        job.set_start(item.failed.started_at or job.started_at)
        job.next_retry_at = item.failed.next_retry_at


def _pending(rebuilt: Rebuilt, item: JobEvent, before: State) -> None:
    job = rebuilt.job
    job.worker_id = None
    job.next_retry_at = None
    if item.event.reason is Reason.RETRY_DUE:
        job.retry_count += 1
    elif item.event.reason is Reason.MANUAL_RETRY:
        job.retry_count = 0
        job.cancel_requested = False
        job.expires_at = job.completed_at = None
        job.spec = replace(job.spec, run_at=None)
        job.error = ""
        rebuilt.deaths = 0


def _done(rebuilt: Rebuilt, item: JobEvent, before: State) -> None:
    job = rebuilt.job
    job.completed_at = item.event.at
    job.error = ""
    if item.finished is not None:
        job.result = item.finished.result
        job.set_start(item.finished.started_at)


def _dead(rebuilt: Rebuilt, item: JobEvent, before: State) -> None:
    job = rebuilt.job
    job.completed_at = item.event.at
    job.next_retry_at = job.expires_at = None
    job.error = item.event.detail or job.error
    if item.finished is not None:
        rebuilt.said[item.event.version] = item.finished
        if item.finished.cancel_requested:
            job.cancel_requested = True  # of a job from before there was a stream


_ENTER = {
    State.PENDING: _pending,
    State.ASSIGNED: _assigned,
    State.RUNNING: _running,
    State.FAILED: _failed,
    State.DONE: _done,
    State.DEAD_LETTERED: _dead,
}
