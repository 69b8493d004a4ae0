"""Whether the parts of the system answer, told in time for a probe that waits one second.

A store that hangs must not hang whoever asks about it. Each part is asked by a task that everybody
shares and nobody waits for long; it goes on after an asker was told that there is no answer, so
that a part that hangs is asked once, not once for each probe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import ComponentHealth
from jobqueue.core.store import Store
from jobqueue.core.stream import StreamRunner

# A probe's default is a second, for everything. Waited for in slices: while this process itself
# does not get to run, nobody's silence is measured.
_SLICES, _SLICE = 5, 0.1
_PATIENCE = 0.2  # a store that is away is asked again for so long
_GIVE_UP = 5.0  # then it is asked anew, on another connection


class Check:
    """Asks one part how it is."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[ComponentHealth]],
        silent: Callable[[str], ComponentHealth],
    ) -> None:
        """``silent`` makes the answer when there is none; it is told why."""
        self._ask = ask
        self._silent = silent
        self._since = 0.0
        self._unanswered = False
        self._asking: asyncio.Task[ComponentHealth] | None = None

    async def answer(self) -> ComponentHealth:
        """What it says, or that it says nothing; half a second at most."""
        task = self._asking
        if task is None or task.done():
            self._since, self._unanswered = time.monotonic(), False
            task = self._asking = asyncio.create_task(self._bounded(), name="jobqueue-health")
        for _ in range(_SLICES):
            if task.done() or self._unanswered:
                break
            await asyncio.wait([task], timeout=_SLICE)
        if task.cancelled():  # by ``stop``: whoever asks was not cancelled
            return self._silent("the server stops")
        if task.done():
            return task.result()
        self._unanswered = True
        return self._silent(f"no answer for {time.monotonic() - self._since:.1f} s")

    async def _bounded(self) -> ComponentHealth:
        try:
            async with asyncio.timeout(_GIVE_UP):
                return await self._ask()
        except TimeoutError:
            return self._silent(f"no answer for {_GIVE_UP:.1f} s")

    async def stop(self) -> None:
        """Ask no more. May be called twice."""
        task, self._asking = self._asking, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])


def store_check(store: Store) -> Check:
    """Whether the store takes a write."""

    async def ask() -> ComponentHealth:
        try:
            await store.ping(_PATIENCE)
        except JobQueueError as error:
            return ComponentHealth("database", False, error.message)
        durable = "durable" if store.durable else "not durable"
        return ComponentHealth("database", True, f"{store.name}, {durable}")

    return Check(ask, lambda said: ComponentHealth("database", False, f"{store.location}: {said}"))


def leader_check(store: Store) -> Check:
    """Which server leads. That nobody does is no failure: one takes the lead in a moment."""

    def part(ok: bool, said: str) -> ComponentHealth:
        return ComponentHealth("leader", ok, said)

    async def ask() -> ComponentHealth:
        try:
            found = await store.leader()
        except JobQueueError as error:
            return part(False, f"not known: {error.message}")
        if found is None:
            return part(True, "nobody at the moment")
        since = ""
        if found.since:
            moment = datetime.fromtimestamp(found.since, UTC)
            since = f" since {moment.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
        return part(True, f"{found.name or 'a server without a name'}{since}, epoch {found.epoch}")

    return Check(ask, lambda said: part(False, f"not known: {said}"))


def stream_check(stream: StreamRunner) -> Check:
    """Whether the event stream goes on."""

    def silent(said: str) -> ComponentHealth:
        return ComponentHealth("kafka", False, f"how far the stream is behind is not known: {said}")

    return Check(stream.health, silent)
