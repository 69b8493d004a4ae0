"""The PostgreSQL store: shared by any number of servers, and the system of record.

Redis may advise its claims; it decides. Time is the database's, unless a test brings its own. The
calls are kept where they belong (``jobs.py``, ``queues.py``, ``workers.py`` and so on); here they
come together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobqueue.core.clock import Clock
from jobqueue.core.errors import Unavailable
from jobqueue.core.identity import Identity, identity_of
from jobqueue.core.ids import new_lease
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
from jobqueue.core.locks import Locks
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
)
from jobqueue.core.stream import Changes
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.board import Board
from jobqueue.stores.postgres.by_time import list_by_time
from jobqueue.stores.postgres.chores import Chores
from jobqueue.stores.postgres.claiming import Claiming
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.following import events_after
from jobqueue.stores.postgres.heads import Head, Heads
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.jobs import Jobs
from jobqueue.stores.postgres.leadership import Leadership
from jobqueue.stores.postgres.migrate import check, migrate
from jobqueue.stores.postgres.notices import Listener, Speaker
from jobqueue.stores.postgres.queues import Queues
from jobqueue.stores.postgres.removal import Removal
from jobqueue.stores.postgres.restoring import Restoring
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.postgres.streaming import Streaming
from jobqueue.stores.postgres.sweeping import Sweeping
from jobqueue.stores.postgres.trouble import location
from jobqueue.stores.postgres.worker_names import WorkerNames
from jobqueue.stores.postgres.workers import Workers

_log = logging.getLogger("jobqueue.stores.postgres")
_PATIENCE = 5.0  # how long a call waits for a server that is away
_SILENT = 2.0  # a store that leaves a write unanswered for longer is not well


class PostgresStore:
    """Jobs in a PostgreSQL database. ``create=False``: its schema must be there."""

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
        create: bool = True,
    ) -> None:
        rules = rules or Rules()
        node = new_lease()
        self._dsn = dsn
        self.location = location(dsn)
        self._create = create
        self._locks = locks
        self._heads = heads = Heads()
        self._board = board = Board()
        self._heard: list[Callable[[Change], None]] = []
        self._database = database = Database(dsn, clock, observer or Deaf(), patience, pool_size)
        self._speaker = speaker = Speaker(node, self._send)
        self._listener = Listener(dsn, node, self._hear)
        names = WorkerNames(database)
        self._holding = holding = Holding()
        self._chores = chores = Chores(database)
        self._claiming = Claiming(database, names, heads, board, rules, locks)
        self._leadership = Leadership(database, speaker)
        self._jobs = Jobs(
            database,
            self._claiming,
            names,
            board,
            heads,
            holding,
            chores,
            speaker,
            self._hear,
            rules,
        )
        self._sweeping = Sweeping(database, heads, holding, chores, speaker)
        self._removal = Removal(database, self._leadership)
        self._queues = Queues(database, board, heads, speaker)
        self._workers = Workers(database, names, holding, self._leadership, speaker, rules)
        self._streaming = Streaming(database, self._leadership)
        self._restoring = Restoring(database, rules)
        self._opened = False
        self.durable = True

    # -- life ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Bring the schema up to date (or only check it), connect, begin to listen."""
        if self._opened:
            return
        await (migrate if self._create else check)(self._dsn)
        self._database.open()
        try:
            await self._check_server()
            if self._locks is not None:
                await self._locks.open()
        except BaseException:
            await self._database.close()
            raise
        self._speaker.start()
        self._listener.start()
        self._opened = True

    async def _check_server(self) -> None:
        async def look(db: Any) -> tuple[Any, Any]:
            return await db.fetchrow(SQL["durability"]), await db.fetchrow(SQL["instance"])

        found = await self._database.writing.read("open", look)
        (fsync, commit, full_pages), known = found
        # Two stores that were rebuilt from one record may lean on one Redis.
        known = identity_of(*known)
        self._claiming.instance = (
            f"{known.store}.{known.generation}" if known.rebuilt else known.store
        )
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
        if self._locks is not None:
            await self._locks.close()
        await self._database.close()

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

        await self._database.reading.read("notify", send)

    async def ping(self, patience: float | None = None) -> None:
        """Prove that a commit reaches the disk, and that callers' writes are answered."""
        silent = self._database.unanswered.seconds
        if silent > _SILENT:
            raise Unavailable(f"{self.location}: a write has had no answer for {silent:.1f} s")

        async def work(db: Any) -> None:
            await db.execute(SQL["touch"])

        await self._database.probing.read("ping", work, patience)  # it may be repeated

    def components(self) -> list[ComponentHealth]:
        """See ``Store.components``."""
        return [] if self._locks is None else [self._locks.health()]

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

    # -- jobs ------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        """See ``Store.submit``."""
        return await self._jobs.submit(jobs, claims)

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """See ``Store.claim``."""
        return await self._jobs.claim(claims)

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        """See ``Store.apply``."""
        return await self._jobs.apply(transitions, claims)

    async def request_cancel(self, seq: int) -> Held | None:
        """See ``Store.request_cancel``."""
        return await self._jobs.request_cancel(seq)

    async def due(self, limit: int) -> Overdue:
        """See ``Store.due``."""
        return await self._sweeping.due(limit)

    async def get(self, job_id: str) -> Job | None:
        """See ``Store.get``."""
        return await self._database.reading.read("get", lambda db: reads.get(db, job_id))

    async def seq_of(self, job_id: str) -> int | None:
        """See ``Store.seq_of``."""
        return await self._database.reading.read("seq_of", lambda db: reads.find(db, job_id))

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        """See ``Store.moved_on``."""
        return await self._database.reading.read("moved_on", lambda db: reads.moved_on(db, seen))

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See ``Store.list_jobs``."""
        return await self._database.reading.read(
            "list_jobs", lambda db: reads.list_jobs(db, wanted)
        )

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        """See ``Store.dead_letters``."""
        return await self._database.reading.read(
            "dead_letters", lambda db: reads.dead_letters(db, wanted)
        )

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """See ``Store.list_by_time``."""
        return await self._database.reading.read(
            "list_by_time", lambda db: list_by_time(db, wanted)
        )

    async def history(self, job_id: str, before: int | None = None) -> list[Event]:
        """See ``Store.history``."""
        return await self._database.reading.read(
            "history", lambda db: reads.history(db, job_id, before)
        )

    async def events_after(self, position: int, limit: int) -> list[tuple[int, Event]]:
        """See ``Store.events_after``."""
        return await self._database.reading.read(
            "events_after", lambda db: events_after(db, position, limit)
        )

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        """See ``Store.delete_job``."""
        return await self._removal.delete_job(job_id, version=version)

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        """See ``Store.prune_done``."""
        return await self._removal.prune_done(completed_before, limit, term, where)

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
        self._board.spoil()
        self._heads.forget()
        self._speaker.say(Change.CONTROL | Change.WORK, None)

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
    ) -> Pulse:
        """See ``Store.pulse``."""
        return self._workers.pulse(worker_id, incarnation, leases, begun, progress, overrun, owner)

    async def held(self, worker_id: str | None = None) -> list[Held]:
        """See ``Store.held``."""
        return await self._workers.held(worker_id)

    async def set_worker_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """See ``Store.set_worker_status``."""
        return await self._workers.set_status(worker_id, status)

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
