"""The TTLs that queues give to their jobs, for jobs that are delayed and have none of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobqueue.core.job import JobSpec
from jobqueue.core.store import Store

_AGE = 1.0  # seconds; a TTL that an operator changes is known everywhere after that
_MOST = 1_000


class QueueTtls:
    """Asks the store, at most once a second for each queue."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[float, float | None]] = {}  # when it was read, and the TTL

    async def of(self, specs: Sequence[JobSpec]) -> dict[str, float]:
        """By name, of the queues that matter to these jobs and that have a TTL."""
        names = {
            spec.queue
            for spec in specs
            if spec.ttl is None and (spec.delay is not None or spec.run_at is not None)
        }
        found: dict[str, float] = {}
        for name in names:
            ttl = await self._ttl(name)
            if ttl is not None:
                found[name] = ttl
        return found

    async def _ttl(self, name: str) -> float | None:
        now = time.monotonic()
        known = self._known.get(name)
        if known is not None and now - known[0] < _AGE:
            return known[1]
        if len(self._known) >= _MOST:
            self._known.clear()
        stats = await self._store.stats(name)
        ttl = stats[0].queue.ttl if stats else None
        self._known[name] = (now, ttl)
        return ttl
