"""Limit HTTP connections, accept TLS handshakes, and add security headers to answers.

The HTTP API uses this module, and so does the listener that serves only /metrics.

A connection is in use while one of its requests has a place in the budgets. The budgets have fewer
places than there may be connections. So when the limit is reached, some connections are idle, and a
new connection (of a probe, for example) replaces one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol

from jobqueue.access.budgets import DEFAULTS, Budget, Budgets
from jobqueue.access.rules import BudgetKind

_log = logging.getLogger("jobqueue.http")
# Files that the process needs for its store, its log, gRPC and workers.
_OTHER_FILES = 256
_FEWEST = 48
_PAUSE = 1.0  # seconds to wait when the process may open no more files
# Each kind's share of all connections (1/3, 1/6, 1/6). One caller may use half of a share. The last
# third is for idle connections and for probes.
_SHARES = {BudgetKind.CALL: 3, BudgetKind.WAIT: 6, BudgetKind.STREAM: 6, BudgetKind.PAGE: 6}
# Headers that prevent web pages of other sites from using an answer.
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
HEADER_LINES = b"".join(b"%b: %b\r\n" % header for header in (*_HEADERS, _POLICY))
"""The same headers as bytes, for an answer that is written without the application."""


def most_connections(wanted: int) -> int:
    """Return ``wanted``, or fewer connections if ``ulimit -n`` allows fewer open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(_FEWEST, files - _OTHER_FILES))


def budgets_within(connections: int, given: Mapping[BudgetKind, Budget] = DEFAULTS) -> Budgets:
    """Return the budgets of an API on which every call needs a connection.

    These are the budgets ``given``, but with at most a share of ``connections`` each.
    """
    shared = {}
    for kind, share in _SHARES.items():
        part = connections // share
        budget = given[kind]
        shared[kind] = Budget(min(budget.in_all, part), min(budget.per_caller, part // 2))
    return Budgets({**given, **shared})


class OpenConnection(Protocol):
    """An open connection that ``OpenConnections`` counts."""

    address: str

    @property
    def in_use(self) -> bool:
        """Return True while one of the connection's requests has a place in the budgets."""

    def close_for_another(self) -> None:
        """Close the connection at once, to make room for a new connection."""


class OpenConnections:
    """Counts and limits the open connections, per address and in total.

    A new connection may replace an idle connection: the one that was idle for longest.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self._most = most
        self._per_address = per_address
        self._open = 0
        self._of: dict[str, dict[OpenConnection, None]] = {}

    def enter(self, connection: OpenConnection) -> str:
        """Count a new connection. Return "" or the reason for refusing the connection.

        If a limit is reached, an idle connection is closed for the new one.
        """
        own = self._of.get(connection.address, {})
        if len(own) >= self._per_address and not self._closes_one(own):
            return f"{connection.address} has {len(own)} connections in use already; try again"
        if self._open >= self._most and not self._make_room():
            return "the server has too many connections; try again"
        self._of.setdefault(connection.address, {})[connection] = None
        self._open += 1
        return ""

    def spoke(self, connection: OpenConnection) -> None:
        """Record that a connection was active: move it behind the others of its address."""
        own = self._of.get(connection.address, {})
        if connection in own:
            del own[connection]
            own[connection] = None

    def leave(self, connection: OpenConnection) -> None:
        """Stop counting a connection that has ended. This method may be called twice."""
        own = self._of.get(connection.address, {})
        if connection in own:
            del own[connection]
            self._open -= 1
            if not own:
                del self._of[connection.address]

    def _make_room(self) -> bool:
        """Close an idle connection of the address with the most connections.

        Return False if no connection is idle.
        """
        most_first = sorted(self._of.values(), key=len, reverse=True)
        return any(self._closes_one(own) for own in most_first)

    def _closes_one(self, own: dict[OpenConnection, None]) -> bool:
        for connection in own:
            if not connection.in_use:
                self.leave(connection)
                connection.close_for_another()
                return True
        return False


class Secured(Protocol):
    """The protocol of a TLS connection, created when the connection is accepted."""

    def accepted(self, connection: socket.socket, address: str) -> bool:
        """Count the connection. Return False if the limits do not allow another connection."""

    def gone(self) -> None:
        """Stop counting the connection, because its handshake has failed."""


class Handshakes:
    """Accepts TLS connections on one socket, in place of asyncio's server.

    asyncio's server calls ``connection_made`` only after the handshake. A connection that never
    begins a handshake would not be counted, and such connections could use up all open files that
    the process may have.
    """

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
        """Stop accepting connections, and end the handshakes under way."""
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
            except ConnectionError:  # the client left before it was accepted
                continue
            except OSError as error:
                _log.warning(
                    "cannot accept connections on port %d: %s; trying again in 1 s",
                    self._listener.getsockname()[1],
                    error,
                )
                await asyncio.sleep(_PAUSE)
                continue
            try:
                self._begin(connection, str(peer[0]))
            except Exception:  # an error of one connection must not end the others
                _log.exception("cannot serve a new connection from %s; closing it", peer[0])
                connection.close()
            await asyncio.sleep(0)  # otherwise asyncio accepts connections while other tasks wait

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
            # An OSError: the client left, was too slow, or does not speak TLS.
            if not isinstance(failure, OSError):
                raise


def hang_up(connection: socket.socket) -> None:
    """Shut down a socket during its TLS handshake, so that the handshake fails at once."""
    with contextlib.suppress(OSError):  # the client has closed it already
        connection.shutdown(socket.SHUT_RDWR)


def protect(start: MutableMapping[str, Any]) -> None:
    """Add the security headers to the start message of an answer.

    A header that the answer already has is not replaced.
    """
    given = start.get("headers", ())
    names = {name for name, _ in given}
    start["headers"] = [*given, *(one for one in (*_HEADERS, _POLICY) if one[0] not in names)]
