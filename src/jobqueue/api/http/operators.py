"""Define the HTTP routes for operators: queues, workers, and the state of the server."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from jobqueue._version import __version__
from jobqueue.api.http import answers
from jobqueue.api.http.authorizer import sees_status
from jobqueue.api.http.bodies import QueueBody, QueuePatch, decode_queue, decode_queue_patch
from jobqueue.api.http.context import ApiContext, reply
from jobqueue.api.http.errors import OBJECT, answer, detail
from jobqueue.api.http.openapi import responses, takes
from jobqueue.api.http.params import DeleteQueueParams, JobParams, NoParams
from jobqueue.api.http.settings import KIB
from jobqueue.core.api import overview
from jobqueue.core.errors import JobQueueError, NotFound, Unavailable
from jobqueue.core.job import MAX_PAGE, ComponentHealth, Health, JobQuery, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueStats
from jobqueue.documents import health_document, rfc3339

_HEALTH_TIMEOUT = 5.0
_LIST_TIMEOUT = 5.0
_MAX_QUEUE_BYTES = 64 * KIB


def queue_routes(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["queues"])

    @router.get(
        "/queues",
        summary="List queues with their figures",
        responses=responses({200: (answers.QueueList, "every queue, by name")}),
    )
    async def list_queues(params: JobParams) -> Response:
        view = context.view(params.view)
        shown = await answers.queue_views(await context.backend.list_queues(), view)
        return reply({"queues": shown})

    @router.post(
        "/queues",
        status_code=201,
        summary="Create a queue",
        responses=responses({201: (answers.QueueView, "created")}, [400, 408, 409, 413]),
        openapi_extra=takes(QueueBody),
    )
    async def create(request: Request, params: JobParams) -> Response:
        async with context.buffers.body(request, _MAX_QUEUE_BYTES) as body:
            spec = decode_queue(body)
            request.scope[OBJECT] = spec.name
            queue = await context.backend.create_queue(spec)
        shown = answers.queue_view(QueueStats(queue=queue, depth={}), context.view(params.view))
        return reply(shown, 201, {"Location": f"/queues/{queue.name}"})

    @router.get(
        "/queues/{name}",
        summary="Read a queue's figures",
        responses=responses({200: (answers.QueueView, "the queue")}, [404]),
    )
    async def read(name: str, params: JobParams) -> Response:
        found = await context.backend.queue_stats(name)
        return reply(answers.queue_view(found, context.view(params.view)))

    @router.patch(
        "/queues/{name}",
        summary="Change settings of a queue",
        responses=responses({200: (answers.QueueView, "the changed queue")}, [400, 404, 408, 413]),
        openapi_extra=takes(QueuePatch),
    )
    async def update(name: str, request: Request, params: JobParams) -> Response:
        async with context.buffers.body(request, _MAX_QUEUE_BYTES) as body:
            await context.backend.update_queue(name, decode_queue_patch(body))
        found = await context.backend.queue_stats(name)
        return reply(answers.queue_view(found, context.view(params.view)))

    @router.delete(
        "/queues/{name}",
        summary="Delete an empty queue; by force, one with unfinished jobs",
        responses=responses({200: (answers.ChangedQueue, "deleted")}, [404, 409]),
    )
    async def delete(name: str, params: DeleteQueueParams) -> Response:
        dropped = await context.backend.delete_queue(name, force=params.force)
        return reply(answers.ChangedQueue(name=name, deleted=True, dead_lettered=dropped))

    @router.post(
        "/queues/{name}/pause",
        summary="Hand out no more of a queue's jobs",
        responses=responses({200: (answers.ChangedQueue, "paused")}, [404]),
    )
    async def pause(name: str, params: NoParams) -> Response:
        await context.backend.pause_queue(name)
        return reply(answers.ChangedQueue(name=name, paused=True))

    @router.post(
        "/queues/{name}/resume",
        summary="Hand out a queue's jobs again",
        responses=responses({200: (answers.ChangedQueue, "resumed")}, [404]),
    )
    async def resume(name: str, params: NoParams) -> Response:
        await context.backend.resume_queue(name)
        return reply(answers.ChangedQueue(name=name, paused=False))

    return router


async def _held(context: ApiContext) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    query = JobQuery(states=(State.ASSIGNED, State.RUNNING), limit=MAX_PAGE)
    while True:
        page = await context.backend.list_jobs(query)
        for job in page.jobs:
            if job.worker_id is not None:
                found.setdefault(job.worker_id, []).append(job.id)
        if not page.next_page_token:
            return found
        query.page_token = page.next_page_token


def worker_routes(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["workers"])

    @router.get(
        "/workers",
        summary="List workers",
        responses=responses({200: (answers.WorkerList, "every worker known")}),
    )
    async def list_workers(params: JobParams) -> Response:
        view = context.view(params.view)
        workers = await context.backend.list_workers()
        held = await _held(context) if view == "scheduler" else {}
        return reply({"workers": await answers.worker_views(workers, view, held)})

    @router.post(
        "/workers/{worker_id}/drain",
        status_code=202,
        summary="Let a worker finish its jobs, and give it no more",
        responses=responses({202: (answers.ChangedWorker, "told")}, [404]),
    )
    async def drain(worker_id: str, params: NoParams) -> Response:
        await context.backend.drain_worker(worker_id)
        told = answers.ChangedWorker(worker_id=worker_id, status=WorkerStatus.DRAINING.value)
        return reply(told, 202)

    @router.post(
        "/workers/{worker_id}/undrain",
        status_code=202,
        summary="Let a drained worker take jobs again",
        responses=responses({202: (answers.ChangedWorker, "told")}, [404, 409]),
    )
    async def undrain(worker_id: str, params: NoParams) -> Response:
        await context.backend.undrain_worker(worker_id)
        told = answers.ChangedWorker(worker_id=worker_id, status=WorkerStatus.ONLINE.value)
        return reply(told, 202)

    @router.post(
        "/workers/{worker_id}/shutdown",
        status_code=202,
        summary="Let a worker finish its jobs, then exit",
        responses=responses({202: (answers.ChangedWorker, "told")}, [404]),
    )
    async def shutdown(worker_id: str, params: NoParams) -> Response:
        await context.backend.shutdown_worker(worker_id)
        told = answers.ChangedWorker(worker_id=worker_id, status=WorkerStatus.STOPPING.value)
        return reply(told, 202)

    return router


def system_routes(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["system"])

    @router.get(
        "/healthz",
        summary="Tell if the process is alive; nothing else is checked",
        responses={200: {"description": "alive", "content": {"text/plain": {}}}},
        response_class=PlainTextResponse,
    )
    async def alive() -> Response:
        return PlainTextResponse("ok\n")

    @router.get(
        "/readyz",
        summary="Tell if the server is ready for requests, and the part that is not",
        description="If the server asks for credentials, `detail` is empty for all but operators.",
        responses=responses(
            {
                200: (answers.Ready, "ready"),
                503: (answers.Ready, "not ready; `error` names the failing parts"),
            }
        ),
    )
    async def ready(request: Request) -> Response:
        health = await _readiness(context)
        # Details contain addresses, paths and process ids.
        if not await sees_status(context.settings.access, request.scope):
            health.components = [replace(part, detail="") for part in health.components]
        told = {"ok": health.ok, "status": health.status, "components": health.components}
        if health.ok:
            return reply(told)
        failing = [part for part in health.components if not part.ok]
        parts = "; ".join(f"{part.name}: {part.detail or 'not ok'}" for part in failing)
        error = Unavailable(f"not ready: {parts}")
        return answer(error, {**told, "error": detail(error)})

    @router.get(
        "/metrics",
        summary="Metrics in the Prometheus text format",
        responses={200: {"description": "metrics", "content": {"text/plain": {}}}},
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        if context.settings.metrics is None:
            raise NotFound("metrics are not enabled on this server")
        body, content_type = await context.settings.metrics()
        return Response(body, headers={"Content-Type": content_type})

    @router.get(
        "/status",
        summary="Show the state of the system: its parts, queues and workers",
        responses=responses({200: (answers.StatusView, "the state, well or not")}),
    )
    async def status(params: JobParams) -> Response:
        view = context.view(params.view)
        found = await overview(context.backend, _LIST_TIMEOUT)
        health, queues, workers = found.health, found.queues, found.workers
        counts = Counter(answers.worker_status(one, view) for one in workers or ())
        return reply(
            {
                **health_document(health),
                "queues": None if queues is None else await answers.queue_views(queues, view),
                "workers": None if workers is None else counts,
                "missing": found.missing,
            }
        )

    @router.get(
        "/configuration",
        summary="Show the settings of this server and where they come from; secrets are masked",
        responses=responses({200: (answers.ConfigurationView, "the settings")}),
    )
    async def configuration(params: NoParams) -> Response:
        settings = context.settings
        shown = [
            answers.SettingView(name=name, value=value, source=source)
            for name, value, source in settings.configuration
        ]
        return reply(
            answers.ConfigurationView(
                version=__version__, started_at=rfc3339(settings.started_at), settings=shown
            )
        )

    return router


async def _readiness(context: ApiContext) -> Health:
    """Return the backend's health. An error or timeout of the backend becomes a failing part."""
    if context.draining.is_set():
        return _failing("server", "shutting down")
    try:
        async with asyncio.timeout(_HEALTH_TIMEOUT):
            health = await context.backend.health()
    except TimeoutError:
        return _failing("backend", f"no answer within {_HEALTH_TIMEOUT:g} s")
    except JobQueueError as error:
        return _failing("backend", error.message)
    failed = context.settings.failed_parts()
    if not failed:
        return health
    return Health(False, health.version, [*health.components, *failed])


def _failing(name: str, why: str) -> Health:
    return Health(False, __version__, [ComponentHealth(name, False, why)])
