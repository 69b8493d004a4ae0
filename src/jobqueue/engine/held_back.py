"""Find the jobs that wait because of a limit, for ``Explainer`` and ``QueueStats.held_back``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jobqueue.core.errors import JobQueueError
from jobqueue.core.explain import Explained, limited
from jobqueue.core.job import Job
from jobqueue.core.queue import COUNTED_TO, HeldBack, QueueStats, reached
from jobqueue.core.store import QueueStore
from jobqueue.core.waiting import Recent

_log = logging.getLogger("jobqueue.engine.held_back")


class HeldBackJobs:
    """Compares the limits of queues with their jobs. The answers may be a second old."""

    def __init__(self, queues: QueueStore) -> None:
        self._queues = queues
        self._states = Recent(queues.limit_states)

    async def causes(self, job: Job) -> list[Explained]:
        """Return the limits that hold a claimable job back."""
        for state in await self._states.read():
            if state.queue == job.queue:
                for stats in await self._queues.stats(job.queue):
                    return limited(stats.queue, state)
        return []

    async def complete(self, found: Sequence[QueueStats]) -> None:
        """Add to each queue's figures the jobs that its limits hold back."""
        if not any(stats.queue.limits is not None for stats in found):
            return
        try:
            states = {state.queue: state for state in await self._states.read()}
            for stats in found:
                state = states.get(stats.queue.name)
                if state is not None and (limits := reached(stats.queue, state)):
                    types = await self._queues.waiting_types(COUNTED_TO, stats.queue.name)
                    waiting = min(COUNTED_TO, sum(one.jobs for one in types))
                    if waiting:
                        stats.held_back = tuple(
                            HeldBack(limit, waiting, opens_in) for limit, opens_in in limits.items()
                        )
        except JobQueueError as error:
            _log.debug("cannot read the limits of queues: %s; showing queues without them", error)
