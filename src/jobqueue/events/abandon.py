"""Gives an event stream up: what was kept for it is let go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import ComponentHealth
from jobqueue.core.store import Store, Term, TermEnded

_log = logging.getLogger("jobqueue.events")
_LOOK = 0.2


class Abandon:
    """Implements ``core.stream.StreamRunner``: removes the mark once its server leads."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._done = False

    def start(self, store: Store, term: Callable[[], Term | None]) -> None:
        """See ``StreamRunner.start``."""
        self._task = asyncio.create_task(self._run(store, term), name="jobqueue-no-stream")

    async def _run(self, store: Store, term: Callable[[], Term | None]) -> None:
        while not self._done:
            if (standing := term()) is not None:
                try:
                    lag = await store.stream_lag()
                    if lag is not None:
                        await store.end_stream(standing)
                        _log.warning(
                            "the event stream is given up: %d events were not published", lag.events
                        )
                    self._done = True
                except (JobQueueError, TermEnded) as error:
                    _log.debug("the event stream cannot be given up yet: %s", error)
            await asyncio.sleep(_LOOK)

    async def stop(self) -> None:
        """See ``StreamRunner.stop``."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """See ``StreamRunner.wake``."""

    def flows(self) -> bool:
        """See ``StreamRunner.flows``."""
        return False

    async def health(self) -> ComponentHealth:
        """See ``StreamRunner.health``."""
        return ComponentHealth("kafka", True, "given up" if self._done else "to be given up")
