"""The HTTP application: routes over a backend, with nothing decided here."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from jobqueue._version import __version__
from jobqueue.api.http import errors, openapi
from jobqueue.api.http.bodies import Buffers
from jobqueue.api.http.desk import Desk
from jobqueue.api.http.door import Door, Found
from jobqueue.api.http.events import event_routes
from jobqueue.api.http.guard import Guard
from jobqueue.api.http.jobs import job_routes, list_routes, submit_routes
from jobqueue.api.http.operators import queue_routes, worker_routes
from jobqueue.api.http.pages import page_routes
from jobqueue.api.http.settings import HttpSettings
from jobqueue.api.http.system import system_routes
from jobqueue.core.api import Backend

_DESCRIPTION = """\
A job is accepted with `202` once it is safe with the server, and then read, waited for or followed
under its id. Every answer that is not 2xx has the body
`{"error": {"code", "message", "field"}}` with the same codes as the gRPC API.
"""


def create_app(backend: Backend, *, settings: HttpSettings | None = None) -> FastAPI:
    """The HTTP API of a backend. ``app.state.desk.draining`` ends its long polls and streams."""
    settings = settings or HttpSettings()
    desk = Desk(backend, settings, Buffers(settings))
    app = FastAPI(
        title="jobqueue",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,  # a page of ours, beside /docs
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.desk = desk
    routers = [  # tried one by one: those that are asked for most come first
        submit_routes(desk),
        job_routes(desk),
        list_routes(desk),
        event_routes(desk),
        queue_routes(desk),
        worker_routes(desk),
        system_routes(desk),
        page_routes(app, desk),
    ]
    routes = [route for router in routers for route in router.routes]
    app.routes[:0] = [Found(), *routes]  # include_router would match each path twice
    errors.install(app, routes)
    openapi.install(app)

    def guarded(inner: ASGIApp) -> Guard:
        return Guard(inner, settings)

    def behind_door(inner: ASGIApp) -> Door:
        return Door(inner, settings, routes)

    app.add_middleware(behind_door)
    app.add_middleware(guarded)  # the last one added is the outermost
    return app
