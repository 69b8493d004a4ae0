"""Enumerations."""

from __future__ import annotations

from collections.abc import Iterable

from jobqueue.core.errors import Internal, InvalidArgument
from jobqueue.core.job import WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.pb.jq.v1 import types_pb2 as pb

MAX_INT63 = 2**63 - 1

STATE_TO_PB = {state: pb.JobState.Value(f"JOB_STATE_{state.name}") for state in State}
_STATES: dict[int, State] = {value: state for state, value in STATE_TO_PB.items()}
REASON_TO_PB = {reason: pb.Reason.Value(f"REASON_{reason.name}") for reason in Reason}
_REASONS: dict[int, Reason] = {value: reason for reason, value in REASON_TO_PB.items()}
STATUS_TO_PB = {status: pb.WorkerStatus.Value(f"WORKER_STATUS_{status}") for status in WorkerStatus}
_STATUSES: dict[int, WorkerStatus] = {value: status for status, value in STATUS_TO_PB.items()}


def state_from(value: int) -> State:
    """A state that the server sent."""
    try:
        return _STATES[value]
    except KeyError:
        raise Internal(f"the server sent an unknown job state ({value}): is it newer?") from None


def asked_states(values: Iterable[int], field: str) -> tuple[State, ...]:
    """States that a client asks for."""
    try:
        return tuple([_STATES[value] for value in values])
    except KeyError as error:
        allowed = ", ".join(f"{state.name} ({state.value})" for state in State)
        raise InvalidArgument(field, f"unknown state {error}; allowed: {allowed}") from None


def asked_reasons(values: Iterable[int], field: str) -> tuple[Reason, ...]:
    """Reasons that a client asks for."""
    try:
        return tuple([_REASONS[value] for value in values])
    except KeyError as error:
        allowed = ", ".join(f"{reason} ({number})" for number, reason in _REASONS.items())
        raise InvalidArgument(field, f"unknown reason {error}; allowed: {allowed}") from None


def reason_from(value: int) -> Reason:
    """A reason that the server sent."""
    try:
        return _REASONS[value]
    except KeyError:
        raise Internal(f"the server sent an unknown reason ({value}): is it newer?") from None


def status_from(value: int) -> WorkerStatus:
    """A worker's status that the server sent."""
    try:
        return _STATUSES[value]
    except KeyError:
        raise Internal(
            f"the server sent an unknown worker status ({value}): is it newer?"
        ) from None
