"""Keep the jobs, queues, keys, timers and events that the parts of a memory store share."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from jobqueue.core.clock import Clock
from jobqueue.core.decide import Entry, Live
from jobqueue.core.identity import Identity
from jobqueue.core.job import Held, Job, JobSpec
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.limits import Limits
from jobqueue.core.progress import Progress
from jobqueue.core.queue import MAX_PRIORITY, Queue, QueueStats, share
from jobqueue.core.schedule import Schedule
from jobqueue.core.store import Rules
from jobqueue.core.stream import (
    QueueChange,
    QueueEvent,
    ScheduleChange,
    ScheduleEvent,
    StreamItem,
)
from jobqueue.stores.memory.keyed import KeyedJobs
from jobqueue.stores.memory.leadership import MemoryLeadership
from jobqueue.stores.memory.ready import SLACK, First, ReadyJobs, Types
from jobqueue.stores.queue_rows import queue_stats

Placed = tuple[
    str, int, State | None, State, Reason, float, int, str | None, str, str,
    int, float | None, float | None, bool, int,
]  # fmt: skip
"""An ``Entry`` and the number of the event.

A tuple and not an object that refers to its job: without reference cycles a removed job is freed
at once.
"""
Place = tuple[int, int]
"""A position in the stream: the numbers of the last event and of the last entry of the outbox."""
Timer = tuple[float, int, int]
"""The due time, number and version of a job. A timer is valid while the job has this version."""


class MemoryJob(Live):
    """Holds a job: its fields that change (``Live``), its other fields, and its events."""

    __slots__ = ("created_at", "events", "id", "queue", "ready", "spec")

    id: str
    spec: JobSpec  # as it was accepted
    queue: MemoryQueue
    ready: bool  # claimable now: PENDING, and not waiting for run_at
    created_at: float
    events: list[Placed]

    def keep(
        self, job_id: str, spec: JobSpec, queue: MemoryQueue, ready: bool, created_at: float
    ) -> None:
        """Set the fields that never change, and an empty list of events."""
        self.id = job_id
        self.spec = spec
        self.queue = queue
        self.ready = ready
        self.created_at = created_at
        self.events = []

    def held(self) -> Held:
        """Return the lease of the job's current attempt."""
        return Held(
            self.seq, self.lease or 0, self.worker_id or "", self.state, self.cancel_requested
        )


class MemoryQueue:
    """Holds a queue's settings, its claimable jobs and its figures."""

    __slots__ = (
        "_type_of", "depth", "failed", "full_at", "keyed", "limits", "ready", "run_seconds",
        "settings", "succeeded",
    )  # fmt: skip
    settings: Queue
    limits: Limits | None  # from the queue's settings

    def __init__(self, settings: Queue, type_of: Callable[[int], str | None]) -> None:
        self.configure(settings)
        self.full_at = 0.0  # the state of the bucket of the rate limit
        self._type_of = type_of
        self.ready = ReadyJobs(type_of)  # of jobs without a concurrency key
        self.keyed: KeyedJobs | None = None  # of the others, once there was one
        self.depth = dict.fromkeys(State, 0)
        self.succeeded = 0
        self.failed = 0
        self.run_seconds = 0.0

    def configure(self, settings: Queue) -> None:
        """Replace the settings of the queue."""
        self.settings = settings
        self.limits = settings.limits

    def push(self, record: MemoryJob) -> None:
        """Add a job that has become claimable."""
        spec = record.spec
        if spec.concurrency_key is None:
            self.ready.push(spec.priority, record.seq, spec.type)
            return
        if self.keyed is None:
            self.keyed = KeyedJobs(self._type_of)
        self.keyed.push(spec.concurrency_key, spec.priority, record.seq, spec.type)

    def bury(self, record: MemoryJob) -> None:
        """Record that a job is no longer claimable, though it was not claimed."""
        key, type = record.spec.concurrency_key, record.spec.type
        if key is None:
            self.ready.bury(type)
        elif self.keyed is not None:
            self.keyed.bury(key, type)

    def first(self, types: Types) -> First | None:
        """Return the next job of the given types in order of priority, or None."""
        first = self.ready.first(types)
        other = None if self.keyed is None else self.keyed.all.first(types)
        return first if other is None or (first is not None and first < other) else other

    def take(self, first: First, key: str | None) -> None:
        """Remove the job that ``first`` or ``draw`` has returned, because it is claimed."""
        if key is None:
            self.ready.take(first[0], first[2])
        elif self.keyed is not None:
            self.keyed.take(first, key)

    def take_of(self, key: str | None, rank: int, type: str) -> None:
        """Remove the first job of its key, rank and type, because it is claimed."""
        if key is None:
            self.ready.take(rank, type)
        elif self.keyed is not None:
            self.keyed.take_of(key, rank, type)

    def draw(self, weights: Mapping[int, int], types: Types) -> First:
        """Choose a priority at random by its weight and return the next job of this priority.

        At least one job of the given types must be claimable.
        """
        if self.keyed is None:
            return self.ready.draw(weights, types)
        firsts: dict[int, First] = {}
        for jobs in (self.ready, self.keyed.all):
            for rank in range(MAX_PRIORITY + 1):
                found = jobs.first_of(rank, types)
                if found is not None:
                    first = (rank, *found)
                    priority = MAX_PRIORITY - rank
                    firsts[priority] = min(first, firsts.get(priority, first))
        return firsts[next(iter(share(weights, list(firsts), 1)))]

    def hold(self, record: MemoryJob) -> None:
        """Count a job that a worker has got, by its key."""
        key = record.spec.concurrency_key
        if key is not None:
            if self.keyed is None:
                self.keyed = KeyedJobs(self._type_of)
            self.keyed.hold(key)

    def release(self, record: MemoryJob) -> None:
        """Count a job whose lease has ended, by its key."""
        if self.keyed is not None and record.spec.concurrency_key is not None:
            self.keyed.release(record.spec.concurrency_key)

    def waiting_types(self, count_to: int) -> dict[str, int]:
        """Return the number of claimable jobs by type, each number limited to ``count_to``."""
        counts = Counter(self.ready.counts(count_to))
        if self.keyed is not None:
            counts.update(self.keyed.all.counts(count_to))
        return {type: min(count, count_to) for type, count in counts.items()}

    @property
    def waits(self) -> bool:
        """Return True if there are claimable jobs."""
        return bool(self.ready) or (self.keyed is not None and bool(self.keyed.all))

    @property
    def held(self) -> int:
        """Return the number of jobs that are ASSIGNED or RUNNING."""
        return self.depth[State.ASSIGNED] + self.depth[State.RUNNING]

    def stats(self) -> QueueStats:
        """Return the queue's settings and figures."""
        depth = self.depth.values()
        return queue_stats(self.settings, depth, self.succeeded, self.failed, self.run_seconds)


class Contents:
    """Holds everything in a memory store.

    The dictionaries must not be replaced by new ones, because parts of the store refer to them.
    """

    def __init__(self, rules: Rules, clock: Clock, identity: Identity) -> None:
        self.rules = rules
        self.clock = clock
        self.identity = identity
        self.seq = itertools.count(1)
        self.latest = 0.0  # the latest time of creation; a new job is never older than this
        self.jobs: dict[str, MemoryJob] = {}
        self.by_seq: dict[int, MemoryJob] = {}
        self.queues: dict[str, MemoryQueue] = {}
        self.gone: dict[str, MemoryQueue] = {}  # deleted queues, whose jobs stay
        self.schedules: dict[str, Schedule] = {}
        self.keys = IdempotencyKeys()
        self.unique: dict[tuple[str, str], MemoryJob] = {}  # by queue and stored unique key
        self.timers = Timers(self.by_seq.get)
        self.held: dict[int, MemoryJob] = {}  # by lease
        self.progress: dict[int | None, Progress] = {}  # by lease
        self.log = EventLog()
        self.leadership = MemoryLeadership(clock)

    def type_of(self, seq: int) -> str | None:
        """Return the type of a claimable job, or None if the job is not claimable."""
        record = self.by_seq.get(seq)
        return record.spec.type if record is not None and record.ready else None

    def add(self, record: MemoryJob) -> None:
        """Add a job whose fields are set, but whose events are not written yet."""
        self.jobs[record.id] = self.by_seq[record.seq] = record
        self.latest = max(self.latest, record.created_at)
        record.queue.depth[record.state] += 1
        if record.spec.unique is not None:
            self.unique[record.spec.queue, record.spec.unique.stored] = record
        if record.ready:
            if record.spec.concurrency_key is None:  # without a further call, for most jobs
                record.queue.ready.push(record.spec.priority, record.seq, record.spec.type)
            else:
                record.queue.push(record)
        if record.lease is None:
            self.timers.arm(record)
        else:
            self.held[record.lease] = record
            record.queue.hold(record)

    def job(self, record: MemoryJob) -> Job:
        """Return the job as ``core.job.Job``, the type that callers get."""
        progress, updated_at = self.progress.get(record.lease), record.events[-1][5]
        return record.job(record.id, record.spec, record.created_at, updated_at, progress)


class MemoryPart:
    """Gives each part of a memory store short names for the contents that all parts share."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._rules = contents.rules
        self._clock = contents.clock
        self._by_seq = contents.by_seq
        self._queues = contents.queues
        self._keys = contents.keys
        self._log = contents.log
        self._check_term = contents.leadership.check


class EventLog:
    """Keeps all events in the order of their writes, and the outbox of changes that are not events.

    Removed jobs leave gaps among the events; gaps at the beginning are dropped. The *mark* is the
    position up to which the stream has published. The outbox stores changes only while there is a
    stream, and drops each change when the mark has passed it.
    """

    def __init__(self) -> None:
        self._first = 1
        self._events: list[Placed | None] = []
        self._gaps = 0
        self._outbox: deque[tuple[Place, StreamItem, float]] = deque()
        self._number = 0  # of the latest entry of the outbox
        self.mark: Place | None = None
        self.refused = 0

    def write(self, entries: Iterable[Entry], events: list[Placed]) -> None:
        """Add events to this log and to ``events``, the list of the job's events."""
        number = self._first + len(self._events)
        for entry in entries:
            placed: Placed = (*entry, number)
            events.append(placed)
            self._events.append(placed)
            number += 1

    def remove(self, events: Iterable[Placed]) -> None:
        """Remove the events of a removed job."""
        for event in events:
            self._events[event[-1] - self._first] = None
            self._gaps += 1
        if self._gaps * 2 > len(self._events):
            gaps = sum(1 for _ in itertools.takewhile(lambda event: event is None, self._events))
            del self._events[:gaps]
            self._first += gaps
            self._gaps -= gaps

    def events_after(self, number: int) -> Iterator[Placed]:
        """Yield the events whose number is greater than ``number``.

        The caller must not write or remove events meanwhile.
        """
        for place in range(max(0, number + 1 - self._first), len(self._events)):
            event = self._events[place]
            if event is not None:
                yield event

    def begin(
        self,
        queues: Iterable[Queue],
        schedules: Iterable[Schedule],
        flagged: Iterable[StreamItem],
        now: float,
    ) -> Place:
        """Return the mark. If there is none, start a stream with its mark before the first event.

        The outbox of a new stream begins with the creation of every queue and schedule. Then
        ``flagged`` follows: the requests to cancel jobs.
        """
        if self.mark is None:
            self.mark, self.refused = (0, 0), 0
            for queue in queues:
                self.put_queue(QueueChange.CREATED, queue, now, after=0)
            for schedule in schedules:
                self.put_schedule(ScheduleChange.CREATED, schedule, now, after=0)
            for item in flagged:
                self.put(item, now)
        return self.mark

    def resume(self, number: int, *, published: bool) -> None:
        """Give new outbox entries numbers that are greater than ``number``.

        With ``published``, also start a stream whose mark is after all events.
        """
        self.end()
        self._number = max(self._number, number)
        if published:
            self.mark, self.refused = (self._latest(), self._number), 0

    def end(self) -> None:
        """End the stream: remove its mark and the outbox."""
        self.mark = None
        self._outbox.clear()

    def put(self, item: StreamItem, now: float, after: int | None = None) -> None:
        """Add a change to the outbox, if there is a stream.

        In the stream the change follows the event whose number is ``after``. With None, it follows
        the latest event.
        """
        if self.mark is not None:
            self._number += 1
            place = (self._latest() if after is None else after, self._number)
            self._outbox.append((place, item, now))

    def put_queue(
        self, change: QueueChange, queue: Queue, now: float, after: int | None = None
    ) -> None:
        """Add a change of a queue to the outbox, if there is a stream."""
        self.put(QueueEvent(change, replace(queue), self._number + 1, now), now, after)

    def put_schedule(
        self, change: ScheduleChange, schedule: Schedule, now: float, after: int | None = None
    ) -> None:
        """Add a change of a schedule to the outbox, if there is a stream."""
        self.put(ScheduleEvent.of(change, schedule, self._number + 1, now), now, after)

    def passed(self, record: MemoryJob) -> bool:
        """Return True if there is no stream, or the stream has published all events of the job."""
        return self.mark is None or record.events[-1][-1] <= self.mark[0]

    def move(self, position: Place, refused: int) -> None:
        """Move the mark to ``position``, and drop the outbox entries up to this position.

        ``refused`` is the number of changes that could not be published.
        """
        self.mark = position
        self.refused += refused
        while self._outbox and self._outbox[0][0] <= position:
            self._outbox.popleft()

    def after(self, position: Place) -> Iterator[tuple[Place, Placed | StreamItem, float]]:
        """Yield the events and outbox entries after a position, in order of their writes.

        Each result also has the position and the time of the event or entry.
        """
        events = (((event[-1], 0), event, event[5]) for event in self.events_after(position[0]))
        entries = (entry for entry in self._outbox if entry[0] > position)
        return heapq.merge(events, entries, key=lambda one: one[0])

    def _latest(self) -> int:
        return self._first + len(self._events) - 1


class IdempotencyKeys:
    """Maps idempotency keys to their jobs until the keys expire."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, bytes, float]] = {}
        self._expiry: list[tuple[float, str, str]] = []

    def __len__(self) -> int:
        return len(self._known)

    def find(self, queue: str, key: str | None) -> tuple[str, bytes, float] | None:
        """Return the job id, the fingerprint and the time of expiry that belong to a key."""
        return None if key is None else self._known.get((queue, key))

    def put(self, queue: str, key: str, job_id: str, fingerprint: bytes, expires: float) -> None:
        """Store a key with its job until the time ``expires``."""
        self._known[queue, key] = (job_id, fingerprint, expires)
        heapq.heappush(self._expiry, (expires, queue, key))

    def free(self, queue: str, key: str | None, job_id: str) -> None:
        """Remove the key of a removed job, unless the key belongs to another job by now."""
        known = self.find(queue, key)
        if key is not None and known is not None and known[0] == job_id:
            del self._known[queue, key]

    def expire(self, now: float) -> None:
        """Remove the keys that have expired."""
        while self._expiry and self._expiry[0][0] <= now:
            expires, queue, key = heapq.heappop(self._expiry)
            known = self._known.get((queue, key))
            if known is not None and known[2] == expires:
                del self._known[queue, key]


class Timers:
    """Keeps the times when waiting jobs are due: retries, expiries, ends of delays.

    A change of a job makes its timer void. Void timers are removed later, many at once.
    """

    def __init__(self, look_up: Callable[[int], MemoryJob | None]) -> None:
        self._look_up = look_up
        self._heap: list[Timer] = []
        self._kept = 0

    def arm(self, record: MemoryJob) -> None:
        """Add a timer for a job, if the job has a time when it is due."""
        if record.due is None:
            return
        heapq.heappush(self._heap, (record.due, record.seq, record.version))
        if len(self._heap) > 2 * self._kept + SLACK:
            self._heap = [timer for timer in self._heap if self._armed(timer) is not None]
            heapq.heapify(self._heap)
            self._kept = len(self._heap)

    def next_at(self) -> float | None:
        """Return the time when the next job is due, or None if there are no timers."""
        while self._heap and self._armed(self._heap[0]) is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> MemoryJob | None:
        """Remove the timer of the next job that is due and return the job, or None."""
        at = self.next_at()
        if at is None or at > now:
            return None
        return self._armed(heapq.heappop(self._heap))

    def _armed(self, timer: Timer) -> MemoryJob | None:
        due, seq, version = timer
        record = self._look_up(seq)
        if record is None or record.version != version or record.lease is not None:
            return None
        return record if record.due == due else None
