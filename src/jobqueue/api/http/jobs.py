"""Define the HTTP routes that submit, read, wait for, follow, cancel, retry and delete jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from jobqueue.access.callers import current_caller
from jobqueue.access.rules import BudgetKind
from jobqueue.api.http import answers
from jobqueue.api.http.authorizer import PLACE
from jobqueue.api.http.bodies import (
    BatchBody,
    JobBody,
    decode_batch,
    decode_job,
    effort,
    query_time,
)
from jobqueue.api.http.context import ApiContext, give_up, reply
from jobqueue.api.http.errors import JSON, OBJECT, answer, detail, headers_of
from jobqueue.api.http.guard import allow_longer
from jobqueue.api.http.openapi import responses, takes
from jobqueue.api.http.params import (
    DeadLetterParams,
    EventParams,
    GroupParams,
    JobId,
    JobParams,
    ListParams,
    NoParams,
    PageParams,
    QuickRoute,
    RetryParams,
    WaitParams,
)
from jobqueue.core.errors import (
    AlreadyExists,
    Conflict,
    JobQueueError,
    KeyConflict,
    NotFound,
    NotUnique,
    QueueFull,
    RateLimited,
    Unavailable,
)
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import (
    Event,
    JobQuery,
    JobSpec,
    RetryQuery,
    SubmitResult,
    SubmitStatus,
    older,
)
from jobqueue.core.lifecycle import Reason, State, parse_deaths, parse_reasons, project
from jobqueue.core.waiting import (
    LONG,
    TURN,
    give_answer_room_back,
    items_of,
    take_answer_room,
    turn,
)
from jobqueue.documents import Document

_STREAM = "text/event-stream"
_MAX_DIGITS = 19


def submit_routes(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["jobs"], route_class=QuickRoute)

    @router.post(
        "/jobs",
        status_code=202,
        summary="Submit a job",
        responses=responses(
            {
                200: (answers.AcceptedJob, "nothing was stored: this job has the unique key"),
                202: (answers.AcceptedJob, "accepted and stored"),
                409: (answers.Duplicate, "a key is taken; `reason` tells which, and by what job"),
            },
            [400, 404, 408, 413, 429, 503],
        ),
        openapi_extra=takes(JobBody),
    )
    async def submit(request: Request, params: JobParams) -> Response:
        view = context.view(params.view)
        async with context.buffers.body(request, context.settings.max_body_bytes) as body:
            if len(body) > LONG:
                await turn(items_of(effort(body)))
            spec = decode_job(body, context.in_view(view))
            [result] = await context.submit([spec])
        if result.status is SubmitStatus.DUPLICATE or isinstance(
            result.error, KeyConflict | NotUnique
        ):
            return await _key_taken(context, result, view)
        job_id = result.unwrap()
        if result.status is SubmitStatus.EXISTING:
            try:
                job = await context.backend.get(job_id)
            except NotFound:
                raise Unavailable(
                    f"job {job_id}, which had the unique key, was removed meanwhile; try again"
                ) from None
            found = answers.AcceptedJob(
                job_id=job_id,
                status=project(view, job.state, job.reason),
                queue=job.queue,
                type=job.type,
            )
            return reply(found, 200, {"Location": f"/jobs/{job_id}"})
        accepted = answers.AcceptedJob(
            job_id=job_id,
            status=project(view, State.PENDING, None),
            queue=spec.queue,
            type=spec.type,
        )
        return reply(accepted, 202, {"Location": f"/jobs/{job_id}"})

    @router.post(
        "/jobs/batch",
        status_code=202,
        summary="Submit many jobs, each accepted or refused on its own",
        responses=responses(
            {
                202: (answers.BatchAnswer, "every job was accepted, or submitted before"),
                207: (answers.BatchAnswer, "some were refused; `results` has the reasons"),
                404: (answers.BatchAnswer, "all were refused, the first one for this reason"),
                409: (answers.BatchAnswer, "all were refused, the first one for this reason"),
                503: (answers.BatchAnswer, "all were refused; try again after `Retry-After`"),
            },
            [400, 408, 413, 429],
        ),
        openapi_extra=takes(BatchBody),
    )
    async def submit_batch(request: Request, params: NoParams) -> Response:
        async with context.buffers.body(request, context.settings.max_batch_bytes) as body:
            items = await decode_batch(body, context.settings)
            if len(items) > TURN:
                await take_answer_room()
            specs = [item for item in items if isinstance(item, JobSpec)]
            submitted = iter(await context.submit(specs) if specs else [])
        results = [
            SubmitResult.refused(item) if isinstance(item, JobQueueError) else next(submitted)
            for item in items
        ]
        told = await answers.batch_answer(results)
        if not told.refused:
            return reply(told, 202)
        if told.refused < len(results):
            later = [r.error for r in results if isinstance(r.error, QueueFull | RateLimited)]
            return reply(told, 207, headers_of(later[0]) if later else None)
        first = results[0].error
        assert first is not None
        told.error = detail(first)
        return answer(first, told)

    return router


async def _key_taken(context: ApiContext, result: SubmitResult, view: str) -> Response:
    """Return an answer which says that another job has the idempotency key or the unique key.

    The answer contains that job if the caller may see it.
    """
    error = result.error or AlreadyExists(
        f"idempotency_key: job {result.job_id} was submitted with this key and an equal payload"
    )
    not_unique = isinstance(error, NotUnique)
    told: Document = {
        "error": detail(error),
        "reason": "not_unique" if not_unique else "conflict" if result.error else "duplicate",
        "job_id": result.job_id,
        "job": None,
    }
    with contextlib.suppress(NotFound):  # the job was removed; its key exists until it expires
        await take_answer_room()
        job = await context.backend.get(result.job_id)
        # An idempotency key without an owner may belong to another caller's job, which must not be
        # shown. A unique key is the caller's own.
        if not_unique or job.spec.key_owner == current_caller().name:
            told["job"] = answers.job_view(job, view)
    return answer(error, told)


def job_routes(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["jobs"], route_class=QuickRoute)
    one_job = responses({200: (answers.JobView, "the job")}, [400, 404])

    @router.get("/jobs/{job_id}", summary="Read a job", responses=one_job)
    async def read(job_id: JobId, params: JobParams) -> Response:
        job = await context.backend.get(parse_job_id(job_id))
        return reply(answers.job_view(job, context.view(params.view)))

    @router.get(
        "/jobs/{job_id}/wait",
        summary="Wait for a job to finish; read it then, or when the time is up",
        responses=one_job,
    )
    async def wait(request: Request, job_id: JobId, params: WaitParams) -> Response:
        job_id = parse_job_id(job_id)
        timeout = min(params.timeout, context.settings.max_wait)
        allow_longer(request, timeout)
        job = await context.unless_interrupted(request, context.backend.wait(job_id, timeout))
        if job is None:
            await take_answer_room()
            job = await context.backend.get(job_id)
        return reply(answers.job_view(job, context.view(params.view)))

    @router.get(
        "/jobs/{job_id}/explain",
        summary="Say why a job does not run, in words and as data",
        responses=responses({200: (answers.ExplainAnswer, "the causes")}, [400, 404]),
    )
    async def explain(job_id: JobId, params: JobParams) -> Response:
        found = await context.backend.explain(parse_job_id(job_id))
        return reply(answers.explain_view(found, context.view(params.view)))

    @router.post(
        "/jobs/{job_id}/cancel",
        summary="Cancel a job: at once if it waits; the worker of a running one is asked to stop",
        responses=responses(
            {
                200: (answers.CancelAnswer, "cancelled, or finished already"),
                202: (answers.CancelAnswer, "the job runs; its worker was asked to stop"),
            },
            [400, 404],
        ),
    )
    async def cancel(job_id: JobId, params: JobParams) -> Response:
        job_id = parse_job_id(job_id)
        done = await context.backend.cancel(job_id)
        told = answers.CancelAnswer(
            job_id=job_id,
            status=project(context.view(params.view), done.state, Reason.CANCELLED),
            cancel_requested=done.requested,
            already_terminal=done.already_terminal,
        )
        return reply(told, 202 if done.requested else 200)

    @router.post(
        "/jobs/{job_id}/retry",
        summary="Send a failed or dead-lettered job back, with its retries reset",
        responses=responses({200: (answers.JobView, "pending again")}, [400, 404, 409]),
    )
    async def retry(job_id: JobId, params: JobParams) -> Response:
        job_id = parse_job_id(job_id)
        await take_answer_room()
        job = await context.backend.retry(job_id)
        return reply(answers.job_view(job, context.view(params.view)))

    @router.delete(
        "/jobs/{job_id}",
        status_code=204,
        summary="Remove a finished job and its history for good",
        responses=responses({204: (None, "removed")}, [400, 404, 409]),
    )
    async def delete(job_id: JobId, params: NoParams) -> Response:
        await context.backend.delete_job(parse_job_id(job_id))
        return Response(status_code=204)

    return router


def list_routes(context: ApiContext) -> APIRouter:
    router = APIRouter()
    pages: dict[int | str, dict[str, Any]] = responses({200: (answers.JobPage, "a page")}, [400])

    def query(params: PageParams, states: tuple[State, ...]) -> JobQuery:
        return JobQuery(
            queue=params.queue,
            states=states,
            type=params.type,
            limit=params.limit,
            page_token=params.page_token,
        )

    async def page(wanted: JobQuery, view: str) -> Response:
        found = await context.backend.list_jobs(wanted)
        return reply(
            await answers.page_view(found, view, context.settings.max_listed_payload_bytes)
        )

    @router.get("/jobs", tags=["jobs"], summary="List jobs, newest first", responses=pages)
    async def list_jobs(params: ListParams) -> Response:
        view = context.view(params.view)
        wanted = query(params, answers.parse_states(params.status, view))
        wanted.reasons = parse_reasons(params.reason)
        wanted.error = params.error
        wanted.since, wanted.until = _times(params.since, params.until)
        return await page(wanted, view)

    @router.get("/dlq", tags=["dead letters"], summary="List dead letters", responses=pages)
    async def dead_letters(params: DeadLetterParams) -> Response:
        wanted = query(params, (State.DEAD_LETTERED,))
        wanted.reasons = parse_deaths(params.reason)
        wanted.error = params.error
        wanted.since, wanted.until = _times(params.since, params.until)
        return await page(wanted, context.view(params.view))

    @router.post(
        "/dlq/retry",
        tags=["dead letters"],
        summary="Send matching dead letters back to their queues, a bounded number in each call",
        responses=responses({200: (answers.RetryAnswer, "the effect of this call")}, [400, 404]),
    )
    async def retry_all(request: Request, params: RetryParams) -> Response:
        request.scope[OBJECT] = params.queue or ""
        wanted = chosen(params, params.page_token, dry_run=params.dry_run)
        return reply(await context.backend.retry_dead_letters(wanted))

    @router.post(
        "/dlq/delete",
        tags=["dead letters"],
        summary="Remove matching dead letters for good, a bounded number in each call",
        responses=responses({200: (answers.DeleteAnswer, "the effect of this call")}, [400, 404]),
    )
    async def delete_all(request: Request, params: RetryParams) -> Response:
        request.scope[OBJECT] = params.queue or ""
        wanted = chosen(params, params.page_token, dry_run=params.dry_run)
        return reply(await context.backend.delete_dead_letters(wanted))

    @router.get(
        "/dlq/groups",
        tags=["dead letters"],
        summary="Group the newest dead letters by type, reason and error",
        responses=responses({200: (answers.GroupsAnswer, "the groups")}, [400, 404]),
    )
    async def groups(params: GroupParams) -> Response:
        return reply(answers.groups_view(await context.backend.group_dead_letters(chosen(params))))

    def chosen(
        params: GroupParams | RetryParams, page_token: str = "", *, dry_run: bool = False
    ) -> RetryQuery:
        wanted = RetryQuery(
            queue=params.queue,
            type=params.type,
            error=params.error,
            page_token=page_token,
            dry_run=dry_run,
        )
        wanted.reasons = parse_deaths(params.reason) or wanted.reasons
        wanted.since, wanted.until = _times(params.since, params.until)
        return wanted

    @router.post(
        "/dlq/{job_id}/retry",
        tags=["dead letters"],
        summary="Send a dead letter back to its queue",
        responses=responses({200: (answers.JobView, "pending again")}, [400, 404, 409]),
    )
    async def replay(job_id: JobId, params: JobParams) -> Response:
        job_id = parse_job_id(job_id)
        await take_answer_room()
        job = await context.backend.get(job_id)
        if job.state is not State.DEAD_LETTERED:
            raise Conflict(f"job {job_id} is {job.state.name}, not DEAD_LETTERED")
        job = await context.backend.retry(job_id)
        return reply(answers.job_view(job, context.view(params.view)))

    return router


def _times(since: str | None, until: str | None) -> tuple[float | None, float | None]:
    return query_time(since, "since"), query_time(until, "until")


def event_routes(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["jobs"])
    documented = responses({200: (answers.HistoryView, "the history, or its stream")}, [400, 404])
    documented[200]["content"][_STREAM] = {
        # The schema of one event, as readers of event streams assemble it.
        "schema": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "the version, to resume after"},
                "event": {"enum": ["transition", "end", "timeout", "error"]},
                "data": {"type": "string", "contentMediaType": JSON},
            },
            "required": ["data"],
        },
        "example": 'id: 1\nevent: transition\ndata: {"version": 1, "to_status": "PENDING"}\n\n',
    }

    @router.get(
        "/jobs/{job_id}/events",
        summary="Read a job's transitions; follow them with ?watch=1 or Accept: text/event-stream",
        description="A stream sends `transition` events, then `end` when the job is finished, or"
        " `timeout` when the server ends the stream first. `Last-Event-ID` resumes it.",
        responses=documented,
    )
    async def events(request: Request, job_id: JobId, params: EventParams) -> Response:
        job_id = parse_job_id(job_id)
        view = context.view(params.view)
        if not params.watch and _STREAM not in request.headers.get("accept", ""):
            history = await context.backend.history(job_id, params.before_version)
            shown = await answers.event_views(history, view)
            return reply({"job_id": job_id, "events": shown, "older": older(history)})
        request.scope[PLACE].move(BudgetKind.STREAM)
        give_answer_room_back()  # a stream sends few bytes at a time
        stream = _Stream(context, job_id, view, _last_seen(request))
        await stream.open()
        return StreamingResponse(
            stream.lines(), media_type=_STREAM, headers={"Cache-Control": "no-store"}
        )

    return router


class _Stream:
    """Sends the events of one job to one client as an event stream."""

    def __init__(self, context: ApiContext, job_id: str, view: str, seen: int) -> None:
        self._context = context
        self._job_id = job_id
        self._view = view
        self._seen = seen
        self._events = context.backend.watch(job_id)
        self._first: Event | None = None

    async def open(self) -> None:
        """Wait for the first event. Raise NotFound if the job does not exist.

        The answer is then a 404, and not a stream.
        """
        self._first = await anext(self._events, None)
        if self._first is None:
            raise NotFound(f"job {self._job_id} does not exist")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the stream's bytes until the backend ends the events, or the time limit is reached.

        A terminal event does not end the stream, because an operator may have retried the job.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._context.settings.stream_timeout
        draining = asyncio.ensure_future(self._context.draining.wait())
        event: Event | None = self._first
        upcoming: asyncio.Future[Event | None] | None = None
        try:
            while event is not None:
                if event.version > self._seen:
                    yield self._transition(event)
                upcoming = asyncio.ensure_future(self._next())
                while not upcoming.done():
                    left = ends_at - loop.time()
                    if left <= 0 or draining.done():
                        yield _frame("timeout", b"{}")
                        return
                    pause = min(left, self._context.settings.stream_heartbeat)
                    await asyncio.wait(
                        [upcoming, draining], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                    )
                    if not upcoming.done() and not draining.done():
                        yield b": still here\n\n"
                event = upcoming.result()
            yield _frame("end", b"{}")
        except JobQueueError as error:
            yield _frame("error", msgspec.json.encode(detail(error)))
        finally:
            await give_up(draining, *([upcoming] if upcoming is not None else []))
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _next(self) -> Event | None:
        return await anext(self._events, None)

    def _transition(self, event: Event) -> bytes:
        data = msgspec.json.encode(answers.event_view(event, self._view))
        return f"id: {event.version}\n".encode() + _frame("transition", data)


def _last_seen(request: Request) -> int:
    """Return the last event version that the client has seen, from ``Last-Event-ID``.

    Return 0 if the header is missing or not a number.
    """
    text = request.headers.get("last-event-id", "")
    return int(text) if text.isdecimal() and len(text) < _MAX_DIGITS else 0


def _frame(name: str, data: bytes) -> bytes:
    """Format an event of the stream. JSON has no newline, so it fits in one data line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
