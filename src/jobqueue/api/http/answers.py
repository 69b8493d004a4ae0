"""Build the bodies of HTTP answers, and define their classes for the OpenAPI document.

Most answers are dictionaries (``jobqueue.documents``). The caller may choose a view: the names that
an answer uses for states. A test checks that the dictionaries fit the classes.
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
from jobqueue.core.explain import Explanation
from jobqueue.core.grouping import DeadLetterGroups
from jobqueue.core.job import (
    Event,
    Job,
    Page,
    SubmitResult,
    SubmitStatus,
    Worker,
    WorkerStatus,
)
from jobqueue.core.lifecycle import TERMINAL, VIEWS, Reason, State, project
from jobqueue.core.queue import SETTINGS, Kind, QueueSettings, QueueStats, Setting
from jobqueue.core.schedule import Schedule, SchedulePage
from jobqueue.core.waiting import JOB, WORKER, in_turns
from jobqueue.documents import (
    Document,
    event_document,
    explanation_document,
    job_fields,
    queue_document,
    rfc3339,
    schedule_document,
    worker_document,
)

_ANY_JSON = msgspec.json.Decoder(Raw)
_Time = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]


class AcceptedJob(Struct, kw_only=True):
    """Describes an accepted job. Read the job, or wait for it, at the URL in ``Location``."""

    job_id: str
    status: str
    queue: str
    type: str


class ProgressView(Struct, kw_only=True):
    """Describes the progress that the handler of a running attempt has last reported."""

    value: Annotated[float, Meta(ge=0, le=1)] | None  # null: the handler does not know
    text: str
    at: _Time


class UniqueView(Struct, kw_only=True):
    """Describes the unique key of a job, as it was submitted."""

    key: str
    scope: str
    period: float | None
    on_conflict: str


class JobView(Struct, kw_only=True):
    """Describes a job. ``payload`` and ``result`` are JSON; bytes that are not JSON are base64.

    Lists of jobs leave out a long payload or result, and contain only its number of bytes.
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
    unique: UniqueView | None
    concurrency_key: str | None
    labels: dict[str, str]
    ttl: float | None
    timeout: float | None
    cancel_requested: bool
    hint: str  # for people: why the job waits; empty in lists
    progress: ProgressView | None  # null: the job does not run, or has no progress yet


class Duplicate(Struct, kw_only=True):
    """Says that another job has the idempotency key or the unique key.

    ``reason`` is "duplicate" if that job has the idempotency key and an equal payload, "conflict"
    if it has another payload, and "not_unique" if it has the unique key.
    """

    error: ErrorDetail
    reason: str
    job_id: str
    job: JobView | None  # null: the job was removed, or belongs to another caller


class ItemAnswer(Struct, kw_only=True, omit_defaults=True):
    """Describes the result of one item of a batch."""

    index: int
    status: str  # accepted, duplicate, existing, refused
    job_id: str | None = None
    error: ErrorDetail | None = None


class BatchAnswer(Struct, kw_only=True):
    """Describes the result of a batch: the counts, and the result of each item."""

    accepted: int
    duplicate: int
    existing: int
    refused: int
    results: list[ItemAnswer]
    error: ErrorDetail | UnsetType = UNSET  # the first item's error, if all were refused


class JobPage(Struct, kw_only=True):
    """Holds a page of jobs, newest first. With an empty ``next_page_token`` it is the last page."""

    jobs: list[JobView]
    next_page_token: str


class EventView(Struct, kw_only=True):
    """Describes one transition of a job."""

    version: int
    from_status: str | None
    to_status: str
    reason: str
    at: _Time
    attempt: int
    worker_id: str | None
    detail: str


class CauseView(Struct, kw_only=True):
    """Describes one cause for which a job does not run.

    The names of facts that are times end in `_at`.
    """

    code: str  # QUEUE_PAUSED, for example; later versions may have further ones
    text: str
    advice: str  # what to do; empty: nothing
    facts: dict[str, Any]


class ExplainAnswer(Struct, kw_only=True):
    """Says why a job does not run. The causes hold at the same time, the nearest one first."""

    job_id: str
    status: str
    at: _Time
    causes: list[CauseView]


class HistoryView(Struct, kw_only=True):
    """Holds the newest transitions of a job, at most 500. The oldest of them is first."""

    job_id: str
    events: list[EventView]
    older: int  # number of earlier transitions; `before_version` returns them


class CancelAnswer(Struct, kw_only=True):
    """Describes what a cancel has done to a job."""

    job_id: str
    status: str
    cancel_requested: bool  # the job runs, and its worker was told to stop the job
    already_terminal: bool


class RefusedView(Struct, kw_only=True):
    """Describes a dead letter that cannot return to its queue, and the reason."""

    job_id: str
    message: str


class RetryAnswer(Struct, kw_only=True):
    """Describes the dead letters that one call has sent back to their queues.

    Repeat the call with ``next_page_token`` until the token is empty.
    """

    looked_at: int
    matched: int
    retried: int
    refused: list[RefusedView]
    next_page_token: str


class DeleteAnswer(Struct, kw_only=True):
    """Describes the dead letters that one call has deleted.

    Repeat the call with ``next_page_token`` until the token is empty.
    """

    looked_at: int
    matched: int
    deleted: int
    refused: list[RefusedView]
    next_page_token: str


class GroupView(Struct, kw_only=True):
    """Describes dead letters of one type and reason, with errors that differ in numbers only."""

    type: str
    reason: str
    error: str  # the first line of the errors, with … in place of numbers and ids
    part: str  # a text that all errors of the group contain; empty: none
    jobs: int
    queues: list[str]  # at most ten
    first_at: _Time
    last_at: _Time
    newest: str  # the id of the newest job
    by_time: list[int]  # jobs in each of 24 equal parts of the time from `since` to `until`


class GroupsAnswer(Struct, kw_only=True):
    """Holds the groups of the newest 10,000 dead letters, largest first."""

    groups: list[GroupView]
    looked_at: int
    complete: bool  # false: there are older dead letters, which were not read
    since: _Time
    until: _Time


class UnservedView(Struct, kw_only=True):
    """Counts the jobs of one type that wait because no connected worker serves the type."""

    type: str
    jobs: int  # at most 10000 are counted


class HeldBackView(Struct, kw_only=True):
    """Counts the claimable jobs that wait because of a limit of their queue."""

    limit: str  # the name of the setting
    key: str  # the concurrency key whose limit it is; empty: that of the whole queue
    jobs: int  # at most 10000 are counted
    opens_in: float | None  # seconds until the next start; null: a held job must end first


def _setting_type(setting: Setting) -> Any:
    if setting.kind in (Kind.WEIGHTS, Kind.KEY_WEIGHTS):
        return dict[str, int] | None
    always = getattr(_DEFAULTS, setting.name) is not None
    return SETTING_TYPES[setting.kind] if always else SETTING_TYPES[setting.kind] | None


_DEFAULTS = QueueSettings()
_QueueSettings = msgspec.defstruct(
    "_QueueSettings", [(one.name, _setting_type(one)) for one in SETTINGS.values()]
)


class QueueView(_QueueSettings, kw_only=True):  # type: ignore[valid-type,misc,call-arg]
    """Describes a queue, with its settings and statistics."""

    name: str
    paused: bool
    created_at: _Time
    depth: dict[str, int]  # by state, with the state names of the view
    unfinished: int
    processed: int
    succeeded: int
    failed: int
    average_seconds: float
    error_rate: float
    unserved: list[UnservedView]  # types with the most jobs first; at most 100 types
    held_back: list[HeldBackView]  # by the queue's limits, at present


class QueueList(Struct, kw_only=True):
    """Lists all queues in the order of their names."""

    queues: list[QueueView]


class ChangedQueue(Struct, kw_only=True, omit_defaults=True):
    """Describes a change of a queue."""

    name: str
    paused: bool | None = None
    deleted: bool = False
    dead_lettered: int | None = None  # unfinished jobs that a forced delete dead-lettered


class BreakerView(Struct, kw_only=True):
    """Describes a type that a worker has paused because its jobs failed in a row."""

    type: str
    failures: int
    until: _Time
    trial: bool  # true: the worker takes one job, which decides


class WorkerView(Struct, kw_only=True):
    """Describes a worker."""

    worker_id: str
    status: str
    hostname: str
    pid: int
    version: str
    queues: list[str]
    types: list[str] | None  # the task types that the worker serves; null: all
    queues_left_out: int  # number of queues that the list leaves out
    types_left_out: int
    concurrency: int
    running: int
    overrun: int
    breakers: list[BreakerView]
    owner: str  # the caller that registered the worker; empty: unauthenticated
    registered_at: _Time
    last_heartbeat: _Time
    current_jobs: list[str] | UnsetType = UNSET  # its jobs, in the view "scheduler" only


class WorkerList(Struct, kw_only=True):
    """Lists all workers that the store knows."""

    workers: list[WorkerView]


class ChangedWorker(Struct, kw_only=True):
    """Describes the status that an operator has set for a worker."""

    worker_id: str
    status: str


class ScheduleJobView(Struct, kw_only=True):
    """Describes the job that a schedule submits at each tick. Lists leave out its payload."""

    queue: str
    type: str
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    priority: int
    max_retries: int | None  # null: the queue's setting, like ttl and timeout
    ttl: float | None
    delay: float | None
    timeout: float | None
    labels: dict[str, str]
    concurrency_key: str | None


class ScheduleView(Struct, kw_only=True):
    """Describes a schedule: its definition, its last tick and its next tick."""

    name: str
    cron: str  # empty if `every` is given
    every: int | None
    timezone: str
    overlap: str
    catch_up: float | None  # null: the server's setting
    source: str  # "code" (a worker declared it) or "operator"
    created_at: _Time
    updated_at: _Time
    revision: int
    paused: bool
    next_at: _Time  # null while it is paused
    waiting_at: _Time  # the tick that waits for the end of the last job
    last_at: _Time
    last_job_id: str | None
    skipped: int  # ticks without a job
    skipped_at: _Time
    skipped_why: str
    problem: str  # why the due tick cannot be submitted; empty: no problem
    job: ScheduleJobView


class ScheduleList(Struct, kw_only=True):
    """Holds a page of schedules by name. With an empty ``next_page_token`` it is the last page."""

    schedules: list[ScheduleView]
    next_page_token: str


class StartedSchedule(Struct, kw_only=True):
    """Names the job of a schedule that was submitted by hand."""

    name: str
    job_id: str


class RemovedSchedule(Struct, kw_only=True):
    """Says that a schedule is removed."""

    name: str
    removed: bool = True


class ComponentView(Struct, kw_only=True):
    """Describes the health of one part of the system."""

    name: str
    ok: bool
    detail: str


class StatusView(Struct, kw_only=True):
    """Describes the state of the system: its parts, queues and workers."""

    ok: bool
    status: str  # ok, degraded (working, but slower) or failing
    version: str
    components: list[ComponentView]
    queues: list[QueueView] | None  # null: not readable; `missing` has the reason
    workers: dict[str, int] | None  # by status
    missing: dict[str, str]  # the reason for each list that could not be read


class SettingView(Struct, kw_only=True):
    """Describes one setting of the server. The values of secrets are masked."""

    name: str
    value: str
    source: str  # "default", or the file, variable or flag that gave the value


class ConfigurationView(Struct, kw_only=True):
    """Describes the server that answers: its version, its start and its settings."""

    version: str
    started_at: _Time
    settings: list[SettingView]


class Ready(Struct, kw_only=True):
    """Says whether the server is ready for requests, with the health of each part."""

    ok: bool
    status: str  # ok, degraded (working, but slower) or failing
    components: list[ComponentView]
    error: ErrorDetail | UnsetType = UNSET


def parse_states(names: Sequence[str], view: str) -> tuple[State, ...]:
    """Convert the state names of a view to states. Each text may be several names with commas."""
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
    """Add ``content`` to the document unchanged if it is valid JSON, otherwise as base64."""
    try:
        content.decode()
        _ANY_JSON.decode(content)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        document[f"{name}_base64"] = base64.b64encode(content).decode("ascii")
    else:
        document[name] = Raw(content)


def job_view(job: Job, view: str, longest: int | None = None) -> Document:
    """Return the document of a job. Leave out a payload or result above ``longest`` bytes."""
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
        existing=count[SubmitStatus.EXISTING],
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


def explain_view(found: Explanation, view: str) -> Document:
    said = found.causes[0].facts.get("reason") if found.state in TERMINAL else None
    status = project(view, found.state, None if said is None else Reason(said))
    return explanation_document(found) | {"status": status}


def queue_view(stats: QueueStats, view: str) -> Document:
    """Return the document of a queue. Its depth has the state names of the view."""
    depth = dict.fromkeys(VIEWS[view].values(), 0)
    for state, count in stats.depth.items():
        depth[VIEWS[view][state]] += count
    return {**queue_document(stats), "depth": depth}


def groups_view(found: DeadLetterGroups) -> GroupsAnswer:
    return GroupsAnswer(
        groups=[
            GroupView(
                type=one.type,
                reason=one.reason.value,
                error=one.error,
                part=one.part,
                jobs=one.jobs,
                queues=one.queues,
                first_at=rfc3339(one.first_at),
                last_at=rfc3339(one.last_at),
                newest=one.newest,
                by_time=one.by_time,
            )
            for one in found.groups
        ],
        looked_at=found.looked_at,
        complete=found.complete,
        since=rfc3339(found.since) if found.groups else None,
        until=rfc3339(found.until) if found.groups else None,
    )


async def schedule_page_view(page: SchedulePage) -> Document:
    shown = await in_turns(schedule_document, page.schedules, JOB)
    return {"schedules": shown, "next_page_token": page.next_page_token}


def schedule_view(schedule: Schedule) -> Document:
    """Return the document of a schedule, with the payload of its job."""
    document = schedule_document(schedule)
    _put_bytes(document["job"], "payload", schedule.spec.job.payload)
    return document


def worker_status(worker: Worker, view: str) -> str:
    """Return the name of a worker's status in the view."""
    if view != "scheduler":
        return worker.status.value
    return "DEAD" if worker.status is WorkerStatus.OFFLINE else "ALIVE"


async def worker_views(
    workers: Sequence[Worker], view: str, held: Mapping[str, list[str]]
) -> list[Document]:
    """Return the documents of workers.

    ``held`` maps worker ids to the ids of their jobs; only the view "scheduler" shows them.
    """
    return await in_turns(lambda worker: _worker_view(worker, view, held), workers, WORKER)


def _worker_view(worker: Worker, view: str, held: Mapping[str, list[str]]) -> Document:
    document = {**worker_document(worker), "status": worker_status(worker, view)}
    if view == "scheduler":
        document["current_jobs"] = held.get(worker.info.id, [])
    return document
