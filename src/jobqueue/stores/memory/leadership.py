"""Elect a leader within one process, by the same rules as the other stores."""

from __future__ import annotations

from jobqueue.core.clock import Clock
from jobqueue.core.store import Leader, Term, TermEnded


class MemoryLeadership:
    """Implements ``core.store.LeaderStore``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leader: Term | None = None
        self._name = ""
        self._since = 0.0
        self._until = 0.0
        self._epoch = 0

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        now = self._clock.now()
        if self._leader is None or self._leader.holder != holder:
            if self.held():
                return None
            self._epoch += 1
            self._leader = Term(holder, self._epoch)
            self._since = now
        self._name = name
        self._until = now + ttl
        return self._leader

    async def leader(self) -> Leader | None:
        return Leader(self._name, self._epoch, self._since) if self.held() else None

    async def resign(self, term: Term) -> None:
        if self._leader == term:
            self._leader = None

    def held(self) -> bool:
        """Return True while a term is in force."""
        return self._leader is not None and self._until > self._clock.now()

    def check(self, term: Term) -> None:
        """Raise TermEnded unless ``term`` is in force."""
        if self._leader != term or not self.held():
            raise TermEnded
