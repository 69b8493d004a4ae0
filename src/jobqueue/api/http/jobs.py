"""Routes of jobs: submit, read, wait, cancel, retry, delete."""

from __future__ import annotations

import contextlib
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from jobqueue.access.callers import current_caller
from jobqueue.api.http import render, shapes
from jobqueue.api.http.bodies import BatchBody, JobBody, decode_batch, decode_job, query_time
from jobqueue.api.http.desk import Desk, reply
from jobqueue.api.http.errors import OBJECT, answer, detail, headers_of
from jobqueue.api.http.guard import allow_longer
from jobqueue.api.http.openapi import answers, takes
from jobqueue.api.http.params import (
    DeadLetterParams,
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
    QueueFull,
    RateLimited,
)
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import JobQuery, JobSpec, RetryQuery, SubmitResult, SubmitStatus
from jobqueue.core.lifecycle import State, parse_deaths, project
from jobqueue.core.waiting import TURN, take_answer_room


def submit_routes(desk: Desk) -> APIRouter:
    """Where jobs come in."""
    router = APIRouter(tags=["jobs"], route_class=QuickRoute)

    @router.post(
        "/jobs",
        status_code=202,
        summary="Submit a job",
        responses=answers(
            {
                202: (shapes.Accepted, "accepted, and safe with the server"),
                409: (shapes.Duplicate, "the idempotency key is taken; `reason` says by what"),
            },
            400,
            404,
            408,
            413,
            429,
            503,
        ),
        openapi_extra=takes(JobBody),
    )
    async def submit(request: Request, params: JobParams) -> Response:
        view = desk.view(params.view)
        async with desk.buffers.body(request, desk.settings.max_body_bytes) as body:
            spec = decode_job(body, desk.in_view(view))
            [result] = await desk.submit([spec])
        if result.status is SubmitStatus.DUPLICATE or isinstance(result.error, KeyConflict):
            return await _key_taken(desk, result, view)
        job_id = result.unwrap()
        accepted = shapes.Accepted(
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
        responses=answers(
            {
                202: (shapes.BatchAnswer, "every job was accepted, or was there already"),
                207: (shapes.BatchAnswer, "some were refused; `results` says which and why"),
                404: (shapes.BatchAnswer, "all were refused, the first one for this reason"),
                409: (shapes.BatchAnswer, "all were refused, the first one for this reason"),
                503: (shapes.BatchAnswer, "all were refused; try again after `Retry-After`"),
            },
            400,
            408,
            413,
            429,
        ),
        openapi_extra=takes(BatchBody),
    )
    async def submit_batch(request: Request, params: NoParams) -> Response:
        async with desk.buffers.body(request, desk.settings.max_batch_bytes) as body:
            items = await decode_batch(body, desk.settings)
            if len(items) > TURN:
                await take_answer_room()
            specs = [item for item in items if isinstance(item, JobSpec)]
            submitted = iter(await desk.submit(specs) if specs else [])
        results = [
            SubmitResult.refused(item) if isinstance(item, JobQueueError) else next(submitted)
            for item in items
        ]
        told = await render.batch_answer(results)
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


async def _key_taken(desk: Desk, result: SubmitResult, view: str) -> Response:
    error = result.error or AlreadyExists(
        f"idempotency_key: job {result.job_id} was submitted with this key and an equal payload"
    )
    told = shapes.Duplicate(
        error=detail(error),
        reason="duplicate" if result.error is None else "conflict",
        job_id=result.job_id,
        job=None,
    )
    with contextlib.suppress(NotFound):  # removed since; its key lives on until it expires
        await take_answer_room()
        job = await desk.backend.get(result.job_id)
        # A key that is everybody's may stand for another caller's job: of that, only the id.
        if job.spec.key_owner == current_caller().name:
            told.job = render.job_view(job, view)
    return answer(error, told)


def job_routes(desk: Desk) -> APIRouter:
    """What can be asked of, and done to, one job."""
    router = APIRouter(tags=["jobs"], route_class=QuickRoute)
    one_job = answers({200: (shapes.JobView, "the job")}, 400, 404)

    @router.get("/jobs/{job_id}", summary="Read a job", responses=one_job)
    async def read(job_id: JobId, params: JobParams) -> Response:
        job = await desk.backend.get(parse_job_id(job_id))
        return reply(render.job_view(job, desk.view(params.view)))

    @router.get(
        "/jobs/{job_id}/wait",
        summary="Read a job once it is finished, or as it is when the time is up",
        responses=one_job,
    )
    async def wait(request: Request, job_id: JobId, params: WaitParams) -> Response:
        job_id = parse_job_id(job_id)
        timeout = min(params.timeout, desk.settings.max_wait)
        allow_longer(request, timeout)
        job = await desk.unless_interrupted(request, desk.backend.wait(job_id, timeout))
        if job is None:
            await take_answer_room()
            job = await desk.backend.get(job_id)
        return reply(render.job_view(job, desk.view(params.view)))

    @router.post(
        "/jobs/{job_id}/cancel",
        summary="Cancel a job: at once while it waits; a running one is asked to stop",
        responses=answers(
            {
                200: (shapes.CancelAnswer, "cancelled, or finished before"),
                202: (shapes.CancelAnswer, "it runs, and its worker was asked to stop"),
            },
            400,
            404,
        ),
    )
    async def cancel(job_id: JobId, params: JobParams) -> Response:
        job_id = parse_job_id(job_id)
        done = await desk.backend.cancel(job_id)
        told = render.cancel_answer(job_id, done, desk.view(params.view))
        return reply(told, 202 if done.requested else 200)

    @router.post(
        "/jobs/{job_id}/retry",
        summary="Send a failed or dead-lettered job back, with its retries reset",
        responses=answers({200: (shapes.JobView, "pending again")}, 400, 404, 409),
    )
    async def retry(job_id: JobId, params: JobParams) -> Response:
        job_id = parse_job_id(job_id)
        await take_answer_room()
        job = await desk.backend.retry(job_id)
        return reply(render.job_view(job, desk.view(params.view)))

    @router.delete(
        "/jobs/{job_id}",
        status_code=204,
        summary="Remove a finished job and its history for good",
        responses=answers({204: (None, "removed")}, 400, 404, 409),
    )
    async def delete(job_id: JobId, params: NoParams) -> Response:
        await desk.backend.delete_job(parse_job_id(job_id))
        return Response(status_code=204)

    return router


def list_routes(desk: Desk) -> APIRouter:
    """Lists of jobs, and the dead letters."""
    router = APIRouter()
    pages: dict[int | str, dict[str, Any]] = answers({200: (shapes.JobPage, "a page")}, 400)

    def query(params: PageParams, states: tuple[State, ...]) -> JobQuery:
        return JobQuery(
            queue=params.queue,
            states=states,
            type=params.type,
            limit=params.limit,
            page_token=params.page_token,
        )

    async def page(wanted: JobQuery, view: str) -> Response:
        found = await desk.backend.list_jobs(wanted)
        return reply(await render.page_view(found, view, desk.settings.max_listed_payload_bytes))

    @router.get("/jobs", tags=["jobs"], summary="List jobs, newest first", responses=pages)
    async def list_jobs(params: ListParams) -> Response:
        view = desk.view(params.view)
        return await page(query(params, render.parse_states(params.status, view)), view)

    @router.get("/dlq", tags=["dead letters"], summary="List dead letters", responses=pages)
    async def dead_letters(params: DeadLetterParams) -> Response:
        wanted = query(params, (State.DEAD_LETTERED,))
        wanted.reasons = parse_deaths(params.reason)
        wanted.error = params.error
        wanted.since, wanted.until = _times(params.since, params.until)
        return await page(wanted, desk.view(params.view))

    @router.post(
        "/dlq/retry",
        tags=["dead letters"],
        summary="Send dead letters that match back to their queues, a bounded number in one call",
        responses=answers({200: (shapes.RetryAnswer, "what this call did")}, 400, 404),
    )
    async def retry_all(request: Request, params: RetryParams) -> Response:
        request.scope[OBJECT] = params.queue or ""
        wanted = RetryQuery(
            queue=params.queue,
            type=params.type,
            error=params.error,
            page_token=params.page_token,
            dry_run=params.dry_run,
        )
        wanted.reasons = parse_deaths(params.reason) or wanted.reasons
        wanted.since, wanted.until = _times(params.since, params.until)
        return reply(render.retry_answer(await desk.backend.retry_dead_letters(wanted)))

    @router.post(
        "/dlq/{job_id}/retry",
        tags=["dead letters"],
        summary="Send a dead letter back to its queue",
        responses=answers({200: (shapes.JobView, "pending again")}, 400, 404, 409),
    )
    async def replay(job_id: JobId, params: JobParams) -> Response:
        job_id = parse_job_id(job_id)
        await take_answer_room()
        job = await desk.backend.get(job_id)
        if job.state is not State.DEAD_LETTERED:
            raise Conflict(f"job {job_id} is {job.state.name}, not DEAD_LETTERED")
        job = await desk.backend.retry(job_id)
        return reply(render.job_view(job, desk.view(params.view)))

    return router


def _times(since: str | None, until: str | None) -> tuple[float | None, float | None]:
    return query_time(since, "since"), query_time(until, "until")
