"""Serving the app: uvicorn inside a loop, and a life, that belong to somebody else."""

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
from jobqueue.access.certificates import certificate_name
from jobqueue.api.http.app import create_app
from jobqueue.api.http.connections import Connections
from jobqueue.api.http.door import CERTIFICATE, PLACE
from jobqueue.api.http.errors import ErrorAnswer, detail
from jobqueue.api.http.guard import UNCOUNTED
from jobqueue.api.http.handshakes import Handshakes, hang_up
from jobqueue.api.http.page_headers import HEADER_LINES
from jobqueue.api.http.settings import KIB, HttpSettings
from jobqueue.api.listening import Endpoint, open_sockets
from jobqueue.core.api import Backend
from jobqueue.core.errors import InvalidArgument, JobQueueError, Unavailable
from jobqueue.core.waiting import is_set_within

_log = logging.getLogger("jobqueue.http")
# uvicorn warns of each request that is no HTTP, and of each upgrade: a stranger may send many.
_defects = logging.getLogger("uvicorn.error.jobqueue")
_defects.setLevel(logging.ERROR)
_MAX_HEAD_BYTES = 64 * KIB
_REFUSALS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}
_REFUSALS[503] = "Service Unavailable"


# What a byte of the body may bring along: the framing of one-byte chunks is six times their size.
_CHUNK_OVERHEAD = 8


# Requests that may wait for their turn on one connection. Few clients send any before they have
# their answer.
_MAX_AHEAD = 16


# How many times the server looks whether something of an answer was read, within the time for that.
_LOOKS = 4


class _TooManyAhead(Exception):
    """Ends the parsing of what was received."""


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on connections and on what comes before the body."""

    open_connections: Connections
    head_timeout: float
    read_timeout: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _defects
        self._head: object | None = None  # the message whose head is being read
        self._head_bytes = 0
        self._beside_body = 0  # bytes behind the head that are no body: chunk sizes, trailers
        self._head_timer: TimerHandle | None = None
        self._read_timer: TimerHandle | None = None
        self._certificate = ""  # the name in the client's
        self._handshake: socket.socket | None = None  # of TLS, while that is under way
        # The request that is answered now; ``cycle`` is the last one that has come.
        self._answering: RequestResponseCycle | None = None
        self.address = ""

    def accepted(self, connection: socket.socket, address: str) -> bool:
        """Count it before TLS begins; False if there is no room."""
        self._handshake = connection
        self.address = network(address)
        return not self.open_connections.enter(self)

    def gone(self) -> None:
        """Its handshake has failed."""
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
        cycle = self._answering
        if cycle is not None and cycle is not self.cycle and not cycle.response_complete:
            # uvicorn tells this only to the last request. The answer to an earlier one would be
            # written to a connection that is gone.
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

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
            self._limit_read(unread)  # over a slow link a large answer takes a while
        elif looks < _LOOKS:
            self._limit_read(unread, looks + 1)
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        head = self._head
        super().data_received(data)
        if self._head is not None:  # most heads come whole, and take no timer
            self._limit_head()
        if head is not None and head is self._head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                allowed = f"at most {_MAX_HEAD_BYTES} bytes of headers allowed"
                self._refuse(431, InvalidArgument("headers", allowed))
        elif self._head is None:
            self._beside_body += len(data)
            if self._beside_body > _MAX_HEAD_BYTES:
                allowed = f"at most {_MAX_HEAD_BYTES} bytes of trailers allowed"
                self._refuse(431, InvalidArgument("trailers", allowed))

    def on_body(self, body: bytes) -> None:
        self._beside_body -= _CHUNK_OVERHEAD * len(body)
        super().on_body(body)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_AHEAD:
            raise _TooManyAhead
        super().on_message_begin()
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            super().on_header(name, value)
        # Else it is a trailer, after the body: not a header (it would carry credentials past a
        # proxy that guards them), and not to be kept.

    def on_headers_complete(self) -> None:
        self._head_read()
        self.scope[CERTIFICATE] = self._certificate  # type: ignore[literal-required]
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        _log.debug("refused what is not HTTP", extra={"address": self.address})
        if len(self.pipeline) >= _MAX_AHEAD:
            self.transport.abort()  # a refusal would stand amid the answer that is being sent
        else:
            self._refuse(400, InvalidArgument("request", "this is not HTTP"))

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
        """Answer below the application, and close."""
        self._head_read()
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(ErrorAnswer(error=detail(error)))
        retry = "Retry-After: 1\r\n" if isinstance(error, Unavailable) else ""
        head = (
            f"HTTP/1.1 {status} {_REFUSALS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n"
        )
        self.transport.write(head.encode() + HEADER_LINES + b"\r\n" + body)
        self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn's server without signal handlers and without polling."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls
        self.listening = asyncio.Event()
        self.stopping = asyncio.Event()
        self.grace = 0.0
        self._handshakes: list[Handshakes] = []  # with TLS, in place of ``servers``

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, not to one of its faces."""
        yield

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
        """Accept nothing more, let requests end, cut off those that do not."""
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
                _log.warning("requests were cut off at shutdown", extra={"requests": len(late)})
                await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.transport.close()


class HttpFace:
    """The HTTP API on a port. ``stop`` may be called twice, or before ``start``."""

    def __init__(self, backend: Backend, settings: HttpSettings | None = None) -> None:
        self._settings = settings or HttpSettings()
        self.app: FastAPI = create_app(backend, settings=self._settings)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is a free one if 0 was asked for."""
        # Says what is wrong with a certificate before a port is taken.
        tls = None if self._settings.tls is None else self._settings.tls.context()
        config = self._config()
        sockets = await open_sockets(Endpoint(host, port, "http.host", "http.port"))
        bound: int = sockets[0].getsockname()[1]
        server = self._server = _Server(config, tls)
        self._task = asyncio.create_task(server.serve(sockets), name="http-face")
        listening = asyncio.create_task(server.listening.wait())
        await asyncio.wait([self._task, listening], return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            await self._task
            raise Unavailable(f"http: the server on {host}:{bound} ended at start")
        _log.info("listening", extra={"host": host, "port": bound, "tls": tls is not None})
        return bound

    async def stop(self, grace: float = 5.0) -> None:
        """Refuse new connections, end long polls and streams, let other requests finish."""
        server, task = self._server, self._task
        self._server = self._task = None
        if server is None or task is None:
            return
        self.app.state.desk.draining.set()
        server.grace = grace
        server.stopping.set()
        await task

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        protocol = type(
            "Protocol",
            (_Protocol,),
            {
                "open_connections": Connections(
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
