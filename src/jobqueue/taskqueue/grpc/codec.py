"""Convert between messages of ``taskqueue.v1`` and Python objects.

A mistake in a request raises InvalidArgument with the name of the field. A mistake in an answer is
a defect of the server and raises Internal.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, TypeVar

from jobqueue.core.errors import Internal, InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.taskqueue.components.model import (
    MAX_UINT32,
    Applied,
    Envelope,
    JobRecord,
    Listing,
    Report,
    Sort,
    Spec,
    Status,
    Summary,
    SummaryPage,
    WorkOutcome,
)
from jobqueue.taskqueue.components.requests import page_offset, page_size

E = TypeVar("E", bound=enum.IntEnum)

STATUS_TO_PB = {status: public.JobStatus.Value(status.name) for status in Status}
OUTCOME_TO_PB = {
    outcome: public.JobOutcome.Value(f"JOB_OUTCOME_{outcome.name}") for outcome in WorkOutcome
}
SORT_TO_PB = {sort: public.JobSort.Value(sort.name) for sort in Sort}
_STATUSES: Mapping[int, Status] = {value: status for status, value in STATUS_TO_PB.items()}
_OUTCOMES: Mapping[int, WorkOutcome] = {value: outcome for outcome, value in OUTCOME_TO_PB.items()}
_SORTS: Mapping[int, Sort] = {
    public.JOB_SORT_UNSPECIFIED: Sort.CREATED_AT_DESC,
    **{value: sort for sort, value in SORT_TO_PB.items()},
}

ListRequest = public.ListJobsRequest | internal.ListJobRecordsRequest
ListResponse = public.ListJobsResponse | internal.ListJobRecordsResponse
# The messages that show a job's status and times, and those that carry an envelope.
_SummaryMessage = public.JobSummary | public.GetJobStatusResponse
_EnvelopeMessage = (
    internal.StoreResultRequest | internal.GetResultResponse | public.GetJobResultResponse
)


# Values.


def _asked(known: Mapping[int, E], value: int, field: str) -> E:
    try:
        return known[value]
    except KeyError:
        allowed = ", ".join(f"{one.name} ({number})" for number, one in known.items())
        raise InvalidArgument(field, f"{value} is not one of: {allowed}") from None


def asked_status(value: int, field: str) -> Status:
    """Return the status that a request contains as a number."""
    return _asked(_STATUSES, value, field)


def status_from(value: int) -> Status:
    """Return the status that a server's answer contains as a number."""
    try:
        return _STATUSES[value]
    except KeyError:
        raise Internal(
            f"the server sent the job status {value}, which this version does not know: update the"
            " client"
        ) from None


def current_to_pb(current: Status | None) -> public.JobStatus.ValueType:
    """Return the number of a status; JOB_STATUS_UNSPECIFIED if the job does not exist."""
    return public.JOB_STATUS_UNSPECIFIED if current is None else STATUS_TO_PB[current]


def applied_from(applied: bool, current: int) -> Applied:
    """Return the answer to a change that is made only if the job has an expected status."""
    gone = current == public.JOB_STATUS_UNSPECIFIED
    return Applied(applied, None if gone else status_from(current))


def _uint32(value: int, field: str) -> int:
    if not 0 <= value <= MAX_UINT32:
        raise InvalidArgument(field, f"must be 0 to {MAX_UINT32}, got {value}")
    return value


def text_to_send(text: str, field: str) -> str:
    """Return a caller's text unchanged.

    InvalidArgument means that UTF-8 cannot encode the text, for example half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(field, "cannot be encoded as UTF-8") from None
    return text


def _made_text(text: str) -> str:
    """Return a text that a job made, with "?" for characters that UTF-8 cannot encode.

    The text is changed, not refused, so that the outcome of the job is not lost.
    """
    return text.encode(errors="replace").decode()


# Specs, records, pages.


def spec_to_pb(spec: Spec) -> public.JobSpec:
    for name, value in spec.labels.items():
        text_to_send(name, "spec.labels")
        text_to_send(value, "spec.labels")
    return public.JobSpec(
        job_type=text_to_send(spec.job_type, "spec.job_type"),
        work_duration_ms=_uint32(spec.work_duration_ms, "spec.work_duration_ms"),
        payload_size_bytes=_uint32(spec.payload_size_bytes, "spec.payload_size_bytes"),
        labels=spec.labels,
    )


def spec_from_pb(spec: public.JobSpec) -> Spec:
    return Spec(
        spec.job_type, spec.work_duration_ms, spec.payload_size_bytes, dict(spec.labels.items())
    )


def asked_spec(request: public.SubmitJobRequest | internal.CreateJobRequest) -> Spec:
    """Return the spec of the job that a request contains. A request without a spec is refused."""
    if not request.HasField("spec"):
        raise InvalidArgument("spec", "is required")
    return spec_from_pb(request.spec)


def _summary_fields(summary: Summary) -> dict[str, Any]:
    return {
        "job_id": summary.job_id,
        "status": STATUS_TO_PB[summary.status],
        "created_at_ms": summary.created_at_ms,
        "started_at_ms": summary.started_at_ms,
        "finished_at_ms": summary.finished_at_ms,
        "cancel_requested": summary.cancel_requested,
    }


def summary_to_pb(summary: Summary) -> public.JobSummary:
    return public.JobSummary(job_type=summary.job_type, **_summary_fields(summary))


def _summary_from(message: _SummaryMessage, job_type: str) -> Summary:
    return Summary(
        job_id=message.job_id,
        status=status_from(message.status),
        job_type=job_type,
        created_at_ms=message.created_at_ms,
        started_at_ms=message.started_at_ms,
        finished_at_ms=message.finished_at_ms,
        cancel_requested=message.cancel_requested,
    )


def record_to_pb(record: JobRecord) -> internal.GetJobRecordResponse:
    return internal.GetJobRecordResponse(
        summary=summary_to_pb(record.summary),
        failure_reason=_made_text(record.failure_reason),
        spec=spec_to_pb(record.spec),
    )


def record_from_pb(response: internal.GetJobRecordResponse) -> JobRecord:
    summary = _summary_from(response.summary, response.summary.job_type)
    return JobRecord(summary, spec_from_pb(response.spec), response.failure_reason)


def record_to_status(record: JobRecord) -> public.GetJobStatusResponse:
    """Return the part of a job's record that clients see, as the answer to GetJobStatus."""
    return public.GetJobStatusResponse(
        failure_reason=_made_text(record.failure_reason), **_summary_fields(record.summary)
    )


def record_from_status(response: public.GetJobStatusResponse) -> JobRecord:
    """Return a job's record, without its spec and job type, from the answer to GetJobStatus."""
    return JobRecord(_summary_from(response, ""), Spec(""), response.failure_reason)


def asked_listing(request: ListRequest) -> Listing:
    return Listing(
        statuses=frozenset(asked_status(value, "status_filter") for value in request.status_filter),
        sort=_asked(_SORTS, request.sort, "sort"),
        offset=page_offset(request.page.page_token),
        limit=page_size(request.page.page_size),
    )


def listing_fields(listing: Listing) -> dict[str, Any]:
    """Return the fields of a ListJobs or ListJobRecords request."""
    if listing.offset < 0:
        raise InvalidArgument("page.page_token", "must not be negative")
    page = public.PageRequest(
        page_size=_uint32(listing.limit, "page.page_size"),
        page_token=str(listing.offset) if listing.offset else "",
    )
    statuses = [STATUS_TO_PB[status] for status in sorted(listing.statuses)]
    return {"status_filter": statuses, "page": page, "sort": SORT_TO_PB[listing.sort]}


def page_end(page: SummaryPage) -> public.PageResponse:
    token = "" if page.next_offset is None else str(page.next_offset)
    return public.PageResponse(next_page_token=token)


def page_from_pb(response: ListResponse) -> SummaryPage:
    token = response.page.next_page_token
    try:
        next_offset = page_offset(token) if token else None
    except InvalidArgument:
        raise Internal(
            f"the server sent the page token {token[:40]!r}, which is not a non-negative integer"
        ) from None
    return SummaryPage(
        tuple(_summary_from(job, job.job_type) for job in response.jobs), next_offset
    )


# Envelopes and reports.


def envelope_fields(envelope: Envelope) -> dict[str, Any]:
    """Return the fields of an envelope, for any of the three messages that contain an envelope."""
    return {
        "job_id": envelope.job_id,
        "terminal_status": STATUS_TO_PB[envelope.status],
        "runtime_ms": min(envelope.runtime_ms, MAX_UINT32),
        "output_summary": _made_text(envelope.output_summary),
        "output_bytes": envelope.output,
        "checksum": envelope.checksum,
    }


def _envelope_from(message: _EnvelopeMessage, job_id: str, status: Status) -> Envelope:
    return Envelope(
        job_id,
        status,
        runtime_ms=message.runtime_ms,
        output_summary=message.output_summary,
        output=message.output_bytes,
        checksum=message.checksum,
    )


def envelope_from_pb(
    response: internal.GetResultResponse | public.GetJobResultResponse,
) -> Envelope:
    """Return the envelope that an answer contains."""
    return _envelope_from(response, response.job_id, status_from(response.terminal_status))


def asked_envelope(request: internal.StoreResultRequest) -> Envelope:
    job_id = parse_job_id(request.job_id)
    status = asked_status(request.terminal_status, "terminal_status")
    return _envelope_from(request, job_id, status)


def report_to_pb(report: Report) -> internal.ReportWorkOutcomeRequest:
    return internal.ReportWorkOutcomeRequest(
        worker_id=text_to_send(report.worker_id, "worker_id"),
        job_id=report.job_id,
        outcome=OUTCOME_TO_PB[report.outcome],
        runtime_ms=min(report.runtime_ms, MAX_UINT32),
        failure_reason=_made_text(report.failure_reason),
        output_summary=_made_text(report.output_summary),
        output_bytes=report.output,
        checksum=report.checksum,
    )


def asked_report(request: internal.ReportWorkOutcomeRequest) -> Report:
    return Report(
        worker_id=request.worker_id,
        job_id=parse_job_id(request.job_id),
        outcome=_asked(_OUTCOMES, request.outcome, "outcome"),
        runtime_ms=request.runtime_ms,
        failure_reason=request.failure_reason,
        output_summary=request.output_summary,
        output=request.output_bytes,
        checksum=request.checksum,
    )
