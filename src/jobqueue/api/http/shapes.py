"""What answers look like. The OpenAPI page is generated from these classes."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from jobqueue.api.http.errors import ErrorDetail

_Time = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]


class Index(Struct, kw_only=True):
    """What is here, and where."""

    name: str
    version: str
    links: dict[str, str]


class Accepted(Struct, kw_only=True):
    """A job was accepted; poll it, or wait for it, under ``Location``."""

    job_id: str
    status: str
    queue: str
    type: str


class ProgressView(Struct, kw_only=True):
    """How far a running attempt has come: the last word of its handler."""

    value: Annotated[float, Meta(ge=0, le=1)] | None  # null: the handler cannot tell
    text: str
    at: _Time


class JobView(Struct, kw_only=True):
    """A job. ``payload`` and ``result`` are JSON; bytes that are not JSON come as base64.

    A list leaves out what is long: then only the number of bytes is there.
    """

    job_id: str
    queue: str
    type: str
    status: str
    finished: bool
    priority: int
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    payload_bytes: int
    result: Raw | UnsetType | None = UNSET
    result_base64: str | UnsetType = UNSET
    result_bytes: int | None
    error: str
    reason: str
    retry_count: int
    max_retries: int
    attempt: int
    version: int
    created_at: _Time
    run_at: _Time
    started_at: _Time
    completed_at: _Time
    next_retry_at: _Time
    expires_at: _Time
    updated_at: _Time
    assigned_worker: str | None
    worker_id: str | None
    idempotency_key: str | None
    labels: dict[str, str]
    ttl: float | None
    timeout: float | None
    cancel_requested: bool
    hint: str  # why it does not go on, for people; empty in lists
    progress: ProgressView | None  # null: it does not run, or has said nothing yet


class Duplicate(Struct, kw_only=True):
    """The idempotency key is taken, by an equal job ("duplicate") or another one ("conflict")."""

    error: ErrorDetail
    reason: str
    job_id: str
    job: JobView | None  # with its result if there is one; null: removed since, or another's


class ItemAnswer(Struct, kw_only=True, omit_defaults=True):
    """What became of one item of a batch."""

    index: int
    status: str  # accepted, duplicate, refused
    job_id: str | None = None
    error: ErrorDetail | None = None


class BatchAnswer(Struct, kw_only=True):
    """What became of a batch, in numbers and item by item."""

    accepted: int
    duplicate: int
    refused: int
    results: list[ItemAnswer]
    error: ErrorDetail | UnsetType = UNSET  # of the first item, when nothing was accepted


class JobPage(Struct, kw_only=True):
    """Jobs, newest first. An empty ``next_page_token`` says that there are no more."""

    jobs: list[JobView]
    next_page_token: str


class EventView(Struct, kw_only=True):
    """One transition of a job."""

    version: int
    from_status: str | None
    to_status: str
    reason: str
    at: _Time
    attempt: int
    worker_id: str | None
    detail: str


class HistoryView(Struct, kw_only=True):
    """A job's newest transitions, 500 at most, oldest first."""

    job_id: str
    events: list[EventView]
    older: int  # how many there are before these: ask for them with `before_version`


class CancelAnswer(Struct, kw_only=True):
    """What a cancel did."""

    job_id: str
    status: str
    cancel_requested: bool  # it runs, and its worker was asked to stop
    already_terminal: bool


class RefusedView(Struct, kw_only=True):
    """A dead letter that cannot go back, and why."""

    job_id: str
    message: str


class RetryAnswer(Struct, kw_only=True):
    """What one call did. Call again with ``next_page_token`` until that is empty."""

    looked_at: int
    matched: int
    retried: int
    refused: list[RefusedView]
    next_page_token: str


class UnservedView(Struct, kw_only=True):
    """Jobs of one type that wait because no connected worker takes them."""

    type: str
    jobs: int  # counted up to 10000


class QueueView(Struct, kw_only=True):
    """A queue, its defaults and its figures."""

    name: str
    paused: bool
    max_retries: int
    ttl: float | None
    timeout: float | None
    capacity: int
    retry_profile: str
    retry_base: float | None  # seconds; of these three null: the profile's
    retry_max: float | None
    retry_jitter: float | None
    priority_weights: dict[str, int] | None
    retention: float | None  # seconds that DONE jobs are kept; 0: for ever
    dead_letter_retention: float | None  # seconds; 0: until they are deleted
    created_at: _Time
    depth: dict[str, int]  # by state, in the view's words
    unfinished: int
    processed: int
    succeeded: int
    failed: int
    average_seconds: float
    error_rate: float
    unserved: list[UnservedView]  # the most first; at most 100 types


class QueueList(Struct, kw_only=True):
    """Every queue, by name."""

    queues: list[QueueView]


class QueueChange(Struct, kw_only=True, omit_defaults=True):
    """What was done to a queue."""

    name: str
    paused: bool | None = None
    deleted: bool = False
    dead_lettered: int | None = None  # unfinished jobs that a forced delete gave up


class WorkerView(Struct, kw_only=True):
    """A worker."""

    worker_id: str
    status: str
    hostname: str
    pid: int
    version: str
    queues: list[str]
    types: list[str] | None  # the task types it knows; null: it takes every type
    queues_left_out: int  # how many more it names: long lists are shown in part
    types_left_out: int
    concurrency: int
    running: int
    overrun: int
    owner: str  # the caller that registered it; empty: nobody had to say who they are
    registered_at: _Time
    last_heartbeat: _Time
    current_jobs: list[str] | UnsetType = UNSET  # in the scheduler view: the jobs it holds


class WorkerList(Struct, kw_only=True):
    """Every worker known."""

    workers: list[WorkerView]


class WorkerChange(Struct, kw_only=True):
    """What a worker was told."""

    worker_id: str
    status: str


class ComponentView(Struct, kw_only=True):
    """One part of the system."""

    name: str
    ok: bool
    detail: str


class StatusView(Struct, kw_only=True):
    """The system at a glance."""

    ok: bool
    status: str  # ok, degraded (it does its work, slower) or failing
    version: str
    components: list[ComponentView]
    queues: list[QueueView] | None  # null: the store does not say; see `missing`
    workers: dict[str, int] | None  # by status
    missing: dict[str, str]  # what could not be read, and why


class Ready(Struct, kw_only=True):
    """Whether requests should be sent here, part by part."""

    ok: bool
    status: str  # ok, degraded (it does its work, slower) or failing
    components: list[ComponentView]
    error: ErrorDetail | UnsetType = UNSET
