"""Rebuilt jobs as the memory store keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jobqueue.core.rebuild import Rebuilt
from jobqueue.core.restore import RestoredQueue, Standing
from jobqueue.stores.memory.records import Entry, Home, Record


def home_of(restored: RestoredQueue, type_of: Callable[[int], str | None]) -> Home:
    """A queue with its figures, and no jobs yet."""
    home = Home(replace(restored.queue), type_of)
    figures = restored.figures
    home.succeeded, home.failed = figures.succeeded, figures.failed
    home.run_seconds = figures.run_seconds
    home.timed = figures.succeeded + figures.failed
    return home


def record_of(rebuilt: Rebuilt, stands: Standing, home: Home) -> Record:
    """A job, without its events."""
    job = rebuilt.job
    record = Record(
        job.seq,
        job.state,
        job.version,
        job.attempt,
        job.retry_count,
        job.max_retries,
        stands.lease,
        job.worker_id,
        job.cancel_requested,
        rebuilt.deaths,
        job.timeout,
        job.run_at,
        job.expires_at,
        job.started_at,
        stands.due,
    )
    record.completed_at = job.completed_at
    record.result = job.result
    record.error = job.error
    record.reason = job.reason
    record.id = job.id
    record.spec = replace(job.spec, run_at=rebuilt.run_at)
    record.home = home
    record.ready = stands.ready
    record.created_at = job.created_at
    record.events = []
    return record


def entries(rebuilt: Rebuilt, position: int) -> list[Entry]:
    """A job's events, from a position on."""
    found: list[Entry] = []
    for place, event in enumerate(rebuilt.history, position):
        failed = rebuilt.failed(event.version)
        found.append(
            (
                event.job_id,
                event.version,
                event.from_state,
                event.to_state,
                event.reason,
                event.at,
                event.attempt,
                event.worker_id,
                event.detail,
                event.queue,
                failed.started_at if failed else None,
                failed.next_retry_at if failed else None,
                place,
            )
        )
    return found
