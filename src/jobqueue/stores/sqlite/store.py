"""The SQLite store: one file, durable, shared by any number of processes on one machine.

The file is the truth: no ready list, counter or lease lives only in memory, so that a server, a
worker and ``jq-ctl`` may have it open at the same time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.decide import overdue
from jobqueue.core.errors import (
    Conflict,
    JobQueueError,
    Unavailable,
    not_your_worker,
    too_many_workers,
)
from jobqueue.core.identity import Identity
from jobqueue.core.ids import id_to_bytes
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
    is_limited,
    owner_allows,
)
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.queue import Queue, QueueStats, WaitingType
from jobqueue.core.restore import Restored, Told
from jobqueue.core.retry import policy_of
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
from jobqueue.core.stream import Changes, QueueChange, unpublished
from jobqueue.stores.queue_rows import settings_row
from jobqueue.stores.rows import held_row
from jobqueue.stores.sqlite import leadership, outbox, reads, restoring, writes
from jobqueue.stores.sqlite.by_time import list_by_time
from jobqueue.stores.sqlite.connection import BUSY_TIMEOUT, connect, prepare
from jobqueue.stores.sqlite.statements import SQL
from jobqueue.stores.sqlite.threads import Readers, Work, Writer

T = TypeVar("T")
_KEYS_PER_SWEEP = 1_000
_PULSE_TIMEOUT = 2 * BUSY_TIMEOUT
_FORGET_PROGRESS_EVERY = 60.0  # seconds; what is left of attempts that are over is not shown


class SqliteStore:
    """Jobs in an SQLite file."""

    name = "sqlite"
    durable = True
    parallel = False

    def __init__(
        self,
        path: str | Path,
        rules: Rules | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.path = Path(path)
        self.location = f"SQLite file {self.path}"
        self._rules = rules or Rules()
        self._clock = clock or SystemClock()
        self._observer = observer or Deaf()
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._forget_progress_at = 0.0  # monotonic

    async def open(self) -> None:
        """Create the file if need be, check its schema, start the threads."""
        if self._writer is None:
            connection = await asyncio.to_thread(self._prepare)
            self._writer = Writer(connection, self._observer)
            self._readers = Readers(lambda: connect(self.path, read_only=True), self._observer)

    def _prepare(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot create the folder of {self.path}: {error}") from error
        connection = connect(self.path)
        try:
            prepare(self.path, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Commit what was posted, then end the threads."""
        writer, readers = self._writer, self._readers
        self._writer = self._readers = None
        if readers is not None:
            await asyncio.to_thread(readers.close)
        if writer is not None:
            await asyncio.to_thread(writer.close)

    def on_change(self, heard: Callable[[Change], None]) -> None:
        """Tell the loop that calls this of another process's commit."""
        loop = asyncio.get_running_loop()
        listener = leadership.Listener()

        def changed(db: sqlite3.Connection) -> None:
            try:
                loop.call_soon_threadsafe(heard, listener(db))
            except RuntimeError:  # the loop has been closed; nobody is left to wake
                return

        self._open_writer().watch(changed)

    async def ping(self, patience: float | None = None) -> None:
        """Prove that the file can grow and that a commit reaches the disk."""

        def work(db: sqlite3.Connection) -> None:
            db.execute("SAVEPOINT probe")
            db.execute("INSERT INTO probe (filler) VALUES (zeroblob(16384))")
            db.execute("ROLLBACK TO probe")
            db.execute("RELEASE probe")
            db.execute("UPDATE probe SET at = ? WHERE id = 1", (self._clock.now(),))

        await self._write("ping", work)

    def components(self) -> list[ComponentHealth]:
        """It leans on nothing but its file."""
        return []

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise Unavailable(f"the store {self.path} is not open")
        return self._writer

    async def _write(self, name: str, work: Work[T]) -> T:
        future = asyncio.wrap_future(self._open_writer().post(name, work))
        # A caller that gives up must not cancel what others' transaction carries along.
        return await asyncio.shield(future)

    async def _read(self, name: str, work: Work[T]) -> T:
        if self._readers is None:
            raise Unavailable(f"the store {self.path} is not open")
        return await self._readers.run(name, work)

    # -- leadership ------------------------------------------------------------------------

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        """See ``Store.lead``. Looks first: those who stand by write nothing."""
        if not await self._read(
            "leader", lambda db: leadership.leads(db, holder, self._clock.now())
        ):
            return None
        return await self._write(
            "lead", lambda db: leadership.take(db, holder, self._clock.now(), ttl, name)
        )

    async def leader(self) -> Leader | None:
        """See ``Store.leader``."""
        return await self._read("leading", lambda db: leadership.leading(db, self._clock.now()))

    async def resign(self, term: Term) -> None:
        """See ``Store.resign``."""
        await self._write("resign", lambda db: leadership.resign(db, term))

    # -- the write path --------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        """See ``Store.submit``."""

        def work(db: sqlite3.Connection) -> Submission:
            now = self._clock.now()
            tally = writes.Tally()
            results = writes.submit(db, jobs, now, self._rules, tally)
            assigned = writes.claim(db, claims, now, self._rules, tally)
            tally.write(db)
            return Submission(results, assigned)

        return await self._write("submit", work)

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """See ``Store.claim``."""

        def work(db: sqlite3.Connection) -> list[Assignment]:
            tally = writes.Tally()
            assigned = writes.claim(db, claims, self._clock.now(), self._rules, tally)
            tally.write(db)
            return assigned

        return await self._write("claim", work)

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        """See ``Store.apply``."""

        def work(db: sqlite3.Connection) -> Application:
            now = self._clock.now()
            queues = {
                row[0]: writes.Home(row[1], row[2], policy_of(*row[3:]))
                for row in db.execute(
                    "SELECT id, name, deleted, retry_profile, retry_base, retry_max, retry_jitter"
                    " FROM queue"
                )
            }
            tally = writes.Tally()
            outcomes = writes.apply(db, transitions, now, self._rules, queues, tally)
            assigned = writes.claim(db, claims, now, self._rules, tally)
            tally.write(db)
            if any(
                outcome.lease is not None and asked.by_others
                for outcome, asked in zip(outcomes, transitions, strict=True)
            ):
                leadership.tell(db)
            return Application(outcomes, assigned)

        return await self._write("apply", work)

    async def request_cancel(self, seq: int) -> Held | None:
        """See ``Store.request_cancel``."""

        def work(db: sqlite3.Connection) -> Held | None:
            flagged = db.execute(
                "SELECT 1 FROM live WHERE seq = ? AND cancel = 1", (seq,)
            ).fetchone()
            rows = db.execute(SQL["request_cancel"], (seq,)).fetchall()
            if rows:
                leadership.tell(db)
                if flagged is None:
                    outbox.put_cancel(db, seq, self._clock.now())
            return held_row(rows[0]) if rows else None

        return await self._write("request_cancel", work)

    async def due(self, limit: int) -> Overdue:
        """See ``Store.due``. Looks first, and takes the write lock only to promote."""

        def look(db: sqlite3.Connection) -> tuple[list[Transition], bool, float | None]:
            now = self._clock.now()
            found: list[Transition] = []
            promotable = False
            rows = db.execute(SQL["due_waiting"], (now, limit)).fetchall()
            rows += db.execute(SQL["due_held"], (now, limit)).fetchall()
            for seq, state, version, lease, waiting in rows:
                if waiting:
                    promotable = True
                else:
                    found.append(overdue(State(state), seq, version, lease))
            times = [
                row[0]
                for name in ("next_waiting", "next_held")
                if (row := db.execute(SQL[name], (now,)).fetchone())[0] is not None
            ]
            keys = db.execute(SQL["expired_key"], (now,)).fetchone() is not None
            next_at = now if len(rows) >= limit else min(times, default=None)
            return found[:limit], promotable or keys, next_at

        found, chores, next_at = await self._read("due", look)
        promoted = 0
        if chores:

            def work(db: sqlite3.Connection) -> int:
                now = self._clock.now()
                db.execute(SQL["expire_keys"], (now, _KEYS_PER_SWEEP))
                return db.execute(SQL["promote"], (now, now, limit)).rowcount

            promoted = await self._write("promote", work)
        return Overdue(found, promoted, next_at)

    # -- reads and removal -----------------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        """See ``Store.get``."""
        return await self._read("get", lambda db: reads.get(db, job_id))

    async def seq_of(self, job_id: str) -> int | None:
        """See ``Store.seq_of``."""
        return await self._read("seq_of", lambda db: reads.seq_of(db, job_id))

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        """See ``Store.moved_on``."""
        return await self._read("moved_on", lambda db: reads.moved_on(db, seen))

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See ``Store.list_jobs``."""
        return await self._read("list_jobs", lambda db: reads.list_jobs(db, wanted))

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        """See ``Store.dead_letters``."""
        return await self._read("dead_letters", lambda db: reads.dead_letters(db, wanted))

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """See ``Store.list_by_time``."""
        return await self._read("list_by_time", lambda db: list_by_time(db, wanted))

    async def history(self, job_id: str, before: int | None = None) -> list[Event]:
        """See ``Store.history``."""
        return await self._read("history", lambda db: reads.history(db, job_id, before))

    async def events_after(self, position: int, limit: int) -> list[tuple[int, Event]]:
        """See ``Store.events_after``."""
        return await self._read("events_after", lambda db: reads.events_after(db, position, limit))

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        """See ``Store.delete_job``."""

        def work(db: sqlite3.Connection) -> State | Conflict | None:
            job = reads.get(db, job_id)
            if job is None:
                return None
            if job.state in TERMINAL and version in (None, job.version):
                if not outbox.passed(db, job.seq):
                    return unpublished(job_id)
                queue = db.execute(
                    "SELECT queue FROM rec WHERE id = ?", (id_to_bytes(job_id),)
                ).fetchone()[0]
                db.execute("DELETE FROM idempotency WHERE queue = ? AND key = ? AND seq = ?",
                           (queue, job.spec.stored_key, job.seq))  # fmt: skip
                self._remove(db, [(job.seq, queue)], job.state, key_freed=True)
            return job.state

        found = await self._write("delete_job", work)
        if isinstance(found, Conflict):
            raise found
        return found

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        """See ``Store.prune_done``."""

        def work(db: sqlite3.Connection) -> int | None:
            if not leadership.stands(db, term, self._clock.now()):
                return None
            queues = json.dumps([*where.queues])
            wanted = (completed_before, limit, where.completed_after, queues, where.others)
            rows = db.execute(SQL["old_done"], wanted).fetchall()
            self._remove(db, rows, State.DONE, key_freed=False)
            return len(rows)

        removed = await self._write("prune_done", work)
        if removed is None:
            raise TermEnded
        return removed

    def _remove(
        self,
        db: sqlite3.Connection,
        rows: Sequence[tuple[int, int]],
        state: State,
        *,
        key_freed: bool,
    ) -> None:
        seqs = [(seq,) for seq, _ in rows]
        outbox.put_deleted(db, seqs, self._clock.now(), key_freed=key_freed)
        db.executemany("DELETE FROM event WHERE seq = ?", seqs)
        db.executemany("DELETE FROM rec WHERE seq = ?", seqs)
        tally = writes.Tally()
        for _, queue in rows:
            tally.enter(queue, state, None)
        tally.write(db)

    # -- the event stream ------------------------------------------------------------------

    async def begin_stream(self, term: Term) -> int:
        """See ``Store.begin_stream``. Looks first: a mark is made once."""
        there = await self._read("stream_mark", outbox.mark)
        return await self._under(
            term, "begin_stream", lambda db: outbox.begin(db, self._clock.now()), there
        )

    async def end_stream(self, term: Term) -> None:
        """See ``Store.end_stream``."""
        await self._under(term, "end_stream", outbox.end)

    async def changes_after(self, position: int, limit: int, size: int) -> Changes:
        """See ``Store.changes_after``."""
        now = self._clock.now()
        return await self._read(
            "changes_after", lambda db: outbox.changes_after(db, position, limit, size, now)
        )

    async def move_mark(self, position: int, term: Term, refused: int = 0) -> None:
        """See ``Store.move_mark``."""
        await self._under(term, "move_mark", lambda db: outbox.move(db, position, refused))

    async def stream_lag(self) -> Lag | None:
        """See ``Store.stream_lag``."""
        return await self._read("stream_lag", lambda db: outbox.lag(db, self._clock.now()))

    async def identity(self) -> Identity:
        """See ``Store.identity``."""
        return await self._read("identity", outbox.identity)

    async def _under(self, term: Term, name: str, change: Work[T], there: T | None = None) -> T:
        """Write under a term, unless what is wanted is there already."""

        def work(db: sqlite3.Connection) -> tuple[T] | None:
            if not leadership.stands(db, term, self._clock.now()):
                return None
            return (change(db),) if there is None else (there,)

        done = await (self._write(name, work) if there is None else self._read(name, work))
        if done is None:
            raise TermEnded
        return done[0]

    async def restore(self, state: Restored, told: Told) -> None:
        """See ``Store.restore``. One transaction: all of it, or nothing."""
        ended = threading.Event()

        def heard(count: int) -> None:
            if ended.is_set():
                raise Unavailable("interrupted")
            told(count)

        def work(db: sqlite3.Connection) -> None:
            restoring.restore(db, state, self._clock.now(), self._rules, heard)

        try:
            await self._write("restore", work)
        except asyncio.CancelledError:
            ended.set()
            raise

    # -- queues ----------------------------------------------------------------------------

    async def create_queue(self, queue: Queue) -> bool:
        """See ``Store.create_queue``."""

        def work(db: sqlite3.Connection) -> bool:
            queue.created_at = self._clock.now()
            cursor = db.execute(
                SQL["create_queue"],
                (queue.name, int(queue.paused), queue.created_at, *settings_row(queue)),
            )
            if cursor.rowcount == 1:
                outbox.put_queue(db, QueueChange.CREATED, queue, queue.created_at)
            return cursor.rowcount == 1

        return await self._write("create_queue", work)

    async def update_queue(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        """See ``Store.update_queue``."""

        def work(db: sqlite3.Connection) -> Queue | None:
            found = reads.stats(db, name)
            if not found:
                return None
            queue = found[0].queue
            changed = replace(queue, **values)
            if changed != queue:
                db.execute(SQL["update_queue"], (name, *settings_row(changed)))
                outbox.put_queue(db, QueueChange.CHANGED, changed, self._clock.now())
            return changed

        return await self._write("update_queue", work)

    async def pause_queue(self, name: str, paused: bool) -> bool:
        """See ``Store.pause_queue``."""

        def work(db: sqlite3.Connection) -> bool:
            found = reads.stats(db, name)
            if found and found[0].queue.paused != paused:
                db.execute("UPDATE queue SET paused = ? WHERE name = ?", (int(paused), name))
                changed = replace(found[0].queue, paused=paused)
                outbox.put_queue(db, QueueChange.CHANGED, changed, self._clock.now())
            return bool(found)

        return await self._write("pause_queue", work)

    async def delete_queue(self, name: str) -> int | None:
        """See ``Store.delete_queue``."""

        def work(db: sqlite3.Connection) -> int | None:
            found = reads.stats(db, name)
            if not found:
                return None
            if not found[0].unfinished:
                db.execute("UPDATE queue SET deleted = 1 WHERE name = ?", (name,))
                outbox.put_queue(db, QueueChange.DELETED, found[0].queue, self._clock.now())
            return found[0].unfinished

        return await self._write("delete_queue", work)

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        """See ``Store.unfinished``."""
        sql = "SELECT seq FROM live WHERE queue = (SELECT id FROM queue WHERE name = ?) LIMIT ?"
        return await self._read(
            "unfinished", lambda db: [row[0] for row in db.execute(sql, (queue, limit))]
        )

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        """See ``Store.stats``."""
        return await self._read("stats", lambda db: reads.stats(db, queue))

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        """See ``Store.waiting_types``."""
        return await self._read(
            "waiting_types", lambda db: reads.waiting_types(db, count_to, queue)
        )

    # -- workers ---------------------------------------------------------------------------

    async def register_worker(self, info: WorkerInfo) -> list[Held]:
        """See ``Store.register_worker``."""

        def work(db: sqlite3.Connection) -> list[Held] | JobQueueError:
            now = self._clock.now()
            types = None if info.types is None else json.dumps(sorted(info.types))
            incarnation, owner, status = db.execute(SQL["registration"], (info.id,)).fetchone() or (
                None,
                "",
                "",
            )
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
            leadership.tell(db)
            if incarnation is None or (allowed and incarnation == info.incarnation):
                return []
            return reads.held(db, info.id)

        return _or_raise(await self._write("register_worker", work))

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
        """See ``Store.pulse``."""

        def work(db: sqlite3.Connection) -> Pulse | JobQueueError:
            now = self._clock.now()
            known = db.execute(SQL["registration"], (worker_id,)).fetchone()
            if known is not None and not owner_allows(known[1], owner):
                return not_your_worker(worker_id)
            if known is None or known[0] != incarnation or known[2] == WorkerStatus.OFFLINE:
                return Pulse(False)
            db.execute(SQL["beat"], (now, overrun, worker_id))
            standing = {one.lease: one for one in reads.held(db, worker_id)}
            late = [
                (now + self._rules.assignment_timeout, one.seq, one.lease)
                for lease in begun
                if (one := standing.get(lease)) is not None and one.state is State.ASSIGNED
            ]
            db.executemany("UPDATE live SET due = ? WHERE seq = ? AND lease = ?", late)
            if progress:
                self._keep_progress(db, progress, standing, now)
            return Pulse.answer(WorkerStatus(known[2]), leases, standing)

        try:
            return _or_raise(self._open_writer().post("pulse", work).result(_PULSE_TIMEOUT))
        except concurrent.futures.TimeoutError:
            raise Unavailable(
                f"the SQLite store took no heartbeat within {_PULSE_TIMEOUT:g} s"
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
            if lease in standing
        ]
        db.executemany(SQL["keep_progress"], rows)
        if time.monotonic() >= self._forget_progress_at:
            self._forget_progress_at = time.monotonic() + _FORGET_PROGRESS_EVERY
            db.execute(SQL["forget_progress"])

    async def held(self, worker_id: str | None = None) -> list[Held]:
        """See ``Store.held``."""
        return await self._read("held", lambda db: reads.held(db, worker_id))

    async def set_worker_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """See ``Store.set_worker_status``."""

        def work(db: sqlite3.Connection) -> bool:
            leadership.tell(db)
            return db.execute(SQL["set_worker_status"], (status, worker_id)).rowcount == 1

        return await self._write("set_worker_status", work)

    async def workers(self) -> list[Worker]:
        """See ``Store.workers``."""
        return await self._read("workers", reads.workers)

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """See ``Store.retire_silent``. Looks first: there is seldom anybody."""
        silent = "status <> 'OFFLINE' AND last_seen < ?"

        def look(db: sqlite3.Connection) -> bool | None:
            now = self._clock.now()
            if not leadership.stands(db, term, now):
                return None
            sql = f"SELECT 1 FROM worker WHERE {silent} LIMIT 1"
            return db.execute(sql, (now - silent_for,)).fetchone() is not None

        def work(db: sqlite3.Connection) -> list[str] | None:
            now = self._clock.now()
            if not leadership.stands(db, term, now):
                return None
            sql = f"UPDATE worker SET status = 'OFFLINE' WHERE {silent} RETURNING id"
            leadership.tell(db)
            return [row[0] for row in db.execute(sql, (now - silent_for,)).fetchall()]

        found = await self._read("silent_workers", look)
        if found is False:
            return []
        retired = await self._write("retire_silent", work) if found else None
        if retired is None:
            raise TermEnded
        return retired

    async def retire_worker(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        """See ``Store.retire_worker``."""

        def work(db: sqlite3.Connection) -> bool | JobQueueError:
            known = db.execute(SQL["registration"], (worker_id,)).fetchone()
            if known is not None and not owner_allows(known[1], owner):
                return not_your_worker(worker_id)
            if reads.held(db, worker_id):
                return False
            sql = "DELETE FROM worker WHERE id = ? AND incarnation = ?"
            leadership.tell(db)
            return db.execute(sql, (worker_id, incarnation)).rowcount == 1

        return _or_raise(await self._write("retire_worker", work))

    async def forget_worker(self, worker_id: str) -> bool:
        """See ``Store.forget_worker``."""
        sql = "DELETE FROM worker WHERE id = ? AND status = 'OFFLINE'"
        return await self._write(
            "forget_worker", lambda db: db.execute(sql, (worker_id,)).rowcount == 1
        )


def _or_raise(answer: T | JobQueueError) -> T:
    """A refusal is raised outside of the transaction, which it shares with other callers."""
    if isinstance(answer, JobQueueError):
        raise answer
    return answer
