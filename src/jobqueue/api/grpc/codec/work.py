"""Assignments, reports and pulses: the hot path between server and worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobqueue.api.grpc.codec.values import MAX_INT63, STATUS_TO_PB, status_from
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import id_from_bytes, id_to_bytes
from jobqueue.core.job import Assignment, JobSpec, Pulse, Transition
from jobqueue.core.lifecycle import REPORTABLE, Move
from jobqueue.core.progress import Progress
from jobqueue.core.waiting import in_turns
from jobqueue.pb.jq.v1 import worker_pb2
from jobqueue.wire import more_fields, read_more

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
    raise AssertionError("the wire must carry exactly the moves that a worker may report")


def assignment_to_pb(given: Assignment) -> worker_pb2.Assignment:
    """One attempt, on its way to the worker. Field by field, as every job passes here."""
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
    """One attempt, as the worker gets it."""
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
    """Raises InvalidArgument for a move that is not a worker's to make."""
    kind = _KINDS.get(report.move)
    if kind is None:
        raise InvalidArgument("move", f"a worker may not report {report.move.value!r}")
    if report.lease is None:
        raise InvalidArgument("lease", "a report must name its lease")
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
    """Raises InvalidArgument for an unknown kind or a missing lease."""
    move = _MOVES.get(message.kind)
    if move is None:
        allowed = ", ".join(f"{kind}" for kind in _MOVES)
        raise InvalidArgument("report.kind", f"unknown kind {message.kind}; allowed: {allowed}")
    lease = message.lease
    if not 0 < lease <= MAX_INT63:
        raise InvalidArgument("report.lease", "must be the lease of the assignment")
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


def leases_from_pb(leases: Iterable[int]) -> list[int]:
    """The leases of a heartbeat."""
    held = list(leases)
    for lease in held:
        if not 0 < lease <= MAX_INT63:
            raise InvalidArgument("leases", "must be the leases of assignments")
    return held


def progress_to_pb(progress: Mapping[int, Progress]) -> list[worker_pb2.LeaseProgress]:
    """The news of a heartbeat."""
    return [
        worker_pb2.LeaseProgress(lease=lease, value=said.value, text=said.text)
        for lease, said in progress.items()
    ]


async def progress_from_pb(news: Sequence[worker_pb2.LeaseProgress]) -> dict[int, Progress]:
    """The news of a heartbeat, by lease; the last word on one counts."""
    return dict(await in_turns(_lease_progress, news))


def _lease_progress(one: worker_pb2.LeaseProgress) -> tuple[int, Progress]:
    return one.lease, Progress.of(one.value if one.HasField("value") else None, one.text)


def overrun_of(beat: worker_pb2.Beat | worker_pb2.HeartbeatRequest) -> int | None:
    """How many slots are overrun; None: it is not said."""
    return beat.overrun if beat.HasField("overrun") else None


def pulse_to_pb(pulse: Pulse) -> worker_pb2.Pulse:
    """The answer to a heartbeat."""
    return worker_pb2.Pulse(
        known=pulse.known,
        status=STATUS_TO_PB[pulse.status],
        cancelled=pulse.cancelled,
        lost=pulse.lost,
    )


def pulse_from_pb(message: worker_pb2.Pulse) -> Pulse:
    """The answer to a heartbeat."""
    return Pulse(
        known=message.known,
        status=status_from(message.status),
        cancelled=list(message.cancelled),
        lost=list(message.lost),
    )
