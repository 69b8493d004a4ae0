"""Submit, claim, change and remove jobs in SQLite, and find jobs that are due."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from jobqueue.core.decide import news_of, overdue
from jobqueue.core.errors import Conflict
from jobqueue.core.ids import id_to_bytes
from jobqueue.core.job import Assignment, Held, NewJob, Transition
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.store import (
    ANY_QUEUE,
    Application,
    Change,
    Claim,
    DoneJobs,
    Overdue,
    Rules,
    Submission,
    Term,
    TermEnded,
)
from jobqueue.core.stream import unpublished
from jobqueue.stores.rows import CANCEL, DELETED, STATES, held_row
from jobqueue.stores.sqlite import streaming
from jobqueue.stores.sqlite.database import SqliteDatabase, SqlitePart, reading, writing
from jobqueue.stores.sqlite.leadership import stands, tell_control
from jobqueue.stores.sqlite.limiting import Cursors
from jobqueue.stores.sqlite.statements import SQL
from jobqueue.stores.sqlite.writes import JobWriter

_KEYS_PER_SWEEP = 1_000


class SqliteJobs(SqlitePart):
    """Implements ``core.store.JobStore``."""

    def __init__(self, database: SqliteDatabase, rules: Rules) -> None:
        super().__init__(database, rules)
        self._cursors: Cursors = {}

    @writing("submit")
    def submit(
        self, db: sqlite3.Connection, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()
    ) -> Submission:
        writer = JobWriter(db, self._clock.now(), self._rules, self._cursors)
        submission = Submission(writer.submit(jobs), writer.claim(claims), writer.superseded)
        writer.finish()
        return submission

    @writing("claim")
    def claim(self, db: sqlite3.Connection, claims: Sequence[Claim]) -> list[Assignment]:
        writer = JobWriter(db, self._clock.now(), self._rules, self._cursors)
        assigned = writer.claim(claims)
        writer.finish()
        return assigned

    @writing("apply")
    def apply(
        self, db: sqlite3.Connection, transitions: Sequence[Transition],
        claims: Sequence[Claim] = (),
    ) -> Application:  # fmt: skip
        writer = JobWriter(db, self._clock.now(), self._rules, self._cursors)
        application = Application(writer.apply(transitions), writer.claim(claims), writer.freed)
        writer.finish()
        if Change.CONTROL in news_of(transitions, application.outcomes):
            tell_control(db)
        return application

    @writing("request_cancel")
    def request_cancel(self, db: sqlite3.Connection, seq: int) -> Held | None:
        flagged = db.execute("SELECT cancel FROM live WHERE seq = ?", (seq,)).fetchone()
        row = db.execute(SQL["request_cancel"], (seq,)).fetchone()
        if row is None:
            return None
        tell_control(db)
        if not flagged[0]:
            streaming.put_jobs(db, CANCEL, [seq], self._clock.now())
        return held_row(row)


class SqliteUpkeep(SqlitePart):
    """Implements ``core.store.Upkeep``."""

    async def due(self, limit: int) -> Overdue:
        found, chores = await self._find_due(limit)
        if chores:  # otherwise the write lock is not taken
            found.promoted = await self._promote(limit)
        return found

    @reading("due")
    def _find_due(self, db: sqlite3.Connection, limit: int) -> tuple[Overdue, bool]:
        now = self._clock.now()
        rows = db.execute(SQL["due_waiting"], (now, limit)).fetchall()
        rows += db.execute(SQL["due_held"], (now, limit)).fetchall()
        moves = [
            overdue(STATES[state], seq, version, lease)
            for seq, state, version, lease, promotable in rows
            if not promotable
        ]
        times = [
            at
            for name in ("next_waiting", "next_held")
            if (at := db.execute(SQL[name], (now,)).fetchone()[0]) is not None
        ]
        keys = db.execute(SQL["expired_key"], (now,)).fetchone() is not None
        next_at = now if len(rows) >= limit else min(times, default=None)
        return Overdue(moves[:limit], 0, next_at), keys or len(moves) < len(rows)

    @writing("promote")
    def _promote(self, db: sqlite3.Connection, limit: int) -> int:
        now = self._clock.now()
        db.execute(SQL["expire_keys"], (now, _KEYS_PER_SWEEP))
        return db.execute(SQL["promote"], (now, now, limit)).rowcount

    @writing("delete_job")
    def delete_job(
        self, db: sqlite3.Connection, job_id: str, *, version: int | None = None
    ) -> State | Conflict | None:
        found = db.execute(SQL["removable"], (id_to_bytes(job_id),)).fetchone()
        if found is None:
            return None
        seq, queue, key, number, at_version = found
        state = STATES[number]
        if state in TERMINAL and version in (None, at_version):
            if not streaming.passed(db, seq):
                return unpublished(job_id)
            sql = "DELETE FROM idempotency WHERE queue = ? AND key = ? AND seq = ?"
            db.execute(sql, (queue, key, seq))
            self._remove(db, {seq: queue}, state, key_freed=True)
        return state

    @writing("prune_done")
    def prune_done(
        self, db: sqlite3.Connection, completed_before: float, limit: int, term: Term,
        where: DoneJobs = ANY_QUEUE,
    ) -> int | TermEnded:  # fmt: skip
        if not stands(db, term, self._clock.now()):
            return TermEnded()
        queues = json.dumps([*where.queues])
        wanted = (completed_before, limit, where.completed_after, queues, where.others)
        found = dict(db.execute(SQL["old_done"], wanted))
        self._remove(db, found, State.DONE, key_freed=False)
        return len(found)

    def _remove(
        self, db: sqlite3.Connection, jobs: dict[int, int], state: State, *, key_freed: bool
    ) -> None:
        """Remove jobs in the state ``state`` and their events.

        ``jobs`` maps the number of each job to the number of its queue.
        """
        now = self._clock.now()
        streaming.put_jobs(db, DELETED, jobs, now, key_freed=key_freed)
        db.executemany("DELETE FROM event WHERE seq = ?", [(seq,) for seq in jobs])
        db.executemany("DELETE FROM rec WHERE seq = ?", [(seq,) for seq in jobs])
        if db.execute("SELECT EXISTS (SELECT 1 FROM unique_key)").fetchone()[0]:
            db.executemany("DELETE FROM unique_key WHERE seq = ?", [(seq,) for seq in jobs])
        writer = JobWriter(db, now, self._rules)
        for queue in jobs.values():
            writer.enter(queue, state, None)
        writer.finish()
