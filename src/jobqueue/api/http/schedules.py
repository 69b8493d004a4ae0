"""Define the HTTP routes for schedules."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response

from jobqueue.api.http import answers
from jobqueue.api.http.bodies import ScheduleBody, decode_schedule
from jobqueue.api.http.context import ApiContext, reply
from jobqueue.api.http.errors import OBJECT
from jobqueue.api.http.openapi import responses, takes
from jobqueue.api.http.params import NoParams, ScheduleListParams
from jobqueue.api.http.settings import KIB
from jobqueue.core.schedule import MAX_PAYLOAD_BYTES

_MAX_BODY_BYTES = 2 * MAX_PAYLOAD_BYTES + 64 * KIB  # labels, and a payload with white space
_FOUND = {200: (answers.ScheduleView, "the schedule")}


def schedule_routes(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["schedules"])

    @router.get(
        "/schedules",
        summary="List schedules by name, without the payloads of their jobs",
        responses=responses({200: (answers.ScheduleList, "a page of schedules")}),
    )
    async def list_schedules(params: ScheduleListParams) -> Response:
        page = await context.backend.list_schedules(params.limit, params.page_token)
        return reply(await answers.schedule_page_view(page))

    @router.post(
        "/schedules",
        status_code=201,
        summary="Create a schedule",
        responses=responses({201: (answers.ScheduleView, "created")}, [400, 404, 408, 409, 413]),
        openapi_extra=takes(ScheduleBody),
    )
    async def create(request: Request, params: NoParams) -> Response:
        async with context.buffers.body(request, _MAX_BODY_BYTES) as body:
            spec = decode_schedule(body, context.settings)
            request.scope[OBJECT] = spec.name
            made = await context.backend.create_schedule(spec)
        where = f"/schedules/{quote(made.name, safe='')}"
        return reply(answers.schedule_view(made), 201, {"Location": where})

    @router.get(
        "/schedules/{name}",
        summary="Read a schedule",
        responses=responses(_FOUND, [404]),
    )
    async def read(name: str, params: NoParams) -> Response:
        return reply(answers.schedule_view(await context.backend.get_schedule(name)))

    @router.delete(
        "/schedules/{name}",
        summary="Remove a schedule; its jobs stay",
        responses=responses({200: (answers.RemovedSchedule, "removed")}, [404]),
    )
    async def remove(name: str, params: NoParams) -> Response:
        await context.backend.remove_schedule(name)
        return reply(answers.RemovedSchedule(name=name))

    @router.post(
        "/schedules/{name}/pause",
        summary="Submit no more jobs of a schedule until it is resumed",
        responses=responses(_FOUND, [404]),
    )
    async def pause(name: str, params: NoParams) -> Response:
        return reply(answers.schedule_view(await context.backend.pause_schedule(name)))

    @router.post(
        "/schedules/{name}/resume",
        summary="Submit the jobs of a schedule again, from its next tick on",
        responses=responses(_FOUND, [404]),
    )
    async def resume(name: str, params: NoParams) -> Response:
        return reply(answers.schedule_view(await context.backend.resume_schedule(name)))

    @router.post(
        "/schedules/{name}/run",
        status_code=202,
        summary="Submit the job of a schedule now",
        responses=responses({202: (answers.StartedSchedule, "submitted")}, [404, 503]),
    )
    async def run(name: str, params: NoParams) -> Response:
        job_id = await context.backend.run_schedule(name)
        started = answers.StartedSchedule(name=name, job_id=job_id)
        return reply(started, 202, {"Location": f"/jobs/{job_id}"})

    return router
