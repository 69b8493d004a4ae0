"""The PostgreSQL store: shared by any number of servers, and the system of record.

Redis may advise its claims; it decides. Time is the database's, unless a test brings its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jobqueue.core.clock import Clock
from jobqueue.core.decide import overdue
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.ids import new_lease
from jobqueue.core.job import (
    Assignment,
    ComponentHealth,
    Event,
    Held,
    Job,
    NewJob,
    Pulse,
    Queue,
    QueueStats,
    TimeQuery,
    Transition,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import REPORTABLE, TERMINAL, State
from jobqueue.core.locks import Locks
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.store import (
    Application,
    Change,
    Claim,
    JobFilter,
    Overdue,
    Rules,
    Submission,
    Term,
    TermEnded,
)
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.applying import Applying
from jobqueue.stores.postgres.by_time import list_by_time
from jobqueue.stores.postgres.claiming import Board, Claiming, Home
from jobqueue.stores.postgres.connections import FIXED_PLANS, READING, Connections
from jobqueue.stores.postgres.following import events_after
from jobqueue.stores.postgres.heads import Head, Heads
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.migrate import migrate
from jobqueue.stores.postgres.notices import Listener, Speaker, returned
from jobqueue.stores.postgres.pulse import SideLoop
from jobqueue.stores.postgres.runner import Runner, Work
from jobqueue.stores.postgres.statements import SQL, STATES
from jobqueue.stores.postgres.submitting import Slot, Submitting, fit

T = TypeVar("T")
_log = logging.getLogger("jobqueue.stores.postgres")
_CHORES_EVERY = 1.0  # seconds; expired keys and differences are in nobody's way
_KEYS_AT_ONCE = 10_000
_FOLD_EVERY = 500  # writes of this process
_PATIENCE = 5.0  # how long a call waits for a server that is away
_CLAIM_CONNECTIONS = 2


def _left(claims: Sequence[Claim], assigned: Sequence[Assignment]) -> list[Claim]:
    """The slots of claims that nothing was assigned to."""
    used = Counter(one.worker_id for one in assigned)
    left = []
    for claim in claims:
        slots = []
        for worker in claim.slots:
            if used[worker]:
                used[worker] -= 1
            else:
                slots.append(worker)
        if slots:
            left.append(Claim(claim.queues, slots, claim.without))
    return left


class PostgresStore:
    """Jobs in a PostgreSQL database."""

    name = "postgresql"
    parallel = True

    def __init__(
        self,
        dsn: str,
        *,
        rules: Rules | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        locks: Locks | None = None,
        pool_size: int = 8,
        patience: float = _PATIENCE,
    ) -> None:
        self._dsn = dsn
        self._rules = rules or Rules()
        self._clock = clock
        self._locks = locks
        self._patience = patience
        self._pool_size = pool_size
        self._runner = Runner(observer or Deaf(), patience)
        self._heads = Heads()
        self._board = Board()
        self._holding = Holding()
        self._numbers: dict[str, int] = {}  # of workers, by name: they never change
        self._worker_names: dict[int, str] = {}
        self._node = new_lease()
        self._heard: list[Callable[[Change], None]] = []
        self._writes_since_fold = 0
        self._chores_at = 0.0
        self._opened = False
        self.durable = True

    # -- life ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Bring the schema up to date, connect, begin to listen."""
        if self._opened:
            return
        await migrate(self._dsn)
        # A third for reads, which may take long; the rest for writes.
        reading = max(1, self._pool_size // 3)
        writing = max(2, self._pool_size - reading - _CLAIM_CONNECTIONS)
        self._writing = Connections(self._dsn, writing, FIXED_PLANS, self._patience)
        # A claim lost in a crash is a job that is handed out again: it need not wait for the disk.
        unhurried = {**FIXED_PLANS, "synchronous_commit": "off"}
        self._dispatching = Connections(self._dsn, _CLAIM_CONNECTIONS, unhurried, self._patience)
        self._reading = Connections(self._dsn, reading, READING, self._patience)
        self._claiming = Claiming(
            self._runner,
            self._dispatching,
            self._heads,
            self._board,
            self._rules,
            self._locks,
            self._now,
            self._number,
        )
        self._speaker = Speaker(self._node, self._send)
        self._listener = Listener(self._dsn, self._node, self._hear)
        self._side = SideLoop()
        try:
            await self._check_server()
            if self._locks is not None:
                await self._locks.open()
            self._side.start()
            self._beating = self._side.run(self._connect_side())
        except BaseException:
            self._side.stop()
            await self._close_connections()
            raise
        self._listener.start()
        self._opened = True

    async def _connect_side(self) -> Connections:
        return Connections(self._dsn, 2, FIXED_PLANS, self._patience)

    async def _check_server(self) -> None:
        async def look(db: Any) -> tuple[Any, str]:
            return await db.fetchrow(SQL["durability"]), await db.fetchval(SQL["instance"])

        found = await self._runner.read(self._writing, "open", look)
        (fsync, commit, full_pages), self._claiming.instance = found
        lacking = [
            f"{setting} is off"
            for setting, on in (
                ("fsync", fsync),
                ("synchronous_commit", commit != "off"),
                ("full_page_writes", full_pages),
            )
            if not on
        ]
        self.durable = not lacking
        if lacking:
            _log.warning(
                "NOT DURABLE: PostgreSQL runs with %s; jobs that were accepted can be lost when"
                " its machine fails",
                " and ".join(lacking),
            )

    async def close(self) -> None:
        """Say the last word, then close everything."""
        if not self._opened:
            return
        self._opened = False
        self._heard.clear()
        await self._listener.close()
        await self._speaker.close()
        try:
            await asyncio.to_thread(self._side.run, self._beating.close())
        except JobQueueError:
            _log.debug("the heartbeats' connection did not close in time")
        await asyncio.to_thread(self._side.stop)
        if self._locks is not None:
            await self._locks.close()
        await self._close_connections()

    async def _close_connections(self) -> None:
        for connections in (self._dispatching, self._writing, self._reading):
            await connections.close()

    def on_change(self, heard: Callable[[Change], None]) -> None:
        """See ``Store.on_change``."""
        self._heard.append(heard)

    def _hear(self, change: Change, heads: dict[Head, int] | None) -> None:
        if Change.WORK in change:
            if heads is None:
                self._heads.forget()
            else:
                for head, seq in heads.items():
                    self._heads.lower(head, seq)
        if Change.CONTROL in change:
            self._board.spoil()
        for heard in self._heard:
            heard(change)

    async def _send(self, word: str) -> None:
        async def send(db: Any) -> None:
            await db.execute("SELECT pg_notify('jobqueue', $1)", word)

        await self._runner.read(self._reading, "notify", send)

    async def ping(self) -> None:
        """Prove that a commit reaches the disk."""

        async def work(db: Any) -> None:
            await db.execute(SQL["touch"])

        await self._runner.read(self._writing, "ping", work)  # it may be repeated

    def components(self) -> list[ComponentHealth]:
        """See ``Store.components``."""
        return [] if self._locks is None else [self._locks.health()]

    def _now(self) -> float | None:
        return None if self._clock is None else self._clock.now()

    def _here(self) -> float | None:
        """What this machine's clock shows, where the store's is another one."""
        return time.time() if self._clock is None else None

    async def _read(self, name: str, work: Work[T]) -> T:
        self._check_open()
        return await self._runner.read(self._reading, name, work)

    async def _write(self, name: str, work: Work[T], again: Work[T] | None = None) -> T:
        self._check_open()
        return await self._runner.write(self._writing, name, work, again)

    def _check_open(self) -> None:
        if not hasattr(self, "_reading"):
            raise Unavailable("PostgreSQL: the store is not open")

    # -- names -----------------------------------------------------------------------------

    async def _number(self, names: Sequence[str]) -> list[int]:
        """The numbers that stand for workers in rows."""
        missing = {name for name in names if name not in self._numbers}
        if missing:

            async def work(db: Any) -> Any:
                return await db.fetch(SQL["name_workers"], list(missing))

            while missing:  # one that was named a moment ago shows in the next snapshot
                for number, name in await self._write("name_workers", work, again=work):
                    self._numbers[name] = number
                    self._worker_names[number] = name
                    missing.discard(name)
        return [self._numbers[name] for name in names]

    async def _names(self, db: Any, numbers: Sequence[int | None]) -> dict[int, str]:
        missing = {n for n in numbers if n is not None and n not in self._worker_names}
        if missing:
            for number, name in await db.fetch(SQL["worker_names"], list(missing)):
                self._worker_names[number] = name
        return self._worker_names

    async def _resolve(self, db: Any, queue: int) -> Home:
        """A queue by its number; its row is never removed."""
        home = self._board.get(queue)
        if home is None or self._board.stale:
            change = self._board.changes
            self._board.read(await db.fetch(SQL["queue_board"]), change)
            home = self._board.get(queue)
            assert home is not None
        return home

    # -- jobs: the write path --------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        """See ``Store.submit``."""
        slots = await self._slots(jobs, claims) if claims else {}
        batch = Submitting(jobs, self._now(), self._rules, self._heads, slots)
        try:
            await self._write("submit", batch.run, again=batch.again)
        except JobQueueError as error:
            if not batch.give_up(error):
                raise
        if batch.written:
            for head, first in batch.written.items():
                self._heads.lower(head, first)
            self._speaker.say(Change.WORK, batch.written)
        self._wrote()
        results = [result for result in batch.results if result is not None]
        assigned = batch.assigned
        self._holding.claimed(assigned, self._numbers)
        if batch.written and claims:
            # Not everything was handed off: what is claimable goes to the slots that are left.
            assigned = assigned + await self._claim_quietly(_left(claims, assigned))
        return Submission(results, assigned)

    async def _slots(self, jobs: Sequence[NewJob], claims: Sequence[Claim]) -> dict[int, Slot]:
        """Slots for jobs that may be handed off in the write of their submit.

        Nobody else can see such a job before it is assigned, so no lock is asked for. Where a look
        at what is ready is slow (dead rows that a long transaction keeps), it is not worth it.
        """
        if self._heads.slow:
            return {}
        fitting = fit(jobs, claims)
        numbers = await self._number([worker for _, worker in fitting])
        return {
            n: Slot(worker, number, new_lease())
            for (n, worker), number in zip(fitting, numbers, strict=True)
        }

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """See ``Store.claim``."""
        self._check_open()
        assigned = await self._claiming.fill(claims)
        if assigned:
            self._holding.claimed(assigned, self._numbers)
            self._wrote()
        return assigned

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        """See ``Store.apply``."""
        batch = Applying(transitions, self._now(), self._rules, self._resolve, self._names)
        try:
            await self._write("apply", batch.run, again=batch.again)
        except BaseException:
            # Part of it may be written: whoever waits for it must look.
            if any(outcome is not None for outcome in batch.outcomes):
                self._hear(Change.WORK | Change.ENDED | Change.CONTROL, None)
            raise
        outcomes = [outcome for outcome in batch.outcomes if outcome is not None]
        change = Change(0)
        if batch.came_back:
            for head in batch.came_back:
                self._heads.lower(head)
            change |= Change.WORK
        for asked, outcome in zip(transitions, outcomes, strict=True):
            if outcome.refusal is None:
                if outcome.state in TERMINAL:
                    change |= Change.ENDED
                if outcome.lease is not None and _by_others(asked):
                    change |= Change.CONTROL
        if change:
            self._speaker.say(change, returned(batch.came_back))
        self._wrote()
        # Committed: its answer must not be lost with the claim's.
        return Application(outcomes, await self._claim_quietly(claims))

    async def _claim_quietly(self, claims: Sequence[Claim]) -> list[Assignment]:
        if not claims:
            return []
        try:
            return await self.claim(claims)
        except JobQueueError as error:
            _log.warning("a claim after a write failed: %s", error)
            return []

    def _wrote(self) -> None:
        self._writes_since_fold += 1

    async def request_cancel(self, seq: int) -> Held | None:
        """See ``Store.request_cancel``."""

        async def work(db: Any) -> Held | None:
            row = await db.fetchrow(SQL["request_cancel"], seq)
            return None if row is None else reads.held_row(row)

        held = await self._write("request_cancel", work, again=work)
        if held is not None:
            self._speaker.say(Change.CONTROL)
        return held

    async def due(self, limit: int) -> Overdue:
        """See ``Store.due``. Looks first, and writes only where there is something to promote."""
        now = self._now()

        async def look(db: Any) -> tuple[Any, Any, Any]:
            waiting = await db.fetch(SQL["due_waiting"], now, limit)
            if not self._holding.slow:
                began = time.perf_counter()
                held = await db.fetch(SQL["due_held"], now, limit)
                self._holding.measured(time.perf_counter() - began)
                return waiting, held, await db.fetchrow(SQL["next_due"], now)
            if self._holding.wants_look():
                await self._look_at_holding(db)
            return waiting, *await self._read_holding(db, now, limit)

        waiting, held, (at, *times) = await self._runner.read(self._writing, "due", look)
        rows = [*waiting, *held]
        found = [
            overdue(STATES[state], seq, version, lease)
            for seq, state, version, lease, promotable in rows
            if not promotable
        ]
        promoted = 0
        if len(found) < len(rows):
            promoted = await self._promote(limit)
        await self._do_chores()
        next_at = (
            at if len(rows) >= limit else min((t for t in times if t is not None), default=None)
        )
        if next_at is not None and (here := self._here()) is not None:
            next_at += here - at  # the caller sleeps by the clock of this machine
        return Overdue(found[:limit], promoted, next_at)

    async def _look_at_holding(self, db: Any) -> None:
        self._holding.begin()
        began = time.perf_counter()
        rows = await db.fetch(SQL["held_floors"])
        self._holding.looked(((row[0], row[1]) for row in rows), time.perf_counter() - began)

    async def _read_holding(self, db: Any, now: float | None, limit: int) -> tuple[Any, Any]:
        """What is held and due, and when to look again, without wading through what was."""
        self._holding.begin()
        rows = await db.fetch(SQL["holding_from"], *self._holding.columns())
        self._holding.read((row[0], row[1]) for row in rows)
        at, wake = await db.fetchrow(SQL["next_wake"], now)
        due = [(*row[1:5], False) for row in rows if row[5] is not None and row[5] <= at]
        later = min((row[5] for row in rows if row[5] is not None and row[5] > at), default=None)
        return due[:limit], (at, wake, later)

    async def _promote(self, limit: int) -> int:
        now = self._now()

        async def work(db: Any) -> Any:
            return await db.fetch(SQL["promote"], now, limit)

        async def again(db: Any) -> Any:
            self._heads.forget()  # where the ones were whose answer was lost
            return await work(db)

        rows = await self._write("promote", work, again=again)
        heads = {(queue, rank) for queue, rank in rows}
        for head in heads:
            self._heads.lower(head)
        if heads:
            self._speaker.say(Change.WORK, returned(heads))
        return len(rows)

    async def _do_chores(self) -> None:
        if time.monotonic() < self._chores_at:
            return
        self._chores_at = time.monotonic() + _CHORES_EVERY
        now = self._now()

        async def work(db: Any) -> None:
            await db.execute(SQL["expire_keys"], now, _KEYS_AT_ONCE)
            if self._writes_since_fold >= _FOLD_EVERY:
                self._writes_since_fold = 0
                await db.execute(SQL["fold"])

        await self._write("chores", work, again=work)

    # -- jobs: reads and removal -----------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        """See ``Store.get``."""
        return await self._read("get", lambda db: reads.get(db, job_id))

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See ``Store.list_jobs``."""
        return await self._read("list_jobs", lambda db: reads.list_jobs(db, wanted))

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """See ``Store.list_by_time``."""
        return await self._read("list_by_time", lambda db: list_by_time(db, wanted))

    async def history(self, job_id: str) -> list[Event]:
        """See ``Store.history``."""
        return await self._read("history", lambda db: reads.history(db, job_id))

    async def events_after(self, position: int, limit: int) -> list[tuple[int, Event]]:
        """See ``Store.events_after``."""
        return await self._read("events_after", lambda db: events_after(db, position, limit))

    async def delete_job(self, job_id: str) -> State | None:
        """See ``Store.delete_job``."""

        async def work(db: Any) -> State | None:
            async with db.transaction():
                seq = await reads.find(db, job_id)
                if seq is None:
                    return None
                row = await db.fetchrow(
                    "SELECT e.state, e.queue, r.key FROM job_ended AS e"
                    " JOIN job_record AS r ON r.seq = e.seq WHERE e.seq = $1 FOR UPDATE OF e",
                    seq,
                )
                if row is None:
                    live = await db.fetchval("SELECT state FROM job_live WHERE seq = $1", seq)
                    return None if live is None else STATES[live]
                state, queue, key = row
                await db.execute(
                    "DELETE FROM job_key WHERE queue = $1 AND key = $2 AND id = $3",
                    queue, key, job_id,
                )  # fmt: skip
                await self._remove(db, [seq])
                return STATES[state]

        return await self._write("delete_job", work)

    async def prune_done(self, completed_before: float, limit: int, term: Term) -> int:
        """See ``Store.prune_done``."""

        async def work(db: Any) -> int:
            async with db.transaction():
                await self._check_term(db, term)
                rows = await db.fetch(SQL["old_done"], completed_before, limit, self._here())
                if rows:
                    await self._remove(db, [row[0] for row in rows])
                return len(rows)

        return await self._write("prune_done", work, again=work)

    @staticmethod
    async def _remove(db: Any, seqs: list[int]) -> None:
        await db.execute("SET LOCAL jobqueue.retention = 'on'")
        await db.execute(SQL["remove"], seqs)

    # -- leadership ------------------------------------------------------------------------

    async def lead(self, holder: int, ttl: float) -> Term | None:
        """See ``Store.lead``."""
        now = self._now()

        async def work(db: Any) -> int | None:
            epoch: int | None = await db.fetchval(SQL["lead"], holder, ttl, now)
            return epoch

        epoch = await self._write("lead", work, again=work)
        return None if epoch is None else Term(holder, epoch)

    async def resign(self, term: Term) -> None:
        """See ``Store.resign``."""

        async def work(db: Any) -> None:
            await db.execute(SQL["resign"], term.holder, term.epoch)

        await self._write("resign", work, again=work)
        self._speaker.say(Change.CONTROL)

    async def _check_term(self, db: Any, term: Term) -> None:
        if not await db.fetchval(SQL["check_term"], term.holder, term.epoch, self._now()):
            raise TermEnded

    # -- queues ----------------------------------------------------------------------------

    async def create_queue(self, queue: Queue) -> bool:
        """See ``Store.create_queue``."""
        weights = json.dumps(dict(queue.priority_weights)) if queue.priority_weights else None
        now = self._now()

        async def work(db: Any) -> float | None:
            at: float | None = await db.fetchval(
                SQL["create_queue"],
                queue.name, queue.max_retries, queue.ttl, queue.timeout, queue.capacity,
                queue.retry_profile, weights, queue.paused, now,
            )  # fmt: skip
            return at

        at = await self._write("create_queue", work)
        if at is None:
            return False
        queue.created_at = at
        self._queues_changed()
        return True

    def _queues_changed(self) -> None:
        self._board.spoil()
        self._heads.forget()
        self._speaker.say(Change.CONTROL | Change.WORK, None)

    async def pause_queue(self, name: str, paused: bool) -> bool:
        """See ``Store.pause_queue``."""

        async def work(db: Any) -> bool:
            return await db.fetchval(SQL["pause_queue"], name, paused) is not None

        done = await self._write("pause_queue", work, again=work)
        self._queues_changed()
        return done

    async def delete_queue(self, name: str) -> int | None:
        """See ``Store.delete_queue``."""

        async def work(db: Any) -> int | None:
            async with db.transaction():
                queue = await db.fetchval(SQL["lock_queue"], name)  # submits wait from here on
                if queue is None:
                    return None
                left: int = await db.fetchval(SQL["count_unfinished"], queue)
                if not left:
                    await db.execute("UPDATE queues SET deleted = true WHERE id = $1", queue)
                return left

        left = await self._write("delete_queue", work)
        if left == 0:
            self._queues_changed()
        return left

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        """See ``Store.unfinished``."""

        async def work(db: Any) -> list[int]:
            return [row[0] for row in await db.fetch(SQL["unfinished"], queue, limit)]

        return await self._read("unfinished", work)

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        """See ``Store.stats``."""
        return await self._read("stats", lambda db: reads.stats(db, queue))

    # -- workers ---------------------------------------------------------------------------

    async def register_worker(self, info: WorkerInfo) -> list[Held]:
        """See ``Store.register_worker``."""
        now = self._now()
        await self._number([info.id])

        async def work(db: Any) -> list[Held]:
            async with db.transaction():
                before = await db.fetchval(
                    "SELECT incarnation FROM workers WHERE id = $1 FOR UPDATE", info.id
                )
                await db.execute(
                    SQL["register_worker"],
                    info.id, info.incarnation, info.hostname, info.pid, info.concurrency,
                    list(info.queues), info.version, now, info.link,
                )  # fmt: skip
                if before is None or before == info.incarnation:
                    return []
                return await reads.held(db, info.id)

        held = await self._write("register_worker", work, again=work)
        self._speaker.say(Change.CONTROL)
        return held

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
    ) -> Pulse:
        """See ``Store.pulse``."""
        self._check_open()
        now = self._now()

        async def work(db: Any) -> Pulse:
            status = await db.fetchval(SQL["beat"], worker_id, incarnation, now)
            if status is None:
                return Pulse(False)
            floor = self._holding.floor(self._numbers.get(worker_id))
            standing = {one.lease: one for one in await reads.held(db, worker_id, floor)}
            if floor and not standing.keys() >= set(leases):
                # Another server may have claimed below it: nobody is told "lost" by a guess.
                standing = {one.lease: one for one in await reads.held(db, worker_id)}
            late = [
                one
                for lease in begun
                if (one := standing.get(lease)) is not None and one.state is State.ASSIGNED
            ]
            late.sort(key=lambda one: one.seq)  # as everybody who locks several
            if late:
                await db.execute(
                    SQL["postpone"],
                    [one.seq for one in late],
                    [one.lease for one in late],
                    now,
                    self._rules.assignment_timeout,
                )
            answer = Pulse(True, WorkerStatus(status))
            for lease in leases:
                one = standing.pop(lease, None)
                if one is None:
                    answer.lost.append(lease)
                elif one.cancel_requested:
                    answer.cancelled.append(lease)
            answer.unlisted = list(standing.values())
            return answer

        return self._side.run(self._runner.write(self._beating, "pulse", work, again=work))

    async def held(self, worker_id: str | None = None) -> list[Held]:
        """See ``Store.held``."""
        if worker_id is None and self._holding.slow:
            return await self._read("held", lambda db: reads.held_from(db, self._holding))
        return await self._read("held", lambda db: reads.held(db, worker_id))

    async def set_worker_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """See ``Store.set_worker_status``."""

        async def work(db: Any) -> bool:
            return await db.fetchval(SQL["set_worker_status"], worker_id, status.value) is not None

        done = await self._write("set_worker_status", work, again=work)
        self._speaker.say(Change.CONTROL)
        return done

    async def workers(self) -> list[Worker]:
        """See ``Store.workers``."""
        return await self._read("workers", lambda db: reads.workers(db, self._holding))

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """See ``Store.retire_silent``."""
        now = self._now()

        async def work(db: Any) -> list[str]:
            async with db.transaction():
                await self._check_term(db, term)
                rows = await db.fetch(SQL["retire_silent"], now, silent_for)
                return [row[0] for row in rows]

        retired = await self._write("retire_silent", work, again=work)
        if retired:
            self._speaker.say(Change.CONTROL)
        return retired

    async def retire_worker(self, worker_id: str, incarnation: int) -> bool:
        """See ``Store.retire_worker``."""

        async def work(db: Any) -> bool:
            return await db.fetchval(SQL["retire_worker"], worker_id, incarnation) is not None

        done = await self._write("retire_worker", work, again=_or_gone(work, worker_id))
        self._speaker.say(Change.CONTROL)
        return done

    async def forget_worker(self, worker_id: str) -> bool:
        """See ``Store.forget_worker``."""

        async def work(db: Any) -> bool:
            return await db.fetchval(SQL["forget_worker"], worker_id) is not None

        return await self._write("forget_worker", work, again=_or_gone(work, worker_id))


def _by_others(asked: Transition) -> bool:
    """Whether a move that ends a lease may come as news to the worker that holds it."""
    return asked.move not in REPORTABLE or asked.version is not None


def _or_gone(remove: Work[bool], worker_id: str) -> Work[bool]:
    """After a lost answer: a worker that is not there any more was removed then."""

    async def again(db: Any) -> bool:
        if await remove(db):
            return True
        return not await db.fetchval("SELECT 1 FROM workers WHERE id = $1", worker_id)

    return again
