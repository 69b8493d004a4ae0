"""From domain objects to answers."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from jobqueue.api.http.errors import detail
from jobqueue.api.http.shapes import (
    BatchAnswer,
    CancelAnswer,
    ComponentView,
    EventView,
    ItemAnswer,
    JobPage,
    JobView,
    ProgressView,
    QueueView,
    RefusedView,
    RetryAnswer,
    UnservedView,
    WorkerView,
)
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import (
    Cancellation,
    Event,
    Health,
    Job,
    Page,
    Retried,
    SubmitResult,
    SubmitStatus,
    Worker,
    WorkerStatus,
)
from jobqueue.core.lifecycle import VIEWS, Reason, State, project
from jobqueue.core.queue import QueueStats
from jobqueue.core.waiting import JOB, WORKER, in_turns
from jobqueue.documents import event_document, job_fields, queue_document, worker_document

_ANY_JSON = msgspec.json.Decoder(Raw)


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


def _as_json(content: bytes) -> Raw | None:
    """The bytes as JSON, looked through but not rebuilt; None if they are something else."""
    try:
        content.decode()
        _ANY_JSON.decode(content)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    return Raw(content)


def _show_bytes(shown: dict[str, Any], name: str, content: bytes) -> None:
    json = _as_json(content)
    if json is not None:
        shown[name] = json
    else:
        shown[f"{name}_base64"] = base64.b64encode(content).decode("ascii")


def job_view(job: Job, view: str, longest: int | None = None) -> JobView:
    """Show a job; ``longest`` leaves out a payload or result of more bytes."""
    shown: dict[str, Any] = {}
    if longest is None or len(job.payload) <= longest:
        _show_bytes(shown, "payload", job.payload)
    if not job.result:
        shown["result"] = None
    elif longest is None or len(job.result) <= longest:
        _show_bytes(shown, "result", job.result)
    fields = job_fields(job)
    progress = fields.pop("progress")
    return JobView(
        **fields,
        status=project(view, job.state, job.reason),
        payload_bytes=len(job.payload),
        result_bytes=None if job.result is None else len(job.result),
        assigned_worker=job.worker_id,
        progress=None if progress is None else ProgressView(**progress),
        **shown,
    )


async def page_view(page: Page, view: str, longest: int) -> JobPage:
    """Show a page of jobs."""
    shown = await in_turns(lambda job: job_view(job, view, longest), page.jobs, JOB)
    return JobPage(jobs=shown, next_page_token=page.next_page_token)


async def batch_answer(results: Sequence[SubmitResult]) -> BatchAnswer:
    """Show what became of a batch."""
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


async def event_views(events: Sequence[Event], view: str) -> list[EventView]:
    """Show transitions."""
    return await in_turns(lambda event: event_view(event, view), events, JOB)


def event_view(event: Event, view: str) -> EventView:
    """Show a transition."""
    origin = event.from_state
    names = {
        "from_status": None if origin is None else project(view, origin, None),
        "to_status": project(view, event.to_state, event.reason),
    }
    return EventView(**{**event_document(event), **names})


def cancel_answer(job_id: str, cancellation: Cancellation, view: str) -> CancelAnswer:
    """Show what a cancel did."""
    return CancelAnswer(
        job_id=job_id,
        status=project(view, cancellation.state, Reason.CANCELLED),
        cancel_requested=cancellation.requested,
        already_terminal=cancellation.already_terminal,
    )


def retry_answer(retried: Retried) -> RetryAnswer:
    """Show what a retry of many did."""
    return RetryAnswer(
        looked_at=retried.looked_at,
        matched=retried.matched,
        retried=retried.retried,
        refused=[RefusedView(job_id=one.job_id, message=one.message) for one in retried.refused],
        next_page_token=retried.next_page_token,
    )


async def queue_views(queues: Sequence[QueueStats], view: str) -> list[QueueView]:
    """Show queues."""
    return await in_turns(lambda stats: queue_view(stats, view), queues, JOB)


def queue_view(stats: QueueStats, view: str) -> QueueView:
    """Show a queue, its depth in the view's words."""
    fields = queue_document(stats)
    depth = dict.fromkeys(VIEWS[view].values(), 0)
    for state, count in stats.depth.items():
        depth[VIEWS[view][state]] += count
    fields["depth"] = depth
    fields["unserved"] = [UnservedView(**one) for one in fields["unserved"]]
    return QueueView(**fields)


def worker_status(worker: Worker, view: str) -> str:
    """How a worker is, in the view's words."""
    if view != "scheduler":
        return worker.status.value
    return "DEAD" if worker.status is WorkerStatus.OFFLINE else "ALIVE"


async def worker_views(
    workers: Sequence[Worker], view: str, held: Mapping[str, list[str]]
) -> list[WorkerView]:
    """Show workers. ``held``: the jobs of each, where the view shows them."""
    return await in_turns(lambda worker: _worker_view(worker, view, held), workers, WORKER)


def _worker_view(worker: Worker, view: str, held: Mapping[str, list[str]]) -> WorkerView:
    fields = worker_document(worker) | {"status": worker_status(worker, view)}
    current = held.get(worker.info.id, []) if view == "scheduler" else UNSET
    return WorkerView(**fields, current_jobs=current)


def components_view(health: Health) -> list[ComponentView]:
    """Show the parts of the system."""
    return [ComponentView(name=c.name, ok=c.ok, detail=c.detail) for c in health.components]
