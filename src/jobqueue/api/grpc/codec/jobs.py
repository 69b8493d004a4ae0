"""Specs, submit results, jobs and their events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobqueue.api.grpc.codec.values import (
    REASON_TO_PB,
    STATE_TO_PB,
    reason_from,
    state_from,
)
from jobqueue.api.grpc.errors import error_from_pb, error_to_pb
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import DEFAULT_QUEUE, Event, Job, JobSpec, SubmitResult, SubmitStatus
from jobqueue.core.progress import Progress
from jobqueue.pb.jq.v1 import client_pb2, types_pb2
from jobqueue.wire import read_more, read_spec, seconds, spec_fields, stamp

_NONE = types_pb2.JOB_STATE_UNSPECIFIED


def spec_to_pb(spec: JobSpec) -> types_pb2.JobSpec:
    """Raises InvalidArgument for what the wire cannot carry."""
    said = spec_fields(spec, types_pb2.JobSpec)
    try:
        return types_pb2.JobSpec(**said)
    except (TypeError, ValueError, OverflowError):
        raise _blame(said) from None


def _blame(said: Mapping[str, Any]) -> InvalidArgument:
    """Find the field that protobuf did not take."""
    for name, value in said.items():
        try:
            types_pb2.JobSpec(**{name: value})
        except (TypeError, ValueError, OverflowError) as reason:
            return InvalidArgument(name.removesuffix("_seconds"), str(reason))
    return InvalidArgument("spec", "cannot be sent")


def spec_from_pb(message: types_pb2.JobSpec) -> JobSpec:
    """A spec as it came over the wire; the engine checks its values.

    Field by field: this is done for every job, and ``read_spec`` takes twice as long.
    """
    has = message.HasField
    return JobSpec(
        payload=message.payload,
        queue=message.queue if has("queue") else DEFAULT_QUEUE,
        type=message.type,
        priority=message.priority,
        max_retries=message.max_retries if has("max_retries") else None,
        ttl=message.ttl_seconds if has("ttl_seconds") else None,
        delay=message.delay_seconds if has("delay_seconds") else None,
        run_at=seconds(message.run_at) if has("run_at") else None,
        timeout=message.timeout_seconds if has("timeout_seconds") else None,
        key=message.idempotency_key if has("idempotency_key") else None,
        labels=dict(message.labels),
        **read_more(message),
    )


def result_to_pb(result: SubmitResult) -> client_pb2.SubmitResult:
    """The answer to one spec."""
    if result.error is not None:
        return client_pb2.SubmitResult(error=error_to_pb(result.error))
    if result.status is SubmitStatus.DUPLICATE:
        return client_pb2.SubmitResult(job_id=result.job_id, duplicate=True)
    return client_pb2.SubmitResult(job_id=result.job_id)


def result_from_pb(message: client_pb2.SubmitResult) -> SubmitResult:
    """The answer to one spec; a refusal carries the very error that the engine made."""
    if message.HasField("error"):
        error = error_from_pb(message.error)
        return SubmitResult(SubmitStatus.REFUSED, getattr(error, "job_id", ""), error)
    if message.duplicate:
        return SubmitResult(SubmitStatus.DUPLICATE, message.job_id)
    return SubmitResult(SubmitStatus.ACCEPTED, message.job_id)


def job_to_pb(job: Job) -> types_pb2.Job:
    """The whole record."""
    return types_pb2.Job(
        id=job.id,
        seq=job.seq,
        state=STATE_TO_PB[job.state],
        reason=REASON_TO_PB[job.reason],
        version=job.version,
        attempt=job.attempt,
        retry_count=job.retry_count,
        created_at=stamp(job.created_at),
        updated_at=stamp(job.updated_at),
        expires_at=stamp(job.expires_at),
        worker_id=job.worker_id,
        cancel_requested=job.cancel_requested,
        started_at=stamp(job.started_at),
        completed_at=stamp(job.completed_at),
        next_retry_at=stamp(job.next_retry_at),
        result=job.result,
        error=job.error,
        hint=job.hint,
        progress=None if job.progress is None else _progress_to_pb(job.progress),
        **spec_fields(job.spec, types_pb2.Job),
    )


def _progress_to_pb(progress: Progress) -> types_pb2.Progress:
    return types_pb2.Progress(value=progress.value, text=progress.text, at=stamp(progress.at))


def job_from_pb(message: types_pb2.Job) -> Job:
    """The whole record."""
    has = message.HasField
    return Job(
        id=message.id,
        seq=message.seq,
        spec=read_spec(message),
        state=state_from(message.state),
        reason=reason_from(message.reason),
        version=message.version,
        attempt=message.attempt,
        retry_count=message.retry_count,
        created_at=seconds(message.created_at),
        updated_at=seconds(message.updated_at),
        expires_at=seconds(message.expires_at) if has("expires_at") else None,
        worker_id=message.worker_id if has("worker_id") else None,
        cancel_requested=message.cancel_requested,
        started_at=seconds(message.started_at) if has("started_at") else None,
        completed_at=seconds(message.completed_at) if has("completed_at") else None,
        next_retry_at=seconds(message.next_retry_at) if has("next_retry_at") else None,
        result=message.result if has("result") else None,
        error=message.error,
        hint=message.hint,
        progress=_progress_from_pb(message.progress) if has("progress") else None,
    )


def _progress_from_pb(message: types_pb2.Progress) -> Progress:
    value = message.value if message.HasField("value") else None
    return Progress(value, message.text, seconds(message.at))


def event_to_pb(event: Event) -> types_pb2.Event:
    """One transition."""
    return types_pb2.Event(
        job_id=event.job_id,
        version=event.version,
        from_state=_NONE if event.from_state is None else STATE_TO_PB[event.from_state],
        to_state=STATE_TO_PB[event.to_state],
        reason=REASON_TO_PB[event.reason],
        at=stamp(event.at),
        attempt=event.attempt,
        worker_id=event.worker_id,
        detail=event.detail,
        queue=event.queue,
    )


def event_from_pb(message: types_pb2.Event) -> Event:
    """One transition."""
    return Event(
        job_id=message.job_id,
        version=message.version,
        from_state=state_from(message.from_state) if message.from_state else None,
        to_state=state_from(message.to_state),
        reason=reason_from(message.reason),
        at=seconds(message.at),
        attempt=message.attempt,
        worker_id=message.worker_id if message.HasField("worker_id") else None,
        detail=message.detail,
        queue=message.queue,
    )
