"""Free ports of 127.0.0.1."""

from __future__ import annotations

import atexit
import os
import random
import socket
from collections import deque

from jobqueue.core.address import MAX_PORT
from jobqueue.core.errors import InvalidArgument

_LOWEST = 1024  # ports below it are for root

# Below the range from which systems take the near ends of outgoing connections (from 32768 on
# Linux), so that no connection takes the port of a server that is being restarted.
_RANGE = range(20_000, 32_000)

# Between the choice of a port and the start of its server nothing listens there. A UDP socket of
# the same number marks the port meanwhile, so that other processes choose another one. The bound is
# for a process that chooses ports all day: its oldest servers have long started.
_MARKS: deque[socket.socket] = deque(maxlen=128)


class Ports:
    """Hands out ports: free ones, or one after the other from a base."""

    def __init__(self, base: int | None = None) -> None:
        if base is not None and not _LOWEST <= base <= MAX_PORT:
            raise InvalidArgument("--port-base", f"must be {_LOWEST} to {MAX_PORT}")
        self._next = base
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return the next port. No server listens on it now."""
        if self._next is None:
            while (port := free_port()) in self._taken:
                pass
            self._taken.add(port)
            return port
        port, self._next = self._next, self._next + 1
        if port > MAX_PORT:
            raise InvalidArgument("--port-base", f"too high: it takes ports beyond {MAX_PORT}")
        if not is_free(port):
            raise InvalidArgument("--port-base", f"port {port} is taken; choose another base")
        return port


def is_free(port: int) -> bool:
    """Return whether a server could listen there now. Connections that linger do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port without a server, which no other process has just chosen this way."""
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
os.register_at_fork(after_in_child=_unmark)  # the parent keeps its marks
