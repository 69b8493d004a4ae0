"""What the scenarios say to a face, and what they see of its answers.

A face joins the suite with a driver that translates these; nothing here knows a protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Refused(Exception):
    """The face said no, with one of the stable codes."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        field: str | None = None,
        retry_after: float | None = None,
        job_id: str = "",
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.field = field
        self.retry_after = retry_after
        self.job_id = job_id


@dataclass(kw_only=True)
class Spec:
    """A job to submit. The payload is the JSON text; numbers may be nonsense on purpose."""

    payload: bytes = b'{"n": 1}'
    queue: str = "default"
    type: str = ""
    priority: int = 0
    max_retries: int | None = None
    ttl: float | None = None
    delay: float | None = None
    run_at: float | None = None
    timeout: float | None = None
    key: str | None = None
    unique: Mapping[str, Any] | None = None  # key, scope, period, on_conflict
    concurrency_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Submitted:
    """The job is there. ``duplicate``, ``existing``: an earlier one has the key, the unique key."""

    job_id: str
    duplicate: bool = False
    existing: bool = False


@dataclass(kw_only=True)
class JobSeen:
    """A job, in words that every face has."""

    job_id: str
    queue: str
    type: str
    state: str
    payload: bytes
    result: bytes | None
    priority: int
    max_retries: int
    retry_count: int
    attempt: int
    version: int
    reason: str
    error: str
    key: str | None
    unique: Mapping[str, Any] | None
    concurrency_key: str | None
    labels: Mapping[str, str]
    ttl: float | None
    timeout: float | None
    worker_id: str | None
    cancel_requested: bool
    created_at: float
    started_at: float | None
    completed_at: float | None
    run_at: float | None
    next_retry_at: float | None
    hint: str
    progress: tuple[float | None, str] | None  # value and text


@dataclass
class EventSeen:
    """One transition."""

    version: int
    from_state: str | None
    to_state: str
    reason: str
    at: float
    detail: str


@dataclass
class PageSeen:
    """One page of jobs."""

    jobs: list[JobSeen]
    next_page_token: str


@dataclass
class CancelSeen:
    """What a cancel did."""

    state: str
    requested: bool
    already_terminal: bool


@dataclass(kw_only=True)
class QueueSeen:
    """A queue and its figures."""

    name: str
    paused: bool
    max_retries: int
    ttl: float | None
    timeout: float | None
    capacity: int
    retry_profile: str
    retry_base: float | None
    retry_max: float | None
    retry_jitter: float | None
    retention: float | None
    dead_letter_retention: float | None
    max_running: int | None
    rate: int | None
    rate_period: float | None
    rate_burst: int | None
    key_max_running: int | None
    key_rate: int | None
    key_rate_period: float | None
    key_rate_burst: int | None
    key_weights: Mapping[str, int] | None
    priority_weights: Mapping[int, int] | None
    depth: Mapping[str, int]  # states without jobs may be missing
    processed: int
    average_seconds: float
    error_rate: float
    unserved: Sequence[tuple[str, int]]  # type, jobs
    held_back: Sequence[tuple[str, int, float | None, str]]  # limit, jobs, opens in, key


@dataclass(kw_only=True)
class WorkerSeen:
    """A worker."""

    worker_id: str
    status: str
    concurrency: int
    queues: Sequence[str]
    types: Sequence[str] | None
    running: int


@dataclass(kw_only=True)
class ScheduleSeen:
    """A schedule."""

    name: str
    cron: str
    every: int | None
    timezone: str
    overlap: str
    catch_up: float | None
    source: str
    paused: bool
    next_at: float | None
    last_at: float | None
    last_job_id: str
    skipped: int
    problem: str
    queue: str
    type: str
    payload: bytes
    priority: int
    labels: Mapping[str, str]
    concurrency_key: str | None


class PublicFace(Protocol):
    """Every call returns what it saw, or raises Refused."""

    name: str

    async def submit(self, spec: Spec) -> Submitted: ...

    async def submit_batch(self, specs: Sequence[Spec]) -> list[Submitted | Refused]: ...

    async def get(self, job_id: str) -> JobSeen: ...

    async def wait(self, job_id: str, timeout: float) -> JobSeen: ...

    async def cancel(self, job_id: str) -> CancelSeen: ...

    async def list(
        self,
        *,
        queue: str | None = None,
        states: Sequence[str] = (),
        type: str | None = None,
        limit: int | None = None,
        page_token: str = "",
    ) -> PageSeen: ...

    async def history(self, job_id: str) -> Sequence[EventSeen]: ...

    def watch(self, job_id: str) -> AsyncIterator[EventSeen]: ...

    async def retry(self, job_id: str) -> JobSeen: ...

    async def delete(self, job_id: str) -> None: ...

    async def create_queue(self, name: str, **settings: Any) -> QueueSeen: ...

    async def update_queue(self, name: str, **settings: Any) -> QueueSeen: ...

    async def delete_queue(self, name: str, *, force: bool = False) -> int: ...

    async def pause_queue(self, name: str) -> None: ...

    async def resume_queue(self, name: str) -> None: ...

    async def queue(self, name: str) -> QueueSeen: ...

    async def queues(self) -> Sequence[QueueSeen]: ...

    async def workers(self) -> Sequence[WorkerSeen]: ...

    async def drain_worker(self, worker_id: str) -> None: ...

    async def undrain_worker(self, worker_id: str) -> None: ...

    async def shutdown_worker(self, worker_id: str) -> None: ...

    async def create_schedule(self, name: str, job: Spec, **settings: Any) -> ScheduleSeen: ...

    async def schedule(self, name: str) -> ScheduleSeen: ...

    async def schedules(
        self, limit: int | None = None, page_token: str = ""
    ) -> tuple[Sequence[ScheduleSeen], str]: ...

    async def pause_schedule(self, name: str) -> ScheduleSeen: ...

    async def resume_schedule(self, name: str) -> ScheduleSeen: ...

    async def run_schedule(self, name: str) -> str: ...

    async def remove_schedule(self, name: str) -> None: ...

    async def healthy(self) -> bool: ...

    async def close(self) -> None: ...
