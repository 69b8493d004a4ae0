"""Who leads."""

from __future__ import annotations

from jobqueue.core.store import Leader, Term
from jobqueue.stores.redis.runner import Runner


def term_of(term: Term | None) -> tuple[str, str] | None:
    """A term as scripts compare it."""
    return None if term is None else (str(term.holder), str(term.epoch))


class Leadership:
    """A key that one of the servers holds, for a time."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def lead(self, holder: int, ttl: float, name: str) -> Term | None:
        """See ``Store.lead``."""
        said = await self._runner.write("lead", (str(holder), ttl, name))
        return None if said is None else Term(holder, int(said[0]))

    async def leader(self) -> Leader | None:
        """See ``Store.leader``."""
        said = await self._runner.read("leader")
        if said is None:
            return None
        epoch, name, since = said
        return Leader(name.decode(), int(epoch), float(since))

    async def resign(self, term: Term) -> None:
        """See ``Store.resign``."""
        await self._runner.write("resign", (term_of(term),))
