"""Apply transitions to jobs in Redis.

A script makes plain transitions (start and success) by itself. ``core.decide`` decides all others
in Python. A script writes such a decision only if the job has not changed since it was read.
Otherwise it returns the job's present fields, and Python decides again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from jobqueue.core.decide import Live, QueuePolicy, move, news_of
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Assignment, Outcome, Refusal, Transition
from jobqueue.core.lifecycle import PATHS, Move, State
from jobqueue.core.retry import policy_of
from jobqueue.core.store import Change, Claim, Rules, Term, TermEnded
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.documents import (
    REASONS,
    STATES,
    live_fields,
    number,
    opaque,
    packed_claims,
    packed_event,
    packed_term,
    seed,
    split,
    text,
)
from jobqueue.stores.redis.runner import ScriptRunner

_PATIENCE = 5.0  # seconds of retries while other processes keep changing the jobs
_PLAIN = {Move.START: "start", Move.SUCCEED: "succeed"}


class _DecidedJob:
    """Holds a job whose transitions are decided in Python, and the changes to write."""

    def __init__(self, seq: int, row: Sequence[Any]) -> None:
        (_, now, job_id, settings, state, version, attempt, retry_count, max_retries, lease, worker,
         cancel, deaths, timeout, run_at, expires_at, started_at, queue, priority, error,
         reason) = row  # fmt: skip
        deleted, profile, base, most, jitter = settings
        self.now = float(now)
        self.id: str = job_id.decode()
        policy = policy_of(text(profile) or "", number(base), number(most), number(jitter))
        self.queue = QueuePolicy(queue.decode(), deleted is not None, policy)
        self.priority = int(priority)
        self.before = STATES[state]
        self.version: str = version.decode()
        self.cancelled: str = text(cancel) or ""
        self.live = live = Live(
            seq, self.before, int(version), int(attempt), int(retry_count), int(max_retries),
            int(lease) if lease else None, text(worker), cancel is not None, int(deaths or 0),
            number(timeout), number(run_at), number(expires_at), number(started_at), None,
        )  # fmt: skip
        live.error = text(error) or ""
        live.reason = REASONS[reason]
        self.holder = live.worker_id if lease else None
        self.changed = False
        self.needs_queue = False
        self.news = Change(0)
        self.events: list[tuple[Any, ...]] = []
        self.attempts: list[tuple[bool, float]] = []

    def decide(self, asked: Transition, rules: Rules) -> Outcome:
        live = self.live
        self.needs_queue = self.needs_queue or asked.move is Move.RETRY_BY_HAND
        outcome, decision, made = move(live, self.id, self.queue, asked, self.now, rules)
        if decision is None:
            return outcome
        self.changed = True
        self.events += map(packed_event, made)
        if decision.ran_for is not None:
            self.attempts.append((live.state is State.DONE, decision.ran_for))
        self.news |= news_of([asked], [outcome])
        return outcome

    def item(self) -> tuple[Any, ...]:
        """Return the changes in the form that ``write`` in ``scripts/jobs.lua`` reads."""
        live = self.live
        return (
            "write", live.seq, self.id, self.queue.name, self.version, self.cancelled,
            self.needs_queue, self.before.name, live.state.name, self.now,
            *split(live_fields(live)), self.events, live.due, self.priority,
            self.holder if live.lease is None else None, self.attempts,
            [change.value for change in self.news],
        )  # fmt: skip


class MoveBatch:
    """Applies transitions with one script call, or a few calls if Python must decide."""

    def __init__(
        self, runner: ScriptRunner, rules: Rules, moves: Sequence[Transition], term: Term | None
    ) -> None:
        self._runner = runner
        self._rules = rules
        self._moves = moves
        self._term = term
        self.outcomes: dict[int, Outcome] = {}
        self.assigned: list[Assignment] = []
        self.held_back: dict[str, float] = {}  # see ``Claimed``
        self.freed: set[str] = set()  # see ``Application``

    async def run(self, claims: Sequence[Claim]) -> list[Outcome]:
        # Transitions of one job happen in order. If Python decides one, it decides all of them.
        decided = {asked.seq for asked in self._moves if not _plain(asked)}
        items = [
            ("read", asked.seq) if asked.seq in decided else _item(asked) for asked in self._moves
        ]
        rows = await self._ask(items, () if decided else claims)
        left = self._take(range(len(self._moves)), rows)
        deadline = time.monotonic() + _PATIENCE
        clashes = 0
        while left or (decided and not clashes):
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{self._runner.location}: gave up a write after {_PATIENCE:g} s, because"
                    " other processes kept changing its jobs; try again"
                )
            if clashes:
                await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(clashes, 6)))
            left = await self._decide(left, claims if decided and not clashes else ())
            clashes += 1
        return [self.outcomes[n] for n in range(len(self._moves))]

    async def _ask(self, items: Sequence[Any], claims: Sequence[Claim]) -> Sequence[Any]:
        rules = self._rules
        said = await self._runner.write(
            "apply",
            (items, packed_claims(claims), rules.assignment_timeout, seed(), rules.watchdog_grace,
             packed_term(self._term)),
        )  # fmt: skip
        if said is None:
            raise TermEnded
        rows: Sequence[Any]
        rows, assigned, *limits = said
        self.assigned += map(documents.assignment, assigned)
        self.held_back |= documents.held_back(limits)
        self.freed |= documents.freed(limits)
        return rows

    def _take(self, places: Sequence[int], rows: Sequence[Any]) -> dict[int, _DecidedJob]:
        """Store the outcomes of finished transitions; return the jobs that need a decision."""
        found: dict[int, _DecidedJob] = {}
        for n, row in zip(places, rows, strict=True):
            asked = self._moves[n]
            if row[0] == b"made":
                self.outcomes[n] = _made(asked, row)
            elif row[0] == b"none":
                self.outcomes[n] = Outcome(Refusal.NO_SUCH_JOB)
            elif asked.seq not in found:
                found[asked.seq] = _DecidedJob(asked.seq, row)
        return found

    async def _decide(
        self, jobs: dict[int, _DecidedJob], claims: Sequence[Claim]
    ) -> dict[int, _DecidedJob]:
        """Decide and write the transitions of ``jobs``.

        Return the jobs that other processes changed meanwhile, with their present fields.
        """
        drafts: dict[int, Outcome] = {}
        for n, asked in enumerate(self._moves):
            if n not in self.outcomes and asked.seq in jobs:
                drafts[n] = jobs[asked.seq].decide(asked, self._rules)
        changed = [seq for seq, job in jobs.items() if job.changed]
        clashed: dict[int, Any] = {}
        if changed or claims:
            rows = await self._ask([jobs[seq].item() for seq in changed], claims)
            clashed = {
                seq: row for seq, row in zip(changed, rows, strict=True) if row[0] != b"written"
            }
        again = [n for n in drafts if self._moves[n].seq in clashed]
        self.outcomes |= {n: drafts[n] for n in drafts.keys() - set(again)}
        return self._take(again, [clashed[self._moves[n].seq] for n in again])


def _plain(asked: Transition) -> bool:
    return asked.move in _PLAIN and asked.version is None and asked.lease is not None


def _item(asked: Transition) -> tuple[Any, ...]:
    name = _PLAIN[asked.move]
    fence = asked.seq, str(asked.lease), asked.worker_id
    if asked.move is Move.START:
        return name, *fence, asked.ran_for
    result = None if asked.result is None else opaque(asked.result)
    return name, *fence, asked.ran_for, result, asked.error


def _made(asked: Transition, row: Sequence[Any]) -> Outcome:
    _, before, job_id, queue, worker, ran_for = row
    steps = PATHS[asked.move][STATES[before]]
    state, reason = steps[-1]
    return Outcome(
        None, state, reason, job_id.decode(), queue.decode(), asked.lease, worker.decode(),
        number(ran_for), None, steps,
    )  # fmt: skip
