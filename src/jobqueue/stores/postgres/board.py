"""The queues as this process knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobqueue.core.retry import RetryPolicy, policy_of
from jobqueue.core.store import ALL_QUEUES, Claim
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.queue_rows import read_weights


@dataclass(frozen=True, slots=True)
class Home:
    """A queue as claims and transitions see it."""

    id: int
    name: str
    paused: bool
    deleted: bool
    weights: dict[int, int] | None
    policy: RetryPolicy


class Board:
    """The queues, as they were read last. What a write depends on, its statement checks itself."""

    def __init__(self) -> None:
        self._by_id: dict[int, Home] = {}
        self.stale = True
        self.changes = 0

    def spoil(self) -> None:
        """Something was changed: read it before it is used again."""
        self.changes += 1
        self.stale = True

    def read(self, rows: Sequence[Any], change: int) -> None:
        """Take in what the table said after this many changes; one since may not be in it."""
        self._by_id = {
            number: Home(number, name, paused, deleted, read_weights(weights), policy_of(*retry))
            for number, name, paused, deleted, weights, *retry in rows
        }
        self.stale = change != self.changes

    async def resolve(self, db: Any, queue: int) -> Home:
        """One by its number; its row is never removed."""
        home = self._by_id.get(queue)
        if home is None or self.stale:
            change = self.changes
            self.read(await db.fetch(SQL["queue_board"]), change)
            home = self._by_id[queue]
        return home

    def claimable(self, wanted: Claim) -> dict[int, Home]:
        """The queues that a claim may take from."""
        everything = ALL_QUEUES in wanted.queues
        return {
            home.id: home
            for home in self._by_id.values()
            if not home.paused
            and not home.deleted
            and (everything or home.name in wanted.queues)
            and home.name not in wanted.without
        }
