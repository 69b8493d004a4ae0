"""Check the arguments of a client's calls before they are sent, and define its answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.taskqueue.components.model import (
    CANCEL_SECONDS,
    MAX_UINT32,
    READ_SECONDS,
    SUBMIT_SECONDS,
    JobRecord,
    Listing,
    Sort,
    Spec,
    Status,
    Summary,
    SummaryPage,
)
from jobqueue.taskqueue.components.requests import (
    check_key,
    check_reason,
    check_spec,
    page_offset,
    page_size,
)


def job_spec(
    spec: Spec | None,
    job_type: str | None,
    work_duration_ms: int,
    payload_size_bytes: int,
    labels: Mapping[str, str] | None,
) -> Spec:
    """Return the checked spec, given as a ``JobSpec`` or as its fields."""
    if spec is None:
        if job_type is None:
            raise InvalidArgument("spec", "is missing: pass a JobSpec, or at least job_type=")
        spec = Spec(job_type, work_duration_ms, payload_size_bytes, labels or {})
    elif job_type is not None or work_duration_ms or payload_size_bytes or labels:
        raise InvalidArgument("spec", "pass either a JobSpec or its fields, not both")
    elif not isinstance(spec, Spec):
        raise InvalidArgument("spec", f"expected a JobSpec, got {spec!r:.80}")
    _check_is_text("spec.job_type", spec.job_type)
    _check_uint32("spec.work_duration_ms", spec.work_duration_ms)
    _check_uint32("spec.payload_size_bytes", spec.payload_size_bytes)
    if not isinstance(spec.labels, Mapping):
        raise InvalidArgument(
            "spec.labels", f"expected a mapping of names to values, got {spec.labels!r:.80}"
        )
    for text in (*spec.labels, *spec.labels.values()):
        _check_is_text("spec.labels", text)
    check_spec(spec)
    return spec


def job_id_of(job_id: str) -> str:
    """Return the checked job id.

    It is not changed, because the owner of a job is computed from the exact bytes of its id.
    """
    _check_is_text("job_id", job_id)
    return parse_job_id(job_id)


def key_of(client_request_id: str) -> str:
    """Return the checked idempotency key. An empty key means that the submit has no key."""
    _check_is_text("client_request_id", client_request_id)
    check_key(client_request_id)
    return client_request_id


def reason_of(reason: str) -> str:
    """Return the checked reason of a cancel."""
    _check_is_text("reason", reason)
    check_reason(reason)
    return reason


def timeout_of(timeout: object) -> float | None:
    """Return the checked timeout in seconds. None means no limit."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise InvalidArgument("timeout", f"expected seconds or None, got {timeout!r:.40}")
    return float(timeout)


def listing_of(status_filter: Iterable[Status], size: int, token: str, sort: Sort) -> Listing:
    """Return a checked request for a page of jobs."""
    _check_uint32("page.page_size", size)
    _check_is_text("page.page_token", token)
    return Listing(_statuses(status_filter), _sort(sort), page_offset(token), page_size(size))


def _statuses(given: Iterable[Status]) -> frozenset[Status]:
    try:
        return frozenset(Status(one) for one in given)
    except (TypeError, ValueError):
        names = ", ".join(status.name for status in Status)
        raise InvalidArgument(
            "status_filter", f"expected JobStatus members ({names}), got {given!r:.80}"
        ) from None


def _sort(given: Sort) -> Sort:
    try:
        return Sort(given)
    except ValueError:
        names = ", ".join(sort.name for sort in Sort)
        raise InvalidArgument(
            "sort", f"expected a JobSort member ({names}), got {given!r:.40}"
        ) from None


def _check_is_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(field, f"expected a str, got {value!r:.40}")


def _check_uint32(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_UINT32:
        raise InvalidArgument(field, f"expected a number from 0 to {MAX_UINT32}, got {value!r:.40}")


@dataclass(frozen=True, slots=True)
class JobState:
    """Holds what GetJobStatus shows about a job. A time of 0 is not known yet."""

    job_id: str
    status: Status
    cancel_requested: bool
    created_at_ms: int
    started_at_ms: int
    finished_at_ms: int
    failure_reason: str  # empty unless FAILED


@dataclass(frozen=True, slots=True)
class JobPage:
    """Holds one page of a listing. ``next_page_token`` is empty on the last page."""

    jobs: tuple[Summary, ...]
    next_page_token: str


def state_of(record: JobRecord) -> JobState:
    """Return the part of a job's record that GetJobStatus shows."""
    summary = record.summary
    return JobState(
        job_id=summary.job_id,
        status=summary.status,
        cancel_requested=summary.cancel_requested,
        created_at_ms=summary.created_at_ms,
        started_at_ms=summary.started_at_ms,
        finished_at_ms=summary.finished_at_ms,
        failure_reason=record.failure_reason,
    )


def page_of(page: SummaryPage) -> JobPage:
    """Return a page of jobs with the token of the next page instead of its offset."""
    return JobPage(page.jobs, "" if page.next_offset is None else str(page.next_offset))


_MOST_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Holds the time limit in seconds for one attempt of each method.

    A call makes at most 4 attempts, with pauses of at most 0.1, 0.2 and 0.4 s between them. With
    the default limits, SubmitJob with a key and CancelJob end within 12.7 s. All other methods end
    within 4.7 s.
    """

    submit_job: float = SUBMIT_SECONDS
    cancel_job: float = CANCEL_SECONDS
    get_job_status: float = READ_SECONDS
    get_job_result: float = READ_SECONDS
    list_jobs: float = READ_SECONDS

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if (
                not isinstance(value, int | float)
                or isinstance(value, bool)
                or not math.isfinite(value)
                or not 0 < value <= _MOST_SECONDS
            ):
                bounds = f"more than 0 and at most {_MOST_SECONDS:g}"
                why = f"expected seconds, {bounds}, got {value!r:.40}"
                raise InvalidArgument(f"deadlines.{one.name}", why)
