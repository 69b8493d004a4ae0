"""Decides transitions with ``core.decide``, under row locks.

A plain job has no row of its own that could be locked. So it gets a live row before its decision.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import asyncpg

from jobqueue.core.decide import Decision, Entry, Live, decide, events_of
from jobqueue.core.job import Outcome, Refusal, Transition
from jobqueue.core.lifecycle import FENCED, HELD, PATHS, TERMINAL, Move, Reason, State
from jobqueue.core.store import Rules
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.heads import Head
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.leases import base_of
from jobqueue.stores.postgres.queue_cache import QueueCache, WorkerNameCache
from jobqueue.stores.postgres.statements import (
    BATCH,
    RANGES,
    REASON_NUMBERS,
    REASONS,
    SQL,
    columns,
    text,
)
from jobqueue.stores.rows import STATES

_LOOKS = 5  # searches for a job that moves to another table meanwhile
LIVE, END, EVENT = 20, 15, 11  # numbers of columns


class Deciding:
    """Decides the transitions of a batch that ``Applying`` did not write as sets."""

    def __init__(
        self,
        now: float | None,
        rules: Rules,
        queue_cache: QueueCache,
        names: WorkerNameCache,
        holding: Holding,
    ) -> None:
        self._now = now
        self._rules = rules
        self._queue_cache = queue_cache
        self._names = names
        self._holding = holding
        self.came_back: set[Head] = set()  # where jobs became claimable again

    async def decide(
        self, db: Db, asked: Sequence[Transition], written: Container[int], *, repeated: bool
    ) -> list[Outcome]:
        """Decide transitions in the caller's transaction, and return their outcomes in this order.

        An earlier statement of this batch has written the transitions at the places ``written``.
        With ``repeated``, any transition may have been written, because an answer was lost.
        """
        rows = await self._lock(db, asked)
        deleted = await self._deleted_queues(db, asked, rows)
        workers = await self._names.of(db, [row.worker for row in rows.values()])
        for row in rows.values():  # only now: the first of many moves of a job may change it
            if row.worker is not None:
                row.live.worker_id = workers[row.worker]
        writes = _Writes()
        outcomes: list[Outcome] = []
        for place, one in enumerate(asked):
            found = rows.get(one.seq)
            if found is None:
                outcomes.append(Outcome(Refusal.NO_SUCH_JOB))
                continue
            row, live = found, found.live
            worker = None if row.worker is None else workers[row.worker]
            home = await self._queue_cache.resolve(db, row.queue, self._now)
            before = live.state
            if row.busy:
                outcomes.append(Outcome(Refusal.LOCKED, before, live.reason, row.job_id, home.name))
                continue
            if one.move is Move.RETRY_BY_HAND and row.queue in deleted:
                decision: Decision | Refusal = Refusal.NO_QUEUE
            else:
                decision = decide(live, one, now=row.now, rules=self._rules, policy=home.policy)
            if isinstance(decision, Refusal):
                again = place in written or (repeated and await _was_written(db, one, row))
                if again and before is State.PENDING:
                    self.came_back.add(row.head)
                outcomes.append(
                    Outcome(None, before, live.reason, row.job_id, home.name, one.lease)
                    if again
                    else Outcome(decision, before, live.reason, row.job_id, home.name)
                )
                continue
            if not row.locked:
                # The job came into a state that the move applies to after the search for its row.
                raise asyncpg.SerializationError(f"job {one.seq} moved meanwhile")
            if decision.lease is not None and live.lease is None:
                row.last_lease = decision.lease
            writes.add(row, before, decision, one.error)
            outcome = decision.outcome(live, row.job_id, home.name)
            outcome.worker_id = worker
            outcomes.append(outcome)
            if live.state is State.PENDING:
                self.came_back.add(row.head)
        await writes.write(db)
        return outcomes

    async def _lock(self, db: Db, asked: Sequence[Transition]) -> dict[int, _Row]:
        """Lock the rows of jobs. A plain job gets a live row first, if its move may apply to it.

        To avoid deadlocks, every transaction locks in one order: live rows and ends by number, then
        ranges, then held rows.
        """
        rows: dict[int, _Row] = {}
        missing = sorted({one.seq for one in asked})

        async def look(name: str) -> None:
            nonlocal missing
            if missing:
                for row in await db.fetch(SQL[name], missing, self._now):
                    locked = name not in ("lock_plain", "look_live")
                    rows[row[0]] = _Row(row, locked=locked, busy=name == "look_live")
                missing = [seq for seq in missing if seq not in rows]

        for _ in range(_LOOKS):
            for name in ("lock_live", "lock_ended", "lock_done"):
                await look(name)
            if missing:
                there = set(missing)
                if await self._leave(db, [one for one in asked if one.seq in there]):
                    await look("lock_live")
            await look("lock_plain")
            await look("look_live")
            if not missing:
                break
            # A job may have moved from one table to another between two statements: look again. A
            # job without a record was deleted.
            missing = [row[0] for row in await db.fetch(SQL["ids"], missing)]
        return rows

    async def _leave(self, db: Db, asked: list[Transition]) -> bool:
        """Give live rows to the plain jobs that these moves may apply to. Return True if any got
        one.
        """
        ready = sorted({one.seq for one in asked if _may_leave(one, State.PENDING)})
        held = _fences(one for one in asked if _may_leave(one, State.ASSIGNED))
        left: list[Any] = []
        if ready:
            texts = SQL if await self._queue_cache.layout(db, self._now) < RANGES else BATCH
            left += await db.fetch(texts["leave_ready"], ready)
            # Claims skip these ranges until this transaction ends, so their other jobs are news.
            self.came_back.update(tuple(row[1:]) for row in left)
        if held:
            seqs, leases = [seq for seq, _ in held], [lease for _, lease in held]
            left += await db.fetch(SQL["leave_held"], seqs, leases)
            for seq, lease in held:
                if (base := base_of(seq, lease)) is not None:
                    self._holding.left(base, [seq])
        return bool(left)

    async def _deleted_queues(
        self, db: Db, asked: Sequence[Transition], rows: dict[int, _Row]
    ) -> set[int]:
        """Of the queues of jobs to retry by hand, return the deleted ones and lock the others."""
        wanted = {
            rows[one.seq].queue
            for one in asked
            if one.move is Move.RETRY_BY_HAND and one.seq in rows
        }
        if not wanted:
            return set()
        standing = await db.fetch(
            "SELECT id FROM queues WHERE id = ANY ($1::int[]) AND NOT deleted FOR KEY SHARE",
            list(wanted),
        )
        return wanted - {row[0] for row in standing}


async def _was_written(db: Db, asked: Transition, row: _Row) -> bool:
    """Return True if this move was written before its answer was lost."""
    live, move = row.live, asked.move
    if move is Move.START and live.lease == asked.lease:
        return live.state is State.RUNNING and asked.worker_id in (None, live.worker_id)
    if move not in FENCED:
        return live.reason in _ends(move)
    if asked.lease is None or row.last_lease != asked.lease:
        return False
    # The lease has ended, but by which move? Another server may have judged its worker.
    attempt = live.attempt if live.lease is None else live.attempt - 1
    reasons = [REASON_NUMBERS[reason] for reason in _ends(move) or {Reason.STARTED}]
    written = await db.fetchval(
        "SELECT 1 FROM job_events_of($1::bigint, $1::bigint >> 10 << 10)"
        " WHERE attempt = $2 AND reason = ANY ($3::smallint[])",
        live.seq, attempt, reasons,
    )  # fmt: skip
    return written is not None


def _fences(asked: Iterable[Transition]) -> list[tuple[int, int | None]]:
    """Return the numbers and leases of these moves, each once.

    If a move of a job names no lease, only that one is returned: it stands for every lease.
    """
    fences: dict[int, dict[int | None, None]] = {}
    for one in asked:
        fences.setdefault(one.seq, {})[one.lease] = None
    return [
        (seq, lease)
        for seq, leases in sorted(fences.items())
        for lease in ([None] if None in leases else leases)
    ]


def _may_leave(asked: Transition, state: State) -> bool:
    """Return True if the move may apply to a plain job in this state."""
    # The version of a plain job is the number of its state.
    if asked.move in FENCED and asked.lease is None:
        return False
    return state in PATHS[asked.move] and asked.version in (None, int(state))


def _ends(move: Move) -> set[Reason]:
    """Return the reasons that a job may have after this move, except after a start."""
    ways = [*PATHS[move].values()]
    if move is Move.SUCCEED:  # of a job that is flagged for cancelling
        ways += PATHS[Move.ACKNOWLEDGE_CANCEL].values()
    return {reason for way in ways for state, reason in way if state is not State.RUNNING}


class _Row:
    """Holds a job as its row in the database has it, for the decision about its transition."""

    __slots__ = (
        "before", "busy", "head", "job_id", "last_lease", "live", "locked", "now", "queue", "seq",
        "worker",
    )  # fmt: skip

    def __init__(self, row: Any, *, locked: bool = True, busy: bool = False) -> None:
        (seq, state, version, attempt, retry_count, max_retries, lease, worker, cancel, deaths,
         timeout, run_at, expires_at, started_at, due, queue, job_id, error, reason, last_lease,
         rank, kind, now) = row  # fmt: skip
        self.seq: int = seq
        self.locked = locked  # False: the row may only be used to refuse a move
        self.busy = busy  # another transaction has locked it, so nothing is decided
        self.before = STATES[state]
        self.live = Live(
            seq, self.before, version, attempt, retry_count, max_retries, lease,
            None if worker is None else str(worker), bool(cancel), deaths, timeout, run_at,
            expires_at, started_at, due,
        )  # fmt: skip
        self.live.error = error or ""
        self.live.reason = REASONS[reason]
        self.worker: int | None = worker
        self.queue: int = queue
        self.job_id = str(job_id)
        self.last_lease: int | None = last_lease
        self.head: Head = queue, rank, kind
        self.now: float = now

    def worker_after(self) -> int | None:
        return None if self.live.worker_id is None else self.worker


class _Writes:
    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._events: list[tuple[Any, ...]] = []
        self._depth: dict[int, list[float]] = {}
        self._now = 0.0

    def add(self, row: _Row, before: State, decision: Decision, detail: str) -> None:
        live = row.live
        self._now = row.now
        self._rows[live.seq] = row
        depth = self._depth.setdefault(row.queue, [0] * 9)
        depth[before - 1] -= 1
        depth[live.state - 1] += 1
        if decision.ran_for is not None:
            depth[6 if live.state is State.DONE else 7] += 1
            depth[8] += decision.ran_for
        worker = row.worker if decision.lease is not None else None
        made = events_of(live, row.job_id, "", before, decision.steps, row.now, detail)
        self._events += [event_row(live.seq, one, worker) for one in made]

    async def write(self, db: Db) -> None:
        if not self._rows:
            return
        revived = [row for row in self._rows.values() if row.before in TERMINAL]
        if revived:
            await db.execute(
                SQL["revive"],
                [row.live.seq for row in revived],
                [row.live.version for row in revived],
                [REASON_NUMBERS[row.live.reason] for row in revived],
                self._now,
            )
        ended = [row for row in self._rows.values() if row.live.state in TERMINAL]
        if ended:
            rows = [end_row(row.live, row.queue, row.worker_after(), row.last_lease)
                    for row in ended]  # fmt: skip
            await db.execute(SQL["end"], *columns(rows, END))
        moved = [
            row
            for row in self._rows.values()
            if row.live.state not in TERMINAL
            and not (row.before in TERMINAL and row.live.state is State.PENDING)
        ]
        if moved:
            rows = [
                live_row(
                    row.live,
                    row.worker_after(),
                    row.last_lease,
                    2 if row.live.state is State.PENDING else 0,
                    self._now,
                )
                for row in moved
            ]
            await db.execute(SQL["update_live"], *columns(rows, LIVE))
        await db.execute(SQL["insert_events"], *columns(self._events, EVENT))
        for queue, depth in self._depth.items():
            figures = [int(figure) for figure in depth[:8]]
            await db.execute(SQL["count"], queue, *figures, depth[8])


def end_row(live: Live, queue: int, worker: int | None, last_lease: int | None) -> tuple[Any, ...]:
    """Return a row of ``end``, for a job that has ended."""
    return (
        live.seq, queue, int(live.state), live.version, live.attempt, live.retry_count, worker,
        last_lease, live.run_at, live.cancel_requested, live.started_at, live.result,
        text(live.error), REASON_NUMBERS[live.reason], live.completed_at,
    )  # fmt: skip


def live_row(
    live: Live, worker: int | None, last_lease: int | None, ready: int, now: float
) -> tuple[Any, ...]:
    """Return a row of ``update_live``, for a job that has not ended."""
    held = live.state in HELD
    return (
        live.seq, int(live.state), ready, live.version, live.attempt, live.retry_count, live.lease,
        last_lease, worker if held else None, None if held else worker, live.cancel_requested,
        live.deaths, live.run_at, live.expires_at, live.started_at, live.due if held else None,
        None if held else live.due, text(live.error), REASON_NUMBERS[live.reason], now,
    )  # fmt: skip


def event_row(seq: int, entry: Entry, worker: int | None) -> tuple[Any, ...]:
    """Return a row of ``insert_events``. ``worker`` is the number of the worker that the event
    names.
    """
    _, version, before, state, reason, at, attempt, _, detail, _, _, started_at, due, _ = entry
    return (
        seq, version, attempt, worker, None if before is None else int(before), int(state),
        REASON_NUMBERS[reason], text(detail), started_at,
        due if before is not None else None,  # the start time of a new job is in its record
        at,
    )  # fmt: skip
