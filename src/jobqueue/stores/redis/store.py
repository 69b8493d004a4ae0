"""The Redis store: shared by any number of processes, as durable as Redis is set up to be.

Every write is one Lua script, so that a job, its event and its places in the queues change
together. Time is the server's, unless a test brings its own. ``docs/internals.md`` names the keys.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobqueue.core.clock import Clock
from jobqueue.core.decide import overdue
from jobqueue.core.errors import NotFound
from jobqueue.core.identity import Identity
from jobqueue.core.job import (
    Assignment,
    ComponentHealth,
    Event,
    Held,
    Job,
    NewJob,
    Pulse,
    TimeQuery,
    Transition,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.queue import Queue, QueueStats, WaitingType
from jobqueue.core.restore import Restored, Told
from jobqueue.core.store import (
    ANY_QUEUE,
    Application,
    Change,
    Claim,
    DeadLetters,
    DoneJobs,
    JobFilter,
    Lag,
    Leader,
    Overdue,
    Rules,
    Submission,
    Term,
    TermEnded,
)
from jobqueue.core.stream import Changes, unpublished
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.applying import Applying
from jobqueue.stores.redis.claiming import Claiming
from jobqueue.stores.redis.documents import STATES
from jobqueue.stores.redis.leadership import Leadership, term_of
from jobqueue.stores.redis.notices import Listener
from jobqueue.stores.redis.pulse import Pulses
from jobqueue.stores.redis.queues import Queues
from jobqueue.stores.redis.reads import Reads
from jobqueue.stores.redis.restoring import Restoring
from jobqueue.stores.redis.runner import Runner
from jobqueue.stores.redis.server import check_version, shortcomings
from jobqueue.stores.redis.streaming import Streaming
from jobqueue.stores.redis.submitting import Submitting
from jobqueue.stores.redis.wire import Wire
from jobqueue.stores.redis.workers import Workers

_log = logging.getLogger("jobqueue.stores.redis")
PREFIX = "{jq}:"
_PATIENCE = 5.0  # how long a call waits for a server that is away
_KEYS_PER_SWEEP = 1_000
_PRUNED_AT_ONCE = 500
_SORTED_EVERY = 10.0  # a server of an earlier version may be running still


class RedisStore:
    """Jobs in a Redis database, under one prefix. ``create=False``: some must be there.

    With ``partitions`` every worker is allotted one of so many, from which it reads what it is
    assigned (``partition_of``); events tell which one it is.
    """

    name = "redis"
    parallel = True

    def __init__(
        self,
        url: str,
        *,
        rules: Rules | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        prefix: str = PREFIX,
        patience: float = _PATIENCE,
        create: bool = True,
        partitions: int = 0,
    ) -> None:
        rules = rules or Rules()
        observer = observer or Deaf()
        self._create = create
        self._wire = wire = Wire(url)
        self._heard: list[Callable[[Change], None]] = []
        self._runner = runner = Runner(wire, prefix, clock, observer, patience)
        self._listener = Listener(wire, f"{prefix}changes", runner.node, self._hear)
        self._submitting = Submitting(runner, rules)
        self._claiming = Claiming(runner, rules)
        self._applying = Applying(runner, rules, self._hear)
        self._reads = Reads(runner)
        self._queues = Queues(runner)
        self._workers = Workers(runner, rules, partitions)
        self._leadership = Leadership(runner)
        self._streaming = Streaming(runner)
        self._pulses = Pulses(url, runner, rules, observer)
        self._restoring = Restoring(runner, rules)
        self._sorted_at = 0.0
        self._lacking: list[str] = ["not looked at yet"]

    # -- life ------------------------------------------------------------------------------

    @property
    def location(self) -> str:
        """See ``Store.location``."""
        return self._runner.location

    @property
    def durable(self) -> bool:
        """Whether Redis is set up to keep what it accepted; known once it is open."""
        return not self._lacking

    async def open(self) -> None:
        """Connect, look how durable it is, begin to listen."""
        if self._runner.opened:
            return
        self._runner.opened = True
        self._wire.open()
        try:
            await check_version(self._runner)
            await self._restoring.check_none()
            if not self._create:
                await self._check_there()
            else:
                while (await self._sort_ready())[1]:
                    pass
            await self._look_at_durability()
        except BaseException:
            self._runner.opened = False
            await self._wire.close()
            raise
        self._listener.start()

    async def _check_there(self) -> None:
        prefix = self._runner.prefix
        if not await self._runner.command("open", "EXISTS", f"{prefix}every_queue"):
            raise NotFound(f"there are no queues in Redis at {self._wire.address} under {prefix}")

    async def _sort_ready(self) -> tuple[int, bool]:
        found = await self._claiming.sort_ready()
        self._sorted_at = time.monotonic()
        return found

    async def _look_at_durability(self) -> None:
        lacking = await shortcomings(self._runner)
        if lacking and lacking != self._lacking:
            _log.warning(
                "NOT DURABLE: jobs that were accepted can be lost. Redis at %s: %s",
                self._wire.address,
                "; ".join(lacking),
            )
        self._lacking = lacking

    async def close(self) -> None:
        """Close everything."""
        if not self._runner.opened:
            return
        self._runner.opened = False
        self._heard.clear()
        await self._listener.close()
        self._pulses.close()
        await self._wire.close()

    def on_change(self, heard: Callable[[Change], None]) -> None:
        """See ``Store.on_change``."""
        self._heard.append(heard)

    def _hear(self, change: Change) -> None:
        for heard in self._heard:
            heard(change)

    async def ping(self, patience: float | None = None) -> None:
        """Prove that a write is taken; look again how durable it is."""
        key = f"{self._runner.prefix}ping"
        await self._runner.command("ping", "SET", key, "", "PX", 60_000, patience=patience)
        await self._look_at_durability()

    def components(self) -> list[ComponentHealth]:
        """Nothing, or what is wrong with its durability."""
        if self.durable:
            return []
        detail = f"NOT DURABLE: {'; '.join(self._lacking)}"
        return [ComponentHealth("redis", False, detail)]

    # -- leadership ------------------------------------------------------------------------

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        """See ``Store.lead``."""
        return await self._leadership.lead(holder, ttl, name)

    async def leader(self) -> Leader | None:
        """See ``Store.leader``."""
        return await self._leadership.leader()

    async def resign(self, term: Term) -> None:
        """See ``Store.resign``."""
        await self._leadership.resign(term)

    # -- jobs: the write path --------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        """See ``Store.submit``."""
        return await self._submitting.submit(jobs, claims)

    async def claim(
        self, claims: Sequence[Claim], *, term: Term | None = None, tell: bool = False
    ) -> list[Assignment]:
        """See ``DispatchStore.claim``."""
        return await self._claiming.claim(claims, term, tell)

    async def apply(
        self,
        transitions: Sequence[Transition],
        claims: Sequence[Claim] = (),
        *,
        term: Term | None = None,
    ) -> Application:
        """See ``Store.apply``. Under a term, only while it stands; else TermEnded."""
        return await self._applying.apply(transitions, claims, term)

    async def standing(
        self, job_ids: Sequence[str] | None, worker_id: str, incarnation: int | None = None
    ) -> list[Assignment]:
        """Those of the jobs (None: of all) that are ASSIGNED to this worker now, as ``claim``
        returned them. With an incarnation: nothing, unless it is the one that is registered."""
        return await self._claiming.standing(job_ids, worker_id, incarnation)

    async def repeat_assignments(self, older_than: float, limit: int, term: Term) -> int:
        """Say once more what was ASSIGNED for longer and not started; returns how much it was.

        ``changes_after`` gives it as ``AssignmentRepeated``, while there is a stream, for workers
        with a partition: once in ``older_than`` seconds for each. TermEnded as ``prune_done``.
        """
        return await self._claiming.repeat(older_than, limit, term)

    async def request_cancel(self, seq: int) -> Held | None:
        """See ``Store.request_cancel``."""
        row = await self._runner.write("request_cancel", (seq,))
        return None if row is None else documents.held(row)

    async def due(self, limit: int) -> Overdue:
        """See ``Store.due``."""
        moved = 0
        if self._create and time.monotonic() >= self._sorted_at + _SORTED_EVERY:
            moved, _ = await self._sort_ready()
        now, promoted, rows, full, following = await self._runner.read(
            "due", (limit, _KEYS_PER_SWEEP)
        )
        found = [
            overdue(STATES[state], int(seq), int(version), int(lease) if lease else None)
            for state, seq, version, lease in rows
        ]
        next_at = float(now) if full else documents.number(following)
        if next_at is not None:
            next_at += self._runner.here() - float(now)  # the caller sleeps by this machine's clock
        return Overdue(found, promoted + moved, next_at)

    # -- jobs: reads and removal -----------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        """See ``Store.get``."""
        return await self._reads.get(job_id)

    async def seq_of(self, job_id: str) -> int | None:
        """See ``Store.seq_of``."""
        return await self._reads.seq_of(job_id)

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        """See ``Store.moved_on``."""
        return await self._reads.moved_on(seen)

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See ``Store.list_jobs``."""
        return await self._reads.list_jobs(wanted)

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        """See ``Store.dead_letters``."""
        return await self._reads.dead_letters(wanted)

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """See ``Store.list_by_time``."""
        return await self._reads.list_by_time(wanted)

    async def history(self, job_id: str, before: int | None = None) -> list[Event]:
        """See ``Store.history``."""
        return await self._reads.history(job_id, before)

    async def events_after(self, position: int, limit: int) -> list[tuple[int, Event]]:
        """See ``Store.events_after``."""
        return await self._reads.events_after(position, limit)

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        """See ``Store.delete_job``."""
        wanted = None if version is None else str(version)
        said = await self._runner.write("delete_job", (job_id, wanted))
        if said is None:
            return None
        state, may_go = said
        if not may_go:
            raise unpublished(job_id)
        return STATES[state]

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        """See ``Store.prune_done``."""
        removed, passed_over = 0, 0
        here = self._runner.here()  # ages count, whatever this machine's clock shows
        after = where.completed_after
        first = None if after == -math.inf else here - after
        ages = (here - completed_before, first)
        while True:
            wanted = min(limit - removed, _PRUNED_AT_ONCE)
            asked = (*ages, wanted, term_of(term), list(where.queues), where.others, passed_over)
            said = await self._runner.write("prune_done", asked)
            if said is None:
                raise TermEnded
            removed += int(said[0])
            passed_over += int(said[1])
            if int(said[0]) + int(said[1]) < wanted or removed >= limit:
                return removed

    # -- the event stream ------------------------------------------------------------------

    async def begin_stream(self, term: Term) -> int:
        """See ``Store.begin_stream``."""
        return await self._streaming.begin(term)

    async def end_stream(self, term: Term) -> None:
        """See ``Store.end_stream``."""
        await self._streaming.end(term)

    async def changes_after(self, position: int, limit: int, size: int) -> Changes:
        """See ``Store.changes_after``."""
        return await self._streaming.changes_after(position, limit, size)

    async def move_mark(self, position: int, term: Term, refused: int = 0) -> None:
        """See ``Store.move_mark``."""
        await self._streaming.move_mark(position, term, refused)

    async def stream_lag(self) -> Lag | None:
        """See ``Store.stream_lag``."""
        return await self._streaming.lag()

    async def identity(self) -> Identity:
        """See ``Store.identity``."""
        return await self._streaming.identity()

    async def restore(self, state: Restored, told: Told) -> None:
        """See ``Store.restore``."""
        await self._restoring.restore(state, told)

    # -- queues ----------------------------------------------------------------------------

    async def create_queue(self, queue: Queue) -> bool:
        """See ``Store.create_queue``."""
        return await self._queues.create(queue)

    async def update_queue(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        """See ``Store.update_queue``."""
        return await self._queues.update(name, values)

    async def pause_queue(self, name: str, paused: bool) -> bool:
        """See ``Store.pause_queue``."""
        return await self._queues.pause(name, paused)

    async def delete_queue(self, name: str) -> int | None:
        """See ``Store.delete_queue``."""
        return await self._queues.delete(name)

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        """See ``Store.unfinished``."""
        return await self._queues.unfinished(queue, limit)

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        """See ``Store.stats``."""
        return await self._queues.stats(queue)

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        """See ``Store.waiting_types``."""
        return await self._queues.waiting_types(count_to, queue)

    # -- workers ---------------------------------------------------------------------------

    async def register_worker(self, info: WorkerInfo) -> list[Held]:
        """See ``Store.register_worker``."""
        return await self._workers.register(info)

    async def partition_of(self, worker_id: str, incarnation: int) -> int | None:
        """The partition of a registered incarnation that is not OFFLINE; None: it has none."""
        return await self._workers.partition_of(worker_id, incarnation)

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
        *,
        owner: str = "",
        withheld: int | None = None,
    ) -> Pulse:
        """See ``DispatchStore.pulse``."""
        return self._pulses.pulse(
            worker_id, incarnation, leases, begun, progress, overrun, withheld, owner
        )

    async def held(self, worker_id: str | None = None) -> list[Held]:
        """See ``Store.held``."""
        return await self._workers.held(worker_id)

    async def set_worker_status(
        self, worker_id: str, status: WorkerStatus, *, incarnation: int | None = None
    ) -> bool:
        """See ``Store.set_worker_status``. With an incarnation: of that one alone."""
        return await self._workers.set_status(worker_id, status, incarnation)

    async def workers(self) -> list[Worker]:
        """See ``Store.workers``."""
        return await self._workers.every()

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """See ``Store.retire_silent``."""
        return await self._workers.retire_silent(silent_for, term)

    async def retire_worker(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        """See ``Store.retire_worker``."""
        return await self._workers.retire(worker_id, incarnation, owner)

    async def forget_worker(self, worker_id: str) -> bool:
        """See ``Store.forget_worker``."""
        return await self._workers.forget(worker_id)
