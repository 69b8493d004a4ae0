"""The OpenAPI document: routes describe themselves with these, the schemas come from the classes
that requests and answers are decoded and encoded with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from jobqueue.api.http import bodies, shapes
from jobqueue.api.http.errors import JSON, ErrorAnswer

_SCHEMAS = (
    ErrorAnswer,
    bodies.JobBody,
    bodies.BatchBody,
    bodies.QueueBody,
    bodies.QueuePatch,
    shapes.Accepted,
    shapes.JobView,
    shapes.JobPage,
    shapes.Duplicate,
    shapes.BatchAnswer,
    shapes.HistoryView,
    shapes.CancelAnswer,
    shapes.RetryAnswer,
    shapes.QueueView,
    shapes.QueueList,
    shapes.QueueChange,
    shapes.WorkerList,
    shapes.WorkerChange,
    shapes.StatusView,
    shapes.Ready,
)
_REF = "#/components/schemas/{name}"
_REQUIRED = {"JobBody": ["payload"], "BatchBody": ["jobs"], "QueueBody": ["name"]}
_NUMBER_OR_TEXT = {"type": ["number", "string"]}
# What the classes leave to the code that reads them.
_BESIDE: Mapping[str, Mapping[str, Any]] = {
    "JobBody": {
        "not": {
            "required": ["delay", "run_at"],
            "properties": {"delay": _NUMBER_OR_TEXT, "run_at": _NUMBER_OR_TEXT},
        }
    },
    "QueuePatch": {"minProperties": 1},
}
_JOB_EXAMPLES: Mapping[str, Any] = {
    "order": {
        "summary": "any JSON value is a payload",
        "value": {
            "payload": "process-order-42",
            "idempotency_key": "order-42",
            "priority": 5,
            "max_retries": 3,
        },
    },
    "task": {
        "summary": "the payload names its task",
        "value": {"payload": {"task": "image_resize", "image_url": "s3://bucket/image.png"}},
    },
    "later": {
        "summary": "a typed job, an hour from now",
        "value": {"type": "send", "queue": "mail", "payload": ["a@b.c", "hello"], "delay": 3600},
    },
}
_EXAMPLES: Mapping[type, Mapping[str, Any]] = {
    bodies.JobBody: _JOB_EXAMPLES,
    bodies.BatchBody: {
        "two": {
            "summary": "two jobs",
            "value": {"jobs": [{"payload": {"n": 1}}, {"payload": {"n": 2}, "priority": 9}]},
        }
    },
    bodies.QueueBody: {
        "mail": {
            "summary": "a bounded queue",
            "value": {"name": "mail", "max_retries": 5, "capacity": 1000},
        }
    },
    bodies.QueuePatch: {
        "retries": {
            "summary": "other retries, and the TTL of the server",
            "value": {"max_retries": 5, "retry_base": 2, "retry_max": 60, "ttl": None},
        }
    },
}

_WHAT_ERRORS_MEAN = {
    400: "the request is wrong; `error.field` names what",
    404: "no such job, queue or worker",
    409: "the thing's state forbids it, or its name is taken",
    401: "callers have to say who they are on this server, and this one did not",
    403: "the caller lacks the role, or a web page elsewhere sent the request",
    408: "the body came too slowly, or not at all; nothing happened",
    413: "the request is too large",
    415: "a body of a type that any web page can send; send `Content-Type: application/json`",
    429: "the caller submits too fast; nothing happened, try again after `Retry-After`",
    503: "backpressure, or the store is away; nothing happened, try again after `Retry-After`",
}
# Whatever is asked for: an unknown parameter, a missing key, a server that has too much to do.
_ANYWHERE = (400, 401, 403, 415, 503)
_WAYS_TO_BE_KNOWN = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "an API key or a token (JWT)"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def _schema(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(name=kind.__name__)}}


def answers(
    success: Mapping[int, tuple[type | None, str]], *errors: int
) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: its successes, the errors to expect, and any other."""
    documented: dict[int | str, dict[str, Any]] = {}
    for status, (kind, description) in success.items():
        documented[status] = {"description": description}
        if kind is not None:
            documented[status]["content"] = {JSON: _schema(kind)}
    for status in sorted({*errors, *_ANYWHERE} - {*success}):
        documented[status] = {
            "description": _WHAT_ERRORS_MEAN[status],
            "content": {JSON: _schema(ErrorAnswer)},
        }
        if status in (429, 503):
            documented[status]["headers"] = {
                "Retry-After": {"description": "seconds", "schema": {"type": "integer"}}
            }
    documented["default"] = {
        "description": "any other error, in the same shape",
        "content": {JSON: _schema(ErrorAnswer)},
    }
    return documented


def takes(kind: type) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that reads this body."""
    content = {**_schema(kind), "examples": _EXAMPLES[kind]}
    return {"requestBody": {"required": True, "content": {JSON: content}}}


def install(app: FastAPI) -> None:
    """Make ``/openapi.json`` complete."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _build(app: FastAPI) -> dict[str, Any]:
    built = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    components = built.setdefault("components", {})
    components["securitySchemes"] = _WAYS_TO_BE_KNOWN
    # `{}`: a server that asks nobody who they are.
    built["security"] = [{}, *({way: []} for way in _WAYS_TO_BE_KNOWN)]
    _, schemas = msgspec.json.schema_components(_SCHEMAS, ref_template=_REF)
    for name, beside in _BESIDE.items():
        schemas[name].update(beside)
    items = {"$ref": _REF.format(name="JobBody")}
    most = app.state.desk.settings.max_batch_jobs
    jobs = {"type": "array", "items": items, "minItems": 1, "maxItems": most}
    schemas["BatchBody"]["properties"]["jobs"] = jobs
    for name, required in _REQUIRED.items():
        schemas[name]["required"] = required
        for field in required:
            schemas[name]["properties"][field].pop("default", None)
    components.setdefault("schemas", {}).update(schemas)
    return built
