"""Render the console's templates. Every answer has its own content security policy."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from jobqueue._version import __version__
from jobqueue.access.callers import Caller
from jobqueue.access.rules import RULES
from jobqueue.api.console import formats
from jobqueue.api.http.settings import CONSOLE
from jobqueue.core.job import WorkerStatus
from jobqueue.core.lifecycle import DEATH_WORDS, State

_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# With "no-referrer" browsers would send forms with "Origin: null". Other sites get no referrer.
_REFERRER = "same-origin"
STATIC: Mapping[str, str] = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files that pages load, and their content types."""
DONE = {
    "created": "The queue was created.",
    "saved": "The settings were saved.",
    "paused": "The queue is paused: its jobs wait.",
    "resumed": "The queue hands out its jobs again.",
    "queue-deleted": "The queue was deleted.",
    "drained": "The worker gets no more jobs.",
    "undrained": "The worker gets jobs again.",
    "stopped": "The worker finishes its jobs, and exits.",
    "submitted": "The job was submitted.",
    "retried": "The job waits for a worker again, with its retries reset.",
    "cancelled": "The job was cancelled.",
    "asked": "The job runs: its worker was asked to stop it.",
    "over": "The job had ended already.",
    "job-deleted": "The job was deleted.",
    "schedule-paused": "The schedule is paused: its times are skipped.",
    "schedule-resumed": "The schedule submits its jobs again.",
    "schedule-ran": "The schedule's job was submitted.",
    "schedule-removed": "The schedule was removed. Its jobs stay.",
    "out": "You are logged out.",
}
"""The message that a page shows after a change, by the word ``did`` in the page's address."""


PAGES = (
    ("", "Overview"),
    ("queues", "Queues"),
    ("jobs", "Jobs"),
    ("dlq", "Dead letters"),
    ("schedules", "Schedules"),
    ("workers", "Workers"),
    ("system", "System"),
)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("jobqueue.api.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        name: getattr(formats, name)
        for name in (
            "moment", "ago", "span", "setting", "count", "capped", "size", "percent", "first_line",
            "segment", "rounded", "sentence",
        )
    }  # fmt: skip
    found.globals |= {
        "version": __version__,
        "assets": asset_version(),
        "none_": formats.NOTHING,
        "pages": PAGES,
        "State": State,
        "WorkerStatus": WorkerStatus,
        "death_words": tuple(DEATH_WORDS),
    }
    return found


@cache
def asset(name: str) -> bytes:
    return resources.files("jobqueue.api.console.static").joinpath(name).read_bytes()


@cache
def asset_version() -> str:
    """Return a text that changes with the files that pages load, so that caches notice it."""
    return hashlib.sha256(b"".join(map(asset, STATIC))).hexdigest()[:12]


def root(scope: Scope) -> str:
    """Return the relative URL from the requested page to the console's first page.

    Links are relative, so they also work behind a proxy with a path prefix.
    """
    path = bytes(scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    if path == CONSOLE:
        return f"{CONSOLE[1:]}/"
    return "../" * path.removeprefix(f"{CONSOLE}/").count("/") or "./"


def may(caller: Caller | None, action: str) -> bool:
    """Return True if the caller has a role for the action."""
    allowed = RULES[action].roles
    return caller is not None and (allowed is None or not caller.roles.isdisjoint(allowed))


def respond(
    scope: Scope,
    template: str,
    *,
    status: int = 200,
    caller: Caller | None = None,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> Response:
    """Return a page. Without a caller it has no navigation."""
    nonce = secrets.token_urlsafe(18)
    text = (
        _environment()
        .get_template(template)
        .render(
            nonce=nonce,
            up=root(scope),
            person=caller,
            may=lambda action: may(caller, action),
            now=time.time(),
            **{"token": "", "did": "", "session": False, **values},
        )
    )
    return HTMLResponse(
        text,
        status,
        {
            "Content-Security-Policy": _POLICY.format(nonce=nonce),
            "Cache-Control": "no-store",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Referrer-Policy": _REFERRER,
            **(headers or {}),
        },
    )
