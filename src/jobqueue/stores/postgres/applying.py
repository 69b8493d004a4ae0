"""Every transition but submit and claim.

Starts and successes, which are nearly all of them, are one statement for a batch. Everything else,
and what those statements did not match, is decided by ``core.decide`` under row locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from jobqueue.core.decide import Decision, Entry, Live, decide, events_of
from jobqueue.core.job import Outcome, Refusal, Transition
from jobqueue.core.lifecycle import FENCED, HELD, PATHS, TERMINAL, Move, Reason, State, Step
from jobqueue.core.store import Rules
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.heads import Head
from jobqueue.stores.postgres.queue_cache import ANY_NUMBER, Home, QueueCache, WorkerNameCache
from jobqueue.stores.postgres.statements import (
    BATCH,
    RANGES,
    REASON_NUMBERS,
    REASONS,
    SQL,
    array,
    said,
    text,
)
from jobqueue.stores.rows import STATES

_STARTED: Step = (State.RUNNING, Reason.STARTED)
_SUCCEEDED: Step = (State.DONE, Reason.SUCCEEDED)
_WITH_START = (_STARTED, _SUCCEEDED)
_WITHOUT_START = (_SUCCEEDED,)
_ONLY_START = (_STARTED,)
_NO_WORKER = -1  # no worker has this number
_ROW = 6_000  # bytes of results in one row, beside 24 for each job: such a row fits into its page
_LOOKS = 5  # at a job that ends or comes back between two looks
LIVE, END, EVENT = 20, 15, 11  # columns of rows


class Applying:
    """One batch of transitions, on its way into the database.

    Its parts are committed one after the other. What was answered stands, whatever becomes of the
    rest, and is left alone when the rest is tried again.
    """

    def __init__(
        self,
        transitions: Sequence[Transition],
        now: float | None,
        rules: Rules,
        queue_cache: QueueCache,
        names: WorkerNameCache,
    ) -> None:
        self._asked = transitions
        self._now = now
        self._rules = rules
        self._queue_cache = queue_cache
        self._names = names
        self.outcomes: list[Outcome | None] = [None] * len(transitions)
        self.came_back: set[Head] = set()  # where jobs became claimable again
        self._left: set[int] = set()  # plain jobs that got a row of their own

    async def run(self, db: Db) -> None:
        """Write them, in rounds: a job moves once in each."""
        for places in self._rounds():
            left = [n for n in places if self.outcomes[n] is None]
            await self._run(db, left, repeated=False)

    async def again(self, db: Db) -> None:
        """After a lost answer: a fenced move that was written then is recognised by its lease."""
        for places in self._rounds():
            left = [n for n in places if self.outcomes[n] is None]
            await self._run(db, left, repeated=True)

    def _rounds(self) -> list[list[int]]:
        rounds: list[list[int]] = []
        seen: dict[int, int] = {}
        for n, asked in enumerate(self._asked):
            turn = seen.get(asked.seq, 0)
            seen[asked.seq] = turn + 1
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(n)
        return rounds

    async def _run(self, db: Db, places: list[int], *, repeated: bool) -> None:
        asked = self._asked
        starts, ends, rest = [], [], []
        for n in places:
            one = asked[n]
            if one.lease is None or one.version is not None:
                rest.append(n)
            elif one.move is Move.SUCCEED:
                ends.append(n)
            elif one.move is Move.START:
                starts.append(n)
            else:
                rest.append(n)
        if ends:
            await self._finish(db, ends)
            rest += [n for n in ends if self.outcomes[n] is None]
        if starts:
            await self._start(db, starts)
            rest += [n for n in starts if self.outcomes[n] is None]
        if rest:
            async with db.transaction():
                outcomes = await self._decide(db, sorted(rest), repeated)
            # Only now: a transaction that fails half-way has decided nothing.
            for n, outcome in outcomes.items():
                self.outcomes[n] = outcome

    async def _finish(self, db: Db, places: list[int]) -> None:
        # Every writer locks rows in the order of their numbers.
        places = sorted(places, key=lambda n: self._asked[n].seq)
        asked = [self._asked[n] for n in places]
        texts = await self._queue_cache.texts(db, ANY_NUMBER, self._now)
        rows = await db.fetch(
            texts["finish"],
            array(one.seq for one in asked),
            array(one.lease or 0 for one in asked),
            said([one.result for one in asked]),
            said([one.ran_for for one in asked]),
            self._now,
            self._holders(asked),
            _parts([one.result for one in asked]),
        )
        await self._tell(db, places, rows, State.DONE, Reason.SUCCEEDED)

    async def _start(self, db: Db, places: list[int]) -> None:
        places = sorted(places, key=lambda n: self._asked[n].seq)
        asked = [self._asked[n] for n in places]
        texts = await self._queue_cache.texts(db, len(places), self._now)
        rows = await db.fetch(
            texts["start"],
            array(one.seq for one in asked),
            array(one.lease or 0 for one in asked),
            said([one.ran_for for one in asked]),
            self._rules.watchdog_grace,
            self._now,
            self._holders(asked),
        )
        await self._tell(db, places, rows, State.RUNNING, Reason.STARTED)

    def _holders(self, asked: Sequence[Transition]) -> str | None:
        """The numbers of the workers that must hold the leases, for those that name one.

        A worker whose number is not known here is decided about by its name, under row locks.
        """
        if all(one.worker_id is None for one in asked):
            return None
        known = self._names.known
        return array(
            "NULL" if one.worker_id is None else known.get(one.worker_id, _NO_WORKER)
            for one in asked
        )

    async def _tell(
        self, db: Db, places: list[int], rows: Any, state: State, reason: Reason
    ) -> None:
        homes: dict[int, Home] = {}
        workers = await self._names.of(db, [row[4] for row in rows]) if rows else {}
        for n, before, job_id, queue, worker, ran_for in rows:
            home = homes.get(queue)
            if home is None:
                home = homes[queue] = await self._queue_cache.resolve(db, queue, self._now)
            if state is State.RUNNING:
                steps: tuple[Step, ...] = _ONLY_START
            else:
                steps = _WITH_START if before == State.ASSIGNED else _WITHOUT_START
            place = places[n - 1]
            self.outcomes[place] = Outcome(
                None,
                state,
                reason,
                str(job_id),
                home.name,
                self._asked[place].lease,
                workers.get(worker),
                ran_for,
                None,
                steps,
            )

    # -- under row locks -------------------------------------------------------------------

    async def _decide(self, db: Db, places: list[int], repeated: bool) -> dict[int, Outcome]:
        rows = await self._lock(db, {self._asked[n].seq: self._asked[n] for n in places})
        deleted = await self._deleted_queues(db, places, rows)
        writes = _Writes()
        outcomes: dict[int, Outcome] = {}
        workers = await self._names.of(db, [row.worker for row in rows.values()])
        for n in places:
            asked = self._asked[n]
            row = rows.get(asked.seq)
            if row is None:
                outcomes[n] = Outcome(Refusal.NO_SUCH_JOB)
                continue
            live = row.live
            if row.worker is not None:
                live.worker_id = workers[row.worker]
            home = await self._queue_cache.resolve(db, row.queue, self._now)
            before = live.state
            if asked.move is Move.RETRY_BY_HAND and row.queue in deleted:
                outcomes[n] = Outcome(Refusal.NO_QUEUE, before, live.reason, row.job_id, home.name)
                continue
            decision = decide(
                live,
                asked,
                now=row.now,
                rules=self._rules,
                policy=home.policy,
            )
            if isinstance(decision, Refusal):
                if row.seq in self._left and before is State.PENDING:
                    self.came_back.add(row.head)
                if repeated and await _was_written(db, asked, row):
                    outcomes[n] = Outcome(
                        None, before, live.reason, row.job_id, home.name, asked.lease
                    )
                    if before is State.PENDING:
                        self.came_back.add(row.head)
                else:
                    outcomes[n] = Outcome(decision, before, live.reason, row.job_id, home.name)
                continue
            if not row.locked:
                # The job became what the move applies to after it was looked for.
                raise asyncpg.SerializationError(f"job {asked.seq} moved meanwhile")
            if decision.lease is not None and live.lease is None:
                row.last_lease = decision.lease
            writes.add(row, before, decision, asked.error)
            worker = workers.get(row.worker) if row.worker is not None else None
            outcome = decision.outcome(live, row.job_id, home.name)
            outcome.worker_id = worker
            outcomes[n] = outcome
            if live.state is State.PENDING:
                self.came_back.add(row.head)
        await writes.write(db)
        return outcomes

    async def _lock(self, db: Db, asked: dict[int, Transition]) -> dict[int, _Row]:
        """Lock the rows of jobs; a plain job that the move may apply to gets one first.

        Locks are taken in one order by all: live rows and ends by number, ranges, held rows.
        """
        rows: dict[int, _Row] = {}
        missing = sorted(asked)

        async def look(name: str) -> None:
            nonlocal missing
            if missing:
                for row in await db.fetch(SQL[name], missing, self._now):
                    rows[row[0]] = _Row(row, locked=name != "lock_plain")
                missing = [seq for seq in missing if seq not in rows]

        for _ in range(_LOOKS):
            for name in ("lock_live", "lock_ended", "lock_done"):
                await look(name)
            if missing and await self._leave(db, [asked[seq] for seq in missing]):
                await look("lock_live")
            await look("lock_plain")
            if not missing:
                break
            # Between two statements a job may have come back. One that is in neither and has
            # no record either is not there.
            missing = [
                row[0]
                for row in await db.fetch(
                    "SELECT seq FROM job_record WHERE seq = ANY ($1::bigint[])", missing
                )
            ]
        return rows

    async def _leave(self, db: Db, asked: list[Transition]) -> bool:
        """Give plain jobs that these moves may apply to a row; return True if there were any."""
        ready = [one.seq for one in asked if _may_leave(one, State.PENDING)]
        held = [one for one in asked if _may_leave(one, State.ASSIGNED)]
        left: list[Any] = []
        if ready:
            texts = SQL if await self._queue_cache.layout(db, self._now) < RANGES else BATCH
            left += await db.fetch(texts["leave_ready"], ready)
            # Where all of a range had to leave, the other jobs can be claimed as rows.
            self.came_back.update(tuple(row[1:]) for row in left if row[0] not in ready)
        if held:
            left += await db.fetch(
                SQL["leave_held"], [one.seq for one in held], [one.lease for one in held]
            )
        self._left.update(row[0] for row in left)
        return bool(left)

    async def _deleted_queues(self, db: Db, places: list[int], rows: dict[int, _Row]) -> set[int]:
        """Queues that a retry by hand cannot go back to; the others cannot be deleted meanwhile."""
        wanted = {
            rows[seq].queue
            for n in places
            if self._asked[n].move is Move.RETRY_BY_HAND and (seq := self._asked[n].seq) in rows
        }
        if not wanted:
            return set()
        standing = await db.fetch(
            "SELECT id FROM queues WHERE id = ANY ($1::int[]) AND NOT deleted FOR KEY SHARE",
            list(wanted),
        )
        return wanted - {row[0] for row in standing}


async def _was_written(db: Db, asked: Transition, row: _Row) -> bool:
    """Tell whether this very move was written before its answer was lost."""
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


def _may_leave(asked: Transition, state: State) -> bool:
    """Return True if the move may apply to a plain job in this state (also its version)."""
    if asked.move in FENCED and asked.lease is None:
        return False
    return state in PATHS[asked.move] and asked.version in (None, int(state))


def _parts(results: Sequence[bytes | None]) -> str | None:
    """Divide the results of a batch into parts that fit into a row each; None: one part."""
    parts, size = [0] * len(results), 0
    for n, result in enumerate(results):
        grown = 24 + len(result or b"")
        part = parts[n - 1] if n else 0
        size += grown
        if size > _ROW and size > grown:
            part, size = part + 1, grown
        parts[n] = part
    return array(parts) if parts[-1] else None


def _ends(move: Move) -> set[Reason]:
    """Return the reasons by which an attempt, or the wait of a job, may end in this move."""
    ways = [*PATHS[move].values()]
    if move is Move.SUCCEED:  # of a job that is flagged for cancelling
        ways += PATHS[Move.ACKNOWLEDGE_CANCEL].values()
    return {reason for way in ways for state, reason in way if state is not State.RUNNING}


class _Row:
    """A job under decision."""

    __slots__ = (
        "before", "head", "job_id", "last_lease", "live", "locked", "now", "queue", "seq", "worker",
    )  # fmt: skip

    def __init__(self, row: Any, *, locked: bool = True) -> None:
        (seq, state, version, attempt, retry_count, max_retries, lease, worker, cancel, deaths,
         timeout, run_at, expires_at, started_at, due, queue, job_id, error, reason, last_lease,
         rank, kind, now) = row  # fmt: skip
        self.seq: int = seq
        self.locked = locked  # otherwise it serves for a refusal only
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
        """Return the number of its last worker: the decision keeps the worker or clears it."""
        return None if self.live.worker_id is None else self.worker


class _Writes:
    """Collects the changes of a batch of decisions, by statement."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._events: list[tuple[Any, ...]] = []
        self._depth: dict[int, list[float]] = {}
        self._now = 0.0

    def add(self, row: _Row, before: State, decision: Decision, detail: str) -> None:
        """Note one decision."""
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
        """Write it all."""
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


def columns(rows: Any, width: int) -> list[list[Any]]:
    """Rows as one list for each column, which is what ``unnest`` takes."""
    found: list[list[Any]] = [[] for _ in range(width)]
    for row in rows:
        for column, value in zip(found, row, strict=True):
            column.append(value)
    return found


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
    """An event: a row of ``insert_events``. ``worker`` is the number of the one it names."""
    _, version, before, state, reason, at, attempt, _, detail, _, _, started_at, due, _ = entry
    return (
        seq, version, attempt, worker, None if before is None else int(before), int(state),
        REASON_NUMBERS[reason], text(detail), started_at,
        due if before is not None else None,  # when a new job may start is in its record
        at,
    )  # fmt: skip
