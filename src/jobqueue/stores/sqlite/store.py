"""Assemble the SQLite store: one durable file for any number of processes on one machine.

Claimable jobs, counters and leases are all in the file, not in memory. So a server, a worker and
``jq-ctl`` may have the file open at the same time.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import ComponentHealth
from jobqueue.core.observer import Observer
from jobqueue.core.rebuild import Restored, Told
from jobqueue.core.store import Change, Rules
from jobqueue.stores.sqlite.database import SqliteDatabase
from jobqueue.stores.sqlite.jobs import SqliteJobs, SqliteUpkeep
from jobqueue.stores.sqlite.leadership import SqliteLeadership
from jobqueue.stores.sqlite.queues import SqliteQueues
from jobqueue.stores.sqlite.reads import SqliteReads
from jobqueue.stores.sqlite.restoring import restore
from jobqueue.stores.sqlite.schedules import SqliteSchedules
from jobqueue.stores.sqlite.statements import SQL
from jobqueue.stores.sqlite.streaming import SqliteStream
from jobqueue.stores.sqlite.workers import SqliteWorkers


class SqliteStore:
    """Implements ``core.store.Store`` in an SQLite file."""

    name = "sqlite"
    durable = True
    parallel = False
    dispatch = None

    def __init__(
        self,
        path: str | Path,
        rules: Rules | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._rules = rules = rules or Rules()
        self._database = database = SqliteDatabase(
            path, clock or SystemClock(), observer or Observer()
        )
        self.path = database.path
        self.location = f"SQLite file {self.path}"
        self.jobs = SqliteJobs(database, rules)
        self.reads = SqliteReads(database, rules)
        self.upkeep = SqliteUpkeep(database, rules)
        self.queues = SqliteQueues(database, rules)
        self.workers = SqliteWorkers(database, rules)
        self.leadership = SqliteLeadership(database, rules)
        self.schedules = SqliteSchedules(database, rules)
        self.stream = SqliteStream(database, rules)
        self.open = database.open
        self.close = database.close

    def on_change(self, heard: Callable[[Change], None]) -> None:
        loop = asyncio.get_running_loop()
        last = -1

        def changed(db: sqlite3.Connection) -> None:
            nonlocal last
            before = last
            try:
                last = int(db.execute(SQL["control"]).fetchone()[0])
            except sqlite3.Error:
                last = -1
            change = Change.WORK | Change.ENDED
            if last < 0 or last != before:
                change |= Change.CONTROL | Change.SCHEDULES
            try:
                loop.call_soon_threadsafe(heard, change)
            except RuntimeError:  # the event loop is closed
                return

        self._database.writer().watch(changed)

    async def ping(self, patience: float | None = None) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute("SAVEPOINT probe")
            db.execute("INSERT INTO probe (filler) VALUES (zeroblob(16384))")  # the file can grow
            db.execute("ROLLBACK TO probe")
            db.execute("RELEASE probe")
            db.execute("UPDATE probe SET at = ? WHERE id = 1", (self._database.clock.now(),))

        await self._database.write("ping", work)

    def components(self) -> list[ComponentHealth]:
        return []

    async def restore(self, state: Restored, told: Told) -> None:
        interrupted = threading.Event()

        def heard(count: int) -> None:
            if interrupted.is_set():
                raise Unavailable("the restore was interrupted; nothing was written")
            told(count)

        def work(db: sqlite3.Connection) -> None:
            restore(db, state, self._database.clock.now(), self._rules, heard)

        try:
            await self._database.write("restore", work)  # one transaction: everything or nothing
        except asyncio.CancelledError:
            interrupted.set()
            raise
