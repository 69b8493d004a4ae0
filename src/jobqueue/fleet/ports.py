"""Choose free TCP ports of 127.0.0.1."""

from __future__ import annotations

import atexit
import os
import random
import socket
from collections import deque

from jobqueue.core.address import MAX_PORT
from jobqueue.core.errors import InvalidArgument

_LOWEST = 1024  # only root may use the ports below

# These ports are below the range of local ports for outgoing connections, which begins at 32768 on
# Linux. So no connection takes the port of a server during its restart.
_RANGE = range(20_000, 32_000)

# Nothing listens on a chosen port until its server starts. Meanwhile a UDP socket with the same
# number reserves the port, so that other processes choose other ports. The number of these sockets
# is bounded for a process that chooses many ports: the servers of the oldest have started.
_MARKS: deque[socket.socket] = deque(maxlen=128)


class Ports:
    """Chooses ports: any free ports, or consecutive ports that begin with ``base``."""

    def __init__(self, base: int | None = None) -> None:
        if base is not None and not _LOWEST <= base <= MAX_PORT:
            raise InvalidArgument("--port-base", f"must be {_LOWEST} to {MAX_PORT}")
        self._next = base
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return the next port, on which no server listens now.

        With a base, raise InvalidArgument if the next port is in use or higher than 65535.
        """
        if self._next is None:
            while (port := free_port()) in self._taken:
                pass
            self._taken.add(port)
            return port
        port, self._next = self._next, self._next + 1
        if port > MAX_PORT:
            raise InvalidArgument(
                "--port-base",
                f"too high: the topology would need ports beyond {MAX_PORT}; choose a lower base",
            )
        if not is_free(port):
            raise InvalidArgument(
                "--port-base", f"port {port} is taken by another program; choose another base"
            )
        return port


def is_free(port: int) -> bool:
    """Return True if a server could listen on the port of 127.0.0.1 now.

    A port whose connections are all closed (TIME_WAIT) is free.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port on which no server listens. Other callers, in any process, get other ports."""
    for port in random.sample(_RANGE, len(_RANGE)):
        if is_free(port) and _mark(port):
            return port
    raise OSError(f"no port of 127.0.0.1 between {_RANGE.start} and {_RANGE.stop} is free")


def _mark(port: int) -> bool:
    mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        mark.bind(("127.0.0.1", port))
    except OSError:
        mark.close()
        return False
    if len(_MARKS) == _MARKS.maxlen:
        _MARKS.popleft().close()
    _MARKS.append(mark)
    return True


def _unmark() -> None:
    while _MARKS:
        _MARKS.popleft().close()


atexit.register(_unmark)
os.register_at_fork(after_in_child=_unmark)  # the parent keeps its reservations
