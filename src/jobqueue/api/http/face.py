"""Serve the HTTP API of a server, with uvicorn in the process's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from asyncio import TimerHandle
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from jobqueue.access.callers import network
from jobqueue.access.rules import MAX_HEADERS
from jobqueue.access.tls import certificate_name
from jobqueue.api.http.app import create_app
from jobqueue.api.http.authorizer import CERTIFICATE, PLACE
from jobqueue.api.http.connections import HEADER_LINES, Handshakes, OpenConnections, hang_up
from jobqueue.api.http.errors import ErrorAnswer, detail
from jobqueue.api.http.guard import LINGER_BYTES, LINGER_SECONDS, UNCOUNTED
from jobqueue.api.http.settings import KIB, HttpFaceSettings
from jobqueue.api.listening import Endpoint, open_sockets
from jobqueue.core.api import Backend
from jobqueue.core.errors import InvalidArgument, JobQueueError, Unavailable
from jobqueue.core.waiting import is_set_within

_log = logging.getLogger("jobqueue.http")
# uvicorn logs each request that is not HTTP, and each upgrade. Unknown callers may send many.
_defects = logging.getLogger("uvicorn.error.jobqueue")
_defects.setLevel(logging.ERROR)
_MAX_HEAD_BYTES = 64 * KIB
_REFUSALS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
# Most bytes of framing per byte of the body: a one-byte chunk has six.
_CHUNK_OVERHEAD = 8
# Most requests that wait on one connection. Few clients send a request before they have the answer
# to the one before.
_MAX_AHEAD = 16
# Number of checks within ``read_timeout`` whether the client reads its answer.
_LOOKS = 4


class _StopParsing(Exception):
    """Stops the parser of received bytes. uvicorn then calls ``send_400_response``."""


class _HangingUp(asyncio.Protocol):
    """Reads and discards the bytes that still arrive on a refused connection, for a short time.

    Closing a connection with unread bytes would reset it. The reset could delete the refusal before
    the client has read it.
    """

    def __init__(self, refused: asyncio.Protocol, transport: asyncio.Transport) -> None:
        self._refused = refused
        self._transport = transport
        self._discarded = 0
        if transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has just reset the connection
                transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._refused.connection_lost(exc)


class _Protocol(HttpToolsProtocol):
    """Extends uvicorn's protocol with limits on connections, headers, trailers and reading."""

    open_connections: OpenConnections
    head_timeout: float
    read_timeout: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _defects
        self._head: object | None = None  # identifies the request whose headers are being read
        self._head_bytes = 0
        self._beside_body = 0  # bytes after the headers without the body: chunk sizes, trailers
        self._head_timer: TimerHandle | None = None
        self._read_timer: TimerHandle | None = None
        self._certificate = ""  # the name in the client's certificate
        self._refused = False
        self._handshake: socket.socket | None = None  # the socket during its TLS handshake
        # The request that is being answered; ``cycle`` is the last request received.
        self._answering: RequestResponseCycle | None = None
        self.address = ""

    def accepted(self, connection: socket.socket, address: str) -> bool:
        self._handshake = connection
        self.address = network(address)
        return not self.open_connections.enter(self)

    def gone(self) -> None:
        self.open_connections.leave(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(UNCOUNTED)
        self._certificate = certificate_name(transport.get_extra_info("peercert"))
        refusal = ""
        if self._handshake is None:
            self.address = network(self.client[0]) if self.client else ""
            refusal = self.open_connections.enter(self)
        self._handshake = None
        if refusal:
            self._refuse(503, Unavailable(refusal))
            transport.close()  # at once, because the connection is not counted
        else:
            self._expect_head()
            self._limit_head()

    @property
    def in_use(self) -> bool:
        cycle = self._answering
        return cycle is not None and not cycle.response_complete and PLACE in cycle.scope

    def close_for_another(self) -> None:
        if self._handshake is not None:
            hang_up(self._handshake)
        else:
            self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.open_connections.spoke(self)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.leave(self)
        self._head_read()
        self._answer_read()
        # uvicorn informs only the last request. An earlier request would write its answer to the
        # closed connection.
        self._end(self._answering)
        super().connection_lost(exc)

    def _end(self, cycle: RequestResponseCycle | None) -> None:
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_read(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._answer_read()
        super().resume_writing()

    def _limit_read(self, unread: int, looks: int = 1) -> None:
        pause = self.read_timeout / _LOOKS
        self._read_timer = self.loop.call_later(pause, self._look_what_is_read, unread, looks)

    def _answer_read(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _look_what_is_read(self, before: int, looks: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread < before:
            self._limit_read(unread)  # the client reads, perhaps slowly
        elif looks < _LOOKS:
            self._limit_read(unread, looks + 1)
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        head = self._head
        super().data_received(data)
        if self._head is not None:  # most headers arrive at once, and need no timer
            self._limit_head()
        if head is not None and head is self._head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                allowed = f"at most {_MAX_HEAD_BYTES} bytes of headers are allowed"
                self._refuse(431, InvalidArgument("headers", allowed))
        elif self._head is None:
            self._beside_body += len(data)
            if self._beside_body > _MAX_HEAD_BYTES:
                allowed = f"at most {_MAX_HEAD_BYTES} bytes of trailers are allowed"
                self._refuse(431, InvalidArgument("trailers", allowed))

    def on_body(self, body: bytes) -> None:
        self._beside_body -= _CHUNK_OVERHEAD * len(body)
        super().on_body(body)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_AHEAD:
            raise _StopParsing
        super().on_message_begin()
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            if len(self.headers) >= MAX_HEADERS:
                raise _StopParsing
            super().on_header(name, value)
        # Otherwise it is a trailer, after the body, and ignored. As a header, a trailer could bring
        # credentials past a proxy that checks them.

    def on_headers_complete(self) -> None:
        if self._upgrades_with_body():
            raise _StopParsing
        self._head_read()
        self.scope[CERTIFICATE] = self._certificate  # type: ignore[literal-required]
        super().on_headers_complete()
        if self.parser.should_upgrade():  # no further request follows
            self.cycle.keep_alive = False

    def _upgrades_with_body(self) -> bool:
        """Return True if the request has a body and an ``Upgrade`` to another protocol.

        After such headers the parser expects the other protocol, and would read the body as the
        next request.
        """
        if not self.parser.should_upgrade():
            return False
        given = dict(self.headers)
        return b"transfer-encoding" in given or given.get(b"content-length", b"0") != b"0"

    def send_400_response(self, msg: str) -> None:
        if self._head is not None and self._upgrades_with_body():
            allowed = "is not allowed with a body: only HTTP/1.1 is supported (curl: --http1.1)"
            self._refuse(400, InvalidArgument("Upgrade", allowed))
            return
        if self._head is not None and len(self.headers) >= MAX_HEADERS:
            self._refuse(431, InvalidArgument("headers", f"at most {MAX_HEADERS} are allowed"))
            return
        _log.debug(
            "refused bytes from %s that are not a valid HTTP request",
            self.address,
            extra={"address": self.address},
        )
        self._refuse(400, InvalidArgument("request", "is not a valid HTTP request"))

    def _expect_head(self) -> None:
        self._head_read()
        self._head = object()
        self._head_bytes = 0
        self._beside_body = 0

    def _limit_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout, self._head_late)

    def _head_read(self) -> None:
        self._head = None
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        allowed = f"the headers must arrive within {self.head_timeout:g} s"
        self._refuse(408, InvalidArgument("headers", allowed))

    def _refuse(self, status: int, error: JobQueueError) -> None:
        """Answer with ``error`` without the application, and close the connection."""
        is_next = self._head is not None or bool(self.pipeline)
        self._head_read()
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        cycle = self._answering
        if cycle and not cycle.response_complete and (is_next or cycle.response_started):
            self.transport.abort()  # the client would read the refusal as a part of that answer
            return
        body = msgspec.json.encode(ErrorAnswer(error=detail(error)))
        retry = "Retry-After: 1\r\n" if isinstance(error, Unavailable) else ""
        head = (
            f"HTTP/1.1 {status} {_REFUSALS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n"
        )
        self.transport.write(head.encode() + HEADER_LINES + b"\r\n" + body)
        self.pipeline.clear()
        for cycle in (self._answering, self.cycle):
            self._end(cycle)  # nothing may follow the refusal
        self._unset_keepalive_if_required()
        self.transport.set_protocol(_HangingUp(self, self.transport))
        self.flow.resume_reading()


class _UvicornServer(uvicorn.Server):
    """Runs uvicorn's server without signal handlers and without polling."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls
        self.listening = asyncio.Event()
        self.stopping = asyncio.Event()
        self.grace = 0.0
        self._handshakes: list[Handshakes] = []  # replaces ``servers`` with TLS

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the process handles signals, not one of its APIs

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        context = self._tls
        if context is None:
            await super().startup(sockets=sockets)
        else:
            self.servers = []
            for listener in sockets or ():
                protocol: Any = self.config.http_protocol_class
                create = partial(protocol, self.config, self.server_state, {})
                handshakes = Handshakes(listener, create, context, protocol.head_timeout)
                self._handshakes.append(handshakes)
            self.started = True
        self.listening.set()

    async def main_loop(self) -> None:
        while not self.stopping.is_set():
            await self.on_tick(0)  # the Date header
            await is_set_within(self.stopping, 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for handshakes in self._handshakes:
            await handshakes.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = set(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self.grace)
            for task in late:
                task.cancel()
            if late:
                _log.warning(
                    "cancelled %d HTTP requests that did not end within %g s; the HTTP API stops",
                    len(late),
                    self.grace,
                )
                await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.transport.close()


class HttpFace:
    """Serves the HTTP API on a port. ``stop`` may be called twice, or before ``start``."""

    def __init__(self, backend: Backend, settings: HttpFaceSettings | None = None) -> None:
        self._settings = settings or HttpFaceSettings()
        self.app: FastAPI = create_app(backend, settings=self._settings)
        self._server: _UvicornServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Start to listen, and return the port. Port 0 chooses any free port."""
        # Load the certificate first, so that an unusable one fails before the port is bound.
        tls = None if self._settings.tls is None else self._settings.tls.context()
        config = self._config()
        sockets = await open_sockets(Endpoint(host, port, "http.host", "http.port"))
        bound: int = sockets[0].getsockname()[1]
        server = self._server = _UvicornServer(config, tls)
        self._task = asyncio.create_task(server.serve(sockets), name="http-face")
        listening = asyncio.create_task(server.listening.wait())
        await asyncio.wait([self._task, listening], return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            await self._task
            raise Unavailable(f"http: the server on {host}:{bound} stopped before it was ready")
        _log.info(
            "the HTTP API is listening on %s",
            Endpoint(host, bound, "http.host", "http.port"),
            extra={"host": host, "port": bound, "tls": tls is not None},
        )
        return bound

    async def stop(self, grace: float = 5.0) -> None:
        """Refuse new connections, and end long polls and streams at once.

        Cancel other requests that are still under way after ``grace`` seconds.
        """
        server, task = self._server, self._task
        self._server = self._task = None
        if server is None or task is None:
            return
        self.app.state.context.draining.set()
        server.grace = grace
        server.stopping.set()
        await task

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        protocol = type(
            "Protocol",
            (_Protocol,),
            {
                "open_connections": OpenConnections(
                    settings.max_connections, settings.max_connections_per_address
                ),
                "head_timeout": settings.head_timeout,
                "read_timeout": settings.read_timeout,
            },
        )
        return uvicorn.Config(
            self.app,
            http=protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(settings.keep_alive),
        )
