"""Convert assignments, reports and heartbeats to protobuf messages and back.

Every job passes through these functions, so they are written for speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import id_from_bytes, id_to_bytes
from jobqueue.core.job import Assignment, JobSpec, Pulse, Transition
from jobqueue.core.lifecycle import REPORTABLE, Move
from jobqueue.core.progress import Progress
from jobqueue.core.waiting import in_turns
from jobqueue.pb.jq.v1 import types_pb2, worker_pb2
from jobqueue.wire import (
    WORKER_STATUSES,
    message_fields,
    more_fields,
    read_more,
    record_fields,
)

MAX_INT63 = 2**63 - 1
_KINDS = {
    Move.START: worker_pb2.REPORT_KIND_STARTED,
    Move.SUCCEED: worker_pb2.REPORT_KIND_SUCCEEDED,
    Move.FAIL: worker_pb2.REPORT_KIND_FAILED,
    Move.TIME_OUT: worker_pb2.REPORT_KIND_TIMED_OUT,
    Move.ACKNOWLEDGE_CANCEL: worker_pb2.REPORT_KIND_CANCEL_ACKNOWLEDGED,
    Move.HAND_BACK: worker_pb2.REPORT_KIND_HANDED_BACK,
}
_MOVES = {kind: move for move, kind in _KINDS.items()}
if _KINDS.keys() != REPORTABLE:
    raise AssertionError("_KINDS must have exactly the moves that a worker may report")


def assignment_to_pb(given: Assignment) -> worker_pb2.Assignment:
    spec = given.spec
    return worker_pb2.Assignment(
        seq=given.seq,
        lease=given.lease,
        job_id=id_to_bytes(given.id),
        attempt=given.attempt,
        retry_count=given.retry_count,
        created_at=given.created_at,
        expires_in_seconds=given.expires_in,
        deaths=given.deaths,
        queue=spec.queue,
        type=spec.type,
        payload=spec.payload,
        priority=spec.priority,
        max_retries=given.max_retries,
        timeout_seconds=spec.timeout,
        labels=spec.labels or None,
        **more_fields(spec, worker_pb2.Assignment),
    )


def assignment_from_pb(message: worker_pb2.Assignment, worker_id: str) -> Assignment:
    return Assignment(
        message.seq,
        id_from_bytes(message.job_id),
        JobSpec(
            payload=message.payload,
            queue=message.queue,
            type=message.type,
            priority=message.priority,
            max_retries=message.max_retries,
            timeout=message.timeout_seconds if message.HasField("timeout_seconds") else None,
            labels=dict(message.labels),
            **read_more(message),
        ),
        message.attempt,
        message.lease,
        worker_id,
        message.retry_count,
        message.created_at,
        message.expires_in_seconds if message.HasField("expires_in_seconds") else None,
        message.deaths,
    )


def report_to_pb(report: Transition) -> worker_pb2.Report:
    kind = _KINDS.get(report.move)
    if kind is None:
        raise InvalidArgument("move", f"a worker may not report {report.move.value!r}")
    if report.lease is None:
        raise InvalidArgument("lease", "is missing; a report must have the lease of its assignment")
    try:
        return worker_pb2.Report(
            kind=kind,
            seq=report.seq,
            lease=report.lease,
            result=report.result,
            error=report.error,
            not_retryable=not report.retryable,
            retry_after_seconds=report.retry_after,
            ran_for_seconds=report.ran_for,
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument("report", str(error)) from None


def report_from_pb(message: worker_pb2.Report) -> Transition:
    """Convert a report. Raise InvalidArgument for an unknown kind or a missing lease."""
    move = _MOVES.get(message.kind)
    if move is None:
        allowed = ", ".join(f"{kind}" for kind in _MOVES)
        raise InvalidArgument("report.kind", f"unknown kind {message.kind}; allowed: {allowed}")
    lease = message.lease
    if not 0 < lease <= MAX_INT63:
        raise InvalidArgument("report.lease", "must be the positive lease number of the assignment")
    has = message.HasField
    return Transition(
        message.seq,
        move,
        lease,
        None,
        message.result if has("result") else None,
        message.error,
        not message.not_retryable,
        message.retry_after_seconds if has("retry_after_seconds") else None,
        message.ran_for_seconds if has("ran_for_seconds") else None,
    )


def breaker_to_pb(one: OpenBreaker) -> types_pb2.OpenBreaker:
    return types_pb2.OpenBreaker(**message_fields(one, types_pb2.OpenBreaker))


def breaker_from_pb(message: types_pb2.OpenBreaker) -> OpenBreaker:
    return OpenBreaker(**record_fields(message, OpenBreaker))


def breakers_to_pb(breakers: Iterable[OpenBreaker]) -> worker_pb2.Breakers:
    return worker_pb2.Breakers(open=[breaker_to_pb(one) for one in breakers])


def breakers_from_pb(message: worker_pb2.Breakers) -> list[OpenBreaker]:
    return [breaker_from_pb(one) for one in message.open]


def leases_from_pb(leases: Iterable[int]) -> list[int]:
    """Convert a heartbeat's leases. Raise InvalidArgument for a number that cannot be a lease."""
    held = list(leases)
    for lease in held:
        if not 0 < lease <= MAX_INT63:
            raise InvalidArgument("leases", "must be positive lease numbers of assignments")
    return held


def heartbeat_to_pb(
    worker_id: str,
    incarnation: int,
    leases: Sequence[int],
    begun: Sequence[int],
    complete: bool,
    progress: Mapping[int, Progress],
    overrun: int | None,
) -> worker_pb2.HeartbeatRequest:
    return worker_pb2.HeartbeatRequest(
        worker_id=worker_id,
        incarnation=incarnation,
        leases=leases,
        begun=begun,
        incomplete=not complete,
        progress=[
            worker_pb2.LeaseProgress(lease=lease, value=said.value, text=said.text)
            for lease, said in progress.items()
        ],
        overrun=overrun,
    )


async def progress_from_pb(entries: Sequence[worker_pb2.LeaseProgress]) -> dict[int, Progress]:
    """Return the progress in a heartbeat by lease. The last entry for a lease wins."""
    return dict(await in_turns(_lease_progress, entries))


def _lease_progress(one: worker_pb2.LeaseProgress) -> tuple[int, Progress]:
    return one.lease, Progress.of(one.value if one.HasField("value") else None, one.text)


def pulse_to_pb(pulse: Pulse) -> worker_pb2.Pulse:
    return worker_pb2.Pulse(
        known=pulse.known,
        status=WORKER_STATUSES.to_pb[pulse.status],
        cancelled=pulse.cancelled,
        lost=pulse.lost,
    )


def pulse_from_pb(message: worker_pb2.Pulse) -> Pulse:
    return Pulse(
        known=message.known,
        status=WORKER_STATUSES.from_pb(message.status),
        cancelled=list(message.cancelled),
        lost=list(message.lost),
    )
