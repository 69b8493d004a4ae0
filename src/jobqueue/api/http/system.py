"""Routes for those who watch the server: probes, metrics, status."""

from __future__ import annotations

import asyncio
from collections import Counter

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from jobqueue.api.http import render, shapes
from jobqueue.api.http.desk import Desk, reply
from jobqueue.api.http.door import sees_status
from jobqueue.api.http.errors import answer, detail
from jobqueue.api.http.openapi import answers
from jobqueue.api.http.params import JobParams
from jobqueue.core.errors import JobQueueError, NotFound, Unavailable
from jobqueue.core.overview import overview

_HEALTH_TIMEOUT = 5.0
_LIST_TIMEOUT = 5.0


def system_routes(desk: Desk) -> APIRouter:
    """Probes, metrics and status."""
    router = APIRouter(tags=["system"])

    @router.get(
        "/healthz",
        summary="Whether the process is alive; asks nothing else",
        responses={200: {"description": "alive", "content": {"text/plain": {}}}},
        response_class=PlainTextResponse,
    )
    async def alive() -> Response:
        return PlainTextResponse("ok\n")

    @router.get(
        "/readyz",
        summary="Whether the server can do its work; names the part that cannot",
        description="Where callers have to be known, `detail` is empty for all but operators.",
        responses=answers(
            {
                200: (shapes.Ready, "ready"),
                503: (shapes.Ready, "not ready; `error` says what fails"),
            }
        ),
    )
    async def ready(request: Request) -> Response:
        status, components = await _readiness(desk)
        # Details have addresses, paths and process ids.
        if not await sees_status(desk.settings.access, request.scope):
            for part in components:
                part.detail = ""
        if status != "failing":
            return reply(shapes.Ready(ok=True, status=status, components=components))
        failing = [part for part in components if not part.ok]
        parts = "; ".join(f"{part.name}: {part.detail or 'not ok'}" for part in failing)
        error = Unavailable(f"not ready: {parts}")
        return answer(
            error,
            shapes.Ready(ok=False, status=status, components=components, error=detail(error)),
        )

    @router.get(
        "/metrics",
        summary="Metrics in the Prometheus text format",
        responses={200: {"description": "metrics", "content": {"text/plain": {}}}},
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        if desk.settings.metrics is None:
            raise NotFound("metrics are not enabled on this server")
        body, content_type = await desk.settings.metrics()
        return Response(body, headers={"Content-Type": content_type})

    @router.get(
        "/status",
        summary="The system at a glance: its parts, queues and workers",
        responses=answers({200: (shapes.StatusView, "the system, well or not")}),
    )
    async def status(params: JobParams) -> Response:
        view = desk.view(params.view)
        found = await overview(desk.backend, _LIST_TIMEOUT)
        health, queues, workers = found.health, found.queues, found.workers
        counts = Counter(render.worker_status(one, view) for one in workers or ())
        return reply(
            shapes.StatusView(
                ok=health.ok,
                status=health.status,
                version=health.version,
                components=render.components_view(health),
                queues=None if queues is None else await render.queue_views(queues, view),
                workers=None if workers is None else dict(counts),
                missing=found.missing,
            )
        )

    return router


async def _readiness(desk: Desk) -> tuple[str, list[shapes.ComponentView]]:
    """Never raises: the answer to a failure is 'not ready'."""
    if desk.draining.is_set():
        return "failing", [_failing("server", "shutting down")]
    try:
        async with asyncio.timeout(_HEALTH_TIMEOUT):
            if desk.settings.ready is not None:
                ok = await desk.settings.ready()
                if ok:
                    return "ok", []
                return "failing", [_failing("server", "says that it is not ready")]
            health = await desk.backend.health()
    except TimeoutError:
        return "failing", [_failing("backend", f"no answer within {_HEALTH_TIMEOUT:g} s")]
    except JobQueueError as error:
        return "failing", [_failing("backend", error.message)]
    return health.status, render.components_view(health)


def _failing(name: str, why: str) -> shapes.ComponentView:
    return shapes.ComponentView(name=name, ok=False, detail=why)
