"""How often a waiting job saw a job of lower rank go first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from jobqueue.core.job import Event, Job
from jobqueue.core.lifecycle import State

Rank = tuple[int, int]


def overtaken(events: Sequence[Event], jobs: Mapping[str, Job]) -> Counter[str]:
    """Count, for each job, the jobs of its queue that were handed out before it out of turn.

    A job ranks by priority, then by its place in the queue. It can be overtaken only while it
    could have been handed out itself: PENDING, its ``run_at`` reached, its TTL not over.
    """
    waiting: dict[str, dict[str, Rank]] = defaultdict(dict)
    counts: Counter[str] = Counter()
    for event in events:
        job = jobs.get(event.job_id)
        if job is None:
            continue
        rank = (-job.priority, job.seq)
        queue = waiting[job.queue]
        if event.to_state is State.PENDING:
            queue[job.id] = rank
            continue
        queue.pop(job.id, None)
        if event.to_state is not State.ASSIGNED:
            continue
        for other, better in queue.items():
            if better < rank and _claimable(jobs[other], event.at):
                counts[other] += 1
    return counts


def _claimable(job: Job, at: float) -> bool:
    if job.run_at is not None and job.run_at > at:
        return False
    return job.expires_at is None or job.expires_at > at
