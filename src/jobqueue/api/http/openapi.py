"""Build the OpenAPI document from the routes and the classes of bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from jobqueue.api.http import answers, bodies
from jobqueue.api.http.errors import JSON, ErrorAnswer
from jobqueue.core.queue import SETTINGS
from jobqueue.core.unique import REPLACE, WAITING

_SCHEMAS = [
    ErrorAnswer,
    *(
        kind
        for module in (bodies, answers)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and msgspec.Struct in kind.__mro__[1:] and name[0] != "_"
    ),
]
# Classes whose name in the OpenAPI document differs from their name here.
_PUBLISHED = {
    "AcceptedJob": "Accepted",
    "ChangedQueue": "QueueChange",
    "ChangedWorker": "WorkerChange",
    "RemovedSchedule": "ScheduleRemoval",
    "StartedSchedule": "ScheduleRun",
}
_REF = "#/components/schemas/{name}"
_REQUIRED = {
    "JobBody": ["payload"],
    "BatchBody": ["jobs"],
    "QueueBody": ["name"],
    "ScheduleBody": ["name", "job"],
}
_NUMBER_OR_TEXT = {"type": ["number", "string"]}
# Rules that the decoding code applies, in addition to the classes.
_BESIDE: Mapping[str, Mapping[str, Any]] = {
    "JobBody": {
        "not": {
            "required": ["delay", "run_at"],
            "properties": {"delay": _NUMBER_OR_TEXT, "run_at": _NUMBER_OR_TEXT},
        }
    },
    "UniqueBody": {
        "anyOf": [
            {"properties": {"on_conflict": {"not": {"const": REPLACE}}}},
            {
                "required": ["scope"],
                "properties": {"scope": {"const": WAITING}, "period": {"type": "null"}},
            },
        ]
    },
    "QueuePatch": {"minProperties": 1},
    # The times are either a cron expression, with its time zone, or an interval.
    "ScheduleBody": {
        "oneOf": [
            {
                "required": ["cron"],
                "properties": {"cron": {"minLength": 1}, "every": {"type": "null"}},
            },
            {
                "required": ["every"],
                "properties": {
                    "every": {"type": "integer"},
                    "cron": {"const": ""},
                    "timezone": {"const": "UTC"},
                },
            },
        ]
    },
}
_JOB_EXAMPLES: Mapping[str, Any] = {
    "order": {
        "summary": "a payload may be any JSON value",
        "value": {
            "payload": "process-order-42",
            "idempotency_key": "order-42",
            "priority": 5,
            "max_retries": 3,
        },
    },
    "task": {
        "summary": "a payload that names its task",
        "value": {"payload": {"task": "image_resize", "image_url": "s3://bucket/image.png"}},
    },
    "debounced": {
        "summary": "a job that takes the place of the one that waits with its unique key",
        "value": {
            "payload": {"page": 7},
            "delay": 10,
            "unique": {"key": "page-7", "scope": "waiting", "on_conflict": "replace"},
        },
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
    bodies.ScheduleBody: {
        "nightly": {
            "summary": "every working day at 6:30 in Zurich",
            "value": {
                "name": "nightly-report",
                "cron": "30 6 * * mon-fri",
                "timezone": "Europe/Zurich",
                "overlap": "skip",
                "job": {"type": "report", "payload": {"kind": "daily"}},
            },
        },
        "often": {
            "summary": "every 90 seconds",
            "value": {"name": "poll", "every": 90, "job": {"type": "poll", "payload": {}}},
        },
    },
    bodies.QueuePatch: {
        "retries": {
            "summary": "other retries, and the TTL of the server",
            "value": {"max_retries": 5, "retry_base": 2, "retry_max": 60, "ttl": None},
        }
    },
}

_ERRORS = {
    400: "the request is wrong; `error.field` names the wrong field",
    404: "no such job, queue, worker or schedule",
    409: "the state of the job, queue or worker forbids it, or the name is taken",
    401: "the server asks for credentials; the request has none, or wrong ones",
    403: "the caller lacks the role, or another site's web page sent the request",
    408: "the body came too slowly, or not at all; the request had no effect",
    413: "the request is too large",
    415: "a body of a type that any web page can send; send `Content-Type: application/json`",
    429: "the caller submits too fast; no effect, try again after `Retry-After`",
    503: "the server or its store is overloaded or down; no effect, try again after `Retry-After`",
}
# Every route may return these: an unknown parameter, a missing key, an overloaded server.
_ANYWHERE = (400, 401, 403, 415, 503)
_CREDENTIALS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "an API key or a token (JWT)"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def _schema(kind: type) -> dict[str, Any]:
    name = _PUBLISHED.get(kind.__name__, kind.__name__)
    return {"schema": {"$ref": _REF.format(name=name)}}


def responses(
    success: Mapping[int, tuple[type | None, str]], errors: Iterable[int] = ()
) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route for FastAPI: successes, errors and a default error."""
    documented: dict[int | str, dict[str, Any]] = {}
    for status, (kind, description) in success.items():
        documented[status] = {"description": description}
        if kind is not None:
            documented[status]["content"] = {JSON: _schema(kind)}
    for status in sorted({*errors, *_ANYWHERE} - {*success}):
        documented[status] = {
            "description": _ERRORS[status],
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
    content = {**_schema(kind), "examples": _EXAMPLES[kind]}
    return {"requestBody": {"required": True, "content": {JSON: content}}}


def install(app: FastAPI) -> None:
    """Make the app return an OpenAPI document with schemas, security and defaults added."""

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
    components["securitySchemes"] = _CREDENTIALS
    # `{}` stands for a server that needs no credentials.
    built["security"] = [{}, *({kind: []} for kind in _CREDENTIALS)]
    _, schemas = msgspec.json.schema_components(_SCHEMAS, ref_template=_REF)
    for name, published in _PUBLISHED.items():
        schemas[published] = {**schemas.pop(name), "title": published}
    for field in SETTINGS:
        schemas["QueueBody"]["properties"][field]["default"] = None
    for name, beside in _BESIDE.items():
        schemas[name].update(beside)
    items = {"$ref": _REF.format(name="JobBody")}
    null = {"type": "null"}
    without = {"properties": {"idempotency_key": null, "run_at": null, "unique": null}}
    schemas["ScheduleBody"]["properties"]["job"] = {"allOf": [items, without]}
    most = app.state.context.settings.max_batch_jobs
    jobs = {"type": "array", "items": items, "minItems": 1, "maxItems": most}
    schemas["BatchBody"]["properties"]["jobs"] = jobs
    for name, required in _REQUIRED.items():
        schemas[name]["required"] = required
        for field in required:
            schemas[name]["properties"][field].pop("default", None)
    components.setdefault("schemas", {}).update(schemas)
    return built
