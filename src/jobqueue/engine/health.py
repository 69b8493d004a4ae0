"""Check the health of the store, the leader and the stream, for probes that wait one second.

A store that hangs must not block the callers that read its health. One task checks a part for all
callers, and a caller waits at most half a second for it. The task continues after a caller was
told that the part does not answer. So a part that hangs is checked once, not once for each probe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from jobqueue.core.cron import utc_text
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import ComponentHealth
from jobqueue.core.store import LeaderStore, Store
from jobqueue.core.stream import StreamRunner

# A probe waits one second by default, for everything. The wait is made of slices, so that the time
# in which this process itself does not run does not count as silence.
_SLICES, _SLICE = 5, 0.1
_PATIENCE = 0.2  # seconds for which the check of an unavailable store is repeated
_GIVE_UP = 5.0  # seconds after which the next check uses another connection


class Check:
    """Checks the health of one part of the system, once for all callers."""

    def __init__(
        self, name: str, unknown: str, ask: Callable[[], Awaitable[tuple[bool, str]]]
    ) -> None:
        """Create a check that calls ``ask``, which returns True or False and a detail.

        ``unknown`` begins the detail if the part does not answer.
        """
        self._name = name
        self._unknown = unknown
        self._ask = ask
        self._since = 0.0
        self._unanswered = False
        self._asking: asyncio.Task[ComponentHealth] | None = None

    async def answer(self) -> ComponentHealth:
        """Return the part's health. After half a second without an answer, return a failure."""
        task = self._asking
        if task is None or task.done():
            self._since, self._unanswered = time.monotonic(), False
            task = self._asking = asyncio.create_task(self._bounded(), name="jobqueue-health")
        for _ in range(_SLICES):
            if task.done() or self._unanswered:
                break
            await asyncio.wait([task], timeout=_SLICE)
        if task.cancelled():  # by ``stop``, not by the caller
            return self._silent("the server stops")
        if task.done():
            return task.result()
        self._unanswered = True
        return self._silent(f"no answer for {time.monotonic() - self._since:.1f} s")

    async def _bounded(self) -> ComponentHealth:
        try:
            async with asyncio.timeout(_GIVE_UP):
                return ComponentHealth(self._name, *await self._ask())
        except TimeoutError:
            return self._silent(f"no answer for {_GIVE_UP:.1f} s")

    def _silent(self, why: str) -> ComponentHealth:
        return ComponentHealth(self._name, False, f"{self._unknown}: {why}")

    async def stop(self) -> None:
        """Stop checking. May be called twice."""
        task, self._asking = self._asking, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])


def store_check(store: Store) -> Check:

    async def ask() -> tuple[bool, str]:
        try:
            await store.ping(_PATIENCE)
        except JobQueueError as error:
            return False, error.message
        return True, f"{store.name}, {'durable' if store.durable else 'not durable'}"

    return Check("database", store.location, ask)


def leader_check(leadership: LeaderStore) -> Check:
    """Return a check that names the leader.

    A missing leader is no failure, because a server takes the lead soon.
    """

    async def ask() -> tuple[bool, str]:
        try:
            found = await leadership.leader()
        except JobQueueError as error:
            return False, f"not known: {error.message}"
        if found is None:
            return True, "nobody at the moment"
        since = f" since {utc_text(found.since)}" if found.since else ""
        return True, f"{found.name or 'a server without a name'}{since}, epoch {found.epoch}"

    return Check("leader", "not known", ask)


def stream_check(stream: StreamRunner) -> Check:

    async def ask() -> tuple[bool, str]:
        found = await stream.health()
        return found.ok, found.detail

    return Check("kafka", "how far the stream is behind is not known", ask)
