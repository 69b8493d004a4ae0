"""Bodies of answers: the classes that the OpenAPI document is made from, and the documents.

Most answers are documents (``jobqueue.documents``) in a view's words. A test holds them to the
classes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from jobqueue.api.http.bodies import SETTING_TYPES
from jobqueue.api.http.errors import ErrorDetail, detail
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import (
    Event,
    Job,
    Page,
    SubmitResult,
    SubmitStatus,
    Worker,
    WorkerStatus,
)
from jobqueue.core.lifecycle import VIEWS, State, project
from jobqueue.core.queue import SETTINGS, Kind, QueueStats
from jobqueue.core.waiting import JOB, WORKER, in_turns
from jobqueue.documents import (
    Document,
    event_document,
    job_fields,
    queue_document,
    worker_document,
)

_ANY_JSON = msgspec.json.Decoder(Raw)
_Time = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]


class AcceptedJob(Struct, kw_only=True):
    """An accepted job. Read it, or wait for it, under ``Location``."""

    job_id: str
    status: str
    queue: str
    type: str


class ProgressView(Struct, kw_only=True):
    """The progress of a running attempt, as its handler last reported it."""

    value: Annotated[float, Meta(ge=0, le=1)] | None  # null: the handler cannot tell
    text: str
    at: _Time


class JobView(Struct, kw_only=True):
    """A job. ``payload`` and ``result`` are JSON; bytes that are not JSON come as base64.

    Lists leave out long ones, and give only their number of bytes.
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
    hint: str  # for people: the reason why it waits; empty in lists
    progress: ProgressView | None  # null: it does not run, or has reported nothing yet


class Duplicate(Struct, kw_only=True):
    """The idempotency key is taken, by an equal job ("duplicate") or another one ("conflict")."""

    error: ErrorDetail
    reason: str
    job_id: str
    job: JobView | None  # with its result if there is one; null: removed, or another caller's


class ItemAnswer(Struct, kw_only=True, omit_defaults=True):
    """The result of one item of a batch."""

    index: int
    status: str  # accepted, duplicate, refused
    job_id: str | None = None
    error: ErrorDetail | None = None


class BatchAnswer(Struct, kw_only=True):
    """The results of a batch, as counts and item by item."""

    accepted: int
    duplicate: int
    refused: int
    results: list[ItemAnswer]
    error: ErrorDetail | UnsetType = UNSET  # of the first item, if no item was accepted


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
    older: int  # the number of transitions before these; `before_version` asks for them


class CancelAnswer(Struct, kw_only=True):
    """The effect of a cancel."""

    job_id: str
    status: str
    cancel_requested: bool  # it runs, and its worker was asked to stop
    already_terminal: bool


class RefusedView(Struct, kw_only=True):
    """A dead letter that cannot go back, and the reason."""

    job_id: str
    message: str


class RetryAnswer(Struct, kw_only=True):
    """The effect of one call. Call again with ``next_page_token`` until that is empty."""

    looked_at: int
    matched: int
    retried: int
    refused: list[RefusedView]
    next_page_token: str


class UnservedView(Struct, kw_only=True):
    """Jobs of one type that wait because no connected worker takes them."""

    type: str
    jobs: int  # counted up to 10000


def _setting_type(kind: Kind) -> Any:
    if kind is Kind.WEIGHTS:
        return dict[str, int] | None
    always = kind in (Kind.WHOLE, Kind.PROFILE)
    return SETTING_TYPES[kind] if always else SETTING_TYPES[kind] | None


_QueueSettings = msgspec.defstruct(
    "_QueueSettings", [(one.name, _setting_type(one.kind)) for one in SETTINGS.values()]
)


class QueueView(_QueueSettings, kw_only=True):  # type: ignore[valid-type,misc,call-arg]
    """A queue, its settings and its figures."""

    name: str
    paused: bool
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


class ChangedQueue(Struct, kw_only=True, omit_defaults=True):
    """A change of a queue."""

    name: str
    paused: bool | None = None
    deleted: bool = False
    dead_lettered: int | None = None  # unfinished jobs that a forced delete dead-lettered


class WorkerView(Struct, kw_only=True):
    """A worker."""

    worker_id: str
    status: str
    hostname: str
    pid: int
    version: str
    queues: list[str]
    types: list[str] | None  # the task types it knows; null: it takes every type
    queues_left_out: int  # the number of further queues: long lists are shown in part
    types_left_out: int
    concurrency: int
    running: int
    overrun: int
    owner: str  # the caller that registered it; empty: the server asked for no credentials
    registered_at: _Time
    last_heartbeat: _Time
    current_jobs: list[str] | UnsetType = UNSET  # in the scheduler view: the jobs it holds


class WorkerList(Struct, kw_only=True):
    """Every worker known."""

    workers: list[WorkerView]


class ChangedWorker(Struct, kw_only=True):
    """The status that a worker was told to take."""

    worker_id: str
    status: str


class ComponentView(Struct, kw_only=True):
    """One part of the system."""

    name: str
    ok: bool
    detail: str


class StatusView(Struct, kw_only=True):
    """The state of the system: its parts, queues and workers."""

    ok: bool
    status: str  # ok, degraded (working, but slower) or failing
    version: str
    components: list[ComponentView]
    queues: list[QueueView] | None  # null: the store did not answer; `missing` has the reason
    workers: dict[str, int] | None  # by status
    missing: dict[str, str]  # lists that could not be read, and the reasons


class Ready(Struct, kw_only=True):
    """The server's readiness for requests, part by part."""

    ok: bool
    status: str  # ok, degraded (working, but slower) or failing
    components: list[ComponentView]
    error: ErrorDetail | UnsetType = UNSET


def parse_states(names: Sequence[str], view: str) -> tuple[State, ...]:
    """Read state names, which may be comma lists, in a view's own words."""
    words = [word.strip().upper() for name in names for word in name.split(",")]
    found: dict[State, None] = {}
    for word in words:
        states = [state for state, shown in VIEWS[view].items() if shown == word]
        if not states:
            allowed = ", ".join(dict.fromkeys(VIEWS[view].values()))
            raise InvalidArgument("status", f"unknown state {word[:80]!r}; allowed: {allowed}")
        found.update(dict.fromkeys(states))
    return tuple(found)


def _put_bytes(document: Document, name: str, content: bytes) -> None:
    """Add bytes as JSON, which is checked but not rebuilt; as base64 if they are not JSON."""
    try:
        content.decode()
        _ANY_JSON.decode(content)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        document[f"{name}_base64"] = base64.b64encode(content).decode("ascii")
    else:
        document[name] = Raw(content)


def job_view(job: Job, view: str, longest: int | None = None) -> Document:
    """Describe a job; ``longest`` leaves out a payload or result of more bytes."""
    document = {
        **job_fields(job),
        "status": project(view, job.state, job.reason),
        "payload_bytes": len(job.payload),
        "result_bytes": None if job.result is None else len(job.result),
        "assigned_worker": job.worker_id,
    }
    if longest is None or len(job.payload) <= longest:
        _put_bytes(document, "payload", job.payload)
    if not job.result:
        document["result"] = None
    elif longest is None or len(job.result) <= longest:
        _put_bytes(document, "result", job.result)
    return document


async def page_view(page: Page, view: str, longest: int) -> Document:
    jobs = await in_turns(lambda job: job_view(job, view, longest), page.jobs, JOB)
    return {"jobs": jobs, "next_page_token": page.next_page_token}


async def batch_answer(results: Sequence[SubmitResult]) -> BatchAnswer:
    items = await in_turns(_item_answer, list(enumerate(results)))
    count = dict.fromkeys(SubmitStatus, 0)
    for result in results:
        count[result.status] += 1
    return BatchAnswer(
        accepted=count[SubmitStatus.ACCEPTED],
        duplicate=count[SubmitStatus.DUPLICATE],
        refused=count[SubmitStatus.REFUSED],
        results=items,
    )


def _item_answer(item: tuple[int, SubmitResult]) -> ItemAnswer:
    index, result = item
    return ItemAnswer(
        index=index,
        status=result.status.value,
        job_id=result.job_id or None,
        error=None if result.error is None else detail(result.error),
    )


async def event_views(events: Sequence[Event], view: str) -> list[Document]:
    return await in_turns(lambda event: event_view(event, view), events, JOB)


def event_view(event: Event, view: str) -> Document:
    origin = event.from_state
    return {
        **event_document(event),
        "from_status": None if origin is None else project(view, origin, None),
        "to_status": project(view, event.to_state, event.reason),
    }


async def queue_views(queues: Sequence[QueueStats], view: str) -> list[Document]:
    return await in_turns(lambda stats: queue_view(stats, view), queues, JOB)


def queue_view(stats: QueueStats, view: str) -> Document:
    """Describe a queue, with its depth in the view's words."""
    depth = dict.fromkeys(VIEWS[view].values(), 0)
    for state, count in stats.depth.items():
        depth[VIEWS[view][state]] += count
    return {**queue_document(stats), "depth": depth}


def worker_status(worker: Worker, view: str) -> str:
    """Return a worker's status in the view's words."""
    if view != "scheduler":
        return worker.status.value
    return "DEAD" if worker.status is WorkerStatus.OFFLINE else "ALIVE"


async def worker_views(
    workers: Sequence[Worker], view: str, held: Mapping[str, list[str]]
) -> list[Document]:
    """Describe workers. ``held``: the jobs of each, where the view shows them."""
    return await in_turns(lambda worker: _worker_view(worker, view, held), workers, WORKER)


def _worker_view(worker: Worker, view: str, held: Mapping[str, list[str]]) -> Document:
    document = {**worker_document(worker), "status": worker_status(worker, view)}
    if view == "scheduler":
        document["current_jobs"] = held.get(worker.info.id, [])
    return document
