"""Rebuild jobs, queues and schedules from the event stream, and prepare them for an empty store.

An event is applied with the same lifecycle table and the same ``enter`` with which
``core/decide.py`` made the transition. Replay reads no clock and draws no random number: the event
has all times that depended on a clock or a random number.

A job that was ASSIGNED or RUNNING at the end of the stream gets a new lease that no worker knows.
The sweep therefore handles it like every job whose worker was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from jobqueue.core.decide import Entry, L, Live, begin, enter, event_of, waiting
from jobqueue.core.errors import Conflict
from jobqueue.core.identity import Identity, successor
from jobqueue.core.ids import new_lease
from jobqueue.core.job import DEFAULT_QUEUE, Event, Job, JobSpec
from jobqueue.core.lifecycle import HELD, TERMINAL, State, allows
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.core.schedule import Schedule
from jobqueue.core.store import Rules
from jobqueue.core.stream import (
    CancelRequested,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
    ScheduleChange,
    ScheduleEvent,
    StreamItem,
)


@dataclass(slots=True)
class Rebuilt:
    """A rebuilt job and its history."""

    id: str
    spec: JobSpec  # as it was accepted
    created_at: float
    live: Live  # without lease
    entries: list[Entry]
    key_expires_at: float | None = None

    @property
    def updated_at(self) -> float:
        return self.entries[-1][5]

    @property
    def job(self) -> Job:
        return self.live.job(self.id, self.spec, self.created_at, self.updated_at)

    @property
    def history(self) -> list[Event]:
        return [event_of(entry) for entry in self.entries]


@dataclass(slots=True)
class Key:
    """An idempotency key that is in use. Its job may have been removed."""

    queue: str
    key: str  # as stores keep it
    job_id: str
    seq: int
    fingerprint: bytes  # of the job; a submit with another fingerprint is a conflict
    expires_at: float

    @classmethod
    def of(cls, rebuilt: Rebuilt) -> Key | None:
        spec = rebuilt.spec
        key, expires_at = spec.stored_key, rebuilt.key_expires_at
        if key is None or expires_at is None:
            return None
        return cls(spec.queue, key, rebuilt.id, rebuilt.live.seq, spec.fingerprint(), expires_at)


@dataclass(slots=True)
class Figures:
    """Counts the ended attempts of a queue, including attempts of removed jobs."""

    succeeded: int = 0
    failed: int = 0
    run_seconds: float = 0.0

    def count(self, item: JobEvent) -> None:
        """Count the attempt that this event ended."""
        if item.event.to_state is State.DONE:
            self.succeeded += 1
        else:
            self.failed += 1
        said = item.finished or item.failed
        if said is not None and said.started_at is not None:
            self.run_seconds += max(0.0, item.event.at - said.started_at)


@dataclass(slots=True)
class RebuiltSchedule:
    """Collects the records of one schedule. A later record has a higher number."""

    name: str
    definition: ScheduleEvent | None = None  # the latest record with the whole schedule
    latest: ScheduleEvent | None = None
    removed: int = 0  # the number of the latest removal

    def add(self, item: ScheduleEvent) -> bool:
        """Apply a record; return False if it is repeated or an earlier one."""
        if item.change is ScheduleChange.REMOVED:
            earlier, self.removed = self.removed, max(self.removed, item.number)
            return item.number > earlier
        if item.schedule is not None and item.number > _number(self.definition):
            self.definition = item
        later = item.number > _number(self.latest)
        if later:
            self.latest = item
        return later

    @property
    def schedule(self) -> Schedule | None:
        """Return the schedule, or None if it was removed."""
        made, latest = self.definition, self.latest
        if made is None or made.schedule is None or latest is None or made.number < self.removed:
            return None
        return replace(made.schedule, state=latest.state, revision=latest.revision)


def _number(item: ScheduleEvent | None) -> int:
    return 0 if item is None else item.number


@dataclass(slots=True)
class World:
    """Collects all jobs, queues, schedules and idempotency keys while the stream is replayed."""

    jobs: dict[str, Rebuilt] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    gone: dict[str, Queue] = field(default_factory=dict)  # deleted queues, as they were last
    schedules: dict[str, RebuiltSchedule] = field(default_factory=dict)  # removed ones, too
    keys: list[Key] = field(default_factory=list)  # of removed jobs
    figures: dict[str, Figures] = field(default_factory=dict)  # by queue
    last_seq: int = 0  # the highest number that any job had
    last_number: int = 0  # the highest number of a change of a queue or schedule
    _numbers: dict[str, int] = field(default_factory=dict)
    _deleted: set[str] = field(default_factory=set)

    def add(self, item: StreamItem) -> bool:
        """Apply the next record of the stream.

        Return False if the record is repeated, or is not about a job, a queue or a schedule. Raises
        LookupError if an earlier record of the same job is missing.
        """
        if isinstance(item, QueueEvent):
            return self._queue(item)
        if isinstance(item, ScheduleEvent):
            self.last_number = max(self.last_number, item.number)
            return self.schedules.setdefault(item.name, RebuiltSchedule(item.name)).add(item)
        if isinstance(item, JobEvent):
            return self._job(item)
        if isinstance(item, CancelRequested):
            flagged = self.jobs.get(item.job_id)
            return flagged is not None and flag(flagged, item)
        if isinstance(item, JobDeleted):
            return self._delete(item)
        return False  # about workers

    def early(self, item: StreamItem) -> bool:
        """Return True if earlier records of this record's job have not been applied yet."""
        if isinstance(item, JobEvent):
            job_id, after = item.event.job_id, item.event.version - 1
        elif isinstance(item, CancelRequested | JobDeleted):
            job_id, after = item.job_id, item.version
        else:
            return False
        known = self.jobs.get(job_id)
        return job_id not in self._deleted and after > (known.live.version if known else 0)

    def discard(self, job_id: str) -> None:
        """Omit a job: drop its state, and ignore its later records."""
        self._deleted.add(job_id)
        self.jobs.pop(job_id, None)

    def _job(self, item: JobEvent) -> bool:
        event = item.event
        if event.job_id in self._deleted:
            return False
        known = self.jobs.get(event.job_id)
        if known is None:
            self.jobs[event.job_id] = made = first(item)
            self.last_seq = max(self.last_seq, made.live.seq)
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
        key = Key.of(gone)
        if key is not None and not item.key_freed:
            self.keys.append(key)
        return True


def first(item: JobEvent) -> Rebuilt:
    """Return a new job from its first record.

    Raises LookupError if ``item`` is not the first record of a job.
    """
    event, created = item.event, item.created
    if created is None or event.version != 1:
        raise LookupError(f"job {event.job_id}: its first record is missing")
    live = begin(created.spec, created.expires_at, None, created.seq, Live)
    return Rebuilt(
        event.job_id,
        created.spec,
        created.created_at,
        live,
        [_entry(item, 0, due=created.spec.run_at)],
        created.key_expires_at,
    )


def flag(rebuilt: Rebuilt, item: CancelRequested) -> bool:
    """Set the cancel flag of a running job; return False if the record is repeated."""
    live = rebuilt.live
    if live.version != item.version or live.state is not State.RUNNING or live.cancel_requested:
        return False
    live.cancel_requested = True
    return True


def advance(rebuilt: Rebuilt, item: JobEvent) -> bool:
    """Apply an event to its job; return False if the event is repeated.

    Raises LookupError if an event is missing, or if the job's state does not allow this event.
    """
    live, event = rebuilt.live, item.event
    if event.version <= live.version:
        return False
    if event.version != live.version + 1:
        raise LookupError(
            f"job {rebuilt.id}: version {event.version} follows version {live.version}; the events"
            " between them are missing"
        )
    state = event.to_state
    if event.from_state is not live.state or not allows(live.state, state, event.reason):
        raise LookupError(
            f"job {rebuilt.id}: version {event.version} says {event.from_state!r} -> {state!r}"
            f" ({event.reason}), but the job is {live.state.name} and cannot make this transition"
        )
    live.attempt = event.attempt
    enter(live, state, event.reason, event.at, event.detail)
    if state is State.ASSIGNED:
        live.worker_id = event.worker_id
    failed, finished = item.failed, item.finished
    if failed is not None:
        live.started_at = failed.started_at or live.started_at
        live.due = failed.next_retry_at
        entry = _entry(item, failed.retry_count, failed.started_at, failed.next_retry_at)
    elif finished is not None:
        if state is State.DONE:
            live.started_at, live.result = finished.started_at, finished.result
        elif finished.cancel_requested:
            # The cancel has no record of its own if it was requested before the stream began.
            live.cancel_requested = True
        cancelled = finished.cancel_requested
        entry = _entry(item, finished.retry_count, finished.started_at, None, cancelled)
    else:
        entry = _entry(item, live.retry_count)
    rebuilt.entries.append(entry)
    return True


def _entry(
    item: JobEvent,
    retry_count: int,
    started_at: float | None = None,
    due: float | None = None,
    cancelled: bool = False,
) -> Entry:
    event = item.event
    return (
        event.job_id, event.version, event.from_state, event.to_state, event.reason, event.at,
        event.attempt, event.worker_id, event.detail, event.queue, retry_count, started_at, due,
        cancelled,
    )  # fmt: skip


Told = Callable[[int], None]
"""A callback that gets the number of jobs written so far. Any thread may call it."""


@dataclass(slots=True)
class RestoredQueue:
    """A queue and its counters. A deleted queue is included, because jobs may still name it."""

    queue: Queue
    deleted: bool
    figures: Figures


@dataclass(slots=True)
class Restored:
    """The complete content to write into an empty store."""

    queues: list[RestoredQueue]  # every queue that jobs and keys name
    jobs: list[Rebuilt]  # sorted by seq
    keys: list[Key]  # all keys in use, including those of removed jobs
    last_seq: int  # new jobs get higher numbers
    last_number: int  # later changes of queues and schedules get higher numbers
    identity: Identity  # of the new store
    published: bool = True  # True if the event stream has all these events already
    schedules: list[Schedule] = field(default_factory=list)  # sorted by name


def unplaced(world: World) -> dict[str, str]:
    """Return the ids of jobs that cannot be written into a store, each with the reason."""
    found = {}
    numbers: dict[int, str] = {}
    for job_id, rebuilt in world.jobs.items():
        live, queue = rebuilt.live, rebuilt.spec.queue
        twin = numbers.setdefault(live.seq, job_id)
        if twin != job_id:
            found[job_id] = (
                f"it has the same number {live.seq} as job {twin}: the topics have the events of"
                " more than one store"
            )
        elif queue not in world.queues and live.state not in TERMINAL:
            found[job_id] = f"it is not finished, and its queue {queue!r} does not exist"
    return found


def gather(world: World, *, published: bool, identity: Identity | None = None) -> Restored:
    """Return the content for an empty store, with ``identity`` or a new identity.

    The caller must first discard every job that ``unplaced`` returns.
    """
    # A queue that was deleted before the stream began has no record; only its jobs name it.
    named = {rebuilt.spec.queue for rebuilt in world.jobs.values()}
    known = {name: (Queue(name=name), True) for name in named}
    known |= {name: (queue, True) for name, queue in world.gone.items()}
    known |= {name: (queue, False) for name, queue in world.queues.items()}
    queues = [
        RestoredQueue(queue, deleted, world.figures.get(name, Figures()))
        for name, (queue, deleted) in sorted(known.items())
    ]
    keys: dict[tuple[str, str], Key] = {}
    of_jobs = filter(None, map(Key.of, world.jobs.values()))
    # Jobs were read in the random order of Kafka's partitions. If several jobs have the same key,
    # the job whose key expires last has it now: it got the key after the earlier one had expired.
    for key in sorted((*world.keys, *of_jobs), key=_key_order):
        if key.queue in known:
            keys[key.queue, key.key] = key
    return Restored(
        queues=queues,
        jobs=sorted(world.jobs.values(), key=lambda rebuilt: rebuilt.live.seq),
        keys=list(keys.values()),
        last_seq=world.last_seq,
        last_number=world.last_number,
        identity=identity or successor("", ()),
        published=published,
        schedules=[
            found
            for _, one in sorted(world.schedules.items())
            if (found := one.schedule) is not None
        ],
    )


def _key_order(key: Key) -> tuple[str, str, float, int]:
    return key.queue, key.key, key.expires_at, key.seq


def standing(rebuilt: Rebuilt, now: float, rules: Rules, kind: type[L]) -> tuple[L, bool]:
    """Return the fields of a rebuilt job for its new store, and True if the job can be claimed.

    A job that was ASSIGNED or RUNNING gets a new lease and a new timeout.
    """
    live, ready = rebuilt.live.copied(kind), False
    if live.state is State.PENDING:
        ready, live.due = waiting(live.run_at, live.expires_at, now)
    elif live.state is State.FAILED and live.due is None:
        live.due = rebuilt.updated_at  # retried at once: earlier versions did not write the time
    elif live.state in HELD:
        live.lease = new_lease()
        if live.state is State.ASSIGNED:
            live.due = now + rules.assignment_timeout
        elif live.timeout is not None:
            live.due = now + live.timeout + rules.watchdog_grace
    if not rules.poison_after:
        live.deaths = 0
    return live, ready


def parts(
    jobs: Sequence[Rebuilt], most_jobs: int, most_events: int, most_bytes: int
) -> Iterator[Sequence[Rebuilt]]:
    """Yield the jobs in parts that each fit into one write.

    A job that exceeds the limits is a part of its own.
    """
    begin = size = events = 0
    for n, rebuilt in enumerate(jobs):
        added = len(rebuilt.spec.payload) + len(rebuilt.live.result or b"")
        full = n - begin == most_jobs or events + len(rebuilt.entries) > most_events
        if n > begin and (full or size + added > most_bytes):
            yield jobs[begin:n]
            begin, size, events = n, 0, 0
        size += added
        events += len(rebuilt.entries)
    if jobs:
        yield jobs[begin:]


def unused(found: Iterable[QueueStats]) -> bool:
    """Return True if the store has no queue, or only a default queue that was never used."""
    return all(
        one.queue.name == DEFAULT_QUEUE and not one.queue.paused and not one.processed
        for one in found
    )


def not_empty(content: str) -> Conflict:
    return Conflict(
        f"the store is not empty: it has {content}. Replay writes into an empty store only: name"
        " another store, or remove its content"
    )


def led() -> Conflict:
    return Conflict(
        "a server uses this store, or used it a moment ago; nothing was written. Stop the server,"
        " wait until its term has run out (scheduler.leader_ttl), and try again"
    )
