"""A store's whole content, rebuilt from the stream, on its way into an empty store.

What was held when the stream ended is held again, under a lease that nobody knows and by a worker
that is not there: it goes the way of every job whose worker was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jobqueue.core.accept import waiting
from jobqueue.core.errors import Conflict
from jobqueue.core.identity import Identity, successor
from jobqueue.core.ids import new_lease
from jobqueue.core.job import DEFAULT_QUEUE, Job
from jobqueue.core.lifecycle import HELD, TERMINAL, State
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.core.rebuild import Figures, Key, Rebuilt, World
from jobqueue.core.store import Rules

Told = Callable[[int], None]
"""Hears how many jobs have been written; maybe in another thread."""


@dataclass(slots=True)
class RestoredQueue:
    """A queue with its figures. One that was deleted stays with its records."""

    queue: Queue
    deleted: bool
    figures: Figures


@dataclass(slots=True)
class Restored:
    """All that is to be written."""

    queues: list[RestoredQueue]  # every queue that is named by anything below
    jobs: list[Rebuilt]  # by seq
    keys: list[Key]  # that are taken, of jobs that are there or gone
    last_seq: int  # new jobs come after it,
    last_number: int  # and changes of queues after this
    identity: Identity  # who the store is from now on
    published: bool = True  # the stream has these events: it goes on after them


def unplaced(world: World) -> dict[str, str]:
    """Jobs that cannot be written, and why."""
    found = {}
    numbers: dict[int, str] = {}
    for job_id, rebuilt in world.jobs.items():
        job = rebuilt.job
        twin = numbers.setdefault(job.seq, job_id)
        if twin != job_id:
            found[job_id] = (
                f"it has the same number {job.seq} as job {twin}: the topics hold the events of"
                " more than one store"
            )
        elif job.queue not in world.queues and job.state not in TERMINAL:
            found[job_id] = f"it is not finished, and there is no queue {job.queue!r}"
    return found


def gather(world: World, *, published: bool, identity: Identity | None = None) -> Restored:
    """What a world without unplaced jobs comes to, in a store of that identity or a new one."""
    # Of a queue that was deleted before the stream began there are only its jobs.
    named = {rebuilt.job.queue for rebuilt in world.jobs.values()}
    known = {name: (Queue(name=name), True) for name in named}
    known |= {name: (queue, True) for name, queue in world.gone.items()}
    known |= {name: (queue, False) for name, queue in world.queues.items()}
    queues = [
        RestoredQueue(queue, deleted, world.figures.get(name, Figures()))
        for name, (queue, deleted) in sorted(known.items())
    ]
    keys: dict[tuple[str, str], Key] = {}
    of_jobs = (
        Key(rebuilt.job.queue, stored, rebuilt.job, rebuilt.key_expires_at)
        for rebuilt in world.jobs.values()
        if (stored := rebuilt.job.spec.stored_key) is not None
        and rebuilt.key_expires_at is not None
    )
    # Sorted, because the order in which jobs were read is that of Kafka's partitions: chance.
    # The last holder of a key took it anew when the earlier one's had expired.
    for key in sorted((*world.keys, *of_jobs), key=_holding):
        if key.queue in known:
            keys[key.queue, key.key] = key
    return Restored(
        queues=queues,
        jobs=sorted(world.jobs.values(), key=lambda rebuilt: rebuilt.job.seq),
        keys=list(keys.values()),
        last_seq=world.last_seq,
        last_number=world.last_number,
        identity=identity or successor("", ()),
        published=published,
    )


def _holding(key: Key) -> tuple[str, str, float, int]:
    """Keys by name, and the jobs that held one in their order."""
    return key.queue, key.key, key.expires_at, key.job.seq


@dataclass(slots=True)
class Standing:
    """Where a job stands in its new store."""

    ready: bool  # claimable
    due: float | None  # when the sweeper must look
    lease: int | None


def standing(job: Job, now: float, rules: Rules) -> Standing:
    """What a store keeps of an unfinished job beside the job itself."""
    if job.state is State.FAILED:
        # Events of earlier versions do not say when: at once, then.
        due = job.updated_at if job.next_retry_at is None else job.next_retry_at
        return Standing(False, due, None)
    if job.state is State.ASSIGNED:
        return Standing(False, now + rules.assignment_timeout, new_lease())
    if job.state is State.RUNNING:
        limit = None if job.timeout is None else now + job.timeout + rules.watchdog_grace
        return Standing(False, limit, new_lease())
    if job.state is not State.PENDING:
        return Standing(False, None, None)
    return Standing(*waiting(job.run_at, job.expires_at, now), None)


def holder(job: Job) -> str | None:
    """The worker that holds a job; None: nobody does."""
    return job.worker_id if job.state in HELD else None


def unused(found: Iterable[QueueStats]) -> bool:
    """Whether there is no queue but the one that every server makes, as it was made."""
    return all(
        one.queue.name == DEFAULT_QUEUE and not one.queue.paused and not one.processed
        for one in found
    )


def not_empty(what: str) -> Conflict:
    """Why nothing was written."""
    return Conflict(
        f"the store is not empty: it has {what}. Replay writes into an empty store only: name"
        " another one, or remove what is there"
    )


def led() -> Conflict:
    """Why nothing was written: somebody works here."""
    return Conflict(
        "a server is at work on this store, or was a moment ago: stop it, wait until its term has"
        " run out (scheduler.leader_ttl), and try again"
    )
