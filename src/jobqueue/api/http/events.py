"""A job's history, read at once or followed as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from jobqueue.access.rules import Kind
from jobqueue.api.http import render, shapes
from jobqueue.api.http.desk import Desk, give_up, reply
from jobqueue.api.http.door import PLACE
from jobqueue.api.http.errors import JSON, detail
from jobqueue.api.http.openapi import answers
from jobqueue.api.http.params import EventParams, JobId
from jobqueue.core.errors import JobQueueError, NotFound
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import Event, older
from jobqueue.core.waiting import give_answer_room_back

_STREAM = "text/event-stream"
_MAX_DIGITS = 19


def event_routes(desk: Desk) -> APIRouter:
    """Where history is read."""
    router = APIRouter(tags=["jobs"])
    documented = answers({200: (shapes.HistoryView, "the history, or a stream of it")}, 400, 404)
    documented[200]["content"][_STREAM] = {
        # Of each event: readers of event streams put its lines together.
        "schema": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "the version, to resume after"},
                "event": {"enum": ["transition", "end", "timeout", "error"]},
                "data": {"type": "string", "contentMediaType": JSON},
            },
            "required": ["data"],
        },
        "example": 'id: 1\nevent: transition\ndata: {"version": 1, "to_status": "PENDING"}\n\n',
    }

    @router.get(
        "/jobs/{job_id}/events",
        summary="Read a job's transitions; follow them with ?watch=1 or Accept: text/event-stream",
        description="A stream sends `transition` events, then `end` when the job is finished, or"
        " `timeout` when the server ends the stream first. `Last-Event-ID` resumes it.",
        responses=documented,
    )
    async def events(request: Request, job_id: JobId, params: EventParams) -> Response:
        job_id = parse_job_id(job_id)
        view = desk.view(params.view)
        if not params.watch and _STREAM not in request.headers.get("accept", ""):
            history = await desk.backend.history(job_id, params.before_version)
            shown = await render.event_views(history, view)
            return reply(shapes.HistoryView(job_id=job_id, events=shown, older=older(history)))
        request.scope[PLACE].move(Kind.STREAM)
        give_answer_room_back()  # it sends little at a time
        stream = _Stream(desk, job_id, view, _last_seen(request))
        await stream.open()
        return StreamingResponse(
            stream.lines(), media_type=_STREAM, headers={"Cache-Control": "no-store"}
        )

    return router


class _Stream:
    """One client that follows one job."""

    def __init__(self, desk: Desk, job_id: str, view: str, seen: int) -> None:
        self._desk = desk
        self._job_id = job_id
        self._view = view
        self._seen = seen
        self._events = desk.backend.watch(job_id)
        self._first: Event | None = None

    async def open(self) -> None:
        """Wait for the first event, so that a job that does not exist is a 404, not a stream."""
        self._first = await anext(self._events, None)
        if self._first is None:
            raise NotFound(f"no job {self._job_id}")

    async def lines(self) -> AsyncIterator[bytes]:
        """The stream's bytes, until the backend says it is over, for a limited time.

        A terminal event is not the end: an operator may have retried the job since.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._desk.settings.stream_timeout
        draining = asyncio.ensure_future(self._desk.draining.wait())
        event: Event | None = self._first
        upcoming: asyncio.Future[Event | None] | None = None
        try:
            while event is not None:
                if event.version > self._seen:
                    yield self._transition(event)
                upcoming = asyncio.ensure_future(self._next())
                while not upcoming.done():
                    left = ends_at - loop.time()
                    if left <= 0 or draining.done():
                        yield _frame("timeout", b"{}")
                        return
                    pause = min(left, self._desk.settings.stream_heartbeat)
                    await asyncio.wait(
                        [upcoming, draining], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                    )
                    if not upcoming.done() and not draining.done():
                        yield b": still here\n\n"
                event = upcoming.result()
            yield _frame("end", b"{}")
        except JobQueueError as error:
            yield _frame("error", msgspec.json.encode(detail(error)))
        finally:
            await give_up(draining, *([upcoming] if upcoming is not None else []))
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _next(self) -> Event | None:
        return await anext(self._events, None)

    def _transition(self, event: Event) -> bytes:
        data = msgspec.json.encode(render.event_view(event, self._view))
        return f"id: {event.version}\n".encode() + _frame("transition", data)


def _last_seen(request: Request) -> int:
    """The version a client that comes back has seen; one that makes no sense has seen nothing."""
    text = request.headers.get("last-event-id", "")
    return int(text) if text.isdecimal() and len(text) < _MAX_DIGITS else 0


def _frame(name: str, data: bytes) -> bytes:
    """JSON has no bare newline, so one data line holds it."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
