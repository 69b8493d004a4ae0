"""A very small HTTP server for processes whose only page is /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from jobqueue.access.hosts import HostNames, is_loopback
from jobqueue.api import listening
from jobqueue.api.http.page_headers import HEADER_LINES
from jobqueue.api.listening import Endpoint

log = logging.getLogger("jobqueue.metrics")

Render = Callable[[], Awaitable[tuple[bytes, str]]]
_MAX_HEAD = 8 * 1024
_MAX_CONNECTIONS = 16
_TIMEOUT = 10.0


class MetricsListener:
    """GET /metrics and /healthz, one request per connection. ``stop`` may be called twice."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._server: asyncio.Server | None = None
        self._hosts = HostNames("localhost")
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, endpoint: Endpoint) -> int:
        """Listen; returns the port. Unavailable: it is taken."""
        await listening.check(endpoint)
        # On the network it is scraped by names that it does not know.
        self._hosts = HostNames(endpoint.host, any_name=not is_loopback(endpoint.host))
        try:
            self._server = await asyncio.start_server(
                self._accept,
                endpoint.host,
                endpoint.port,
                limit=_MAX_HEAD,
                backlog=_MAX_CONNECTIONS,
            )
        except OSError as error:
            raise endpoint.refused(error) from None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="metrics-connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that does not speak, or is gone
        except Exception:
            log.exception("the metrics could not be rendered")
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        first, *lines = head.split(b"\r\n")
        for line in lines:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"host" and value.strip() not in self._hosts:
                return _response("403 Forbidden", b"Host is no name of this machine\n")
        method, _, rest = first.partition(b" ")
        path = rest.split(b" ")[0].split(b"?")[0]
        if path not in (b"/metrics", b"/healthz"):
            return _response("404 Not Found", b"there are /metrics and /healthz\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"GET only\n", extra="Allow: GET, HEAD\r\n")
        body, kind = await self._render() if path == b"/metrics" else (b"ok\n", "text/plain")
        return _response("200 OK", body, kind, with_body=method == b"GET")


def _response(
    status: str, body: bytes, kind: str = "text/plain", extra: str = "", with_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{extra}Connection: close\r\n"
    )
    return head.encode() + HEADER_LINES + b"\r\n" + (body if with_body else b"")
