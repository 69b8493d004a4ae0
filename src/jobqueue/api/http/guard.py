"""Limit the time of every request, refuse requests of other sites' web pages, and log requests.

A web page of another site must not use this server through a visitor's browser. This module checks
the headers in which the browser names a request's source (``Host``, ``Origin``,
``Sec-Fetch-Site``). A web page can neither remove nor change these headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobqueue.access.budgets import Room
from jobqueue.access.hosts import HostNames, host_of
from jobqueue.api.http.authorizer import ROOM
from jobqueue.api.http.connections import protect
from jobqueue.api.http.errors import JSON, Refuse, WrongType
from jobqueue.api.http.settings import KIB, MIB, HttpFaceSettings, is_console
from jobqueue.core.errors import (
    DeadlineExceeded,
    Internal,
    JobQueueError,
    OutcomeUnknown,
    PermissionDenied,
)

_log = logging.getLogger("jobqueue.http")
_LIMIT = "jobqueue.time_limit"
LINGER_BYTES = 16 * MIB
LINGER_SECONDS = 2.0
_PIECE = 64 * KIB
UNCOUNTED = 16 * KIB  # bytes of an answer that is sent whole and not counted in the budgets

# Pages that a link on another site may open, beside the console's pages. They change nothing.
_PAGES = frozenset({"/", "/docs"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({b"same-origin", b"none"})  # none: a person typed the address
# Content types that browsers send without a CORS preflight request.
_SENT_UNASKED = frozenset(
    {b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"}
)
_LOOKED_AT = frozenset(
    {b"host", b"origin", b"content-type", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"}
)


def allow_longer(request: Request, seconds: float) -> None:
    """Extend the time limit of a long poll by ``seconds``."""
    limit: asyncio.Timeout = request.scope[_LIMIT]
    when = limit.when()
    if when is not None:
        limit.reschedule(when + seconds)


class _Exchange:
    """Passes on the ASGI messages of one request and its answer, and applies limits to them."""

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
        """Count the answer's bytes in the caller's memory budget until the request ends.

        The request ends when the client has read nearly all of the answer.
        """
        room: Room | None = self._scope.get(ROOM)
        if room is not None:
            size = next((int(value) for name, value in headers if name == b"content-length"), 0)
            room.change(size if size > UNCOUNTED else 0)

    async def _send_in_pieces(self, body: bytes) -> None:
        """Send each piece of the body when the client has read the pieces before it.

        Return when the client has read nearly all of the body.
        """
        whole = memoryview(body)  # no copies: a file that many clients request is in memory once
        for at in range(0, len(whole), _PIECE):
            piece = whole[at : at + _PIECE]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _linger(self) -> None:
        """Read and discard the rest of a request's body that was answered early.

        Closing the connection at once would reset it. The reset could delete the answer before the
        client has read it.
        """
        if self._body_held_back:
            return
        discarded = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._body_pending and discarded < LINGER_BYTES:
                    discarded += len((await self.receive()).get("body", b""))


class Guard:
    """ASGI middleware that limits the time of requests and refuses other sites' requests."""

    def __init__(self, app: ASGIApp, settings: HttpFaceSettings, refuse: Refuse) -> None:
        self._app = app
        self._settings = settings
        self._refuse = refuse
        self._sites = OtherSites(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        exchange = _Exchange(scope, receive, send)
        try:
            refusal = self._sites.refusal(scope)
            if refusal is not None:
                await self._refuse(scope, refusal)(scope, exchange.receive, exchange.send)
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
        except asyncio.CancelledError:  # the server stops, and its grace period has ended
            if exchange.status:
                return
            error = OutcomeUnknown("the server stopped before the answer was ready")
        except TimeoutError as failure:
            if not limit.expired():
                error = self._unexpected(scope, failure)
            else:
                error = DeadlineExceeded(
                    f"no answer within {settings.request_timeout:g} s; the request may still change"
                    " something"
                )
            if exchange.status:
                raise
        except Exception as failure:
            error = self._unexpected(scope, failure)
            if exchange.status:
                raise
        exchange.limit = None
        await self._refuse(scope, error)(scope, exchange.receive, exchange.send)

    @staticmethod
    def _unexpected(scope: Scope, failure: Exception) -> JobQueueError:
        _log.error(
            "the request %s %r failed unexpectedly; answering INTERNAL",
            scope["method"],
            scope["path"],
            exc_info=failure,
            extra={"method": scope["method"], "path": scope["path"]},
        )
        return Internal("internal error; the server's log has the details")


class OtherSites:
    """Refuses requests that a web page of another site has sent."""

    def __init__(self, settings: HttpFaceSettings) -> None:
        # A page that uses DNS rebinding has no credentials. A server that requires credentials
        # therefore accepts any name, because a load balancer may send its own. With client
        # certificates, TLS checks the name.
        unchecked = settings.access.required and not settings.allowed_hosts
        self._hosts = HostNames(settings.host, settings.allowed_hosts, any_name=unchecked)

    def refusal(self, scope: Scope) -> JobQueueError | None:
        """Return the error if the request must be refused; otherwise None."""
        said: dict[bytes, bytes] = {}
        unasked: bytes | None = None  # a content type that any page can send
        for name, value in scope["headers"]:
            if name not in _LOOKED_AT:
                continue
            if name == b"host" and (value not in self._hosts or name in said):
                return self._foreign_host(value)
            if name == b"content-type" and _essence(value) in _SENT_UNASKED:
                unasked = value
            said[name] = value
        origin = said.get(b"origin")
        if origin is not None and not self._is_own(origin, said.get(b"host", b"")):
            return PermissionDenied(
                f"requests from other sites' pages are refused: Origin is {_shown(origin)},"
                " which is not this server; the setting http.allowed_hosts adds names"
            )
        site = said.get(b"sec-fetch-site", b"none")
        if site not in _OWN_SITES and not _is_click(scope, said):
            return PermissionDenied(
                f"requests from other sites' pages are refused: Sec-Fetch-Site is {_shown(site)};"
                " open the address directly, or use a program"
            )
        if scope["method"] in _SAFE_METHODS:
            return None
        if is_console(scope["path"]):
            # Any site's page can send a form, so the browser must say that the page is one of ours.
            proven = origin is not None or said.get(b"sec-fetch-site") == b"same-origin"
            return None if proven else _of_no_page()
        return None if unasked is None else _sent_unasked(unasked)

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        """Return True if the page comes from the request's host and port, or from a listed name."""
        scheme, _, authority = origin.decode("latin-1").lower().partition("://")
        if scheme not in ("http", "https") or not authority:
            return False
        if authority.encode("latin-1") == host.lower():
            return True
        name = host_of(authority.encode("latin-1"))
        return name is not None and self._hosts.is_listed(name)

    def _foreign_host(self, host: bytes) -> JobQueueError:
        return PermissionDenied(
            f"Host is {_shown(host)}, which is not a name of this server ({self._hosts});"
            " if the name is right, add it to http.allowed_hosts"
        )


def _is_click(scope: Scope, said: dict[bytes, bytes]) -> bool:
    """Return True if a person has followed a link to one of the pages for browsers."""
    return (
        scope["method"] == "GET"
        and (scope["path"] in _PAGES or is_console(scope["path"]))
        and said.get(b"sec-fetch-mode") == b"navigate"
        and said.get(b"sec-fetch-dest") == b"document"
    )


def _of_no_page() -> JobQueueError:
    return PermissionDenied(
        "the console takes a change only from a browser that sends Origin, or Sec-Fetch-Site:"
        " same-origin; programs use the HTTP API (/docs)"
    )


def _sent_unasked(kind: bytes) -> JobQueueError:
    return WrongType(
        "Content-Type",
        f"{_shown(kind)} is refused, because any web page can make a browser send it; send"
        f" Content-Type: {JSON} (curl: -H 'Content-Type: {JSON}')",
    )


def _essence(kind: bytes) -> bytes:
    return kind.partition(b";")[0].strip().lower()


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))
