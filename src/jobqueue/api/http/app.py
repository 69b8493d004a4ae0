"""Build the HTTP application of a backend: its routes and middleware."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Scope

from jobqueue._version import __version__
from jobqueue.api.console.console import refusal
from jobqueue.api.console.routes import console_routes
from jobqueue.api.http import errors, openapi
from jobqueue.api.http.authorizer import HttpAuthorizer, MatchedRoute
from jobqueue.api.http.context import ApiContext
from jobqueue.api.http.guard import Guard
from jobqueue.api.http.jobs import event_routes, job_routes, list_routes, submit_routes
from jobqueue.api.http.operators import queue_routes, system_routes, worker_routes
from jobqueue.api.http.pages import page_routes
from jobqueue.api.http.schedules import schedule_routes
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.api import Backend
from jobqueue.core.errors import JobQueueError

_DESCRIPTION = """\
A submitted job is answered with `202` after it is stored. Read, wait for or follow the job by its
id. Every answer that is not 2xx has the body
`{"error": {"code", "message", "field"}}` with the same codes as the gRPC API.
"""


def create_app(backend: Backend, *, settings: HttpFaceSettings | None = None) -> FastAPI:
    """Create the HTTP application of a backend.

    Set the event ``app.state.context.draining`` to end long polls and streams.
    """
    settings = settings or HttpFaceSettings()
    context = ApiContext(backend, settings)
    app = FastAPI(
        title="jobqueue",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,  # served by page_routes, beside /docs
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    routers = [  # tried one by one, so routes with the most requests come first
        submit_routes(context),
        job_routes(context),
        list_routes(context),
        event_routes(context),
        queue_routes(context),
        schedule_routes(context),
        worker_routes(context),
        system_routes(context),
        page_routes(app, context),
    ]
    if settings.console:
        routers.append(console_routes(context))
    routes = [route for router in routers for route in router.routes]
    app.routes[:0] = [MatchedRoute(), *routes]  # include_router would match each path twice
    refuse = refusal if settings.console else _plain_refusal
    errors.install(app, routes, refuse)
    openapi.install(app)
    app.add_middleware(HttpAuthorizer, settings=settings, routes=routes, refuse=refuse)
    # The middleware added last is the outermost.
    app.add_middleware(Guard, settings=settings, refuse=refuse)
    return app


def _plain_refusal(_: Scope, error: JobQueueError) -> Response:
    return errors.answer(error)
