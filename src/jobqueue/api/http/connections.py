"""How many connections are open, and which is closed to make room for a new one.

A connection is in use while one of its requests has a place in the budgets. Budgets leave a part of
the connections free, so that there is always one that waits, and a probe always gets in.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import Protocol

from jobqueue.access.budgets import DEFAULTS, Budget, Budgets
from jobqueue.access.rules import Kind

# Files that the process keeps for its store, its log, gRPC and workers.
_OTHER_FILES = 256
_FEWEST = 48
# Of all connections; one caller has half of a kind. The last third is for who waits and for probes.
_SHARES = {Kind.CALL: 3, Kind.WAIT: 6, Kind.STREAM: 6}


def most_connections(wanted: int) -> int:
    """As many as are wanted, or as the process may open files (``ulimit -n``)."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(_FEWEST, files - _OTHER_FILES))


def budgets_within(connections: int, given: Mapping[Kind, Budget] = DEFAULTS) -> Budgets:
    """Budgets of a face where everything that is under way takes a connection."""
    shared = {}
    for kind, share in _SHARES.items():
        part = connections // share
        budget = given[kind]
        shared[kind] = Budget(min(budget.in_all, part), min(budget.per_caller, part // 2))
    return Budgets({**given, **shared})


class Connection(Protocol):
    """One that is open."""

    address: str

    @property
    def in_use(self) -> bool:
        """Whether one of its requests is counted."""

    def close_for_another(self) -> None:
        """End it at once."""


class Connections:
    """All connections by address, the one that was silent longest first."""

    def __init__(self, most: int, per_address: int) -> None:
        self._most = most
        self._per_address = per_address
        self._open = 0
        self._of: dict[str, dict[Connection, None]] = {}

    def enter(self, connection: Connection) -> str:
        """Count a new one, or say why it is refused."""
        own = self._of.get(connection.address, {})
        if len(own) >= self._per_address and not self._closes_one(own):
            return f"{connection.address} has {len(own)} connections in use already; try again"
        if self._open >= self._most and not self._make_room():
            return "the server has too many connections; try again"
        self._of.setdefault(connection.address, {})[connection] = None
        self._open += 1
        return ""

    def spoke(self, connection: Connection) -> None:
        """It did something: it is the last of its address to be closed now."""
        own = self._of.get(connection.address, {})
        if connection in own:
            del own[connection]
            own[connection] = None

    def leave(self, connection: Connection) -> None:
        """It has ended. To say so twice is no error."""
        own = self._of.get(connection.address, {})
        if connection in own:
            del own[connection]
            self._open -= 1
            if not own:
                del self._of[connection.address]

    def _make_room(self) -> bool:
        """The address that has the most loses one, so that many cannot push out a few."""
        most_first = sorted(self._of.values(), key=len, reverse=True)
        return any(self._closes_one(own) for own in most_first)

    def _closes_one(self, own: dict[Connection, None]) -> bool:
        for connection in own:
            if not connection.in_use:
                self.leave(connection)
                connection.close_for_another()
                return True
        return False
