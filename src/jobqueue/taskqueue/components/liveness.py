"""Track which workers are alive, by their heartbeats alone, and the jobs of each worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from jobqueue.core.errors import QueueFull

MAX_WORKERS = 10_000


class Liveness:
    """Tracks the latest heartbeat and the jobs of each worker.

    ``silent`` forgets each worker that sent no heartbeat within the timeout, and the worker's jobs.
    The worker is known again after its next heartbeat.
    """

    def __init__(self, timeout_ms: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout_ms / 1000
        self._monotonic = monotonic
        self._heard: dict[str, float] = {}
        self._owners: dict[str, str] = {}
        self._said: dict[str, set[str]] = {}  # the jobs that a worker says it has
        self._incarnations: dict[str, str] = {}

    @property
    def workers(self) -> int:
        return len(self._heard)

    @property
    def given(self) -> int:
        """Return the number of jobs that were given to workers and have not ended."""
        return len(self._owners)

    def beat(self, worker_id: str) -> bool:
        """Record a heartbeat; return True if the worker was not alive before."""
        was_dead = not self.alive(worker_id)
        if worker_id not in self._heard and len(self._heard) >= MAX_WORKERS:
            raise QueueFull(
                f"{MAX_WORKERS} workers are known, which is the maximum: worker {worker_id} is"
                " refused"
            )
        self._heard[worker_id] = self._monotonic()
        return was_dead

    def started_anew(self, worker_id: str, incarnation: str) -> list[str]:
        """Record the worker's incarnation; return the jobs of its earlier incarnation.

        A restarted worker has lost those jobs. An empty incarnation is ignored.
        """
        if not incarnation:
            return []
        before = self._incarnations.get(worker_id, incarnation)
        self._incarnations[worker_id] = incarnation
        if before == incarnation:
            return []
        return self._take_all([worker_id])[worker_id]

    def runs(self, worker_id: str, job_ids: Iterable[str]) -> None:
        """Record the jobs that a worker says it has."""
        self._said[worker_id] = set(job_ids)

    def has(self, job_id: str) -> bool:
        """Return True if any worker has the job."""
        return job_id in self._owners or any(job_id in said for said in self._said.values())

    def _take_all(self, workers: Iterable[str]) -> dict[str, list[str]]:
        """Forget all jobs of these workers; return the forgotten jobs by worker."""
        found: dict[str, list[str]] = {name: [] for name in workers}
        for job, owner in self._owners.items():
            if owner in found:
                found[owner].append(job)
        for worker_id, jobs in found.items():
            jobs += sorted(self._said.pop(worker_id, set()).difference(self._owners))
        for jobs in found.values():
            for job in jobs:
                self._owners.pop(job, None)
        return found

    def alive(self, worker_id: str) -> bool:
        """Return True if the worker sent a heartbeat within the timeout."""
        at = self._heard.get(worker_id)
        return at is not None and self._monotonic() - at < self._timeout

    def give(self, worker_id: str, job_id: str) -> None:
        """Record that the worker was given the job."""
        self._owners[job_id] = worker_id

    def owner(self, job_id: str) -> str | None:
        """Return the worker that was given the job; None if no such worker is known."""
        return self._owners.get(job_id)

    def take(self, job_id: str) -> None:
        """Forget that any worker has the job."""
        owner = self._owners.pop(job_id, None)
        for worker_id in self._said if owner is None else (owner,):
            self._said.get(worker_id, set()).discard(job_id)

    def silent(self) -> list[tuple[str, list[str]]]:
        """Forget the workers that are no longer alive; return each with its jobs."""
        # A worker may have been forgotten while a job was on its way to it.
        known = dict.fromkeys([*self._heard, *self._owners.values()])
        found = self._take_all([name for name in known if not self.alive(name)])
        for worker_id in found:
            self._heard.pop(worker_id, None)
            self._incarnations.pop(worker_id, None)
        return list(found.items())
