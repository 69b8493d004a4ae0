"""Show queues with their figures and settings; create, pause, change and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from jobqueue.api.console.console import Console, Form
from jobqueue.api.console.formats import read_span
from jobqueue.api.http.errors import OBJECT
from jobqueue.core.errors import InvalidArgument, JobQueueError
from jobqueue.core.key_weights import EXAMPLE, read_key_weights
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import SETTINGS, Kind, QueueSpec, QueueUpdate, Setting
from jobqueue.core.retry import PROFILES

MOST_SHOWN = 200
_COMMON = {
    "states": (
        State.PENDING,
        State.ASSIGNED,
        State.RUNNING,
        State.FAILED,
        State.DEAD_LETTERED,
        State.DONE,
    ),
    "settings": SETTINGS,
    "profiles": tuple(PROFILES),
    "hints": {
        Kind.SECONDS: "seconds, or like 15m, 2h, 7d",
        Kind.WEIGHTS: "weights by priority, like 9: 5, 0: 1",
        Kind.KEY_WEIGHTS: f"weights by key, like {EXAMPLE}",
    },
}


def pages(console: Console) -> None:
    backend = console.backend

    async def show_all(
        request: Request,
        values: Mapping[str, Any] | None = None,
        error: JobQueueError | None = None,
    ) -> Response:
        queues = await console.reads.list_queues()
        wanted = request.query_params.get("name", "").strip()
        matching = [one for one in queues if wanted.lower() in one.queue.name.lower()]
        return console.show(
            request,
            "queues.html",
            error,
            queues=matching[:MOST_SHOWN],
            matching=len(matching),
            total=len(queues),
            wanted=wanted,
            values=values or {},
            **_COMMON,
        )

    async def show_one(
        request: Request,
        values: Mapping[str, Any] | None = None,
        error: JobQueueError | None = None,
    ) -> Response:
        name = request.path_params["name"]
        stats = await console.reads.shared(
            request, ("queue", name), lambda: backend.queue_stats(name)
        )
        return console.show(
            request,
            "queue.html",
            error,
            stats=stats,
            queue=stats.queue,
            values=stats.queue.settings() if values is None else values,
            **_COMMON,
        )

    @console.page("/queues")
    async def every(request: Request) -> Response:
        return await show_all(request)

    @console.page("/queues/{name}")
    async def one(request: Request) -> Response:
        return await show_one(request)

    @console.action("/queues")
    async def create(request: Request, form: Form) -> Response:
        name = form.get("name", "").strip()
        request.scope[OBJECT] = name
        try:
            if not name:
                raise InvalidArgument("name", "is missing; a queue needs a name")
            said: Any = {field: v for field, v in read_settings(form).items() if v is not None}
            await backend.create_queue(QueueSpec(name, paused="paused" in form, **said))
        except JobQueueError as error:
            return await show_all(request, form, error)
        return console.go(request, f"queues/{name}", did="created")

    @console.action("/queues/{name}/edit")
    async def edit(request: Request, form: Form) -> Response:
        name = request.path_params["name"]
        queue = (await backend.queue_stats(name)).queue
        try:
            # Send only the changed settings: another operator may have changed others meanwhile.
            changed: Any = {
                field: value
                for field, value in read_settings(form).items()
                if value != getattr(queue, field)
            }
            if changed:
                await backend.update_queue(name, QueueUpdate(**changed))
        except JobQueueError as error:
            return await show_one(request, form, error)
        return console.go(request, f"queues/{name}", did="saved")

    @console.action("/queues/{name}/pause")
    async def pause(request: Request, form: Form) -> Response:
        await backend.pause_queue(request.path_params["name"])
        return back(request, form, "paused")

    @console.action("/queues/{name}/resume")
    async def resume(request: Request, form: Form) -> Response:
        await backend.resume_queue(request.path_params["name"])
        return back(request, form, "resumed")

    def back(request: Request, form: Form, did: str) -> Response:
        to = "queues" if "list" in form else f"queues/{request.path_params['name']}"
        return console.go(request, to, did=did)

    @console.action("/queues/{name}/delete")
    async def delete(request: Request, form: Form) -> Response:
        await backend.delete_queue(request.path_params["name"], force="force" in form)
        return console.go(request, "queues", did="queue-deleted")


def read_settings(form: Form) -> dict[str, Any]:
    """Return the values of a form's settings. An empty field is None: the server's default."""
    return {
        name: None if not (text := form[name].strip()) else _read(setting, text)
        for name, setting in SETTINGS.items()
        if name in form
    }


def _read(setting: Setting, text: str) -> Any:
    if setting.kind is Kind.PROFILE:
        return text
    try:
        if setting.kind is Kind.WHOLE:
            return int(text.replace(",", ""))
        if setting.kind is Kind.SECONDS:
            return read_span(text)
        if setting.kind is Kind.SHARE:
            return float(text)
        if setting.kind is Kind.KEY_WEIGHTS:
            return read_key_weights(text)
        pairs = (pair.split(":") for pair in text.split(","))
        return {int(priority): int(weight) for priority, weight in pairs}
    except ValueError:
        expected = {
            Kind.SECONDS: "a number of seconds, or one with a unit (90s, 15m, 2h, 7d)",
            Kind.WEIGHTS: "weights by priority, like 9: 5, 0: 1",
            Kind.KEY_WEIGHTS: f"weights by key, like {EXAMPLE}",
        }.get(setting.kind, setting.kind.value)
        raise InvalidArgument(setting.name, f"{text[:80]!r} is not {expected}") from None
