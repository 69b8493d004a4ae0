"""What every route works with, and the two things several of them do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jobqueue.access.limits import Submit
from jobqueue.access.submits import for_callers
from jobqueue.api.http.bodies import Buffers
from jobqueue.api.http.errors import JSON
from jobqueue.api.http.settings import HttpSettings
from jobqueue.core.api import Backend

_T = TypeVar("_T")


@dataclass(slots=True)
class Desk:
    """The backend and the settings of one app."""

    backend: Backend
    settings: HttpSettings
    buffers: Buffers
    submit: Submit = field(init=False)  # the backend's, for callers
    # Set when the server stops: long polls and streams end early, /readyz says no.
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.submit = for_callers(self.backend.submit, self.settings.limiter)

    def view(self, asked: str | None) -> str:
        """The vocabulary to answer in."""
        return asked or self.settings.view

    def in_view(self, view: str) -> HttpSettings:
        """The settings for a call in that vocabulary."""
        return self.settings if view == self.settings.view else replace(self.settings, view=view)

    async def unless_interrupted(self, request: Request, work: Awaitable[_T]) -> _T | None:
        """Await a long work, or give it up (None) when the client leaves or the server stops."""
        main = asyncio.ensure_future(work)
        others = [
            asyncio.ensure_future(self.draining.wait()),
            asyncio.ensure_future(_disconnected(request)),
        ]
        try:
            await asyncio.wait([main, *others], return_when=asyncio.FIRST_COMPLETED)
            return main.result() if main.done() else None
        finally:
            await give_up(main, *others)


async def give_up(*futures: asyncio.Future[Any]) -> None:
    """Cancel what is not done, and see it end."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    with contextlib.suppress(RuntimeError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def reply(
    body: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with JSON."""
    return Response(msgspec.json.encode(body), status, headers, JSON)
