"""Show one job, and change it: cancel, retry, delete, or submit it again with edits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from jobqueue.access.callers import current_caller
from jobqueue.access.policy import permit
from jobqueue.access.rules import RULES
from jobqueue.api.console.console import Console, Form
from jobqueue.api.console.formats import read_span, read_time, readable
from jobqueue.api.http.errors import OBJECT
from jobqueue.core.errors import InvalidArgument, JobQueueError, NotFound
from jobqueue.core.explain import Cause, Explanation
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import MAX_VERSION, Event, Job, JobSpec, older
from jobqueue.core.lifecycle import HELD, TERMINAL, State
from jobqueue.core.waiting import LONG, items_of, turn

_SHOWN = 64 * 1024  # most characters of a payload or a result on a page
_FORMATTED = 4 * 1024 * 1024  # most bytes that are indented
_EDITED = 256 * 1024  # most characters of a payload in a form
_SPREAD = 3  # most bytes that one byte needs in an encoded form
_SUBMIT = "job.submit_by_hand"


@dataclass(slots=True)
class Attempt:
    """Describes one attempt of a job, put together from its events."""

    number: int
    worker: str | None
    assigned: float
    started: float | None = None
    end: Event | None = None

    @property
    def ran(self) -> float | None:
        if self.started is None or self.end is None:
            return None
        return max(0.0, self.end.at - self.started)


@dataclass(frozen=True, slots=True)
class Content:
    """Describes a payload or a result as a page shows it."""

    size: int
    kind: str
    text: str
    is_cut: bool

    @classmethod
    def of(cls, content: bytes, most: int = _SHOWN) -> Content:
        if len(content) > _FORMATTED:
            text = content[:most].decode(errors="replace")
            return cls(len(content), "text", text, True)
        kind, text = readable(content)
        return cls(len(content), kind, text[:most], len(text) > most)


def attempts_of(events: Sequence[Event]) -> list[Attempt]:
    """Return the attempts in a job's events, the newest first."""
    found: list[Attempt] = []
    for event in events:
        if event.to_state is State.ASSIGNED:
            found.append(Attempt(event.attempt, event.worker_id, event.at))
        elif found and event.from_state in HELD:
            if event.to_state is State.RUNNING:
                found[-1].started = event.at
            elif found[-1].end is None:
                found[-1].end = event
    return found[::-1]


def pages(console: Console) -> None:
    backend, settings = console.backend, console.context.settings

    @console.page("/jobs/{job_id}")
    async def show(request: Request) -> Response:
        job_id = parse_job_id(request.path_params["job_id"])
        before = _version(request.query_params.get("before", ""))

        async def read() -> tuple[Job, list[Event], Explanation | None]:
            job = await backend.get(job_id)
            return job, await backend.history(job_id, before), await explained(job)

        job, events, why = await console.reads.shared(request, ("job", job_id, before), read)
        size = len(job.payload) + len(job.result or b"") + sum(len(one.detail) for one in events)
        if size > LONG:
            await turn(items_of(size))
        return console.show(
            request,
            "job.html",
            job=job,
            events=events[::-1],
            older=older(events),
            attempts=attempts_of(events),
            payload=Content.of(job.payload),
            result=None if job.result is None else Content.of(job.result),
            more={name: value for name, value in job.spec.more().items() if value},
            is_over=job.state in TERMINAL,
            explained=why,
        )

    async def explained(job: Job) -> Explanation | None:
        """Return why the job does not run, unless its state says all of it."""
        if job.state in TERMINAL:
            return None
        with suppress(NotFound):  # it was removed meanwhile
            found = await backend.explain(job.id)
            if [one.code for one in found.causes] != [Cause.RUNNING]:
                return found
        return None

    @console.page("/jobs/{job_id}/payload")
    async def payload(request: Request) -> Response:
        job = await backend.get(parse_job_id(request.path_params["job_id"]))
        return _file(job, "payload", job.payload)

    @console.page("/jobs/{job_id}/result")
    async def result(request: Request) -> Response:
        job = await backend.get(parse_job_id(request.path_params["job_id"]))
        return _file(job, "result", job.result or b"")

    @console.action("/jobs/{job_id}/cancel")
    async def cancel(request: Request, _: Form) -> Response:
        job_id = parse_job_id(request.path_params["job_id"])
        done = await backend.cancel(job_id)
        did = "over" if done.already_terminal else "asked" if done.requested else "cancelled"
        return console.go(request, f"jobs/{job_id}", did=did)

    @console.action("/jobs/{job_id}/retry")
    async def retry(request: Request, _: Form) -> Response:
        job = await backend.retry(parse_job_id(request.path_params["job_id"]))
        return console.go(request, f"jobs/{job.id}", did="retried")

    @console.action("/jobs/{job_id}/delete")
    async def delete(request: Request, _: Form) -> Response:
        await backend.delete_job(parse_job_id(request.path_params["job_id"]))
        return console.go(request, "jobs", did="job-deleted")

    async def show_form(
        request: Request, source: Job | None, values: Mapping[str, str], error: Any = None
    ) -> Response:
        queues = await console.reads.list_queues()
        return console.show(
            request,
            "submit.html",
            error,
            source=source,
            values=values,
            # None: the page does not show the payload, and the new job gets it unchanged.
            payload=values.get("payload"),
            queues=[one.queue.name for one in queues],
        )

    @console.page("/submit")
    async def form(request: Request) -> Response:
        permit(current_caller(), RULES[_SUBMIT].roles, "submitting a job")
        given = request.query_params.get("from", "")
        if not given:
            queue = request.query_params.get("queue", "default")
            return await show_form(request, None, {"queue": queue, "payload": "{}"})
        source = await backend.get(parse_job_id(given))
        return await show_form(request, source, form_of(source))

    @console.action("/submit", _SPREAD * settings.max_payload_bytes + _EDITED)
    async def submit(request: Request, form: Form) -> Response:
        given = form.get("from", "")
        source = await backend.get(parse_job_id(given)) if given else None
        try:
            [answer] = await console.context.submit([read_spec(form, source)])
            job_id = answer.unwrap()
        except JobQueueError as error:
            return await show_form(request, source, form, error)
        request.scope[OBJECT] = job_id
        return console.go(request, f"jobs/{job_id}", did="submitted")


def form_of(job: Job) -> dict[str, str]:
    """Return the fields of the form that submits a job again. Its keys are left out."""
    spec, content = job.spec, Content.of(job.payload, _EDITED)
    fields = {
        "from": job.id,
        "queue": spec.queue,
        "type": spec.type,
        "priority": str(spec.priority),
        "labels": "\n".join(f"{name}={value}" for name, value in spec.labels.items()),
        "concurrency_key": spec.concurrency_key or "",
    }
    for name in ("max_retries", "ttl", "timeout"):
        value = getattr(spec, name)
        fields[name] = "" if value is None else f"{value:.15g}"
    if content.kind == "JSON" and not content.is_cut:
        fields["payload"] = content.text
    return fields


def read_spec(form: Form, source: Job | None) -> JobSpec:
    """Return the job that a form describes.

    A payload that was not changed, or was not shown, is taken from the job ``source`` byte by byte.
    """
    payload = source.payload if source is not None else b""
    text = form.get("payload")
    if text is not None:
        text = text.replace("\r\n", "\n")
        if source is None or text.strip() != form_of(source).get("payload", "").strip():
            payload = _json(text)
    spec = JobSpec(payload=payload) if source is None else replace(source.spec, payload=payload)
    spec.queue = form.get("queue", "").strip()
    spec.type = form.get("type", "").strip()
    spec.priority = _number(form, "priority") or 0
    spec.max_retries = _number(form, "max_retries")
    spec.ttl, spec.timeout = _seconds(form, "ttl"), _seconds(form, "timeout")
    spec.delay = _seconds(form, "delay")
    spec.run_at = read_time(form.get("run_at", ""), "run_at", 0.0)
    spec.key, spec.key_owner = form.get("key", "").strip() or None, ""
    spec.unique = None
    spec.concurrency_key = form.get("concurrency_key", "").strip() or None
    spec.labels = _labels(form.get("labels", ""))
    return spec


def _json(text: str) -> bytes:
    content = text.strip().encode()
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument("payload", f"is not JSON: {error}") from None
    return content


def _number(form: Form, name: str) -> int | None:
    text = form.get(name, "").strip()
    try:
        return int(text) if text else None
    except ValueError:
        raise InvalidArgument(name, f"{text[:80]!r} is not a whole number") from None


def _seconds(form: Form, name: str) -> float | None:
    text = form.get(name, "").strip()
    try:
        return read_span(text) if text else None
    except ValueError:
        allowed = "a number of seconds, or one with a unit (90s, 15m, 2h, 7d)"
        raise InvalidArgument(name, f"{text[:80]!r} is not {allowed}") from None


def _labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, sep, value = line.partition("=")
        if not sep:
            raise InvalidArgument("labels", f"{line[:80]!r} must have the form NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _version(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18 or not 1 <= int(text) <= MAX_VERSION:
        raise InvalidArgument("before", f"must be 1 to {MAX_VERSION}")
    return int(text)


def _file(job: Job, name: str, content: bytes) -> Response:
    """Return bytes as a file to save, which no browser runs or shows as a page."""
    disposition = f'attachment; filename="{job.id}-{name}"'
    return Response(
        content,
        media_type="application/octet-stream",
        headers={"Content-Disposition": disposition, "Cache-Control": "no-store"},
    )
