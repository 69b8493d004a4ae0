"""Bind the ports that servers listen on, and explain errors of the system."""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import dataclass

from jobqueue.core.address import Address
from jobqueue.core.errors import InvalidArgument, JobQueueError, Unavailable

_BACKLOG = 1024
_FIRST_UNPRIVILEGED = 1024
# A host name may resolve to an address family that this machine does not have (IPv6).
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Holds an address to listen on, and the settings that choose the address."""

    host: str
    port: int
    host_setting: str
    port_setting: str
    how: str = ""  # for error texts: flags and variables that choose another port

    def __str__(self) -> str:
        return str(Address(self.host, self.port))

    def refused(self, error: OSError) -> JobQueueError:
        """Return the error to raise when the operating system refuses the address."""
        choose = f"choose another port{self.how}"
        if error.errno == errno.EADDRINUSE:
            return Unavailable(
                f"{self.port_setting}: {self} is in use by another program; stop it, or {choose}"
            )
        if error.errno == errno.EACCES and 0 < self.port < _FIRST_UNPRIVILEGED:
            return Unavailable(
                f"{self.port_setting}: no permission to listen on {self}: ports below"
                f" {_FIRST_UNPRIVILEGED} need special rights; {choose}"
            )
        if error.errno in _NOT_HERE:
            return Unavailable(
                f"{self.host_setting}: {self.host} is not an address of this machine;"
                " use 127.0.0.1 for callers on this machine, 0.0.0.0 for callers on any network"
            )
        return Unavailable(f"{self.port_setting}: cannot listen on {self}: {error.strerror}")


async def open_sockets(endpoint: Endpoint) -> list[socket.socket]:
    """Listen on every address that the host resolves to, all with the same port."""
    sockets = await _bound(endpoint)
    try:
        for listener in sockets:
            listener.listen(_BACKLOG)
    except OSError as error:
        _close(sockets)
        raise endpoint.refused(error) from None
    return sockets


async def check(endpoint: Endpoint) -> None:
    """Raise the error that ``open_sockets`` would raise now, without listening."""
    _close(await _bound(endpoint))


async def _bound(endpoint: Endpoint) -> list[socket.socket]:
    host, port = endpoint.host, endpoint.port
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidArgument(
            endpoint.host_setting, f"cannot resolve {host!r}: {error.strerror}"
        ) from None
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            sockets.append(_bind(family, kind, protocol, (address[0], port, *address[2:])))
        except OSError as error:
            if error.errno in _NOT_HERE:
                absent = error
                continue
            _close(sockets)
            raise endpoint.refused(error) from None
        port = sockets[-1].getsockname()[1]
    if not sockets:
        raise endpoint.refused(absent or OSError(errno.EADDRNOTAVAIL, "no address")) from None
    return sockets


def _bind(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _close(sockets: list[socket.socket]) -> None:
    for listener in sockets:
        listener.close()
