"""Put the pages of the console together, with the files that they load."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from jobqueue.api.console import (
    dead,
    job,
    jobs,
    live,
    login,
    overview,
    queues,
    rendering,
    schedules,
    system,
    workers,
)
from jobqueue.api.console.console import Console
from jobqueue.api.http.context import ApiContext
from jobqueue.api.http.settings import CONSOLE

# The address of a file changes with its content (``asset_version``).
_CACHED = {"Cache-Control": "public, max-age=31536000, immutable"}


def console_routes(context: ApiContext) -> APIRouter:
    """Return the routes of the console."""
    console = Console(context)

    @console.page("")
    async def start(request: Request) -> Response:
        return RedirectResponse(rendering.root(request.scope), 303)

    for name, kind in rendering.STATIC.items():
        _serve(console.router, name, kind)
    for register in (
        login.pages,
        overview.pages,
        queues.pages,
        jobs.pages,
        job.pages,
        dead.pages,
        schedules.pages,
        workers.pages,
        system.pages,
        live.pages,
    ):
        register(console)
    return console.router


def _serve(router: APIRouter, name: str, kind: str) -> None:
    @router.get(f"{CONSOLE}/static/{name}")
    async def file() -> Response:
        return Response(rendering.asset(name), 200, _CACHED, kind)
