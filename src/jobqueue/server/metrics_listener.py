"""Implements a small HTTP server for /metrics and /healthz, for processes without an HTTP face."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial

from jobqueue.access.budgets import Budget, Budgets, Place
from jobqueue.access.callers import network
from jobqueue.access.hosts import HostNames, is_loopback
from jobqueue.access.policy import Access, permit, shown_in
from jobqueue.access.rules import RULES
from jobqueue.access.tls import ServerTls, certificate_name
from jobqueue.api.http.connections import HEADER_LINES, Handshakes, OpenConnections, hang_up
from jobqueue.api.listening import Endpoint, open_sockets
from jobqueue.core.errors import JobQueueError, Unauthenticated, Unavailable

log = logging.getLogger("jobqueue.metrics")

Render = Callable[[], Awaitable[tuple[bytes, str]]]
_METRICS = "server.metrics"
_MAX_HEAD = 8 * 1024
_MAX_CONNECTIONS = 16
# The number of /metrics requests that are answered at the same time. The other connections wait; a
# waiting connection may be closed for a new connection, so that health probes get an answer.
_MAX_RENDERED = Budget(_MAX_CONNECTIONS // 2, _MAX_CONNECTIONS // 2)
_TIMEOUT = 10.0
_READ_TIMEOUT = 60.0


class MetricsListener:
    """Answers GET /metrics and GET /healthz, one request per connection.

    ``access`` decides who may read /metrics; everybody may read /healthz. ``stop`` may be called
    twice.
    """

    def __init__(
        self, render: Render, *, access: Access | None = None, tls: ServerTls | None = None
    ) -> None:
        self._render = render
        self._access = access or Access()
        self._tls = tls
        self._budgets = Budgets({RULES[_METRICS].kind: _MAX_RENDERED})
        self._hosts = HostNames("localhost")
        self._servers: list[asyncio.Server] = []
        self._handshakes: list[Handshakes] = []  # used instead of ``_servers`` with TLS
        self.counted = OpenConnections(_MAX_CONNECTIONS, _MAX_CONNECTIONS)
        self.open: set[_Connection] = set()

    async def start(self, endpoint: Endpoint) -> int:
        """Start to listen, and return the port. Raises Unavailable if the port is taken."""
        # A bad certificate must raise an error before the port is opened.
        context = None if self._tls is None else self._tls.context()
        # Scrapers on the network may use any name for this machine.
        self._hosts = HostNames(endpoint.host, any_name=not is_loopback(endpoint.host))
        loop = asyncio.get_running_loop()
        connection = partial(_Connection, self)
        sockets = await open_sockets(endpoint)
        port = int(sockets[0].getsockname()[1])
        for listener in sockets:
            if context is None:
                self._servers.append(await loop.create_server(connection, sock=listener))
            else:
                waiting = Handshakes(listener, connection, context, _TIMEOUT)
                self._handshakes.append(waiting)
        return port

    async def stop(self) -> None:
        """Close the port and every connection."""
        for server in self._servers:
            server.close()
        for handshakes in self._handshakes:
            await handshakes.close()
        ended = [connection.end() for connection in self.open]
        await asyncio.gather(*ended, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
        self._handshakes.clear()

    async def answer(self, head: bytes, connection: _Connection) -> bytes:
        """Return the HTTP response to the request with this head; requests have no body."""
        first, *lines = head.split(b"\r\n")
        headers = []
        for line in lines:
            name, _, value = line.partition(b":")
            headers.append((name.strip().lower(), value.strip()))
            if headers[-1][0] == b"host" and headers[-1][1] not in self._hosts:
                return _response("403 Forbidden", b"the Host header does not name this machine\n")
        method, _, rest = first.partition(b" ")
        path = rest.split(b" ")[0].split(b"?")[0]
        if path not in (b"/metrics", b"/healthz"):
            return _response("404 Not Found", b"not found; allowed: /metrics and /healthz\n")
        if method not in (b"GET", b"HEAD"):
            return _response(
                "405 Method Not Allowed", b"allowed: GET, HEAD\n", extra="Allow: GET, HEAD\r\n"
            )
        if path == b"/healthz":
            return _response("200 OK", b"ok\n", with_body=method == b"GET")
        try:
            place = self._let_in(headers, connection)
        except JobQueueError as error:
            await self._access.refusals.note(error, connection.peer, _METRICS, "http")
            return _refusal(error)
        connection.in_use = True
        try:
            body, kind = await self._render()
        finally:
            connection.in_use = False
            place.leave()
        return _response("200 OK", body, kind, with_body=method == b"GET")

    def _let_in(self, headers: list[tuple[bytes, bytes]], connection: _Connection) -> Place:
        rule = RULES[_METRICS]
        caller = self._access.identify(shown_in(headers, connection.certificate, connection.peer))
        permit(caller, rule.roles, "GET /metrics")
        return self._budgets.enter(rule.kind, caller.account)


class _Connection(asyncio.Protocol):
    """One connection of the metrics server, from its acceptance (before TLS) to its end."""

    def __init__(self, pages: MetricsListener) -> None:
        self._pages = pages
        self._handshake: socket.socket | None = None  # while the TLS handshake is under way
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._head = b""
        self.peer = ""
        self.address = ""  # the connection is counted for this address
        self.certificate = ""  # the name in the client's certificate
        self.in_use = False

    def accepted(self, connection: socket.socket, address: str) -> bool:
        self._handshake = connection
        return self._counts(address)

    def gone(self) -> None:
        self._pages.counted.leave(self)

    def close_for_another(self) -> None:
        if self._handshake is not None:
            hang_up(self._handshake)
        elif self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if self._handshake is None and not self._counts(peer[0] if peer else ""):
            transport.abort()
            return
        self._handshake = None
        self.certificate = certificate_name(transport.get_extra_info("peercert"))
        self._pages.open.add(self)
        self._limit(_TIMEOUT)

    def data_received(self, data: bytes) -> None:
        if self._answering is not None or self._transport is None:
            return  # one request per connection
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if len(head) > _MAX_HEAD:
            self._transport.abort()
        elif end:
            self._answering = asyncio.create_task(self._answer(head), name="metrics-connection")

    def eof_received(self) -> bool:
        """Return True to keep the connection open until the request is answered.

        Return False over TLS, where a client cannot close only its side of the connection.
        """
        over_tls = self._transport and self._transport.get_extra_info("sslcontext") is not None
        return self._answering is not None and not over_tls

    def connection_lost(self, exc: Exception | None) -> None:
        self._pages.counted.leave(self)
        self._pages.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()

    async def end(self) -> None:
        """Close the connection, and wait until the task that answers it has ended."""
        self.close_for_another()
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait([self._answering])

    def _counts(self, address: str) -> bool:
        self.peer, self.address = address, network(address)
        return not self._pages.counted.enter(self)

    def _limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close_for_another)

    async def _answer(self, head: bytes) -> None:
        assert self._transport is not None
        try:
            answer = await self._pages.answer(head, self)
            self._limit(_READ_TIMEOUT)
            self._transport.write(answer)
        except Exception:
            log.exception(
                "cannot render /metrics for %s; closing the connection without an answer", self.peer
            )
        self._transport.close()


def _refusal(error: JobQueueError) -> bytes:
    status, extra = "403 Forbidden", ""
    if isinstance(error, Unauthenticated):
        status, extra = "401 Unauthorized", 'WWW-Authenticate: Bearer realm="jobqueue"\r\n'
    elif isinstance(error, Unavailable):
        status, extra = "503 Service Unavailable", "Retry-After: 1\r\n"
    return _response(status, f"{error.message}\n".encode(), "text/plain; charset=utf-8", extra)


def _response(
    status: str, body: bytes, kind: str = "text/plain", extra: str = "", with_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{extra}Connection: close\r\n"
    )
    return head.encode() + HEADER_LINES + b"\r\n" + (body if with_body else b"")
