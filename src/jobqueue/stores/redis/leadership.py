"""Elect a leader in Redis with the key ``leader``, which expires with the term."""

from __future__ import annotations

from jobqueue.core.store import Leader, Term
from jobqueue.stores.redis.documents import packed_term
from jobqueue.stores.redis.runner import ScriptRunner


class RedisLeadership:
    """Implements ``core.store.LeaderStore``."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        said = await self._runner.write("lead", (str(holder), ttl, name))
        return None if said is None else Term(holder, int(said[0]))

    async def leader(self) -> Leader | None:
        said = await self._runner.read("leader")
        if said is None:
            return None
        epoch, name, since = said
        return Leader(name.decode(), int(epoch), float(since))

    async def resign(self, term: Term) -> None:
        await self._runner.write("resign", (packed_term(term),))
