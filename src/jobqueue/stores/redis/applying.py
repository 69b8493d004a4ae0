"""Moves of jobs. The plain start and success are one script; the rest ``core.decide`` decides.

What is decided in Python is written by a script only if the job is still what was decided upon;
otherwise it is read and decided again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from jobqueue.core.decide import Decision, Live, decide
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Assignment, Outcome, Refusal, Transition
from jobqueue.core.lifecycle import PATHS, TERMINAL, Move, Reason, State
from jobqueue.core.retry import policy_of
from jobqueue.core.store import Application, Change, Claim, Rules, Term, TermEnded
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.claiming import claims_of, seed
from jobqueue.stores.redis.documents import REASONS, STATES, number, text
from jobqueue.stores.redis.leadership import term_of
from jobqueue.stores.redis.outbox import more_of
from jobqueue.stores.redis.runner import Runner, opaque

MOST_MOVES = 500  # of one script
MOST_BYTES = 8 * 1024 * 1024
_PATIENCE = 5.0  # with jobs that others keep changing
_PLAIN = {Move.START: "start", Move.SUCCEED: "succeed"}

# Fields that a move may change, and how they are read from ``Live``. What is None is removed.
_CHANGING = (
    "retry_count",
    "lease",
    "assigned_worker",
    "cancel_requested",
    "worker_deaths",
    "run_at",
    "expires_at",
    "started_at",
    "completed_at",
    "next_retry_at",
    "error",
)


class _Row:
    """A job under decision, and what became of it."""

    __slots__ = (
        "attempts",
        "before",
        "cancelled",
        "changed",
        "events",
        "holder",
        "id",
        "live",
        "needs_queue",
        "now",
        "policy",
        "priority",
        "queue",
        "queue_deleted",
        "taken_away",
        "version",
    )

    def __init__(self, seq: int, row: Sequence[Any]) -> None:
        (_, now, job_id, home, state, version, attempt, retry_count, max_retries, lease, worker,
         cancel, deaths, timeout, run_at, expires_at, started_at, queue, priority, error,
         reason) = row  # fmt: skip
        deleted, profile, base, most, jitter = home
        self.now = float(now)
        self.id: str = job_id.decode()
        self.policy = policy_of(text(profile) or "", number(base), number(most), number(jitter))
        self.queue_deleted = deleted is not None
        self.queue: str = queue.decode()
        self.priority = int(priority)
        self.before = STATES[state]
        self.version: str = version.decode()
        self.cancelled: str = text(cancel) or ""
        self.live = live = Live(
            seq,
            self.before,
            int(version),
            int(attempt),
            int(retry_count),
            int(max_retries),
            int(lease) if lease else None,
            text(worker),
            cancel is not None,
            int(deaths or 0),
            number(timeout),
            number(run_at),
            number(expires_at),
            number(started_at),
            None,
        )
        live.error = text(error) or ""
        live.reason = REASONS[reason]
        self.holder = live.worker_id if lease else None
        self.changed = False
        self.needs_queue = False
        self.taken_away = False
        self.events: list[tuple[int, str, str, str, str | None, str, str]] = []
        self.attempts: list[tuple[bool, float]] = []

    def decide(self, asked: Transition, rules: Rules) -> Outcome:
        live, before = self.live, self.live.state
        if asked.move is Move.RETRY_BY_HAND:
            self.needs_queue = True
            if self.queue_deleted:
                return Outcome(Refusal.NO_QUEUE, before, live.reason, self.id, self.queue)
        decision = decide(live, asked, now=self.now, rules=rules, policy=self.policy)
        if isinstance(decision, Refusal):
            return Outcome(decision, before, live.reason, self.id, self.queue)
        self.changed = True
        self._record(before, decision, asked.error)
        if decision.ran_for is not None:
            self.attempts.append((live.state is State.DONE, decision.ran_for))
        if decision.lease is not None and asked.by_others:
            self.taken_away = True  # news to the worker that holds it
        return decision.outcome(live, self.id, self.queue)

    def _record(self, before: State, decision: Decision, detail: str) -> None:
        version = self.live.version - len(decision.steps)
        worker = decision.worker_id if decision.lease is not None else None
        for state, reason in decision.steps:
            version += 1
            said = "" if reason is Reason.STARTED else detail
            more = more_of(state, self.live)
            self.events.append((version, before.name, state.name, reason.value, worker, said, more))
            before = state

    def item(self) -> tuple[Any, ...]:
        """What ``scripts/apply.lua`` writes."""
        live = self.live
        values = (
            live.retry_count,
            None if live.lease is None else str(live.lease),
            live.worker_id,
            "1" if live.cancel_requested else None,
            live.deaths or None,
            live.run_at,
            None if live.state in TERMINAL else live.expires_at,
            live.started_at,
            live.completed_at,
            live.due if live.state is State.FAILED else None,
            live.error or None,
        )
        fields: list[Any] = [
            "status", live.state.name, "version", live.version, "reason", live.reason.value
        ]  # fmt: skip
        missing: list[str] = []
        for field, value in zip(_CHANGING, values, strict=True):
            if value is None:
                missing.append(field)
            else:
                fields += (field, value)
        if live.state is State.DONE and live.result is not None:
            fields += ("result", opaque(live.result))
        else:
            missing.append("result")
        return (
            "write",
            self.id,
            live.seq,
            self.queue,
            self.version,
            self.cancelled,
            self.needs_queue,
            self.before.name,
            live.state.name,
            self.now,
            live.attempt,
            fields,
            missing,
            self.events,
            live.due,
            self.priority,
            self.holder if live.lease is None else None,
            self.attempts,
            self.taken_away,
        )


class Applying:
    """Makes moves."""

    def __init__(self, runner: Runner, rules: Rules, hear: Callable[[Change], None]) -> None:
        self._runner = runner
        self._rules = rules
        self._hear = hear

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim], term: Term | None
    ) -> Application:
        """See ``RedisStore.apply``. Claims are filled with the last part."""
        outcomes: list[Outcome] = []
        assigned: list[Assignment] = []
        parts = _parts(transitions)
        for n, part in enumerate(parts):
            batch = _Batch(self._runner, self._rules, part, term)
            last = n == len(parts) - 1
            try:
                outcomes += await batch.run(claims if last else ())
            except BaseException:
                # Part of it may be written: whoever waits for it must look.
                if outcomes or batch.outcomes:
                    self._hear(Change.WORK | Change.ENDED | Change.CONTROL)
                raise
            assigned += batch.assigned
        return Application(outcomes, assigned)


class _Batch:
    """Moves of one script, or a few."""

    def __init__(
        self, runner: Runner, rules: Rules, moves: Sequence[Transition], term: Term | None
    ) -> None:
        self._runner = runner
        self._rules = rules
        self._moves = moves
        self._term = term
        self.outcomes: dict[int, Outcome] = {}
        self.assigned: list[Assignment] = []

    async def run(self, claims: Sequence[Claim]) -> list[Outcome]:
        # Whatever else happens to a job in this batch, it happens in order.
        decided = {asked.seq for asked in self._moves if not _plain(asked)}
        items = [
            ("read", asked.seq) if asked.seq in decided else _item(asked) for asked in self._moves
        ]
        left = self._take(await self._ask(items, () if decided else claims))
        deadline = time.monotonic() + _PATIENCE
        clashes = 0
        while left or (decided and not clashes):
            if time.monotonic() > deadline:
                raise Unavailable("Redis: others keep changing the jobs that were to be moved")
            if clashes:
                await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(clashes, 6)))
            left = await self._decide(left, claims if decided and not clashes else ())
            clashes += 1
        return [self.outcomes[n] for n in range(len(self._moves))]

    async def _ask(self, items: Sequence[Any], claims: Sequence[Claim]) -> Sequence[Any]:
        said = await self._runner.write(
            "apply",
            (
                items,
                claims_of(claims),
                self._rules.assignment_timeout,
                seed(),
                self._rules.watchdog_grace,
                term_of(self._term),
            ),
        )
        if said is None:
            raise TermEnded
        rows: Sequence[Any] = said[0]
        self.assigned += [documents.assignment(row) for row in said[1]]
        return rows

    def _take(self, rows: Sequence[Any]) -> dict[int, _Row]:
        """What was made at once is an outcome; returns what has to be decided, by job."""
        found: dict[int, _Row] = {}
        for n, (asked, row) in enumerate(zip(self._moves, rows, strict=True)):
            if row[0] == b"made":
                self.outcomes[n] = _made(asked, row)
            elif row[0] == b"none":
                self.outcomes[n] = Outcome(Refusal.NO_SUCH_JOB)
            elif asked.seq not in found:
                found[asked.seq] = _Row(asked.seq, row)
        return found

    async def _decide(self, rows: dict[int, _Row], claims: Sequence[Claim]) -> dict[int, _Row]:
        """Decide and write; returns fresh rows of jobs that had changed meanwhile."""
        open_moves: dict[int, list[int]] = {seq: [] for seq in rows}
        drafts: dict[int, Outcome] = {}
        for n, asked in enumerate(self._moves):
            if n not in self.outcomes and asked.seq in rows:
                open_moves[asked.seq].append(n)
                drafts[n] = rows[asked.seq].decide(asked, self._rules)
        changed = [seq for seq, row in rows.items() if row.changed]
        clashes: list[int] = []
        if changed or claims:
            said = await self._ask([rows[seq].item() for seq in changed], claims)
            clashes = [seq for seq, one in zip(changed, said, strict=True) if one[0] == b"changed"]
        for seq in rows.keys() - set(clashes):
            for n in open_moves[seq]:
                self.outcomes[n] = drafts[n]
        if not clashes:
            return {}
        said = await self._ask([("read", seq) for seq in clashes], ())
        fresh: dict[int, _Row] = {}
        for seq, row in zip(clashes, said, strict=True):
            if row[0] == b"none":
                for n in open_moves[seq]:
                    self.outcomes[n] = Outcome(Refusal.NO_SUCH_JOB)
            else:
                fresh[seq] = _Row(seq, row)
        return fresh


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
        None,
        state,
        reason,
        job_id.decode(),
        queue.decode(),
        asked.lease,
        worker.decode(),
        number(ran_for),
        None,
        steps,
    )


def _parts(moves: Sequence[Transition]) -> list[Sequence[Transition]]:
    parts: list[Sequence[Transition]] = []
    begin, size = 0, 0
    for n, asked in enumerate(moves):
        added = len(asked.result or b"") + len(asked.error)
        if n > begin and (n - begin == MOST_MOVES or size + added > MOST_BYTES):
            parts.append(moves[begin:n])
            begin, size = n, 0
        size += added
    parts.append(moves[begin:])
    return parts
