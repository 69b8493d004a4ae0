"""Define the lifecycle of a job: the tables of this module alone decide the allowed transitions.

* ``TRANSITIONS`` lists every allowed transition, with its allowed reasons.
* ``PATHS`` lists the effect of a *move* (a worker's report, a timer, an operator's call) in each
  state. A move makes one or more transitions in a single write. When this module is imported,
  ``PATHS`` is checked against ``TRANSITIONS``.
* ``after_failure`` decides how a path that ends in FAILED continues: by a retry or a dead letter.

``docs/lifecycle.md`` and the state names of the other faces are generated from this module.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from jobqueue.core.errors import InvalidArgument


class State(enum.IntEnum):
    """The state of a job. Stores write the number of the state."""

    # Accepted and waiting: for a worker with a free slot, or for its run_at. The scheduler moves
    # it on by claiming it; the sweeper dead-letters it when its TTL ends before its first start.
    PENDING = 1
    # Handed to a worker under a lease that has not confirmed the start. The worker moves it on by
    # starting it or handing it back; the sweeper fails it after the assignment timeout.
    ASSIGNED = 2
    # Being executed. The worker that holds the lease moves it on by reporting; the sweeper fails
    # it when the worker is lost or the run timeout has passed.
    RUNNING = 3
    # Finished with a result. This state is final.
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
    """The reason of a transition, written into every event."""

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
    SUPERSEDED = "SUPERSEDED"


TRANSITIONS: Mapping[tuple[State | None, State], frozenset[Reason]] = {
    (None, State.PENDING): frozenset({Reason.SUBMITTED}),
    (State.PENDING, State.ASSIGNED): frozenset({Reason.ASSIGNED}),
    (State.PENDING, State.DEAD_LETTERED): frozenset(
        {Reason.TTL_EXPIRED, Reason.CANCELLED, Reason.QUEUE_DELETED, Reason.SUPERSEDED}
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
            Reason.SUPERSEDED,
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
"""The reasons for which a job becomes a dead letter."""
FAILURES = frozenset({Reason.RETRIES_EXHAUSTED, Reason.NOT_RETRYABLE, Reason.POISON})
"""The reasons for which a job becomes a dead letter by its own failure: not by a cancel, an expired
TTL or a deleted queue."""

DEATH_WORDS: Mapping[str, frozenset[Reason]] = {
    "FAILURES": FAILURES,
    "ALL": DEATHS,
    **{reason.value: frozenset({reason}) for reason in sorted(DEATHS)},
}
"""The words by which callers select dead letters."""


class Move(enum.Enum):
    """A kind of request to change a job's state. The moves of a worker are fenced by its lease."""

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
    SUPERSEDE = "supersede"
    DROP_WITH_QUEUE = "drop with queue"
    RETRY_BY_HAND = "retry by hand"


REPORTABLE = frozenset(
    {Move.START, Move.SUCCEED, Move.FAIL, Move.TIME_OUT, Move.ACKNOWLEDGE_CANCEL, Move.HAND_BACK}
)
"""The moves that a worker may report; only the server makes the other moves."""
FENCED = REPORTABLE | {Move.LOSE_WORKER, Move.TIME_OUT_ASSIGNMENT}
"""The moves that must name the lease in force."""

Step = tuple[State, Reason]
"""One transition of a path: the state entered, and the reason."""
_Paths = Mapping[State, tuple[Step, ...]]


def _step(state: State, reason: Reason, *origins: State) -> _Paths:
    return dict.fromkeys(origins, ((state, reason),))


def _end(state: State, reason: Reason) -> _Paths:
    """Return the paths of a report that ends an attempt.

    A job that is still ASSIGNED started and ended between two flushes of the worker's reports. Its
    path therefore has two transitions: the start and the end.
    """
    started = (State.RUNNING, Reason.STARTED)
    return {State.ASSIGNED: (started, (state, reason)), **_step(state, reason, State.RUNNING)}


PATHS: Mapping[Move, _Paths] = {
    Move.START: _step(State.RUNNING, Reason.STARTED, State.ASSIGNED),
    Move.SUCCEED: _end(State.DONE, Reason.SUCCEEDED),
    Move.FAIL: _end(State.FAILED, Reason.HANDLER_FAILED),
    Move.TIME_OUT: _end(State.FAILED, Reason.TIMED_OUT),
    Move.ACKNOWLEDGE_CANCEL: _end(State.FAILED, Reason.CANCELLED),
    Move.HAND_BACK: {
        State.ASSIGNED: ((State.FAILED, Reason.HANDED_BACK), (State.PENDING, Reason.HANDED_BACK))
    },
    Move.LOSE_WORKER: _step(State.FAILED, Reason.WORKER_LOST, State.ASSIGNED, State.RUNNING),
    Move.TIME_OUT_ASSIGNMENT: _step(State.FAILED, Reason.ASSIGNMENT_TIMEOUT, State.ASSIGNED),
    Move.RETRY_WHEN_DUE: _step(State.PENDING, Reason.RETRY_DUE, State.FAILED),
    Move.EXPIRE: _step(State.DEAD_LETTERED, Reason.TTL_EXPIRED, State.PENDING),
    Move.CANCEL: _step(
        State.DEAD_LETTERED, Reason.CANCELLED, State.PENDING, State.ASSIGNED, State.FAILED
    ),
    Move.SUPERSEDE: _step(State.DEAD_LETTERED, Reason.SUPERSEDED, State.PENDING, State.FAILED),
    Move.DROP_WITH_QUEUE: {
        **_step(
            State.DEAD_LETTERED, Reason.QUEUE_DELETED, State.PENDING, State.ASSIGNED, State.FAILED
        ),
        State.RUNNING: (
            (State.FAILED, Reason.QUEUE_DELETED),
            (State.DEAD_LETTERED, Reason.QUEUE_DELETED),
        ),
    },
    Move.RETRY_BY_HAND: _step(
        State.PENDING, Reason.MANUAL_RETRY, State.FAILED, State.DEAD_LETTERED
    ),
}
"""The path of each move from each state; a state that is missing refuses the move."""

PASSING = frozenset(
    reason
    for starts in PATHS.values()
    for path in starts.values()
    for state, reason in path[:-1]
    if state is State.FAILED
)
"""The reasons of transitions into FAILED that the same write continues into another state. The job
itself did not fail."""


def allows(before: State | None, after: State, reason: Reason) -> bool:
    """Return True if ``TRANSITIONS`` has this transition with this reason."""
    return reason in TRANSITIONS.get((before, after), frozenset())


def after_failure(
    reason: Reason,
    *,
    retry_count: int,
    max_retries: int,
    worker_deaths: int,
    poison_after: int,
    cancel_requested: bool,
    retryable: bool,
) -> Reason | None:
    """Return the reason for which a FAILED job becomes a dead letter, or None if it is retried.

    ``worker_deaths`` counts the workers that died while they held the job, including the current
    failure; it must be 0 if the job was not running at the current failure.
    """
    if cancel_requested or reason is Reason.CANCELLED:
        return Reason.CANCELLED
    if not retryable:
        return Reason.NOT_RETRYABLE
    if reason is Reason.WORKER_LOST and 0 < poison_after <= worker_deaths:
        return Reason.POISON
    if retry_count < max_retries:
        return None
    return Reason.RETRIES_EXHAUSTED


VIEWS: Mapping[str, Mapping[State, str]] = {
    "canonical": {state: state.name for state in State},
    "scheduler": {
        State.PENDING: "PENDING",
        State.ASSIGNED: "SCHEDULED",
        State.RUNNING: "RUNNING",
        State.DONE: "SUCCESS",
        State.FAILED: "PENDING",
        State.DEAD_LETTERED: "FAILED",
    },
    "producer": {
        State.PENDING: "PENDING",
        State.ASSIGNED: "PENDING",
        State.RUNNING: "PROCESSING",
        State.DONE: "COMPLETED",
        State.FAILED: "FAILED",
        State.DEAD_LETTERED: "DEAD_LETTERED",
    },
    "taskqueue": {
        State.PENDING: "QUEUED",
        State.ASSIGNED: "QUEUED",
        State.RUNNING: "RUNNING",
        State.DONE: "DONE",
        State.FAILED: "QUEUED",
        State.DEAD_LETTERED: "FAILED",
    },
}
"""The names of the states in each vocabulary; ``project`` also has a name for cancelled jobs."""


def project(view: str, state: State, reason: Reason | None) -> str:
    if view == "taskqueue" and state is State.DEAD_LETTERED and reason is Reason.CANCELLED:
        return "CANCELED"
    return VIEWS[view][state]


def parse_state(name: str, field: str = "status") -> State:
    try:
        return State[name.strip().upper()]
    except KeyError:
        allowed = ", ".join(state.name for state in State)
        raise InvalidArgument(field, f"unknown state {name!r}; allowed: {allowed}") from None


def parse_deaths(names: Iterable[str], field: str = "reason") -> tuple[Reason, ...]:
    """Parse the names of dead letters' reasons into a sorted tuple of reasons.

    FAILURES and ALL are names, too. A text may have several names with commas between them.
    """
    found: set[Reason] = set()
    for word in (part.strip() for name in names for part in name.split(",")):
        known = DEATH_WORDS.get(word.upper().replace("-", "_"))
        if known is None:
            allowed = ", ".join(DEATH_WORDS)
            raise InvalidArgument(field, f"unknown reason {word[:80]!r}; allowed: {allowed}")
        found |= known
    return tuple(sorted(found))


def parse_reasons(names: Iterable[str], field: str = "reason") -> tuple[Reason, ...]:
    """Parse the names of reasons of any transition into a sorted tuple of reasons.

    A text may have several names with commas between them.
    """
    found: set[Reason] = set()
    for word in (part.strip() for name in names for part in name.split(",")):
        known = word.upper().replace("-", "_")
        if known not in Reason.__members__:
            allowed = ", ".join(Reason)
            raise InvalidArgument(field, f"unknown reason {word[:80]!r}; allowed: {allowed}")
        found.add(Reason[known])
    return tuple(sorted(found))


def _check_paths() -> None:
    for move, starts in PATHS.items():
        for origin, path in starts.items():
            here = origin
            for target, reason in path:
                if not allows(here, target, reason):
                    raise AssertionError(f"{move}: {here!r} -> {target!r} ({reason}) not allowed")
                here = target


_check_paths()
