"""Every transition but submit and claim.

Starts and successes, which are nearly all of them, are one statement for a batch. Everything else,
and what those statements did not match, is decided by ``core.decide`` under row locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobqueue.core.decide import Decision, Live, decide
from jobqueue.core.job import Outcome, Refusal, Transition
from jobqueue.core.lifecycle import FENCED, HELD, PATHS, TERMINAL, Move, Reason, State, Step
from jobqueue.core.store import Rules
from jobqueue.stores.postgres.board import Board, Home
from jobqueue.stores.postgres.heads import Head
from jobqueue.stores.postgres.statements import (
    REASON_NUMBERS,
    REASONS,
    SQL,
    array,
    said,
    text,
)
from jobqueue.stores.postgres.worker_names import WorkerNames
from jobqueue.stores.rows import STATES

_STARTED: Step = (State.RUNNING, Reason.STARTED)
_SUCCEEDED: Step = (State.DONE, Reason.SUCCEEDED)
_WITH_START = (_STARTED, _SUCCEEDED)
_WITHOUT_START = (_SUCCEEDED,)
_ONLY_START = (_STARTED,)
_NOBODY = -1  # no worker's number
_LOOKS = 5  # at a job that ends or comes back between two looks


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
        board: Board,
        names: WorkerNames,
    ) -> None:
        self._asked = transitions
        self._now = now
        self._rules = rules
        self._board = board
        self._names = names
        self.outcomes: list[Outcome | None] = [None] * len(transitions)
        self.came_back: set[Head] = set()  # where jobs became claimable again

    async def run(self, db: Any) -> None:
        """Write them, in rounds: a job moves once in each."""
        for places in self._rounds():
            left = [n for n in places if self.outcomes[n] is None]
            await self._run(db, left, repeated=False)

    async def again(self, db: Any) -> None:
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

    async def _run(self, db: Any, places: list[int], *, repeated: bool) -> None:
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

    async def _finish(self, db: Any, places: list[int]) -> None:
        # Rows are locked in the order of their numbers by everybody.
        places = sorted(places, key=lambda n: self._asked[n].seq)
        asked = [self._asked[n] for n in places]
        rows = await db.fetch(
            SQL["finish"],
            array(one.seq for one in asked),
            array(one.lease or 0 for one in asked),
            said([one.result for one in asked]),
            said([one.ran_for for one in asked]),
            self._now,
            self._holders(asked),
        )
        await self._tell(db, places, rows, State.DONE, Reason.SUCCEEDED)

    async def _start(self, db: Any, places: list[int]) -> None:
        places = sorted(places, key=lambda n: self._asked[n].seq)
        asked = [self._asked[n] for n in places]
        rows = await db.fetch(
            SQL["start"],
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
            "NULL" if one.worker_id is None else known.get(one.worker_id, _NOBODY) for one in asked
        )

    async def _tell(
        self, db: Any, places: list[int], rows: Any, state: State, reason: Reason
    ) -> None:
        homes: dict[int, Home] = {}
        workers = await self._names.of(db, [row[4] for row in rows]) if rows else {}
        for n, before, job_id, queue, worker, ran_for in rows:
            home = homes.get(queue)
            if home is None:
                home = homes[queue] = await self._board.resolve(db, queue)
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

    async def _decide(self, db: Any, places: list[int], repeated: bool) -> dict[int, Outcome]:
        rows = await self._lock(db, sorted({self._asked[n].seq for n in places}))
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
            home = await self._board.resolve(db, row.queue)
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
                if repeated and await _was_written(db, asked, row):
                    outcomes[n] = Outcome(
                        None, before, live.reason, row.job_id, home.name, asked.lease
                    )
                    if before is State.PENDING:
                        self.came_back.add(row.head)
                else:
                    outcomes[n] = Outcome(decision, before, live.reason, row.job_id, home.name)
                continue
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

    async def _lock(self, db: Any, seqs: list[int]) -> dict[int, _Row]:
        rows: dict[int, _Row] = {}
        missing = seqs
        for _ in range(_LOOKS):
            for name in ("lock_live", "lock_ended"):
                if missing:
                    for row in await db.fetch(SQL[name], missing, self._now):
                        rows[row[0]] = _Row(row)
                    missing = [seq for seq in missing if seq not in rows]
            if not missing:
                break
            # Between the two statements a job may have come back. One that is in neither and has
            # no record either is not there.
            missing = [
                row[0]
                for row in await db.fetch(
                    "SELECT seq FROM job_record WHERE seq = ANY ($1::bigint[])", missing
                )
            ]
        return rows

    async def _deleted_queues(self, db: Any, places: list[int], rows: dict[int, _Row]) -> set[int]:
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


async def _was_written(db: Any, asked: Transition, row: _Row) -> bool:
    """Whether it is this very move that was written before its answer was lost."""
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
        "SELECT 1 FROM job_event WHERE seq = $1 AND attempt = $2 AND reason = ANY ($3::smallint[])",
        live.seq, attempt, reasons,
    )  # fmt: skip
    return written is not None


def _ends(move: Move) -> set[Reason]:
    """Why an attempt, or the wait of a job that nobody holds, ends by this move."""
    ways = [*PATHS[move].values()]
    if move is Move.SUCCEED:  # of a job that is flagged for cancelling
        ways += PATHS[Move.ACKNOWLEDGE_CANCEL].values()
    return {reason for way in ways for state, reason in way if state is not State.RUNNING}


class _Row:
    """A job under decision."""

    __slots__ = ("before", "head", "job_id", "last_lease", "live", "now", "queue", "worker")

    def __init__(self, row: Any) -> None:
        (seq, state, version, attempt, retry_count, max_retries, lease, worker, cancel, deaths,
         timeout, run_at, expires_at, started_at, due, queue, job_id, error, reason, last_lease,
         rank, kind, now) = row  # fmt: skip
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
        """Who had it last: the decision keeps the worker or clears it."""
        return None if self.live.worker_id is None else self.worker


class _Writes:
    """What a batch of decisions changes, by statement."""

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
        version = live.version - len(decision.steps)
        worker = row.worker if decision.lease is not None else None
        here = int(before)
        for state, reason in decision.steps:
            version += 1
            words = None if reason is Reason.STARTED else text(detail)
            started_at = due = None
            if state is State.FAILED:
                started_at = live.started_at
                due = live.due if live.state is State.FAILED else None
            self._events.append(
                (live.seq, version, live.attempt, worker, here, int(state),
                 REASON_NUMBERS[reason], words, started_at, due)
            )  # fmt: skip
            here = int(state)

    async def write(self, db: Any) -> None:
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
            await db.execute(SQL["end"], *columns(map(_end, ended), 14), self._now)
        moved = [
            row
            for row in self._rows.values()
            if row.live.state not in TERMINAL
            and not (row.before in TERMINAL and row.live.state is State.PENDING)
        ]
        if moved:
            cells = columns(map(_live, moved), 18)
            await db.execute(SQL["update_live"], *cells[:17], self._now, cells[17])
        await db.execute(SQL["insert_events"], *columns(self._events, 10), self._now)
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


def _end(row: _Row) -> tuple[Any, ...]:
    live = row.live
    return (
        live.seq, row.queue, int(live.state), live.version, live.attempt, live.retry_count,
        row.worker_after(), row.last_lease, live.run_at, live.cancel_requested, live.started_at,
        live.result, text(live.error), REASON_NUMBERS[live.reason],
    )  # fmt: skip


def _live(row: _Row) -> tuple[Any, ...]:
    live = row.live
    held = live.state in HELD
    worker = row.worker_after()
    return (
        live.seq, int(live.state), 2 if live.state is State.PENDING else 0, live.version,
        live.retry_count, live.lease, row.last_lease, worker if held else None,
        None if held else worker, live.cancel_requested, live.deaths, live.run_at,
        live.expires_at, live.started_at, live.due if held else None,
        None if held else live.due, text(live.error), REASON_NUMBERS[live.reason],
    )  # fmt: skip
