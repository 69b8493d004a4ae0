"""Routes of queues and workers."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from jobqueue.api.http import render, shapes
from jobqueue.api.http.bodies import QueueBody, QueuePatch, decode_queue, decode_queue_patch
from jobqueue.api.http.desk import Desk, reply
from jobqueue.api.http.errors import OBJECT
from jobqueue.api.http.openapi import answers, takes
from jobqueue.api.http.params import DeleteQueueParams, JobParams, NoParams
from jobqueue.api.http.settings import KIB
from jobqueue.core.job import MAX_PAGE, JobQuery, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueStats

_MAX_QUEUE_BYTES = 64 * KIB


def queue_routes(desk: Desk) -> APIRouter:
    """What operators do to queues."""
    router = APIRouter(tags=["queues"])

    @router.get(
        "/queues",
        summary="List queues with their figures",
        responses=answers({200: (shapes.QueueList, "every queue, by name")}),
    )
    async def list_queues(params: JobParams) -> Response:
        view = desk.view(params.view)
        shown = await render.queue_views(await desk.backend.list_queues(), view)
        return reply(shapes.QueueList(queues=shown))

    @router.post(
        "/queues",
        status_code=201,
        summary="Create a queue",
        responses=answers({201: (shapes.QueueView, "created")}, 400, 408, 409, 413),
        openapi_extra=takes(QueueBody),
    )
    async def create(request: Request, params: JobParams) -> Response:
        async with desk.buffers.body(request, _MAX_QUEUE_BYTES) as body:
            spec = decode_queue(body)
            request.scope[OBJECT] = spec.name
            queue = await desk.backend.create_queue(spec)
        shown = render.queue_view(QueueStats(queue=queue, depth={}), desk.view(params.view))
        return reply(shown, 201, {"Location": f"/queues/{queue.name}"})

    @router.get(
        "/queues/{name}",
        summary="Read a queue's figures",
        responses=answers({200: (shapes.QueueView, "the queue")}, 404),
    )
    async def read(name: str, params: JobParams) -> Response:
        found = await desk.backend.queue_stats(name)
        return reply(render.queue_view(found, desk.view(params.view)))

    @router.patch(
        "/queues/{name}",
        summary="Change settings of a queue",
        responses=answers({200: (shapes.QueueView, "the queue as it is now")}, 400, 404, 408, 413),
        openapi_extra=takes(QueuePatch),
    )
    async def update(name: str, request: Request, params: JobParams) -> Response:
        async with desk.buffers.body(request, _MAX_QUEUE_BYTES) as body:
            await desk.backend.update_queue(name, decode_queue_patch(body))
        found = await desk.backend.queue_stats(name)
        return reply(render.queue_view(found, desk.view(params.view)))

    @router.delete(
        "/queues/{name}",
        summary="Delete an empty queue, or by force one that is not",
        responses=answers({200: (shapes.QueueChange, "deleted")}, 404, 409),
    )
    async def delete(name: str, params: DeleteQueueParams) -> Response:
        dropped = await desk.backend.delete_queue(name, force=params.force)
        return reply(shapes.QueueChange(name=name, deleted=True, dead_lettered=dropped))

    @router.post(
        "/queues/{name}/pause",
        summary="Hand out no more of a queue's jobs",
        responses=answers({200: (shapes.QueueChange, "paused")}, 404),
    )
    async def pause(name: str, params: NoParams) -> Response:
        await desk.backend.pause_queue(name)
        return reply(shapes.QueueChange(name=name, paused=True))

    @router.post(
        "/queues/{name}/resume",
        summary="Hand out a queue's jobs again",
        responses=answers({200: (shapes.QueueChange, "resumed")}, 404),
    )
    async def resume(name: str, params: NoParams) -> Response:
        await desk.backend.resume_queue(name)
        return reply(shapes.QueueChange(name=name, paused=False))

    return router


async def _held(desk: Desk) -> dict[str, list[str]]:
    """The jobs that each worker holds."""
    found: dict[str, list[str]] = {}
    query = JobQuery(states=(State.ASSIGNED, State.RUNNING), limit=MAX_PAGE)
    while True:
        page = await desk.backend.list_jobs(query)
        for job in page.jobs:
            if job.worker_id is not None:
                found.setdefault(job.worker_id, []).append(job.id)
        if not page.next_page_token:
            return found
        query.page_token = page.next_page_token


def worker_routes(desk: Desk) -> APIRouter:
    """What operators do to workers."""
    router = APIRouter(tags=["workers"])

    @router.get(
        "/workers",
        summary="List workers",
        responses=answers({200: (shapes.WorkerList, "every worker known")}),
    )
    async def list_workers(params: JobParams) -> Response:
        view = desk.view(params.view)
        workers = await desk.backend.list_workers()
        held = await _held(desk) if view == "scheduler" else {}
        return reply(shapes.WorkerList(workers=await render.worker_views(workers, view, held)))

    @router.post(
        "/workers/{worker_id}/drain",
        status_code=202,
        summary="Let a worker finish what it runs, and give it no more",
        responses=answers({202: (shapes.WorkerChange, "told")}, 404),
    )
    async def drain(worker_id: str, params: NoParams) -> Response:
        await desk.backend.drain_worker(worker_id)
        told = shapes.WorkerChange(worker_id=worker_id, status=WorkerStatus.DRAINING.value)
        return reply(told, 202)

    @router.post(
        "/workers/{worker_id}/undrain",
        status_code=202,
        summary="Let a worker that was drained take jobs again",
        responses=answers({202: (shapes.WorkerChange, "told")}, 404, 409),
    )
    async def undrain(worker_id: str, params: NoParams) -> Response:
        await desk.backend.undrain_worker(worker_id)
        told = shapes.WorkerChange(worker_id=worker_id, status=WorkerStatus.ONLINE.value)
        return reply(told, 202)

    @router.post(
        "/workers/{worker_id}/shutdown",
        status_code=202,
        summary="Let a worker finish what it runs, then exit",
        responses=answers({202: (shapes.WorkerChange, "told")}, 404),
    )
    async def shutdown(worker_id: str, params: NoParams) -> Response:
        await desk.backend.shutdown_worker(worker_id)
        told = shapes.WorkerChange(worker_id=worker_id, status=WorkerStatus.STOPPING.value)
        return reply(told, 202)

    return router
