"""Which of several servers a process should use: its fair share, and none that is slow."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

# A server is slow if its answers take several times as long as the best server's, and is no more
# only when they come about as fast; both a few times in a row. Short answers are never slow.
_SLOWER, _AS_FAST = 5.0, 2.0
_QUICK = 0.2
_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """A server's answer. ``seconds`` is infinite where it did not come, or said "not ready"."""

    seconds: float
    users: int | None  # that are connected there as this process is; None: it does not say


class Spread:
    """Remembers the servers' answers. Places are those of the list of servers."""

    def __init__(self, servers: int) -> None:
        self._slow = [False] * servers
        self._row = [0] * servers  # answers in a row that speak for the opposite

    def choose(self, current: int, seen: Sequence[Seen | None]) -> int:
        """The place of the server to use from now on; None: it is not there."""
        self._judge(seen)
        good = {
            place: one
            for place, one in enumerate(seen)
            if one is not None and not self._slow[place] and one.seconds < math.inf
        }
        users = {place: one.users for place, one in good.items() if one.users is not None}
        if seen[current] is None or self._slow[current]:
            away = users or good
            return min(
                away, key=lambda place: (users.get(place, 0), random.random()), default=current
            )
        if current not in users:
            return current
        least = min(users, key=lambda place: (users[place], random.random()))
        if users[current] - users[least] < 2:
            return current
        # All that are too many move together, not each of those who see that they are too many.
        excess = users[current] - sum(users.values()) / len(users)
        return least if random.random() * users[current] < excess else current

    def _judge(self, seen: Sequence[Seen | None]) -> None:
        best = min((one.seconds for one in seen if one is not None), default=math.inf)
        for place, one in enumerate(seen):
            if one is None:
                self._slow[place], self._row[place] = False, 0  # if it comes back, it is new
                continue
            if self._slow[place]:
                against = one.seconds <= max(_QUICK / 2, best * _AS_FAST)
            else:
                against = one.seconds > max(_QUICK, best * _SLOWER)
            self._row[place] = self._row[place] + 1 if against else 0
            if self._row[place] >= _IN_A_ROW:
                self._slow[place], self._row[place] = not self._slow[place], 0
