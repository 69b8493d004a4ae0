"""What a transition does to a job: pure, and the same for every store.

A store that can look at a row under its write lock calls ``decide`` and writes what changed. One
that works on sets (PostgreSQL) uses it for everything but the plain success, and its SQL for that
is tested against this function.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from jobqueue.core.job import Outcome, Refusal, Transition
from jobqueue.core.lifecycle import (
    FENCED,
    PATHS,
    TERMINAL,
    GiveUp,
    Move,
    Reason,
    State,
    Step,
    after_failure,
)
from jobqueue.core.retry import RetryPolicy
from jobqueue.core.store import Rules


class Live:
    """The part of a job that changes: what the lifecycle looks at and writes."""

    __slots__ = (
        "attempt",
        "cancel_requested",
        "completed_at",
        "deaths",
        "due",
        "error",
        "expires_at",
        "lease",
        "max_retries",
        "reason",
        "result",
        "retry_count",
        "run_at",
        "seq",
        "started_at",
        "state",
        "timeout",
        "version",
        "worker_id",
    )

    def __init__(
        self,
        seq: int,
        state: State,
        version: int,
        attempt: int,
        retry_count: int,
        max_retries: int,
        lease: int | None,
        worker_id: str | None,
        cancel_requested: bool,
        deaths: int,
        timeout: float | None,
        run_at: float | None,
        expires_at: float | None,
        started_at: float | None,
        due: float | None,
    ) -> None:
        self.seq = seq
        self.state = state
        self.version = version
        self.attempt = attempt
        self.retry_count = retry_count
        self.max_retries = max_retries
        self.lease = lease
        self.worker_id = worker_id
        self.cancel_requested = cancel_requested
        self.deaths = deaths
        self.timeout = timeout
        self.run_at = run_at
        self.expires_at = expires_at
        self.started_at = started_at
        self.due = due  # when the sweeper must look: retry, expiry, timeout
        self.completed_at: float | None = None
        self.result: bytes | None = None
        self.error = ""
        self.reason = Reason.SUBMITTED


class Decision:
    """The steps taken, and how long an attempt that ended had run."""

    __slots__ = ("lease", "ran_for", "steps", "worker_id")

    def __init__(
        self,
        steps: tuple[Step, ...],
        lease: int | None,
        worker_id: str | None,
        ran_for: float | None,
    ) -> None:
        self.steps = steps
        self.lease = lease
        self.worker_id = worker_id
        self.ran_for = ran_for

    def outcome(self, live: Live, job_id: str, queue: str) -> Outcome:
        """Tell the caller what was applied."""
        return Outcome(
            None,
            live.state,
            live.reason,
            job_id,
            queue,
            self.lease,
            self.worker_id,
            self.ran_for,
            live.due if live.state is State.FAILED else None,
            self.steps,
        )


def decide(
    live: Live,
    asked: Transition,
    *,
    now: float,
    rules: Rules,
    policy: RetryPolicy,
    draw: Callable[[], float] = random.random,
) -> Decision | Refusal:
    """Check the fence and the table, then change ``live`` in place."""
    move = asked.move
    if move in FENCED and (asked.lease is None or asked.lease != live.lease):
        return Refusal.STALE_LEASE
    if asked.worker_id is not None and asked.worker_id != live.worker_id:
        return Refusal.STALE_LEASE
    if asked.version is not None and asked.version != live.version:
        return Refusal.STALE_VERSION
    if move is Move.SUCCEED and live.cancel_requested:
        move = Move.ACKNOWLEDGE_CANCEL  # a cancel that was accepted wins over a later success
    steps = PATHS[move].get(live.state)
    if steps is None:
        return Refusal.WRONG_STATE

    if move is Move.HAND_BACK:
        steps = _hand_back(live, asked, steps, rules)
    before, lease, worker_id = live.state, live.lease, live.worker_id
    ran_for: float | None = None
    if steps[0][0] is State.RUNNING:
        ran_for = asked.ran_for or 0.0  # within one flush: close to nothing
        live.started_at = now - ran_for
        live.expires_at = None  # the TTL ends at the first start
    elif before is State.RUNNING:
        began = live.started_at if live.started_at is not None else now
        ran_for = asked.ran_for if asked.ran_for is not None else max(0.0, now - began)
        # The worker began before the store heard of it, and knows for how long it ran.
        live.started_at = min(began, now - ran_for)

    end, reason = steps[-1]
    if end is State.FAILED:
        steps, end, reason = _fail(live, asked, steps, before, now, rules, policy, draw)
    elif end is State.PENDING:
        _return(live, reason)
    elif end is State.RUNNING:
        live.due = None if live.timeout is None else now + live.timeout + rules.watchdog_grace
    if end in TERMINAL:
        live.completed_at = now
        live.due = None
        live.result = asked.result if end is State.DONE else None
        live.error = "" if end is State.DONE else (asked.error or live.error)
    if end is not State.RUNNING:
        live.lease = None
    live.state = end
    live.reason = reason
    live.version += len(steps)
    ended = before is State.RUNNING or steps[0][0] is State.RUNNING
    return Decision(
        steps, lease, worker_id, ran_for if ended and end is not State.RUNNING else None
    )


def _hand_back(
    live: Live, asked: Transition, steps: tuple[Step, ...], rules: Rules
) -> tuple[Step, ...]:
    """A job that goes back and forth comes to an end, and so does its history."""
    count = live.attempt - live.retry_count  # hand-overs that were no retry
    if count <= rules.hand_backs:
        asked.error = ""  # it was not started
        return steps
    asked.error = f"handed back without a start, after {count - 1} hand-overs that were no retry"
    return steps[:1]  # FAILED, with what follows a failure


def _fail(
    live: Live,
    asked: Transition,
    steps: tuple[Step, ...],
    before: State,
    now: float,
    rules: Rules,
    policy: RetryPolicy,
    draw: Callable[[], float],
) -> tuple[tuple[Step, ...], State, Reason]:
    reason = steps[-1][1]
    if reason is Reason.WORKER_LOST and rules.poison_after:
        # An ASSIGNED job counts, too: one that kills its worker at once is never seen RUNNING.
        live.deaths += 1
    live.error = asked.error
    verdict = after_failure(
        reason,
        retry_count=live.retry_count,
        max_retries=live.max_retries,
        # Only under a death while it ran is a job called poison.
        worker_deaths=live.deaths if before is State.RUNNING else 0,
        poison_after=rules.poison_after,
        cancel_requested=live.cancel_requested,
        retryable=asked.retryable,
    )
    if isinstance(verdict, GiveUp):
        return (*steps, (State.DEAD_LETTERED, verdict.reason)), State.DEAD_LETTERED, verdict.reason
    delay = asked.retry_after
    if delay is None:
        delay = policy.delay(live.retry_count, draw)
    live.due = now + delay
    return steps, State.FAILED, reason


def _return(live: Live, reason: Reason) -> None:
    if reason is Reason.RETRY_DUE:
        live.retry_count += 1
    elif reason is Reason.MANUAL_RETRY:
        live.retry_count = 0
        live.deaths = 0
        live.cancel_requested = False
        live.expires_at = None
        live.run_at = None
        live.completed_at = None
        live.error = ""
    live.worker_id = None
    live.due = live.expires_at


def overdue(live_state: State, seq: int, version: int, lease: int | None) -> Transition:
    """The move for a job whose ``due`` has passed (a PENDING one: its TTL)."""
    if live_state is State.FAILED:
        return Transition(seq, Move.RETRY_WHEN_DUE, version=version)
    if live_state is State.PENDING:
        return Transition(seq, Move.EXPIRE, version=version, error="ttl expired before the start")
    if live_state is State.ASSIGNED:
        return Transition(
            seq, Move.TIME_OUT_ASSIGNMENT, lease, version, error="not started in time"
        )
    return Transition(seq, Move.TIME_OUT, lease, version, error="run timeout exceeded")
