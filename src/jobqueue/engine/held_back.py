"""Find the jobs that wait because of a limit, for ``Explainer`` and ``QueueStats.held_back``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jobqueue.core.errors import JobQueueError
from jobqueue.core.explain import Explained, limited
from jobqueue.core.job import Job
from jobqueue.core.queue import COUNTED_TO, HeldBack, LimitState, QueueStats, reached
from jobqueue.core.store import QueueStore
from jobqueue.core.waiting import Recent

_log = logging.getLogger("jobqueue.engine.held_back")
_MOST_SHOWN = 100  # keys of a queue; clients choose their number


class HeldBackJobs:
    """Compares the limits of queues with their jobs. The answers may be a second old."""

    def __init__(self, queues: QueueStore) -> None:
        self._queues = queues
        self._states = Recent(queues.limit_states)

    async def causes(self, job: Job) -> list[Explained]:
        """Return the limits that hold a claimable job back: of its queue, or else of its key."""
        for state in await self._states.read():
            if state.queue == job.queue:
                return await self._causes(job, state)
        return []

    async def _causes(self, job: Job, state: LimitState) -> list[Explained]:
        for stats in await self._queues.stats(job.queue):
            found = limited(stats.queue, state)
            key, limits = job.spec.concurrency_key, stats.queue.limits
            if found or key is None or limits is None or not limits.keyed:
                return found
            for of_key in await self._queues.key_states(job.queue, 1, key):
                return limited(stats.queue, of_key)
        return []

    async def complete(self, found: Sequence[QueueStats]) -> None:
        """Add to each queue's figures the jobs that its limits hold back."""
        if not any(stats.queue.limits is not None for stats in found):
            return
        try:
            states = {state.queue: state for state in await self._states.read()}
            for stats in found:
                if (state := states.get(stats.queue.name)) is not None:
                    stats.held_back = tuple(await self._of_queue(stats, state))
        except JobQueueError as error:
            _log.debug("cannot read the limits of queues: %s; showing queues without them", error)

    async def _of_queue(self, stats: QueueStats, state: LimitState) -> list[HeldBack]:
        queue, held_back = stats.queue, list[HeldBack]()
        if limits := reached(queue, state):
            types = await self._queues.waiting_types(COUNTED_TO, queue.name)
            waiting = min(COUNTED_TO, sum(one.jobs for one in types))
            if waiting:
                held_back = [HeldBack(name, waiting, at) for name, at in limits.items()]
        if queue.limits is not None and queue.limits.keyed:
            of_keys = [
                HeldBack(name, one.waiting, at, one.key)
                for one in await self._queues.key_states(queue.name, COUNTED_TO)
                for name, at in reached(queue, one).items()
            ]
            of_keys.sort(key=lambda one: (-one.jobs, one.key))
            held_back += of_keys[:_MOST_SHOWN]
        return held_back
