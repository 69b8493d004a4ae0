"""Ports for processes that have to be told theirs before they start."""

from __future__ import annotations

from jobqueue.core.errors import InvalidArgument
from jobqueue.topology.backing import ports

LOWEST = 1024
HIGHEST = 65535


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
        if not ports.is_free(port):
            raise InvalidArgument("--port-base", f"port {port} is taken; choose another base")
        return port

    def _free(self) -> int:
        while (port := ports.free_port()) in self._taken:
            pass
        self._taken.add(port)
        return port
