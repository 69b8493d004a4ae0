"""Around every request: a time limit, no pages elsewhere, a log line, no leaked errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobqueue.access.budgets import Room
from jobqueue.api.http.door import ROOM
from jobqueue.api.http.errors import answer
from jobqueue.api.http.page_headers import protect
from jobqueue.api.http.settings import KIB, MIB, HttpSettings
from jobqueue.api.http.web_pages import WebPages
from jobqueue.core.errors import (
    DeadlineExceeded,
    Internal,
    JobQueueError,
    OutcomeUnknown,
)

_log = logging.getLogger("jobqueue.http")
_LIMIT = "jobqueue.time_limit"
_LINGER_BYTES = 16 * MIB
_LINGER_SECONDS = 2.0
_PIECE = 64 * KIB
UNCOUNTED = 16 * KIB  # an answer up to that is sent whole, and left to the connection's buffer


def allow_longer(request: Request, seconds: float) -> None:
    """Give a request that waits on purpose more time."""
    limit: asyncio.Timeout = request.scope[_LIMIT]
    when = limit.when()
    if when is not None:
        limit.reschedule(when + seconds)


class _Exchange:
    """One request and its answer, as they pass by."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        self._body_pending = length != b"0" or b"transfer-encoding" in headers
        self._body_held_back = b"expect" in headers
        self._cut_off = False
        self.status = 0
        self.limit: asyncio.Timeout | None = None
        self.time_to_send = 0.0

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._body_pending = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            protect(message)
            self._cut_off = self._body_pending
            if self._cut_off:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            self._count(message["headers"])
            if self.limit is not None:
                self.limit.reschedule(asyncio.get_running_loop().time() + self.time_to_send)
        else:
            if len(message.get("body", b"")) > UNCOUNTED:
                await self._send_in_pieces(message["body"])
                message = {**message, "body": b""}
            if self._cut_off and not message.get("more_body", False):
                await self._send({**message, "more_body": True})
                await self._linger()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    def _count(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Let the answer take room as what it is, until the request ends: then it has been read."""
        room: Room | None = self._scope.get(ROOM)
        if room is not None:
            size = next((int(value) for name, value in headers if name == b"content-length"), 0)
            room.change(size if size > UNCOUNTED else 0)

    async def _send_in_pieces(self, body: bytes) -> None:
        """Send each piece when the other side has read those before.

        The last message waits likewise, so that a request ends when nearly all is read. No piece is
        a copy: a file that many connections ask for and do not read is in memory once.
        """
        whole = memoryview(body)
        for at in range(0, len(whole), _PIECE):
            piece = whole[at : at + _PIECE]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _linger(self) -> None:
        """Throw away for a moment what still arrives of a body that was answered early.

        Closing at once would reset the connection, and could destroy the answer before the client
        has read it.
        """
        if self._body_held_back:
            return
        thrown_away = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while self._body_pending and thrown_away < _LINGER_BYTES:
                    thrown_away += len((await self.receive()).get("body", b""))


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        self._settings = settings
        self._web_pages = WebPages(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        exchange = _Exchange(scope, receive, send)
        try:
            refusal = self._web_pages.refusal(scope)
            if refusal is not None:
                await answer(refusal)(scope, exchange.receive, exchange.send)
            else:
                await self._answer(scope, exchange)
        finally:
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug(
                    "request",
                    extra={
                        "method": scope["method"],
                        "path": scope["path"],
                        "status": exchange.status,
                        "ms": round((time.perf_counter() - began) * 1000, 3),
                    },
                )

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        settings = self._settings
        limit = scope[_LIMIT] = exchange.limit = asyncio.timeout(settings.request_timeout)
        exchange.time_to_send = settings.stream_timeout + settings.request_timeout
        error: JobQueueError
        try:
            async with limit:
                await self._app(scope, exchange.receive, exchange.send)
            return
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the server stops, and its patience is over
            if exchange.status:
                return
            error = OutcomeUnknown("the server stopped before the answer was ready")
        except TimeoutError as failure:
            if not limit.expired():
                error = self._unexpected(scope, failure)
            else:
                error = DeadlineExceeded(
                    f"no answer within {settings.request_timeout:g} s; what was asked for may still"
                    " have happened"
                )
            if exchange.status:
                raise
        except Exception as failure:
            error = self._unexpected(scope, failure)
            if exchange.status:
                raise
        exchange.limit = None
        await answer(error)(scope, exchange.receive, exchange.send)

    @staticmethod
    def _unexpected(scope: Scope, failure: Exception) -> JobQueueError:
        _log.error(
            "a request failed unexpectedly",
            exc_info=failure,
            extra={"method": scope["method"], "path": scope["path"]},
        )
        return Internal("internal error; the server's log says more")
