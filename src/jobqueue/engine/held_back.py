"""Find the jobs that wait because of a limit, for ``Job.hint`` and ``QueueStats.held_back``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Job
from jobqueue.core.limits import SECOND
from jobqueue.core.queue import COUNTED_TO, HeldBack, LimitState, QueueSettings, QueueStats, reached
from jobqueue.core.store import QueueStore
from jobqueue.core.waiting import Recent

_log = logging.getLogger("jobqueue.engine.held_back")


class HeldBackJobs:
    """Compares the limits of queues with their jobs. The answers may be a second old."""

    def __init__(self, queues: QueueStore) -> None:
        self._queues = queues
        self._states = Recent(queues.limit_states)

    async def hint(self, job: Job) -> str:
        """Return why the job waits if a limit holds it back, else an empty text.

        The job must be claimable.
        """
        try:
            for state in await self._states.read():
                if state.queue == job.queue:
                    for stats in await self._queues.stats(job.queue):
                        return _reason(stats.queue, state)
        except JobQueueError:  # the job is shown without the hint
            pass
        return ""

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


def _reason(queue: QueueSettings, state: LimitState) -> str:
    found = reached(queue, state)
    if "max_running" in found:
        return (
            f"waits until a job of queue {state.queue!r} ends: {state.held} run, and max_running is"
            f" {queue.max_running}"
        )
    opens_in = found.get("rate")
    if opens_in is not None:
        period = queue.rate_period or SECOND
        return (
            f"waits for the rate limit of queue {state.queue!r} ({queue.rate} starts in"
            f" {period:g} s): the next start is possible in {opens_in:.3g} s"
        )
    return ""
