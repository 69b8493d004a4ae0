"""Applies every transition except submit and claim.

One statement writes many starts, or many successes. ``core.decide`` decides all other transitions
under row locks. It also decides the starts and successes that no statement could write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from jobqueue.core.decide import Decision, Entry, Live, decide, events_of
from jobqueue.core.job import Outcome, Refusal, Transition
from jobqueue.core.lifecycle import FENCED, HELD, PATHS, TERMINAL, Move, Reason, State, Step
from jobqueue.core.store import Rules
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.heads import Head
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.leases import WINDOW, base_of, bits, numbers_in
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
# Seconds between tries to lock a row that another transaction has locked.
_PAUSES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.1)
LIVE, END, EVENT = 20, 15, 11  # columns of rows


class Applying:
    """Applies one batch of transitions.

    The parts of a batch are committed one after the other. If a later part fails, the outcomes of
    the earlier parts stay, and a retry skips their transitions.
    """

    def __init__(
        self,
        transitions: Sequence[Transition],
        now: float | None,
        rules: Rules,
        queue_cache: QueueCache,
        names: WorkerNameCache,
        holding: Holding,
    ) -> None:
        self._asked = transitions
        self._holding = holding
        self._now = now
        self._rules = rules
        self._queue_cache = queue_cache
        self._names = names
        self.outcomes: list[Outcome | None] = [None] * len(transitions)
        self.came_back: set[Head] = set()  # where jobs became claimable again
        self._left: set[int] = set()  # plain jobs that got a row of their own
        # Places of moves that were written, also if the call then failed when it read ids or names.
        self._written: set[int] = set()

    async def run(self, db: Db) -> None:
        """Write the transitions in rounds. A round has at most one transition of each job."""
        for places in self._rounds():
            left = [n for n in places if self.outcomes[n] is None]
            await self._run(db, left, repeated=False)

    async def again(self, db: Db) -> None:
        """After a lost answer, write the transitions that have no outcome yet.

        A refused transition counts as applied if it was written before the answer was lost.
        """
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
            await self._finish_held(db, ends)
            await self._finish(db, [n for n in ends if self.outcomes[n] is None])
            rest += [n for n in ends if self.outcomes[n] is None]
        if starts:
            await self._start_held(db, starts)
            await self._start(db, [n for n in starts if self.outcomes[n] is None])
            rest += [n for n in starts if self.outcomes[n] is None]
        pauses = iter(_PAUSES)
        while rest:
            async with db.transaction():
                outcomes = await self._decide(db, sorted(rest), repeated)
            rest = [n for n, one in outcomes.items() if one.refusal is Refusal.LOCKED]
            pause = next(pauses, None) if rest else None
            # Only now: a transaction that fails half-way has decided nothing.
            for n, outcome in outcomes.items():
                if pause is None or outcome.refusal is not Refusal.LOCKED:
                    self.outcomes[n] = outcome
            if pause is None:
                return
            # Another server's write ends soon. A user's transaction may not: its jobs wait for the
            # next report, sweep or call.
            await asyncio.sleep(pause)

    async def _held(self, db: Db, places: list[int]) -> dict[int, int]:
        """Return the base of each lease that may belong to a held row, by the place of the move.

        Jobs are left out that have already left their held row, as far as this process knows.
        """
        if await self._queue_cache.layout(db, self._now) < RANGES:
            return {}
        found: dict[int, int] = {}
        for n in places:
            seq = self._asked[n].seq
            base = base_of(seq, self._asked[n].lease)
            if base is not None:
                ids = self._holding.ids(base)
                if ids is None or seq in ids:
                    found[n] = base
        return found

    async def _finish_held(self, db: Db, places: list[int]) -> None:
        """Write the successes of jobs in held rows, as one part for each row.

        The statement refuses a part if one of its jobs has left the row. It then returns the jobs
        that are still in the row, and the successes of these jobs are sent again.
        """
        bases = await self._held(db, places)
        by: dict[int, int | None] = {}
        for n in bases:
            name = self._asked[n].worker_id
            by[n] = None if name is None else self._names.known.get(name, _NO_WORKER)
        left = sorted(bases, key=lambda n: (bases[n], self._asked[n].seq))
        while left:
            parts: dict[int, _Part] = {}
            later: list[int] = []
            for n in left:
                base, lo = bases[n], self._asked[n].seq // WINDOW * WINDOW
                part = parts.get(base)
                if part is None:
                    parts[base] = _Part(base, lo, by[n], [n])
                elif (part.lo, part.by) == (lo, by[n]):
                    part.places.append(n)
                else:
                    later.append(n)  # a statement changes a row once
            left = later + await self._finish_parts(db, list(parts.values()))

    async def _finish_parts(self, db: Db, parts: list[_Part]) -> list[int]:
        """Write parts and record their outcomes. Return the places of the moves to send again."""
        asked = self._asked
        ids = await self._ids(db, parts)
        for part in parts:  # a job without an id has been deleted
            part.places = [n for n in part.places if asked[n].seq in ids]
        parts = [part for part in parts if part.places]
        if not parts:
            return []
        cuts: list[tuple[int, int]] = []
        places: list[int] = []
        first: list[int] = []
        last: list[int] = []
        for part in parts:
            start = len(places)
            places += part.places
            first.append(len(cuts) + 1)
            slices = _slices([asked[n].result for n in part.places])
            cuts += [(start + a, start + b) for a, b in slices]
            last.append(len(cuts))
        rows = await db.fetch(
            SQL["finish_held"],
            [part.base for part in parts],
            [part.lo for part in parts],
            [bits(asked[n].seq for n in part.places) for part in parts],
            [part.by for part in parts],
            [len(part.places) for part in parts],
            [sum(asked[n].ran_for or 0.0 for n in part.places) for part in parts],
            first,
            last,
            *columns(cuts, 2),
            [asked[n].seq % WINDOW for n in places],
            [asked[n].ran_for or 0.0 for n in places],
            [asked[n].result for n in places],
            self._now,
        )
        for number, _, _, still_open, _ in rows:
            if still_open is None:
                self._written.update(parts[number - 1].places)
        again: list[int] = []
        workers = await self._names.of(db, [row[2] for row in rows]) if rows else {}
        for number, queue, worker, still_open, over in rows:
            part = parts[number - 1]
            if still_open is not None:
                there = numbers_in(still_open, [asked[n].seq for n in part.places])
                again += [n for n in part.places if asked[n].seq in there]
                continue
            home = await self._queue_cache.resolve(db, queue, self._now)
            for n in part.places:
                one = asked[n]
                self.outcomes[n] = Outcome(
                    None,
                    State.DONE,
                    Reason.SUCCEEDED,
                    ids[one.seq],
                    home.name,
                    one.lease,
                    workers.get(worker),
                    one.ran_for or 0.0,
                    None,
                    _WITH_START,
                )
            self._holding.left(part.base, [asked[n].seq for n in part.places], all=over)
        return again

    async def _ids(self, db: Db, parts: list[_Part]) -> dict[int, str]:
        """Return the ids of the jobs in parts, by number. Deleted jobs are missing.

        The ids are copied, because other calls remove them while this one waits for an answer.
        """
        ids: dict[int, str] = {}
        unknown: list[int] = []
        for part in parts:
            known = self._holding.ids(part.base) or {}
            for n in part.places:
                seq = self._asked[n].seq
                if seq in known:
                    ids[seq] = known[seq]
                else:
                    unknown.append(seq)
        if unknown:
            found = await db.fetch(SQL["ids"], unknown)
            ids |= {seq: str(job_id) for seq, job_id in found}
        return ids

    async def _start_held(self, db: Db, places: list[int]) -> None:
        """Write the starts of jobs in held rows. Each of these jobs gets a live row."""
        bases = await self._held(db, places)
        if not bases:
            return
        places = sorted(bases, key=lambda n: self._asked[n].seq)
        asked = [self._asked[n] for n in places]
        rows = await db.fetch(
            BATCH["start_held"],
            [one.seq for one in asked],
            [one.lease for one in asked],
            [one.ran_for for one in asked],
            self._rules.watchdog_grace,
            self._now,
            self._holders(asked),
        )
        place = {one.seq: n for n, one in enumerate(asked, 1)}
        rows = [(place[seq], *row) for seq, *row in rows]
        await self._tell(db, places, rows, State.RUNNING, Reason.STARTED)
        for n in places:
            if self.outcomes[n] is not None:
                self._holding.left(bases[n], [self._asked[n].seq])

    async def _finish(self, db: Db, places: list[int]) -> None:
        if not places:
            return
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
        if not places:
            return
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
        """Return an array with the number of the worker that must hold each lease.

        The number is NULL where a move names no worker. It is -1, which matches no lease, where
        this process does not know the worker's number. Such moves are decided under row locks.
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
        self._written.update(places[row[0] - 1] for row in rows)
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
            if row.busy:
                outcomes[n] = Outcome(Refusal.LOCKED, before, live.reason, row.job_id, home.name)
                continue
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
                if n in self._written or (repeated and await _was_written(db, asked, row)):
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
        """Lock the rows of jobs. A plain job gets a live row first, if its move may apply to it.

        To avoid deadlocks, every transaction locks in one order: live rows and ends by number, then
        ranges, then held rows.
        """
        rows: dict[int, _Row] = {}
        missing = sorted(asked)

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
            if missing and await self._leave(db, [asked[seq] for seq in missing]):
                await look("lock_live")
            await look("lock_plain")
            await look("look_live")
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
        """Give live rows to the plain jobs that these moves may apply to. Return True if any got
        one.
        """
        ready = [one.seq for one in asked if _may_leave(one, State.PENDING)]
        held = [one for one in asked if _may_leave(one, State.ASSIGNED)]
        left: list[Any] = []
        if ready:
            texts = SQL if await self._queue_cache.layout(db, self._now) < RANGES else BATCH
            left += await db.fetch(texts["leave_ready"], ready)
            # Where all of a range had to leave, the other jobs can be claimed as rows.
            wanted = set(ready)
            self.came_back.update(tuple(row[1:]) for row in left if row[0] not in wanted)
        if held:
            left += await db.fetch(
                SQL["leave_held"], [one.seq for one in held], [one.lease for one in held]
            )
            for one in held:
                if (base := base_of(one.seq, one.lease)) is not None:
                    self._holding.left(base, [one.seq])
        self._left.update(row[0] for row in left)
        return bool(left)

    async def _deleted_queues(self, db: Db, places: list[int], rows: dict[int, _Row]) -> set[int]:
        """Of the queues of jobs to retry by hand, return the deleted ones and lock the others."""
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


def _may_leave(asked: Transition, state: State) -> bool:
    """Return True if the move may apply to a plain job in this state."""
    # The version of a plain job is the number of its state.
    if asked.move in FENCED and asked.lease is None:
        return False
    return state in PATHS[asked.move] and asked.version in (None, int(state))


@dataclass(slots=True)
class _Part:
    base: int
    lo: int  # the first number of their window
    by: int | None  # the number of the worker that must hold them
    places: list[int]


def _slices(results: Sequence[bytes | None]) -> list[tuple[int, int]]:
    """Divide results into rows of a page each. Return each row's first and last place, from 1."""
    found: list[tuple[int, int]] = []
    first, size = 1, 0
    for n, result in enumerate(results, 1):
        grown = 24 + len(result or b"")
        size += grown
        if size > _ROW and size > grown:
            found.append((first, n - 1))
            first, size = n, grown
    return [*found, (first, len(results))]


def _parts(results: Sequence[bytes | None]) -> str | None:
    """Return an array with the row number of each result; None if all fit into one row."""
    slices = _slices(results)
    rows = (str(n) for n, (a, b) in enumerate(slices) for _ in range(a, b + 1))
    return array(rows) if len(slices) > 1 else None


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
        self.locked = locked  # otherwise it serves for a refusal only
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


def columns(rows: Any, width: int) -> list[list[Any]]:
    """Return rows as one list for each column, in the form that ``unnest`` takes."""
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
    """Return a row of ``insert_events``. ``worker`` is the number of the worker that the event
    names.
    """
    _, version, before, state, reason, at, attempt, _, detail, _, _, started_at, due, _ = entry
    return (
        seq, version, attempt, worker, None if before is None else int(before), int(state),
        REASON_NUMBERS[reason], text(detail), started_at,
        due if before is not None else None,  # when a new job may start is in its record
        at,
    )  # fmt: skip
