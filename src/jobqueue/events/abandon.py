"""Remove the mark of an event stream that is turned off (``kafka.abandon``).

The mark is the position up to which events are published. The store keeps the events after the
mark for the stream. Without a mark, it keeps none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import ComponentHealth
from jobqueue.core.store import EventStream, Term, TermEnded
from jobqueue.core.waiting import Background

_log = logging.getLogger("jobqueue.events")
_LOOK = 0.2


class Abandon(Background):
    """Implements ``core.stream.StreamRunner``: removes the mark when this server is the leader."""

    _done = False

    def start(self, stream: EventStream, term: Callable[[], Term | None]) -> None:
        self._begin(self._run(stream, term), "no-stream")

    async def _run(self, stream: EventStream, term: Callable[[], Term | None]) -> None:
        while not self._done:
            if (standing := term()) is not None:
                try:
                    lag = await stream.lag()
                    if lag is not None:
                        await stream.end(standing)
                        _log.warning(
                            "the event stream is turned off: the store has forgotten how far the"
                            " stream was published; %d events were never published",
                            lag.events,
                        )
                    self._done = True
                except (JobQueueError, TermEnded) as error:
                    _log.debug(
                        "cannot remove the mark of the event stream: %s; trying again in %g s",
                        error,
                        _LOOK,
                    )
            await asyncio.sleep(_LOOK)

    def wake(self) -> None: ...

    def flows(self) -> bool:
        return False

    async def health(self) -> ComponentHealth:
        return ComponentHealth("kafka", True, "given up" if self._done else "to be given up")
