"""Who leads."""

from __future__ import annotations

from jobqueue.core.store import Term
from jobqueue.stores.redis.runner import Runner


def term_of(term: Term | None) -> tuple[str, str] | None:
    """A term as scripts compare it."""
    return None if term is None else (str(term.holder), str(term.epoch))


class Leadership:
    """A key that one of the servers holds, for a time."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def lead(self, holder: int, ttl: float) -> Term | None:
        """See ``Store.lead``."""
        said = await self._runner.write("lead", (str(holder), ttl))
        return None if said is None else Term(holder, int(said[0]))

    async def resign(self, term: Term) -> None:
        """See ``Store.resign``."""
        await self._runner.write("resign", (term_of(term),))
