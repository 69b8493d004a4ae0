"""Applies every transition except submit and claim.

One statement writes many starts, or many successes: those of jobs in held rows, or those of live
rows. ``deciding.py`` decides all other transitions under row locks. It also decides the starts and
successes that no statement could write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobqueue.core.job import Outcome, Transition
from jobqueue.core.lifecycle import Move, Reason, State, Step
from jobqueue.core.store import Rules
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.deciding import Deciding
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.leases import WINDOW, base_of, bits, numbers_in
from jobqueue.stores.postgres.queue_cache import ANY_NUMBER, Home, QueueCache, WorkerNameCache
from jobqueue.stores.postgres.statements import BATCH, RANGES, SQL, array, columns, said

_STARTED: Step = (State.RUNNING, Reason.STARTED)
_SUCCEEDED: Step = (State.DONE, Reason.SUCCEEDED)
_WITH_START: tuple[Step, ...] = (_STARTED, _SUCCEEDED)
_WITHOUT_START: tuple[Step, ...] = (_SUCCEEDED,)
_ONLY_START: tuple[Step, ...] = (_STARTED,)
_NO_WORKER = -1  # no worker has this number
# Seconds between tries to lock a row that another transaction has locked.
_PAUSES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.1)
_SINGLE_ROUNDS = 2  # rounds with one transition of each job: a worker may report a start and an end
_ROW = 6_000  # bytes of results in one row, beside 24 for each job: such a row fits into its page


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
        self._deciding = Deciding(now, rules, queue_cache, names, holding)
        self.came_back = self._deciding.came_back  # where jobs became claimable again
        # Places of moves that were written, even if the call then failed to read ids or names.
        self._written: set[int] = set()

    async def run(self, db: Db) -> None:
        """Write the transitions in a few rounds (see ``_rounds``)."""
        await self._all(db, repeated=False)

    async def again(self, db: Db) -> None:
        """After a lost answer, write the transitions that have no outcome yet.

        A refused transition counts as applied if it was written before the answer was lost.
        """
        await self._all(db, repeated=True)

    async def _all(self, db: Db, *, repeated: bool) -> None:
        for number, places in enumerate(self._rounds()):
            left = [n for n in places if self.outcomes[n] is None]
            if number < _SINGLE_ROUNDS:
                left = await self._run_sets(db, left)
            await self._run_decided(db, left, repeated=repeated)

    def _rounds(self) -> list[list[int]]:
        """Divide the transitions: the first of each job, the second of each job, all others.

        A statement moves a job once, so the first rounds have one transition of each job. The last
        round may have many of one job, which ``core.decide`` decides one after the other. A caller
        chooses how often it names a job, so the number of rounds has a limit.
        """
        rounds: list[list[int]] = []
        seen: dict[int, int] = {}
        for n, asked in enumerate(self._asked):
            turn = seen.get(asked.seq, 0)
            seen[asked.seq] = turn + 1
            turn = min(turn, _SINGLE_ROUNDS)
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(n)
        return rounds

    async def _run_sets(self, db: Db, places: list[int]) -> list[int]:
        """Write starts and successes, each as a set. Return the places of all that is not written.

        The transitions have different jobs.
        """
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
            if left := [n for n in starts if self.outcomes[n] is None]:
                texts = await self._queue_cache.texts(db, len(left), self._now)
                await self._start(db, texts["start"], left)
            rest += [n for n in starts if self.outcomes[n] is None]
        return rest

    async def _run_decided(self, db: Db, places: list[int], *, repeated: bool) -> None:
        pauses = iter(_PAUSES)
        rest = sorted(places)
        while rest:
            moves = [self._asked[n] for n in rest]
            written = {place for place, n in enumerate(rest) if n in self._written}
            async with db.transaction():
                outcomes = await self._deciding.decide(db, moves, written, repeated=repeated)
            locked = [n for n, one in zip(rest, outcomes, strict=True) if one.is_locked]
            pause = next(pauses, None) if locked else None
            # Set the outcomes after the commit: a transaction that fails has decided nothing.
            for n, outcome in zip(rest, outcomes, strict=True):
                if pause is None or not outcome.is_locked:
                    self.outcomes[n] = outcome
            if pause is None:
                return
            # Another server's write ends soon. A user's transaction may stay open: a job that is
            # still locked after the last try is refused.
            rest = locked
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
        order = sorted(bases, key=lambda n: (bases[n], self._asked[n].seq))
        # A statement must not change a row twice. A row has one window and one worker, so of the
        # parts for a row at most one applies, unless a part is for any worker.
        for any_worker in (False, True):
            left = [n for n in order if (by[n] is None) is any_worker]
            while left:
                parts: dict[tuple[int, int, int | None], _HeldPart] = {}
                for n in left:
                    base, lo = bases[n], self._asked[n].seq // WINDOW * WINDOW
                    part = parts.setdefault((base, lo, by[n]), _HeldPart(base, lo, by[n], []))
                    part.places.append(n)
                left = await self._finish_parts(db, list(parts.values()))

    async def _finish_parts(self, db: Db, parts: list[_HeldPart]) -> list[int]:
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
                self._applied(
                    n, ids[one.seq], home, workers.get(worker), one.ran_for or 0.0, _WITH_START
                )
            self._holding.left(part.base, [asked[n].seq for n in part.places], all=over)
        return again

    async def _ids(self, db: Db, parts: list[_HeldPart]) -> dict[int, str]:
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
        places = list(bases)
        await self._start(db, BATCH["start_held"], places)
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
        await self._tell(db, places, rows)

    async def _start(self, db: Db, text: str, places: list[int]) -> None:
        places = sorted(places, key=lambda n: self._asked[n].seq)
        asked = [self._asked[n] for n in places]
        rows = await db.fetch(
            text,
            array(one.seq for one in asked),
            array(one.lease or 0 for one in asked),
            said([one.ran_for for one in asked]),
            self._rules.watchdog_grace,
            self._now,
            self._holders(asked),
        )
        await self._tell(db, places, rows)

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

    async def _tell(self, db: Db, places: list[int], rows: Any) -> None:
        """Record the outcomes of the moves that one statement wrote; ``rows`` is its answer."""
        place_of = {self._asked[n].seq: n for n in places}
        self._written.update(place_of[row[0]] for row in rows)
        workers = await self._names.of(db, [row[4] for row in rows]) if rows else {}
        for seq, before, job_id, queue, worker, ran_for in rows:
            n = place_of[seq]
            if self._asked[n].move is Move.START:
                steps = _ONLY_START
            else:
                steps = _WITH_START if before == State.ASSIGNED else _WITHOUT_START
            home = await self._queue_cache.resolve(db, queue, self._now)
            self._applied(n, str(job_id), home, workers.get(worker), ran_for, steps)

    def _applied(
        self,
        n: int,
        job_id: str,
        home: Home,
        worker: str | None,
        ran_for: float | None,
        steps: tuple[Step, ...],
    ) -> None:
        lease = self._asked[n].lease
        self.outcomes[n] = Outcome(
            None, *steps[-1], job_id, home.name, lease, worker, ran_for, None, steps
        )


@dataclass(slots=True)
class _HeldPart:
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
