"""Submit, claim, change and remove jobs in Redis, and find jobs that are due.

A batch is written in parts of limited size; one script call writes each part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from jobqueue.core.decide import full, overdue
from jobqueue.core.errors import JobQueueError, no_such_queue
from jobqueue.core.job import Assignment, Held, NewJob, Outcome, SubmitResult, Transition
from jobqueue.core.lifecycle import PATHS, Move, State
from jobqueue.core.store import (
    ANY_QUEUE,
    Application,
    Change,
    Claim,
    Claimed,
    DoneJobs,
    Overdue,
    Rules,
    Submission,
    Term,
    TermEnded,
)
from jobqueue.core.stream import unpublished
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.applying import MoveBatch
from jobqueue.stores.redis.documents import (
    STATES,
    in_parts,
    packed_claims,
    packed_job,
    packed_term,
    seed,
)
from jobqueue.stores.redis.runner import ScriptRunner

MOST_JOBS = 500  # of one script, which blocks Redis for some 10 ms
MOST_SLOTS = 500
MOST_MOVES = 500
_KEYS_PER_SWEEP = 1_000
_PRUNED_AT_ONCE = 500
_SORTED_AT_ONCE = 1_000
_SORTED_EVERY = 10.0  # while a server of an earlier version may still be running


class RedisJobs:
    """Implements ``core.dispatch.DispatchJobs``.

    If a batch has several parts, the claims are made with the last part.
    """

    def __init__(self, runner: ScriptRunner, rules: Rules, hear: Callable[[Change], None]) -> None:
        self._runner = runner
        self._rules = rules
        self._hear = hear

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        results: list[SubmitResult] = []
        superseded: list[Outcome] = []
        assigned: list[Assignment] = []
        held_back: dict[str, float] = {}
        for part in in_parts(jobs, MOST_JOBS, lambda job: len(job.spec.payload)):
            last = len(results) + len(part) == len(jobs)
            packed = [packed_job(job) for job in part]
            slots = packed_claims(claims) if last else []
            timeout = self._rules.assignment_timeout
            try:
                said, rows, *limits = await self._runner.write(
                    "submit", (packed, self._rules.key_ttl, slots, timeout, seed())
                )
            except JobQueueError as error:
                if not results:
                    raise
                # Earlier parts are written, so only the jobs of the other parts are refused.
                left = len(jobs) - len(results)
                results += [SubmitResult.refused(error) for _ in range(left)]
                break
            results += [_result(job, one) for job, one in zip(part, said, strict=True)]
            superseded += [
                _superseded(job, one[1])
                for job, one in zip(part, said, strict=True)
                if one[0] == b"accepted" and len(one) > 1
            ]
            assigned += map(documents.assignment, rows)
            held_back |= documents.held_back(limits)
        claimed = Claimed(assigned, held_back) if held_back else assigned
        return Submission(results, claimed, superseded)

    async def claim(
        self, claims: Sequence[Claim], *, term: Term | None = None, tell: bool = False
    ) -> list[Assignment]:
        assigned: list[Assignment] = []
        held_back: dict[str, float] = {}
        parts = _parts(claims)
        while parts:
            part = parts.pop(0)
            timeout = self._rules.assignment_timeout
            said = await self._runner.write(
                "claim", (packed_claims(part), timeout, seed(), packed_term(term), tell)
            )
            if said is None:
                raise TermEnded
            ended, rows, *limits = said
            assigned += map(documents.assignment, rows)
            held_back |= documents.held_back(limits)
            if ended is not None:  # the script met too many expired jobs and stopped early
                parts.insert(0, _rest(part, *ended))
        return Claimed(assigned, held_back) if held_back else assigned

    async def apply(
        self,
        transitions: Sequence[Transition],
        claims: Sequence[Claim] = (),
        *,
        term: Term | None = None,
    ) -> Application:
        outcomes: list[Outcome] = []
        assigned: list[Assignment] = []
        held_back: dict[str, float] = {}
        freed: set[str] = set()
        for part in in_parts(
            transitions, MOST_MOVES, lambda asked: len(asked.result or b"") + len(asked.error)
        ):
            batch = MoveBatch(self._runner, self._rules, part, term)
            last = len(outcomes) + len(part) == len(transitions)
            try:
                outcomes += await batch.run(claims if last else ())
            except BaseException:
                # A part may be written: callers that wait for its jobs must read them again.
                if outcomes or batch.outcomes:
                    self._hear(Change.WORK | Change.ENDED | Change.CONTROL)
                raise
            assigned += batch.assigned
            held_back |= batch.held_back
            freed |= batch.freed
        claimed = Claimed(assigned, held_back) if held_back else assigned
        return Application(outcomes, claimed, freed)

    async def request_cancel(self, seq: int) -> Held | None:
        row = await self._runner.write("request_cancel", (seq,))
        return None if row is None else documents.held(row)

    async def standing(
        self, job_ids: Sequence[str] | None, worker_id: str, incarnation: int | None = None
    ) -> list[Assignment]:
        parts: list[list[str] | None] = [None]
        if job_ids is not None:
            starts = range(0, len(job_ids), MOST_SLOTS)
            parts = [list(job_ids[start : start + MOST_SLOTS]) for start in starts]
        life = None if incarnation is None else str(incarnation)
        found: list[Assignment] = []
        for part in parts:
            rows = await self._runner.read("standing", (part, worker_id, life))
            found += map(documents.assignment, rows)
        return found

    async def repeat_assignments(self, older_than: float, limit: int, term: Term) -> int:
        repeated, left = 0, limit
        while left > 0:
            wanted = min(left, MOST_SLOTS)
            said = await self._runner.write_under(term, "repeat_assignments", older_than, wanted)
            repeated += int(said[0])
            if int(said[1]) < wanted:
                break
            left -= wanted
        return repeated


class RedisUpkeep:
    """Implements ``core.store.Upkeep``.

    With ``sorts``, each ``due`` may call ``sort_ready``, which an upgraded store needs.
    """

    def __init__(self, runner: ScriptRunner, *, sorts: bool) -> None:
        self._runner = runner
        self._sorts = sorts
        self._sorted_at = 0.0

    async def due(self, limit: int) -> Overdue:
        moved = 0
        if self._sorts and time.monotonic() >= self._sorted_at + _SORTED_EVERY:
            moved, _ = await self.sort_ready()
        now, promoted, rows, full, following = await self._runner.read(
            "due", (limit, _KEYS_PER_SWEEP)
        )
        found = [
            overdue(STATES[state], int(seq), int(version), int(lease) if lease else None)
            for state, seq, version, lease in rows
        ]
        next_at = float(now) if full else documents.number(following)
        if next_at is not None:
            next_at += self._runner.here() - float(now)  # the caller sleeps by this machine's clock
        return Overdue(found, promoted + moved, next_at)

    async def sort_ready(self) -> tuple[int, bool]:
        """Move some waiting jobs from an index of earlier versions to the index that claims read.

        Return the number of moved jobs, and True if more jobs must be moved.
        """
        moved, more = await self._runner.read("sort_ready", (_SORTED_AT_ONCE,))
        self._sorted_at = time.monotonic()
        return int(moved), bool(more)

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        wanted = None if version is None else str(version)
        said = await self._runner.write("delete_job", (job_id, wanted))
        if said is None:
            return None
        state, may_go = said
        if not may_go:
            raise unpublished(job_id)
        return STATES[state]

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        removed, passed_over = 0, 0
        here = self._runner.here()  # the script gets ages, because the clocks may differ
        after = where.completed_after
        ages = (here - completed_before, None if after == -math.inf else here - after)
        while True:
            wanted = min(limit - removed, _PRUNED_AT_ONCE)
            asked = (*ages, wanted, list(where.queues), where.others, passed_over)
            said = await self._runner.write_under(term, "prune_done", *asked)
            removed += int(said[0])
            passed_over += int(said[1])
            if int(said[0]) + int(said[1]) < wanted or removed >= limit:
                return removed


def _result(job: NewJob, said: Sequence[Any]) -> SubmitResult:
    word: bytes = said[0]
    spec = job.spec
    if word == b"accepted":
        return SubmitResult.accepted(job.id)
    if word == b"duplicate":
        return SubmitResult.duplicate(said[1].decode())
    if word == b"conflict":
        return SubmitResult.conflict(said[1].decode(), spec.key or "")
    if word == b"not unique":
        assert spec.unique is not None
        return SubmitResult.not_unique(spec.unique, said[1].decode())
    if word == b"no queue":
        return SubmitResult.refused(no_such_queue(spec.queue))
    return full(spec.queue, int(said[1]))


def _superseded(job: NewJob, said: Sequence[Any]) -> Outcome:
    """Return the outcome of the waiting job whose place a new job has taken."""
    job_id, before, worker = said
    steps = PATHS[Move.SUPERSEDE][STATES[before]]
    state, reason = steps[-1]
    return Outcome(
        None, state, reason, job_id.decode(), job.spec.queue,
        worker_id=None if worker is None else worker.decode(), steps=steps,
    )  # fmt: skip


def _rest(part: Sequence[Claim], number: int, workers: Sequence[bytes]) -> list[Claim]:
    """Return the claims of ``part`` that a script did not finish.

    ``number`` is the place of the first unfinished claim, counted from 1. ``workers`` has the
    worker of each slot that this claim did not fill.
    """
    begun, *others = part[number - 1 :]
    slots = [worker.decode() for worker in workers]
    return [Claim(begun.queues, slots, begun.without, begun.types), *others]


def _parts(claims: Sequence[Claim]) -> list[list[Claim]]:
    parts: list[list[Claim]] = [[]]
    room = MOST_SLOTS
    for claim in claims:
        slots = list(claim.slots)
        while slots:
            if not room:
                parts.append([])
                room = MOST_SLOTS
            now, slots = slots[:room], slots[room:]
            parts[-1].append(Claim(claim.queues, now, claim.without, claim.types))
            room -= len(now)
    return [part for part in parts if part]
