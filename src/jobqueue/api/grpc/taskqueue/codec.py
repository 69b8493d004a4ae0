"""Messages and what they mean. What a caller asks wrongly is an InvalidArgument with its field;
what a server answers wrongly is a defect of that server."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from jobqueue.core.errors import Internal, InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.services.model import (
    MAX_UINT32,
    Applied,
    Canceled,
    Created,
    Envelope,
    Listing,
    Outcome,
    Page,
    Record,
    Report,
    Sort,
    Spec,
    Status,
    Stored,
    Submitted,
    Summary,
    Work,
)
from jobqueue.services.requests import page_offset, page_size

E = TypeVar("E", bound=enum.IntEnum)

STATUS_TO_PB = {status: public.JobStatus.Value(status.name) for status in Status}
OUTCOME_TO_PB = {
    outcome: public.JobOutcome.Value(f"JOB_OUTCOME_{outcome.name}") for outcome in Outcome
}
SORT_TO_PB = {sort: public.JobSort.Value(sort.name) for sort in Sort}
_STATUSES: Mapping[int, Status] = {value: status for status, value in STATUS_TO_PB.items()}
_OUTCOMES: Mapping[int, Outcome] = {value: outcome for outcome, value in OUTCOME_TO_PB.items()}
_SORTS: Mapping[int, Sort] = {
    public.JOB_SORT_UNSPECIFIED: Sort.CREATED_AT_DESC,
    **{value: sort for sort, value in SORT_TO_PB.items()},
}

ListRequest = public.ListJobsRequest | internal.ListJobRecordsRequest
ListResponse = public.ListJobsResponse | internal.ListJobRecordsResponse


# -- values ----------------------------------------------------------------------------------------


def _asked(known: Mapping[int, E], value: int, field: str) -> E:
    try:
        return known[value]
    except KeyError:
        allowed = ", ".join(f"{one.name} ({number})" for number, one in known.items())
        raise InvalidArgument(field, f"{value} is none of: {allowed}") from None


def asked_status(value: int, field: str) -> Status:
    """A status in a request."""
    return _asked(_STATUSES, value, field)


def status_from(value: int) -> Status:
    """A status in an answer."""
    try:
        return _STATUSES[value]
    except KeyError:
        raise Internal(f"the server sent an unknown job status ({value}): is it newer?") from None


def _uint32(value: int, field: str) -> int:
    if not 0 <= value <= MAX_UINT32:
        raise InvalidArgument(field, f"must be 0 to {MAX_UINT32}")
    return value


def text_to_send(text: str, field: str) -> str:
    """What somebody chose; half of a surrogate pair does not travel."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(field, "is not Unicode text") from None
    return text


def _made_text(text: str) -> str:
    """What a job produced: never refused, for its outcome would be lost with it."""
    return text.encode(errors="replace").decode()


# -- specs, summaries, pages -----------------------------------------------------------------------


def spec_to_pb(spec: Spec) -> public.JobSpec:
    """A job to ask for."""
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
    """A job that is asked for, or that was."""
    return Spec(
        spec.job_type, spec.work_duration_ms, spec.payload_size_bytes, dict(spec.labels.items())
    )


def asked_spec(request: public.SubmitJobRequest | internal.CreateJobRequest) -> Spec:
    """The job of a request, which must have one."""
    if not request.HasField("spec"):
        raise InvalidArgument("spec", "is missing")
    return spec_from_pb(request.spec)


def summary_to_pb(summary: Summary) -> public.JobSummary:
    """A job as a listing shows it."""
    return public.JobSummary(
        job_id=summary.job_id,
        status=STATUS_TO_PB[summary.status],
        job_type=summary.job_type,
        created_at_ms=summary.created_at_ms,
        started_at_ms=summary.started_at_ms,
        finished_at_ms=summary.finished_at_ms,
        cancel_requested=summary.cancel_requested,
    )


def summary_from_pb(summary: public.JobSummary) -> Summary:
    """A job as a server lists it."""
    return Summary(
        job_id=summary.job_id,
        status=status_from(summary.status),
        job_type=summary.job_type,
        created_at_ms=summary.created_at_ms,
        started_at_ms=summary.started_at_ms,
        finished_at_ms=summary.finished_at_ms,
        cancel_requested=summary.cancel_requested,
    )


def asked_listing(request: ListRequest) -> Listing:
    """Which jobs are asked for."""
    return Listing(
        statuses=frozenset(asked_status(value, "status_filter") for value in request.status_filter),
        sort=_asked(_SORTS, request.sort, "sort"),
        offset=page_offset(request.page.page_token),
        limit=page_size(request.page.page_size),
    )


def public_list_request(listing: Listing) -> public.ListJobsRequest:
    """Ask a server for jobs."""
    return public.ListJobsRequest(
        status_filter=[STATUS_TO_PB[status] for status in sorted(listing.statuses)],
        page=_page_request(listing),
        sort=SORT_TO_PB[listing.sort],
    )


def list_request(listing: Listing) -> internal.ListJobRecordsRequest:
    """Ask the owner for jobs."""
    return internal.ListJobRecordsRequest(
        status_filter=[STATUS_TO_PB[status] for status in sorted(listing.statuses)],
        page=_page_request(listing),
        sort=SORT_TO_PB[listing.sort],
    )


def _page_request(listing: Listing) -> public.PageRequest:
    if listing.offset < 0:
        raise InvalidArgument("page.page_token", "must not be negative")
    return public.PageRequest(
        page_size=_uint32(listing.limit, "page.page_size"),
        page_token=str(listing.offset) if listing.offset else "",
    )


def page_end(page: Page) -> public.PageResponse:
    """Where the next page begins."""
    token = "" if page.next_offset is None else str(page.next_offset)
    return public.PageResponse(next_page_token=token)


def page_from_pb(response: ListResponse) -> Page:
    """A page that a server sent."""
    token = response.page.next_page_token
    try:
        next_offset = page_offset(token) if token else None
    except InvalidArgument:
        raise Internal(f"the server sent a page token that is none: {token[:40]!r}") from None
    return Page(tuple(summary_from_pb(job) for job in response.jobs), next_offset)


# -- the public service ----------------------------------------------------------------------------


def submitted_to_pb(submitted: Submitted) -> public.SubmitJobResponse:
    """The answer to a submit; what is accepted was queued."""
    return public.SubmitJobResponse(
        job_id=submitted.job_id,
        initial_status=public.QUEUED,
        accepted_at_ms=submitted.accepted_at_ms,
    )


def submitted_from_pb(response: public.SubmitJobResponse) -> Submitted:
    """The answer to a submit."""
    return Submitted(response.job_id, response.accepted_at_ms)


def record_to_status(record: Record) -> public.GetJobStatusResponse:
    """What clients see of a record."""
    summary = record.summary
    return public.GetJobStatusResponse(
        job_id=summary.job_id,
        status=STATUS_TO_PB[summary.status],
        cancel_requested=summary.cancel_requested,
        created_at_ms=summary.created_at_ms,
        started_at_ms=summary.started_at_ms,
        finished_at_ms=summary.finished_at_ms,
        failure_reason=_made_text(record.failure_reason),
    )


def record_from_status(response: public.GetJobStatusResponse) -> Record:
    """A record as far as clients see it: without the spec, and so without the job's type."""
    summary = Summary(
        job_id=response.job_id,
        status=status_from(response.status),
        job_type="",
        created_at_ms=response.created_at_ms,
        started_at_ms=response.started_at_ms,
        finished_at_ms=response.finished_at_ms,
        cancel_requested=response.cancel_requested,
    )
    return Record(summary, Spec(""), response.failure_reason)


def envelope_to_result(job_id: str, envelope: Envelope | None) -> public.GetJobResultResponse:
    """The result, or that there is none yet."""
    if envelope is None:
        return public.GetJobResultResponse(job_id=job_id)
    return public.GetJobResultResponse(
        job_id=job_id,
        result_ready=True,
        terminal_status=STATUS_TO_PB[envelope.status],
        output_bytes=envelope.output,
        output_summary=_made_text(envelope.output_summary),
        runtime_ms=min(envelope.runtime_ms, MAX_UINT32),
        checksum=envelope.checksum,
    )


def envelope_from_result(response: public.GetJobResultResponse) -> Envelope | None:
    """The result, None if there is none yet."""
    if not response.result_ready:
        return None
    return Envelope(
        response.job_id,
        status_from(response.terminal_status),
        runtime_ms=response.runtime_ms,
        output_summary=response.output_summary,
        output=response.output_bytes,
        checksum=response.checksum,
    )


def canceled_to_pb(canceled: Canceled) -> public.CancelJobResponse:
    """The answer to a cancel."""
    return public.CancelJobResponse(
        job_id=canceled.job_id,
        accepted=canceled.accepted,
        current_status=STATUS_TO_PB[canceled.current],
        already_terminal=canceled.already_terminal,
    )


def canceled_from_pb(response: public.CancelJobResponse) -> Canceled:
    """The answer to a cancel."""
    return Canceled(
        response.job_id,
        response.accepted,
        status_from(response.current_status),
        response.already_terminal,
    )


# -- the job service -------------------------------------------------------------------------------


def created_to_pb(created: Created) -> internal.CreateJobResponse:
    """The answer to a create."""
    return internal.CreateJobResponse(
        job_id=created.job_id, status=STATUS_TO_PB[created.status], created=created.created
    )


def created_from_pb(response: internal.CreateJobResponse) -> Created:
    """The answer to a create."""
    return Created(response.job_id, status_from(response.status), response.created)


def record_to_pb(record: Record) -> internal.GetJobRecordResponse:
    """All about a job."""
    return internal.GetJobRecordResponse(
        summary=summary_to_pb(record.summary),
        failure_reason=_made_text(record.failure_reason),
        spec=spec_to_pb(record.spec),
    )


def record_from_pb(response: internal.GetJobRecordResponse) -> Record:
    """All about a job."""
    return Record(
        summary_from_pb(response.summary), spec_from_pb(response.spec), response.failure_reason
    )


def current_to_pb(current: Status | None) -> public.JobStatus.ValueType:
    """A status, unspecified if there is no such job."""
    return public.JOB_STATUS_UNSPECIFIED if current is None else STATUS_TO_PB[current]


def applied_from(applied: bool, current: int) -> Applied:
    """The answer to a guarded change."""
    gone = current == public.JOB_STATUS_UNSPECIFIED
    return Applied(applied, None if gone else status_from(current))


# -- the result service ----------------------------------------------------------------------------


def envelope_to_store(envelope: Envelope) -> internal.StoreResultRequest:
    """Ask for an envelope to be kept."""
    return internal.StoreResultRequest(
        job_id=envelope.job_id,
        terminal_status=STATUS_TO_PB[envelope.status],
        runtime_ms=min(envelope.runtime_ms, MAX_UINT32),
        output_summary=_made_text(envelope.output_summary),
        output_bytes=envelope.output,
        checksum=envelope.checksum,
    )


def asked_envelope(request: internal.StoreResultRequest) -> Envelope:
    """The envelope to keep."""
    return Envelope(
        parse_job_id(request.job_id),
        asked_status(request.terminal_status, "terminal_status"),
        runtime_ms=request.runtime_ms,
        output_summary=request.output_summary,
        output=request.output_bytes,
        checksum=request.checksum,
    )


def stored_to_pb(stored: Stored) -> internal.StoreResultResponse:
    """The answer to a store."""
    return internal.StoreResultResponse(
        stored=stored.stored,
        already_exists=stored.already_exists,
        current_terminal_status=STATUS_TO_PB[stored.current],
    )


def stored_from_pb(response: internal.StoreResultResponse) -> Stored:
    """The answer to a store."""
    return Stored(
        response.stored, response.already_exists, status_from(response.current_terminal_status)
    )


def envelope_to_pb(envelope: Envelope | None) -> internal.GetResultResponse:
    """The envelope that is kept, if there is one."""
    if envelope is None:
        return internal.GetResultResponse()
    return internal.GetResultResponse(
        found=True,
        job_id=envelope.job_id,
        terminal_status=STATUS_TO_PB[envelope.status],
        runtime_ms=min(envelope.runtime_ms, MAX_UINT32),
        output_summary=_made_text(envelope.output_summary),
        output_bytes=envelope.output,
        checksum=envelope.checksum,
    )


def envelope_from_pb(response: internal.GetResultResponse) -> Envelope | None:
    """The envelope that is kept, if there is one."""
    if not response.found:
        return None
    return Envelope(
        response.job_id,
        status_from(response.terminal_status),
        runtime_ms=response.runtime_ms,
        output_summary=response.output_summary,
        output=response.output_bytes,
        checksum=response.checksum,
    )


# -- the coordinator -------------------------------------------------------------------------------


def work_to_pb(work: Work) -> internal.FetchWorkResponse:
    """The answer to a fetch."""
    if not work.job_id or work.spec is None:
        return internal.FetchWorkResponse(retry_after_ms=work.retry_after_ms)
    return internal.FetchWorkResponse(assigned=True, job_id=work.job_id, spec=spec_to_pb(work.spec))


def work_from_pb(response: internal.FetchWorkResponse) -> Work:
    """The answer to a fetch."""
    if not response.assigned:
        return Work(retry_after_ms=response.retry_after_ms)
    return Work(response.job_id, spec_from_pb(response.spec))


def report_to_pb(report: Report) -> internal.ReportWorkOutcomeRequest:
    """How a job ended."""
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
    """How a worker says that a job ended."""
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
