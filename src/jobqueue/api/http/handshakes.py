"""Connections over TLS, counted from the moment when they are accepted.

A loop's own server tells a protocol of its connection when the handshake is done. Sockets that
never begin one would be counted by nobody, and take every file that the process may open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("jobqueue.http")
_PAUSE = 1.0  # seconds until the next try, where the process may open no more files


class Secured(Protocol):
    """The protocol of a connection, from the time when it is accepted."""

    def accepted(self, connection: socket.socket, address: str) -> bool:
        """Count it; False if there is no room."""

    def gone(self) -> None:
        """Its handshake has failed."""


class Handshakes:
    """Accepts on one socket, in place of the loop's own server."""

    def __init__(
        self,
        listener: socket.socket,
        create: Callable[[], Secured],
        context: ssl.SSLContext,
        timeout: float,
    ) -> None:
        self._listener = listener
        self._create = create
        self._context = context
        self._timeout = timeout
        self._under_way: dict[asyncio.Task[None], socket.socket] = {}
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Accept nothing more, and end the handshakes."""
        self._accepting.cancel()
        for connection in self._under_way.values():
            hang_up(connection)
        await asyncio.gather(self._accepting, *self._under_way, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except ConnectionError:  # it was gone before it was accepted
                continue
            except OSError as error:
                _log.warning("cannot accept connections: %s; trying again in 1 s", error)
                await asyncio.sleep(_PAUSE)
                continue
            try:
                self._begin(connection, str(peer[0]))
            except Exception:  # one connection must not end the others
                _log.exception("a connection failed unexpectedly")
                connection.close()
            await asyncio.sleep(0)  # asyncio goes on at once while others wait to be accepted

    def _begin(self, connection: socket.socket, address: str) -> None:
        protocol = self._create()
        if not protocol.accepted(connection, address):
            connection.close()
            return
        task = asyncio.create_task(self._secure(protocol, connection))
        self._under_way[task] = connection
        task.add_done_callback(self._under_way.pop)

    async def _secure(self, protocol: Secured, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(  # type: ignore[type-var]
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout,
            )
        except BaseException as failure:
            protocol.gone()
            # Else the other side left, was too slow, or speaks no TLS.
            if not isinstance(failure, OSError):
                raise


def hang_up(connection: socket.socket) -> None:
    """End a handshake: it fails at once, and its socket is closed."""
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)
