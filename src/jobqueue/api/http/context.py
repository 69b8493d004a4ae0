"""Provide what all HTTP routes share: the backend, the settings and the reading of bodies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from jobqueue.access.callers import current_caller
from jobqueue.access.limits import Submit, for_callers
from jobqueue.api.http.errors import JSON, TooLarge, TooSlow
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.api import Backend
from jobqueue.core.errors import Unavailable

_T = TypeVar("_T")


@dataclass(slots=True)
class ApiContext:
    """Holds the backend and the settings of one HTTP application."""

    backend: Backend
    settings: HttpFaceSettings
    buffers: BodyBuffers = field(init=False)
    submit: Submit = field(init=False)  # the backend's submit, with the limits of callers
    # Set when the server stops: long polls and streams end early, /readyz answers 503.
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.buffers = BodyBuffers(self.settings)
        self.submit = for_callers(self.backend.submit, self.settings.limiter)

    def view(self, asked: str | None) -> str:
        """Return the view to answer in: the view that the request asks for, or the default."""
        return asked or self.settings.view

    def in_view(self, view: str) -> HttpFaceSettings:
        return self.settings if view == self.settings.view else replace(self.settings, view=view)

    async def unless_interrupted(self, request: Request, work: Awaitable[_T]) -> _T | None:
        """Return the result of ``work``, or None if the client leaves or the server stops first.

        In that case ``work`` is cancelled.
        """
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
    """Cancel futures and wait until they have ended."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    with contextlib.suppress(RuntimeError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def reply(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, JSON)


class BodyBuffers:
    """Counts the bytes of request bodies in memory, and keeps them below one limit.

    A caller may use at most as many bytes as are still free: one caller half of the limit, two
    callers a third each. Therefore some memory is always free for the next caller.
    """

    def __init__(self, settings: HttpFaceSettings) -> None:
        self._free = settings.max_buffered_bytes
        self._held: dict[str, int] = {}  # by the caller's account
        self.rate = settings.body_rate
        self.pause = settings.body_pause

    def body(self, request: Request, limit: int) -> _Body:
        """Return a context manager that reads the request's body, of at most ``limit`` bytes.

        The body's bytes count until the ``async with`` block ends. A body that is too large is
        refused at the first byte above the limit.
        """
        return _Body(self, request, limit)

    def hold(self, account: str, size: int) -> None:
        """Count ``size`` received bytes. Raise Unavailable if the caller has more than is free."""
        held = self._held[account] = self._held.get(account, 0) + size
        self._free -= size
        if held > self._free:
            raise Unavailable(
                f"the server has {held} bytes of requests of {account} in memory, more than it"
                " has free; try again when one of these requests has ended"
            )

    def release(self, account: str, size: int) -> None:
        self._free += size
        held = self._held.pop(account, 0) - size
        if held > 0:
            self._held[account] = held


class _Body:
    """Reads the body of one request."""

    __slots__ = ("_account", "_buffers", "_limit", "_request", "_size")

    def __init__(self, buffers: BodyBuffers, request: Request, limit: int) -> None:
        self._buffers = buffers
        self._request = request
        self._limit = limit
        self._account = current_caller().account
        self._size = 0

    async def __aenter__(self) -> bytes:
        for name, value in self._request.scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._limit:
                raise self._too_large()
        try:
            chunk, more = await self._next()
            return await self._rest(chunk) if more else chunk
        except BaseException:
            self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    async def _rest(self, first: bytes) -> bytes:
        """Read the rest of a body. Raise TooSlow if the bytes arrive too slowly.

        The time is limited because the received part needs memory.
        """
        chunks = [first]
        more = True
        pause, rate = self._buffers.pause, self._buffers.rate
        time = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout_at(until := time() + pause) as end:
                while more:
                    chunk, more = await self._next()
                    chunks.append(chunk)
                    # Each byte extends the deadline, to at most a pause from now. Therefore a fast
                    # sender cannot delay its last byte for long.
                    until = min(time() + pause, until + len(chunk) / rate)
                    end.reschedule(until)
        except TimeoutError:
            allowed = f"allowed: {rate} bytes/s or more, and no pause longer than {pause:g} s"
            raise TooSlow("body", f"arrives too slowly; {allowed}") from None
        return b"".join(chunks)

    async def _next(self) -> tuple[bytes, bool]:
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        self._size += len(chunk)
        self._buffers.hold(self._account, len(chunk))
        if self._size > self._limit:
            raise self._too_large()
        return chunk, message.get("more_body", False)

    def _too_large(self) -> TooLarge:
        return TooLarge("payload", f"the request is too large; the limit is {self._limit} bytes")

    def _release(self) -> None:
        self._buffers.release(self._account, self._size)
