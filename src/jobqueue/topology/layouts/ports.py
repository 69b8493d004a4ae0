"""Ports for processes that have to be told theirs before they start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from jobqueue.core.errors import InvalidArgument, Unavailable

LOWEST = 1024
HIGHEST = 65535
_FROM = 20_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_EPHEMERAL = 32_768
_TRIES = 200


class Ports:
    """Hands out ports: free ones, or one after the other from a base."""

    def __init__(self, base: int | None = None) -> None:
        if base is not None and not LOWEST <= base <= HIGHEST:
            raise InvalidArgument("--port-base", f"must be {LOWEST} to {HIGHEST}")
        self._next = base
        self._taken: set[int] = set()

    def take(self) -> int:
        """The next port; nobody listens on it now."""
        if self._next is None:
            return self._free()
        port, self._next = self._next, self._next + 1
        if port > HIGHEST:
            raise InvalidArgument("--port-base", f"too high: it takes ports beyond {HIGHEST}")
        if not _is_free(port):
            raise InvalidArgument("--port-base", f"port {port} is taken; choose another base")
        return port

    def _free(self) -> int:
        # Below the range from which the system gives ports to outgoing connections: what is free
        # now is still free when the process starts, and when it is started again.
        for _ in range(_TRIES):
            port = random.randrange(_FROM, _ephemeral())
            if port not in self._taken and _is_free(port):
                self._taken.add(port)
                return port
        raise Unavailable(f"found no free port in {_TRIES} tries; name some with --port-base")


def _ephemeral() -> int:
    try:
        lowest = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = _DEFAULT_EPHEMERAL
    return lowest if lowest > _FROM + 1000 else HIGHEST


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
