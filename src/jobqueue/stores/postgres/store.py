"""Implements ``core.store.Store`` on PostgreSQL, which any number of servers may share.

With Redis, claims of several servers rarely choose the same jobs. PostgreSQL decides which claim
gets a job. The store uses the database's clock, unless a test passes another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from jobqueue.core.clock import Clock
from jobqueue.core.errors import Unavailable
from jobqueue.core.identity import identity_of
from jobqueue.core.ids import new_lease
from jobqueue.core.job import ComponentHealth
from jobqueue.core.observer import Observer
from jobqueue.core.rebuild import Restored, Told
from jobqueue.core.store import Change, Locks, Rules
from jobqueue.stores.postgres.claiming import Claiming
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.heads import Head, Heads
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.jobs import Jobs
from jobqueue.stores.postgres.leadership import PostgresLeadership
from jobqueue.stores.postgres.migrate import check, migrate
from jobqueue.stores.postgres.notices import Listener, Speaker
from jobqueue.stores.postgres.queue_cache import QueueCache, WorkerNameCache
from jobqueue.stores.postgres.queues import Queues
from jobqueue.stores.postgres.reads import Reads
from jobqueue.stores.postgres.restoring import Restoring
from jobqueue.stores.postgres.schedules import PostgresSchedules
from jobqueue.stores.postgres.statements import FEW, SQL
from jobqueue.stores.postgres.streaming import Stream
from jobqueue.stores.postgres.trouble import location
from jobqueue.stores.postgres.upkeep import Chores, PostgresUpkeep
from jobqueue.stores.postgres.workers import Workers

_log = logging.getLogger("jobqueue.stores.postgres")
_PATIENCE = 5.0  # how long a call waits for a server that is away
_SILENT = 2.0  # a store that leaves a write unanswered for longer is not well


class PostgresStore:
    """A store in a PostgreSQL database. With ``create=False`` the schema must exist.

    If ``max_payload_bytes`` is given, opening the store writes it and the lifetime of keys into the
    database, for the functions of the schema jq.
    """

    name = "postgresql"
    parallel = True
    dispatch = None

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
        few: int = FEW,
        max_payload_bytes: int | None = None,
    ) -> None:
        rules = rules or Rules()
        self._limits = None if max_payload_bytes is None else (rules.key_ttl, max_payload_bytes)
        node = new_lease()
        self._dsn = dsn
        self.location = location(dsn)
        self._create = create
        self._locks = locks
        self._heads = heads = Heads()
        self._queue_cache = queue_cache = QueueCache(few)
        self._heard: list[Callable[[Change], None]] = []
        self._database = database = Database(
            dsn, clock, observer or Observer(), patience, pool_size, queue_cache.spoil
        )
        self._speaker = speaker = Speaker(node, self._send)
        self._listener = Listener(dsn, node, self._hear)
        names = WorkerNameCache(database)
        holding = Holding()
        chores = Chores(database, queue_cache)
        self._claiming = Claiming(database, names, heads, queue_cache, rules, locks)
        self.leadership = PostgresLeadership(database, speaker)
        self.jobs = Jobs(
            database,
            self._claiming,
            names,
            queue_cache,
            heads,
            holding,
            chores,
            speaker,
            self._hear,
            rules,
        )
        self.reads = Reads(database)
        self.upkeep = PostgresUpkeep(database, heads, holding, self.leadership, speaker, chores)
        self.queues = Queues(database, queue_cache, heads, speaker)
        self.workers = Workers(database, names, holding, self.leadership, speaker, rules)
        self.schedules = PostgresSchedules(database, self.leadership, speaker)
        self.stream = Stream(database, self.leadership)
        self._restoring = Restoring(database, rules)
        self._opened = False
        self.durable = True

    async def open(self) -> None:
        """Migrate the schema (or only check it), connect, and begin to listen for hints."""
        if self._opened:
            return
        await (migrate if self._create else check)(self._dsn)
        self._database.open()
        try:
            await self._check_server()
            await self._write_limits()
            if self._locks is not None:
                await self._locks.open()
        except BaseException:
            await self._database.close()
            raise
        self._speaker.start()
        self._listener.start()
        self._opened = True

    async def _check_server(self) -> None:
        async def look(db: Db) -> tuple[Any, Any]:
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

    async def _write_limits(self) -> None:
        limits = self._limits
        if limits is None:
            return

        async def work(db: Db) -> None:
            await db.execute(SQL["write_limits"], *limits)

        await self._database.writing.write("write_limits", work, again=work)

    async def close(self) -> None:
        """Send the last notification to other servers, then close all connections."""
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
        self._heard.append(heard)

    def _hear(self, change: Change, heads: dict[Head, int] | None) -> None:
        if Change.WORK in change:
            if heads is None:
                self._heads.forget()
            else:
                for head, seq in heads.items():
                    self._heads.lower(head, seq)
        if Change.CONTROL in change:
            self._queue_cache.spoil()
        for heard in self._heard:
            heard(change)

    async def _send(self, word: str) -> None:
        async def send(db: Db) -> None:
            await db.execute("SELECT pg_notify('jobqueue', $1)", word)

        await self._database.reading.read("notify", send)

    async def ping(self, patience: float | None = None) -> None:
        """Check that a commit reaches the disk and that writes of callers get answers."""
        silent = self._database.unanswered.seconds
        if silent > _SILENT:
            raise Unavailable(f"{self.location}: a write has had no answer for {silent:.1f} s")

        async def work(db: Db) -> None:
            await db.execute(SQL["touch"])

        await self._database.probing.read("ping", work, patience)  # it may be repeated

    def components(self) -> list[ComponentHealth]:
        return [] if self._locks is None else [self._locks.health()]

    async def restore(self, state: Restored, told: Told) -> None:
        await self._restoring.restore(state, told)
        self._queue_cache.spoil()
        self._heads.forget()
        self._speaker.say(Change.CONTROL | Change.WORK | Change.SCHEDULES, None)
