"""What the client returns where the parts of a server know more than its API tells."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.services.model import Page, Record, Status, Summary


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as GetJobStatus shows it; a time of 0 is still to come."""

    job_id: str
    status: Status
    cancel_requested: bool
    created_at_ms: int
    started_at_ms: int
    finished_at_ms: int
    failure_reason: str  # empty unless FAILED


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a listing; ``next_page_token`` is empty on the last."""

    jobs: tuple[Summary, ...]
    next_page_token: str


def state_of(record: Record) -> JobState:
    """What a client learns of a record."""
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


def page_of(page: Page) -> JobPage:
    """With a token instead of a number."""
    return JobPage(page.jobs, "" if page.next_offset is None else str(page.next_offset))
