"""Keep workers in SQLite, write their heartbeats and read their leases."""

from __future__ import annotations

import concurrent.futures
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.decide import answer_heartbeat
from jobqueue.core.errors import JobQueueError, Unavailable, not_your_worker, too_many_workers
from jobqueue.core.job import (
    Held,
    Pulse,
    Worker,
    WorkerInfo,
    WorkerStatus,
    is_limited,
    owner_allows,
)
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Term, TermEnded
from jobqueue.stores.rows import write_breakers
from jobqueue.stores.sqlite import reads
from jobqueue.stores.sqlite.connection import BUSY_TIMEOUT
from jobqueue.stores.sqlite.database import SqlitePart, or_raise, reading, writing
from jobqueue.stores.sqlite.leadership import stands, tell_control
from jobqueue.stores.sqlite.statements import SQL, read_marked

_PULSE_TIMEOUT = 2 * BUSY_TIMEOUT
_FORGET_PROGRESS_EVERY = 60.0  # seconds; progress of ended attempts is not shown meanwhile
_SILENT = "status <> 'OFFLINE' AND last_seen < ?"


class SqliteWorkers(SqlitePart):
    """Implements ``core.store.WorkerStore``."""

    _forget_progress_at = 0.0  # monotonic

    @writing("register_worker")
    def register(self, db: sqlite3.Connection, info: WorkerInfo) -> list[Held] | JobQueueError:
        now = self._clock.now()
        types = None if info.types is None else json.dumps(sorted(info.types))
        known = db.execute(SQL["registration"], (info.id,)).fetchone()
        incarnation, owner, status = known or (None, "", "")
        allowed = owner_allows(owner, info.owner)
        if not allowed and status != WorkerStatus.OFFLINE:
            return not_your_worker(info.id)
        if not self._has_room(db, info):
            return too_many_workers(info.owner, self._rules.workers_per_owner)
        db.execute(
            SQL["register_worker"],
            (info.id, info.incarnation, info.hostname, info.pid, info.concurrency,
             json.dumps(info.queues), info.version, info.link, types, info.owner, now, now),
        )  # fmt: skip
        tell_control(db)
        if incarnation is None or (allowed and incarnation == info.incarnation):
            return []
        return reads.held(db, info.id)

    def _has_room(self, db: sqlite3.Connection, info: WorkerInfo) -> bool:
        most = self._rules.workers_per_owner
        if not most or not is_limited(info.owner):
            return True
        whose = (info.owner, info.id)
        if db.execute(SQL["count_owned"], whose).fetchone()[0] < most:
            return True
        return bool(db.execute(SQL["forget_offline"], whose).rowcount)

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
        def work(db: sqlite3.Connection) -> Pulse | JobQueueError:
            now = self._clock.now()
            known = db.execute(SQL["registration"], (worker_id,)).fetchone()
            if known is not None and not owner_allows(known[1], owner):
                return not_your_worker(worker_id)
            if known is None or known[0] != incarnation or known[2] == WorkerStatus.OFFLINE:
                return Pulse(False)
            db.execute(SQL["beat"], (now, overrun, worker_id))
            standing = {one.lease: one for one in reads.held(db, worker_id)}
            answer = answer_heartbeat(WorkerStatus(known[2]), leases, begun, progress, standing)
            due = now + self._rules.assignment_timeout
            late = [(due, one.seq, one.lease) for one in answer.begun]
            db.executemany("UPDATE live SET due = ? WHERE seq = ? AND lease = ?", late)
            if progress:
                self._keep_progress(db, answer.told, standing, now)
            return answer.pulse

        try:
            return or_raise(self._database.writer().post("pulse", work).result(_PULSE_TIMEOUT))
        except concurrent.futures.TimeoutError:
            raise Unavailable(
                f"the SQLite store did not write a heartbeat within {_PULSE_TIMEOUT:g} s"
            ) from None

    def _keep_progress(
        self,
        db: sqlite3.Connection,
        told: Mapping[int, Progress],
        standing: Mapping[int, Held],
        now: float,
    ) -> None:
        rows = [
            (lease, standing[lease].seq, progress.value, progress.text, now)
            for lease, progress in told.items()
        ]
        db.executemany(SQL["keep_progress"], rows)
        if time.monotonic() >= self._forget_progress_at:
            self._forget_progress_at = time.monotonic() + _FORGET_PROGRESS_EVERY
            db.execute(SQL["forget_progress"])

    @writing("set_breakers")
    def set_breakers(
        self,
        db: sqlite3.Connection,
        worker_id: str,
        incarnation: int,
        breakers: Sequence[OpenBreaker],
    ) -> None:
        tell_control(db)
        db.execute(SQL["set_breakers"], (write_breakers(breakers), worker_id, incarnation))

    @reading("held")
    def held(self, db: sqlite3.Connection, worker_id: str | None = None) -> list[Held]:
        return reads.held(db, worker_id)

    @writing("set_worker_status")
    def set_status(self, db: sqlite3.Connection, worker_id: str, status: WorkerStatus) -> bool:
        tell_control(db)
        return db.execute(SQL["set_worker_status"], (status, worker_id)).rowcount == 1

    @reading("workers")
    def all(self, db: sqlite3.Connection, *, names: bool = True) -> list[Worker]:
        return [reads.ROWS.worker(row) for row in db.execute(SQL["workers"], (int(names),))]

    @reading("worker_infos")
    def infos(self, db: sqlite3.Connection, worker_ids: Sequence[str]) -> list[WorkerInfo]:
        return [reads.ROWS.info(row) for row in read_marked(db, "worker_infos", worker_ids)]

    @reading("worker_status")
    def status(self, db: sqlite3.Connection, worker_id: str) -> WorkerStatus | None:
        known = db.execute(SQL["registration"], (worker_id,)).fetchone()
        return None if known is None else WorkerStatus(known[2])

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        # Silent workers are rare, so the write lock is taken only if there are any.
        silent = await self._any_silent(silent_for, term)
        return await self._retire_silent(silent_for, term) if silent else []

    @reading("silent_workers")
    def _any_silent(self, db: sqlite3.Connection, silent_for: float, term: Term) -> bool:
        now = self._clock.now()
        if not stands(db, term, now):
            raise TermEnded
        sql = f"SELECT 1 FROM worker WHERE {_SILENT} LIMIT 1"
        return db.execute(sql, (now - silent_for,)).fetchone() is not None

    @writing("retire_silent")
    def _retire_silent(
        self, db: sqlite3.Connection, silent_for: float, term: Term
    ) -> list[str] | TermEnded:
        now = self._clock.now()
        if not stands(db, term, now):
            return TermEnded()
        sql = f"UPDATE worker SET status = 'OFFLINE' WHERE {_SILENT} RETURNING id"
        tell_control(db)
        return [row[0] for row in db.execute(sql, (now - silent_for,)).fetchall()]

    @writing("retire_worker")
    def retire(
        self, db: sqlite3.Connection, worker_id: str, incarnation: int, *, owner: str = ""
    ) -> bool | JobQueueError:
        known = db.execute(SQL["registration"], (worker_id,)).fetchone()
        if known is not None and not owner_allows(known[1], owner):
            return not_your_worker(worker_id)
        if reads.held(db, worker_id):
            return False
        sql = "DELETE FROM worker WHERE id = ? AND incarnation = ?"
        tell_control(db)
        return db.execute(sql, (worker_id, incarnation)).rowcount == 1

    @writing("forget_worker")
    def forget(self, db: sqlite3.Connection, worker_id: str) -> bool:
        sql = "DELETE FROM worker WHERE id = ? AND status = 'OFFLINE'"
        return db.execute(sql, (worker_id,)).rowcount == 1
