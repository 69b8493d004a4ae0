"""(new) -> PENDING: what a queue makes of a spec, and why it takes none.

Stores in this process call these; the SQL and Lua that do the same are held to them by the tests
that every store passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.core.errors import QueueFull
from jobqueue.core.job import JobSpec, SubmitResult
from jobqueue.core.queue import QueueSettings


@dataclass(slots=True)
class Accepted:
    """A new job, as its store writes it down."""

    spec: JobSpec
    expires_at: float | None
    ready: bool  # it can be claimed at once
    due: float | None  # when the sweeper must look


def accept(spec: JobSpec, queue: QueueSettings, now: float) -> Accepted:
    """Fill in what the queue says; a delay becomes a time."""
    filled = spec.accepted(queue, now)
    expires_at = None if filled.ttl is None else now + filled.ttl
    ready, due = waiting(filled.run_at, expires_at, now)
    return Accepted(filled, expires_at, ready, due)


def waiting(
    run_at: float | None, expires_at: float | None, now: float
) -> tuple[bool, float | None]:
    """Whether a PENDING job can be claimed, and when the sweeper must look at it."""
    if run_at is None or run_at <= now:
        return True, expires_at
    return False, run_at if expires_at is None else min(run_at, expires_at)


def repeated(spec: JobSpec, original: str, fingerprint: bytes) -> SubmitResult:
    """The answer to a submit under a key that a job has."""
    if fingerprint == spec.fingerprint():
        return SubmitResult.duplicate(original)
    return SubmitResult.conflict(original, spec.key or "")


def full(queue: str, capacity: int) -> SubmitResult:
    """The answer to a submit that a bounded queue has no place for."""
    return SubmitResult.refused(QueueFull(f"queue {queue!r} is full ({capacity} jobs are waiting)"))
