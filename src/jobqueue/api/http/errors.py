"""Convert errors to HTTP answers. Every answer that is not 2xx has the same form of body."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from jobqueue.core.errors import (
    Code,
    InvalidArgument,
    JobQueueError,
    NotFound,
    QueueFull,
    RateLimited,
    Unauthenticated,
)
from jobqueue.core.job import MAX_PAGE

JSON = "application/json"

STATUS: Mapping[Code, int] = {
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.CONFLICT: 409,
    Code.KEY_CONFLICT: 409,
    Code.NOT_UNIQUE: 409,
    Code.QUEUE_FULL: 503,  # with Retry-After
    Code.RATE_LIMITED: 429,  # with Retry-After
    Code.UNAVAILABLE: 503,  # with Retry-After: the request had no effect
    Code.OUTCOME_UNKNOWN: 502,  # no Retry-After: the request may have had an effect
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNAUTHENTICATED: 401,  # with WWW-Authenticate
    Code.PERMISSION_DENIED: 403,
    Code.JOB_FAILED: 409,
    Code.INTERNAL: 500,
}
_RETRY_AFTER = 1.0
_ALLOWED = {"limit": f"; allowed: 1 to {MAX_PAGE}", "timeout": "; allowed: seconds from 0 on"}


class TooLarge(InvalidArgument):
    """Says that a request or a payload in it is too large: INVALID_ARGUMENT with status 413."""


class TooSlow(InvalidArgument):
    """Says that a request's body arrives too slowly: INVALID_ARGUMENT with status 408."""


class WrongType(InvalidArgument):
    """Says that a body's content type is not accepted: INVALID_ARGUMENT with status 415."""


class ErrorDetail(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Describes an error: its stable code, its message, and the name of the wrong field, if any."""

    code: str
    message: str
    field: str | None = None


# Keys of the scope for the audit log: the code of the error in the answer, and the name of the
# object that a request changes if the path does not contain it.
OUTCOME = "jobqueue.outcome"
OBJECT = "jobqueue.object"


Refuse = Callable[[Scope, JobQueueError], Response]
"""Returns the answer for an error of a request, as JSON or as a page for people."""


class ErrorAnswer(msgspec.Struct, kw_only=True):
    """Describes the body of every answer that is not 2xx."""

    error: ErrorDetail


_SPECIAL: Mapping[type, int] = {TooSlow: 408, TooLarge: 413, WrongType: 415}


def detail(error: JobQueueError) -> ErrorDetail:
    return ErrorDetail(
        code=error.code.value, message=error.message, field=getattr(error, "field", None)
    )


def status_of(error: JobQueueError) -> int:
    return _SPECIAL.get(type(error)) or STATUS[error.code]


def headers_of(error: JobQueueError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": 'Bearer realm="jobqueue"'}
    if status_of(error) not in (429, 503):
        return {}
    after = error.retry_after if isinstance(error, QueueFull | RateLimited) else _RETRY_AFTER
    return {"Retry-After": str(max(1, math.ceil(after)))}


def answer(error: JobQueueError, body: Any = None) -> Response:
    """Return the answer for an error. ``body`` replaces the default body."""
    content = msgspec.json.encode(ErrorAnswer(error=detail(error)) if body is None else body)
    return Response(content, status_of(error), headers_of(error), JSON)


def _from_validation(request: Request, failure: RequestValidationError) -> InvalidArgument:
    """Convert FastAPI's first error about parameters; other errors are ignored."""
    first = failure.errors()[0]
    field = str(first["loc"][-1])
    if first["type"] == "extra_forbidden":
        known = get_type_hints(request.scope["endpoint"])["params"].model_fields
        allowed = ", ".join(known) or "none"
        return InvalidArgument(field[:80], f"unknown query parameter; allowed: {allowed}")
    message = str(first["msg"])
    allowed = _ALLOWED.get(field, "")
    return InvalidArgument(field, message[:1].lower() + message[1:] + allowed)


def _allowed_methods(request: Request, routes: Sequence[BaseRoute]) -> str:
    methods: set[str] = set()
    exact: set[str] = set()
    for route in routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            found = getattr(route, "methods", None) or ()
            methods.update(found)
            if getattr(route, "path", "") == request.url.path:
                exact.update(found)
    return ", ".join(sorted(exact or methods))  # /jobs/batch must not match /jobs/{job_id}


def install(app: FastAPI, routes: Sequence[BaseRoute], refuse: Refuse) -> None:
    """Make the app answer all errors of its routes and its router with the same form of body."""

    async def expected(request: Request, error: Exception) -> Response:
        assert isinstance(error, JobQueueError)
        request.scope[OUTCOME] = error.code.value
        return refuse(request.scope, error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await expected(request, _from_validation(request, error))

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path[:200]
        if error.status_code == 404:
            missing = NotFound(f"the path {path} does not exist; /docs lists all paths")
            return refuse(request.scope, missing)
        if error.status_code == 405:
            allowed = _allowed_methods(request, routes)
            refusal = InvalidArgument(
                "method", f"{method} is not allowed on {path}; allowed: {allowed}"
            )
            headers = {"Allow": allowed}
        else:
            refusal = InvalidArgument("request", str(error.detail))
            headers = dict(error.headers or {})
        body = msgspec.json.encode(ErrorAnswer(error=detail(refusal)))
        return Response(body, error.status_code, headers, JSON)

    app.add_exception_handler(JobQueueError, expected)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, routing)
