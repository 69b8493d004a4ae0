"""The lifecycle of a job: one table, and nothing else decides what is allowed.

Three layers, each checked against the one above it when this module is imported:

* ``TRANSITIONS``: every edge a job may take, with the reasons that may be written on it.
* ``PATHS``: what a *move* (something that happens to a job: a report, a timer, an operator's
  call) does from each state. A move walks one or more edges in a single write.
* ``after_failure``: what follows a path that ends in FAILED: a retry, or a dead letter.

The diagram in ``docs/lifecycle.md`` and the projections that other faces show are generated
from here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobqueue.core.errors import InvalidArgument


class State(enum.IntEnum):
    """Where a job is. The number is what stores write."""

    # Accepted and waiting: for a worker with a free slot, or for its run_at. The scheduler moves
    # it on by claiming it; the sweeper dead-letters it when its TTL ends before its first start.
    PENDING = 1
    # Handed to a worker under a lease that has not confirmed the start. The worker moves it on by
    # starting it or handing it back; the sweeper fails it after the assignment timeout.
    ASSIGNED = 2
    # Being executed. The worker that holds the lease moves it on by reporting; the sweeper fails
    # it when the worker is lost or the run timeout has passed.
    RUNNING = 3
    # Finished with a result. Nobody moves it on.
    DONE = 4
    # The last attempt failed and a retry is due later. The sweeper moves it back to PENDING; an
    # operator may retry it at once or cancel it.
    FAILED = 5
    # Given up: retries exhausted, cancelled, expired or poisonous. Only an operator's retry moves
    # it on.
    DEAD_LETTERED = 6


TERMINAL = frozenset({State.DONE, State.DEAD_LETTERED})
HELD = frozenset({State.ASSIGNED, State.RUNNING})


class Reason(enum.StrEnum):
    """Why a transition happened; written into every event."""

    SUBMITTED = "SUBMITTED"
    ASSIGNED = "ASSIGNED"
    STARTED = "STARTED"
    SUCCEEDED = "SUCCEEDED"
    HANDLER_FAILED = "HANDLER_FAILED"
    TIMED_OUT = "TIMED_OUT"
    WORKER_LOST = "WORKER_LOST"
    ASSIGNMENT_TIMEOUT = "ASSIGNMENT_TIMEOUT"
    HANDED_BACK = "HANDED_BACK"
    RETRY_DUE = "RETRY_DUE"
    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
    NOT_RETRYABLE = "NOT_RETRYABLE"
    POISON = "POISON"
    CANCELLED = "CANCELLED"
    TTL_EXPIRED = "TTL_EXPIRED"
    QUEUE_DELETED = "QUEUE_DELETED"
    MANUAL_RETRY = "MANUAL_RETRY"


TRANSITIONS: Mapping[tuple[State | None, State], frozenset[Reason]] = {
    (None, State.PENDING): frozenset({Reason.SUBMITTED}),
    (State.PENDING, State.ASSIGNED): frozenset({Reason.ASSIGNED}),
    (State.PENDING, State.DEAD_LETTERED): frozenset(
        {Reason.TTL_EXPIRED, Reason.CANCELLED, Reason.QUEUE_DELETED}
    ),
    (State.ASSIGNED, State.RUNNING): frozenset({Reason.STARTED}),
    (State.ASSIGNED, State.FAILED): frozenset(
        {Reason.ASSIGNMENT_TIMEOUT, Reason.WORKER_LOST, Reason.HANDED_BACK}
    ),
    (State.ASSIGNED, State.DEAD_LETTERED): frozenset({Reason.CANCELLED, Reason.QUEUE_DELETED}),
    (State.RUNNING, State.DONE): frozenset({Reason.SUCCEEDED}),
    (State.RUNNING, State.FAILED): frozenset(
        {
            Reason.HANDLER_FAILED,
            Reason.TIMED_OUT,
            Reason.WORKER_LOST,
            Reason.CANCELLED,
            Reason.QUEUE_DELETED,
        }
    ),
    (State.FAILED, State.PENDING): frozenset(
        {Reason.RETRY_DUE, Reason.HANDED_BACK, Reason.MANUAL_RETRY}
    ),
    (State.FAILED, State.DEAD_LETTERED): frozenset(
        {
            Reason.RETRIES_EXHAUSTED,
            Reason.NOT_RETRYABLE,
            Reason.POISON,
            Reason.CANCELLED,
            Reason.QUEUE_DELETED,
        }
    ),
    (State.DEAD_LETTERED, State.PENDING): frozenset({Reason.MANUAL_RETRY}),
}


DEATHS = frozenset(
    reason
    for (_, after), reasons in TRANSITIONS.items()
    if after is State.DEAD_LETTERED
    for reason in reasons
)
"""Why a job may have become a dead letter."""
FAILURES = frozenset({Reason.RETRIES_EXHAUSTED, Reason.NOT_RETRYABLE, Reason.POISON})
"""Those of them that are the job's own failure: nobody cancelled it, and it was begun in time."""


DEATH_WORDS: Mapping[str, frozenset[Reason]] = {
    "FAILURES": FAILURES,
    "ALL": DEATHS,
    **{reason.value: frozenset({reason}) for reason in sorted(DEATHS)},
}


class Move(enum.Enum):
    """Something that happens to a job. Moves by a worker are fenced by its lease."""

    START = "start"
    SUCCEED = "succeed"
    FAIL = "fail"
    TIME_OUT = "time out"
    ACKNOWLEDGE_CANCEL = "acknowledge cancel"
    HAND_BACK = "hand back"
    LOSE_WORKER = "lose worker"
    TIME_OUT_ASSIGNMENT = "time out assignment"
    RETRY_WHEN_DUE = "retry when due"
    EXPIRE = "expire"
    CANCEL = "cancel"
    DROP_WITH_QUEUE = "drop with queue"
    RETRY_BY_HAND = "retry by hand"


# Moves that only the holder of the lease (or the reaper naming that lease) may make.
FENCED = frozenset(
    {
        Move.START,
        Move.SUCCEED,
        Move.FAIL,
        Move.TIME_OUT,
        Move.ACKNOWLEDGE_CANCEL,
        Move.HAND_BACK,
        Move.LOSE_WORKER,
        Move.TIME_OUT_ASSIGNMENT,
    }
)
# Moves that a worker may report; the rest belong to the server.
REPORTABLE = frozenset(
    {
        Move.START,
        Move.SUCCEED,
        Move.FAIL,
        Move.TIME_OUT,
        Move.ACKNOWLEDGE_CANCEL,
        Move.HAND_BACK,
    }
)

Step = tuple[State, Reason]
"""One edge of a path: the state entered, and why."""

_STARTED: Step = (State.RUNNING, Reason.STARTED)

# What a move does from each state; a state that is missing refuses the move. A worker's report
# on an ASSIGNED job says that it started and ended between two flushes: both edges are written.
PATHS: Mapping[Move, Mapping[State, tuple[Step, ...]]] = {
    Move.START: {State.ASSIGNED: (_STARTED,)},
    Move.SUCCEED: {
        State.ASSIGNED: (_STARTED, (State.DONE, Reason.SUCCEEDED)),
        State.RUNNING: ((State.DONE, Reason.SUCCEEDED),),
    },
    Move.FAIL: {
        State.ASSIGNED: (_STARTED, (State.FAILED, Reason.HANDLER_FAILED)),
        State.RUNNING: ((State.FAILED, Reason.HANDLER_FAILED),),
    },
    Move.TIME_OUT: {
        State.ASSIGNED: (_STARTED, (State.FAILED, Reason.TIMED_OUT)),
        State.RUNNING: ((State.FAILED, Reason.TIMED_OUT),),
    },
    Move.ACKNOWLEDGE_CANCEL: {
        State.ASSIGNED: (_STARTED, (State.FAILED, Reason.CANCELLED)),
        State.RUNNING: ((State.FAILED, Reason.CANCELLED),),
    },
    Move.HAND_BACK: {
        State.ASSIGNED: (
            (State.FAILED, Reason.HANDED_BACK),
            (State.PENDING, Reason.HANDED_BACK),
        ),
    },
    Move.LOSE_WORKER: {
        State.ASSIGNED: ((State.FAILED, Reason.WORKER_LOST),),
        State.RUNNING: ((State.FAILED, Reason.WORKER_LOST),),
    },
    Move.TIME_OUT_ASSIGNMENT: {State.ASSIGNED: ((State.FAILED, Reason.ASSIGNMENT_TIMEOUT),)},
    Move.RETRY_WHEN_DUE: {State.FAILED: ((State.PENDING, Reason.RETRY_DUE),)},
    Move.EXPIRE: {State.PENDING: ((State.DEAD_LETTERED, Reason.TTL_EXPIRED),)},
    Move.CANCEL: {
        State.PENDING: ((State.DEAD_LETTERED, Reason.CANCELLED),),
        State.ASSIGNED: ((State.DEAD_LETTERED, Reason.CANCELLED),),
        State.FAILED: ((State.DEAD_LETTERED, Reason.CANCELLED),),
    },
    Move.DROP_WITH_QUEUE: {
        State.PENDING: ((State.DEAD_LETTERED, Reason.QUEUE_DELETED),),
        State.ASSIGNED: ((State.DEAD_LETTERED, Reason.QUEUE_DELETED),),
        State.RUNNING: (
            (State.FAILED, Reason.QUEUE_DELETED),
            (State.DEAD_LETTERED, Reason.QUEUE_DELETED),
        ),
        State.FAILED: ((State.DEAD_LETTERED, Reason.QUEUE_DELETED),),
    },
    Move.RETRY_BY_HAND: {
        State.FAILED: ((State.PENDING, Reason.MANUAL_RETRY),),
        State.DEAD_LETTERED: ((State.PENDING, Reason.MANUAL_RETRY),),
    },
}


@dataclass(frozen=True, slots=True)
class Retry:
    """The failed job waits in FAILED and is tried again."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The failed job becomes a dead letter in the same write."""

    reason: Reason


_RETRY = Retry()


def after_failure(
    reason: Reason,
    *,
    retry_count: int,
    max_retries: int,
    worker_deaths: int,
    poison_after: int,
    cancel_requested: bool,
    retryable: bool,
) -> Retry | GiveUp:
    """Decide what follows FAILED.

    ``worker_deaths`` includes the one being written; 0 if the job was not running then.
    """
    if cancel_requested or reason is Reason.CANCELLED:
        return GiveUp(Reason.CANCELLED)
    if not retryable:
        return GiveUp(Reason.NOT_RETRYABLE)
    if reason is Reason.WORKER_LOST and 0 < poison_after <= worker_deaths:
        return GiveUp(Reason.POISON)
    if retry_count < max_retries:
        return _RETRY
    return GiveUp(Reason.RETRIES_EXHAUSTED)


# How other documents' clients see the canonical states. A dead letter shows whether it was
# cancelled, so those tables are asked with the reason.
_SCHEDULER_VIEW = {
    State.PENDING: "PENDING",
    State.ASSIGNED: "SCHEDULED",
    State.RUNNING: "RUNNING",
    State.DONE: "SUCCESS",
    State.FAILED: "PENDING",
    State.DEAD_LETTERED: "FAILED",
}
_PRODUCER_VIEW = {
    State.PENDING: "PENDING",
    State.ASSIGNED: "PENDING",
    State.RUNNING: "PROCESSING",
    State.DONE: "COMPLETED",
    State.FAILED: "FAILED",
    State.DEAD_LETTERED: "DEAD_LETTERED",
}
_TASKQUEUE_VIEW = {
    State.PENDING: "QUEUED",
    State.ASSIGNED: "QUEUED",
    State.RUNNING: "RUNNING",
    State.DONE: "DONE",
    State.FAILED: "QUEUED",
    State.DEAD_LETTERED: "FAILED",
}
VIEWS: Mapping[str, Mapping[State, str]] = {
    "canonical": {state: state.name for state in State},
    "scheduler": _SCHEDULER_VIEW,
    "producer": _PRODUCER_VIEW,
    "taskqueue": _TASKQUEUE_VIEW,
}


def project(view: str, state: State, reason: Reason | None) -> str:
    """Name a state in another face's vocabulary."""
    if view == "taskqueue" and state is State.DEAD_LETTERED and reason is Reason.CANCELLED:
        return "CANCELED"
    return VIEWS[view][state]


def parse_state(name: str, field: str = "status") -> State:
    """Read a canonical state name from input."""
    try:
        return State[name.strip().upper()]
    except KeyError:
        allowed = ", ".join(state.name for state in State)
        raise InvalidArgument(field, f"unknown state {name!r}; allowed: {allowed}") from None


def parse_deaths(names: Iterable[str], field: str = "reason") -> tuple[Reason, ...]:
    """Read why jobs were dead-lettered: reasons, FAILURES or ALL; each may be a comma list."""
    found: set[Reason] = set()
    for word in (part.strip() for name in names for part in name.split(",")):
        known = DEATH_WORDS.get(word.upper().replace("-", "_"))
        if known is None:
            allowed = ", ".join(DEATH_WORDS)
            raise InvalidArgument(field, f"unknown reason {word[:80]!r}; allowed: {allowed}")
        found |= known
    return tuple(sorted(found))


def diagram() -> str:
    """Render the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (origin, target), reasons in TRANSITIONS.items():
        label = ", ".join(sorted(reason.value for reason in reasons))
        lines.append(f"    {origin.name if origin else '[*]'} --> {target.name} : {label}")
    lines.extend(f"    {state.name} --> [*]" for state in State if state in TERMINAL)
    return "\n".join(lines) + "\n"


def _check_paths() -> None:
    for move, starts in PATHS.items():
        for origin, path in starts.items():
            here = origin
            for target, reason in path:
                if reason not in TRANSITIONS.get((here, target), frozenset()):
                    raise AssertionError(f"{move}: {here!r} -> {target!r} ({reason}) not allowed")
                here = target


_check_paths()
