"""Decide how jobs change: pure functions with the rules that every store applies.

``accept`` and ``begin`` make a new job, ``assign`` claims a job, and ``move`` makes every other
change. A store reads a row under its write lock, calls these functions and writes the changes.
The stores on PostgreSQL and Redis implement submits, claims, starts and simple successes in SQL or
Lua, and call these functions for every other change. The tests that every store passes compare that
SQL and Lua with these functions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from jobqueue.core.errors import KeyHeld, QueueFull
from jobqueue.core.ids import new_lease
from jobqueue.core.job import (
    Assignment,
    Event,
    Held,
    Job,
    JobSpec,
    Outcome,
    Pulse,
    Refusal,
    SubmitResult,
    Transition,
    WorkerStatus,
)
from jobqueue.core.lifecycle import (
    FENCED,
    PASSING,
    PATHS,
    TERMINAL,
    Move,
    Reason,
    State,
    Step,
    after_failure,
)
from jobqueue.core.progress import Progress
from jobqueue.core.queue import QueueSettings
from jobqueue.core.retry import RetryPolicy
from jobqueue.core.store import Change, Rules
from jobqueue.core.unique import REPLACE, Holder, UniqueKey, in_the_way

L = TypeVar("L", bound="Live")

# Looked up once, because reading a member of an enumeration is slow in these hot functions.
_PENDING, _ASSIGNED, _RUNNING, _DONE, _FAILED, _DEAD_LETTERED = State
_STARTED, _WORKER_LOST = Reason.STARTED, Reason.WORKER_LOST
_HAND_BACK, _SUCCEED = Move.HAND_BACK, Move.SUCCEED


@dataclass(slots=True)
class Live:
    """Holds the fields of a job that its transitions read and write."""

    seq: int
    state: State
    version: int
    attempt: int
    retry_count: int
    max_retries: int
    lease: int | None
    worker_id: str | None
    cancel_requested: bool
    deaths: int
    timeout: float | None
    run_at: float | None
    expires_at: float | None
    started_at: float | None
    due: float | None  # the time of the next retry, expiry or timeout
    completed_at: float | None = None
    result: bytes | None = None
    error: str = ""
    reason: Reason = Reason.SUBMITTED

    def copied(self, kind: type[L]) -> L:
        """Return a copy as an instance of ``kind``, the subclass that a store keeps."""
        made = kind.__new__(kind)
        for name in Live.__slots__:
            setattr(made, name, getattr(self, name))
        return made

    def job(
        self, job_id: str, spec: JobSpec, created_at: float, updated_at: float,
        progress: Progress | None = None,
    ) -> Job:  # fmt: skip
        """Return the complete job: these fields, and the given fields that never change."""
        return Job(
            id=job_id,
            seq=self.seq,
            spec=replace(spec, run_at=self.run_at),
            state=self.state,
            version=self.version,
            attempt=self.attempt,
            retry_count=self.retry_count,
            created_at=created_at,
            updated_at=updated_at,
            expires_at=self.expires_at,
            worker_id=self.worker_id,
            cancel_requested=self.cancel_requested,
            started_at=self.started_at,
            completed_at=self.completed_at,
            next_retry_at=self.due if self.state is _FAILED else None,
            result=self.result,
            error=self.error,
            reason=self.reason,
            progress=progress if self.state is _RUNNING else None,
        )


@dataclass(slots=True)
class Decision:
    """Holds the effect of a move that was applied.

    ``steps`` are the states entered, in order. ``lease`` and ``worker_id`` are those of the job
    before the move. ``ran_for`` is the attempt's run time in seconds if the move ended a run.
    """

    steps: tuple[Step, ...]
    lease: int | None
    worker_id: str | None
    ran_for: float | None

    def outcome(self, live: Live, job_id: str, queue: str) -> Outcome:
        return Outcome(
            None,
            live.state,
            live.reason,
            job_id,
            queue,
            self.lease,
            self.worker_id,
            self.ran_for,
            live.due if live.state is _FAILED else None,
            self.steps,
        )


@dataclass(slots=True)
class Accepted:
    """Holds the values that a store writes for a new job."""

    spec: JobSpec
    expires_at: float | None
    ready: bool  # True if the job can be claimed at once
    due: float | None


def accept(spec: JobSpec, queue: QueueSettings, now: float) -> Accepted:
    """Return the values of a new job: its spec completed by the queue's settings, and its times.

    A ``delay`` in the spec is converted to ``run_at``.
    """
    filled = spec.accepted(queue, now)
    expires_at = None if filled.ttl is None else now + filled.ttl
    ready, due = waiting(filled.run_at, expires_at, now)
    return Accepted(filled, expires_at, ready, due)


def begin(spec: JobSpec, expires_at: float | None, due: float | None, seq: int, kind: type[L]) -> L:
    """Return the changing fields of a job that was just accepted, as an instance of ``kind``."""
    return kind(
        seq, _PENDING, 1, 0, 0, spec.max_retries or 0, None, None, False, 0, spec.timeout,
        spec.run_at, expires_at, None, due,
    )  # fmt: skip


def waiting(
    run_at: float | None, expires_at: float | None, now: float
) -> tuple[bool, float | None]:
    """Return True if a PENDING job can be claimed now, else False; and the job's ``due`` time."""
    if run_at is None or run_at <= now:
        return True, expires_at
    return False, run_at if expires_at is None else min(run_at, expires_at)


def repeated(spec: JobSpec, original: str, fingerprint: bytes) -> SubmitResult:
    """Return the result of a submit whose idempotency key belongs to the job ``original``.

    The result is a duplicate if the fingerprints are equal, otherwise a conflict.
    """
    if fingerprint == spec.fingerprint() or fingerprint == spec.sha256():
        return SubmitResult.duplicate(original)
    return SubmitResult.conflict(original, spec.key or "")


def unique_conflict(unique: UniqueKey, holder: Holder | None, now: float) -> SubmitResult | None:
    """Return the result of a submit that the holder of its unique key prevents, or None."""
    if holder is None or unique.on_conflict == REPLACE or not in_the_way(unique, holder, now):
        return None
    return SubmitResult.not_unique(unique, holder.job_id)


def to_supersede(unique: UniqueKey, holder: Holder | None, now: float) -> bool:
    """Return True if a submit that is accepted takes the place of the holder of its unique key."""
    return holder is not None and unique.on_conflict == REPLACE and in_the_way(unique, holder, now)


def key_held(spec: JobSpec) -> SubmitResult:
    """Return the refusal of a submit whose key an open transaction holds."""
    return SubmitResult.refused(
        KeyHeld(
            f"idempotency_key: {spec.key!r} is in use by a database transaction that has not ended;"
            " nothing was submitted; try again"
        )
    )


def full(queue: str, capacity: int) -> SubmitResult:
    return SubmitResult.refused(QueueFull(f"queue {queue!r} is full ({capacity} jobs are waiting)"))


def decide(
    live: Live,
    asked: Transition,
    *,
    now: float,
    rules: Rules,
    policy: RetryPolicy,
    draw: Callable[[], float] = random.random,
) -> Decision | Refusal:
    """Check a move against the fence and the lifecycle table, then apply the move to ``live``.

    Return the refusal, without a change of ``live``, if a check fails.
    """
    move = asked.move
    if move in FENCED and (asked.lease is None or asked.lease != live.lease):
        return Refusal.STALE_LEASE
    if asked.worker_id is not None and asked.worker_id != live.worker_id:
        return Refusal.STALE_LEASE
    if asked.version is not None and asked.version != live.version:
        return Refusal.STALE_VERSION
    if move is _SUCCEED and live.cancel_requested:
        move = Move.ACKNOWLEDGE_CANCEL  # a cancel that was accepted wins over a later success
    steps = PATHS[move].get(live.state)
    if steps is None:
        return Refusal.WRONG_STATE

    if move is _HAND_BACK:
        steps = _hand_back(live, asked, steps, rules)
    before, lease, worker_id = live.state, live.lease, live.worker_id
    began = live.started_at if live.started_at is not None else now
    ran_for: float | None = None
    for state, reason in steps:
        enter(live, state, reason, now, asked.error)
    if steps[0][0] is _RUNNING:
        ran_for = asked.ran_for or 0.0  # within one flush: close to nothing
        live.started_at = now - ran_for
    elif before is _RUNNING:
        ran_for = asked.ran_for if asked.ran_for is not None else max(0.0, now - began)
        # The worker measured the run time itself: its start is earlier than the report of it.
        live.started_at = min(began, now - ran_for)

    if live.state is _RUNNING:
        live.due = None if live.timeout is None else now + live.timeout + rules.watchdog_grace
        ran_for = None  # the attempt has not ended
    elif live.state is _DONE:
        live.result = asked.result
    elif live.state is _FAILED:
        given_up = _given_up(live, asked, before, rules)
        if given_up is not None:
            enter(live, _DEAD_LETTERED, given_up, now, asked.error)
            steps = (*steps, (_DEAD_LETTERED, given_up))
        elif asked.retry_after is not None:
            live.due = now + asked.retry_after
        else:
            live.due = now + policy.delay(live.retry_count, draw)
    return Decision(steps, lease, worker_id, ran_for)


def enter(live: Live, state: State, reason: Reason, at: float, detail: str) -> None:
    """Change the fields of a job that enters a state.

    The event has all other arguments, so that replay can rebuild the job with this function.
    """
    live.state = state
    live.reason = reason
    live.version += 1
    live.due = None
    if state is _RUNNING:
        live.started_at = at
        live.expires_at = None  # the TTL ends at the first start
        return
    if state is _ASSIGNED:
        return
    live.lease = None
    if state is _PENDING:
        _return(live, reason)
    elif state is _FAILED:
        if reason is _WORKER_LOST:
            # Also counted for an ASSIGNED job: a job that kills its worker at once never gets to
            # RUNNING in the store.
            live.deaths += 1
        live.error = detail or live.error if reason in PASSING else detail
    else:
        live.completed_at = at
        live.expires_at = None
        live.error = "" if state is _DONE else (detail or live.error)


def assign(live: Live, worker_id: str, now: float, rules: Rules) -> None:
    """Assign a PENDING job to a worker: draw a new lease and start the assignment timeout."""
    live.attempt += 1
    live.lease = new_lease()
    live.worker_id = worker_id
    enter(live, _ASSIGNED, Reason.ASSIGNED, now, "")
    live.due = now + rules.assignment_timeout


def assignment(live: Live, job_id: str, spec: JobSpec, created_at: float, now: float) -> Assignment:
    """Return the assignment that is sent to the worker of a job that was just assigned."""
    return Assignment(
        live.seq,
        job_id,
        spec,
        live.attempt,
        live.lease or 0,
        live.worker_id or "",
        live.retry_count,
        created_at,
        None if live.expires_at is None else live.expires_at - now,
        live.deaths,
    )


def _hand_back(
    live: Live, asked: Transition, steps: tuple[Step, ...], rules: Rules
) -> tuple[Step, ...]:
    """Return the steps of a hand-back; after ``Rules.hand_backs`` hand-backs, the attempt fails."""
    # Without this limit, a job's history could grow without end.
    count = live.attempt - live.retry_count  # hand-overs that were no retry
    if count <= rules.hand_backs:
        asked.error = ""  # the attempt was not started, so it has no error
        return steps
    asked.error = f"handed back without a start, after {count - 1} hand-overs that were no retry"
    return steps[:1]  # FAILED, then a retry or a dead letter


def _given_up(live: Live, asked: Transition, before: State, rules: Rules) -> Reason | None:
    if not rules.poison_after:
        live.deaths = 0
    return after_failure(
        live.reason,
        retry_count=live.retry_count,
        max_retries=live.max_retries,
        # Only a death of the worker while the job ran can make the job poison.
        worker_deaths=live.deaths if before is _RUNNING else 0,
        poison_after=rules.poison_after,
        cancel_requested=live.cancel_requested,
        retryable=asked.retryable,
    )


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


def news_of(asked: Sequence[Transition], outcomes: Sequence[Outcome]) -> Change:
    """Return the kinds of changes, made by these moves, that other processes are notified of."""
    work = ended = control = False
    for one, outcome in zip(asked, outcomes, strict=True):
        if outcome.refusal is None:
            work = work or outcome.state is _PENDING
            ended = ended or outcome.state in TERMINAL
            control = control or (outcome.lease is not None and one.by_others)
    news = Change.WORK if work else Change(0)
    if ended:
        news |= Change.ENDED
    return news | Change.CONTROL if control else news


@dataclass(slots=True)
class Heartbeat:
    """Holds the answer to a heartbeat, and the changes that the store writes for the heartbeat."""

    pulse: Pulse
    # Attempts that are executing although their start is not reported: their assignment timeout
    # starts again.
    begun: list[Held]
    told: dict[int, Progress]  # by lease, of leases in force


def answer_heartbeat(
    status: WorkerStatus,
    leases: Sequence[int],
    begun: Sequence[int],
    progress: Mapping[int, Progress],
    standing: Mapping[int, Held],
) -> Heartbeat:
    """Compare the leases that a worker lists with its leases in force (``standing``).

    A lease that is listed twice counts once. Return the answer for the worker, and the changes that
    the store writes.
    """
    pulse = Pulse(True, status)
    unlisted = dict(standing)
    for lease in dict.fromkeys(leases):
        one = unlisted.pop(lease, None)
        if one is None:
            pulse.lost.append(lease)
        elif one.cancel_requested:
            pulse.cancelled.append(lease)
    pulse.unlisted = list(unlisted.values())
    executing = [one for lease in dict.fromkeys(begun) if (one := standing.get(lease)) is not None]
    return Heartbeat(
        pulse,
        [one for one in executing if one.state is _ASSIGNED],
        {lease: said for lease, said in progress.items() if lease in standing},
    )


def overdue(live_state: State, seq: int, version: int, lease: int | None) -> Transition:
    """Return the move for a job that is due, or for a PENDING job whose TTL has ended."""
    if live_state is _FAILED:
        return Transition(seq, Move.RETRY_WHEN_DUE, version=version)
    if live_state is _PENDING:
        return Transition(seq, Move.EXPIRE, version=version, error="ttl expired before the start")
    if live_state is _ASSIGNED:
        return Transition(
            seq, Move.TIME_OUT_ASSIGNMENT, lease, version, error="not started in time"
        )
    return Transition(seq, Move.TIME_OUT, lease, version, error="run timeout exceeded")


Entry = tuple[
    str, int, State | None, State, Reason, float, int, str | None, str, str,
    int, float | None, float | None, bool,
]  # fmt: skip
"""An event as stores write it. It has the fields of ``core.job.Event``, then fields of the job that
a later transition may overwrite: the retry count, the start of the latest attempt, ``due`` (the
retry of a FAILED job, ``run_at`` of a new job), and the cancel flag."""


def event_of(entry: Sequence[Any]) -> Event:
    return Event(*entry[:10])


def events_of(
    live: Live,
    job_id: str,
    queue: str,
    before: State | None,
    steps: Sequence[Step],
    now: float,
    detail: str = "",
    worker_id: str | None = None,
) -> list[Entry]:
    """Return the events of the steps that have just been applied to ``live``, in order."""
    version = live.version - len(steps)
    found: list[Entry] = []
    for state, reason in steps:
        version += 1
        started_at = due = None
        if state is _FAILED:
            started_at = live.started_at
            due = live.due if live.state is _FAILED else None
        elif state is _DEAD_LETTERED:
            started_at = live.started_at
        elif before is None:
            due = live.run_at
        found.append(
            (job_id, version, before, state, reason, now, live.attempt, worker_id,
             "" if reason is _STARTED else detail, queue,
             live.retry_count, started_at, due, live.cancel_requested)
        )  # fmt: skip
        before = state
    return found


class QueuePolicy(NamedTuple):
    """Holds the settings of a queue on which the moves of its jobs depend."""

    name: str
    deleted: bool
    retries: RetryPolicy


class Moved(NamedTuple):
    """Holds the outcome of a move and the events to write.

    ``decision`` is None if the move was refused; then nothing changed.
    """

    outcome: Outcome
    decision: Decision | None
    events: list[Entry]


def move(
    live: Live, job_id: str, queue: QueuePolicy, asked: Transition, now: float, rules: Rules
) -> Moved:
    """Decide a move of a job; if the move is allowed, apply it to ``live``."""
    before = live.state
    decision: Decision | Refusal = Refusal.NO_QUEUE
    if not queue.deleted or asked.move is not Move.RETRY_BY_HAND:
        decision = decide(live, asked, now=now, rules=rules, policy=queue.retries)
    if isinstance(decision, Refusal):
        return Moved(Outcome(decision, before, live.reason, job_id, queue.name), None, [])
    worker = decision.worker_id if decision.lease is not None else None
    steps = decision.steps
    events = events_of(live, job_id, queue.name, before, steps, now, asked.error, worker)
    return Moved(decision.outcome(live, job_id, queue.name), decision, events)


SUBMITTED: tuple[Step, ...] = ((_PENDING, Reason.SUBMITTED),)
ASSIGNED: tuple[Step, ...] = ((_ASSIGNED, Reason.ASSIGNED),)
