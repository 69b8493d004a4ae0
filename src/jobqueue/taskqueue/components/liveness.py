"""The workers that are alive, judged by their heartbeats alone, and the jobs they were given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from jobqueue.core.errors import QueueFull

MAX_WORKERS = 10_000


class Liveness:
    """Workers by name. A silent worker is forgotten with its jobs, until it beats again."""

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
        """The number of jobs that workers have."""
        return len(self._owners)

    def beat(self, worker_id: str) -> bool:
        """Note a heartbeat; return whether the worker was not alive before it."""
        news = not self.alive(worker_id)
        if worker_id not in self._heard and len(self._heard) >= MAX_WORKERS:
            raise QueueFull(f"there are {MAX_WORKERS} workers already")
        self._heard[worker_id] = self._monotonic()
        return news

    def started_anew(self, worker_id: str, incarnation: str) -> list[str]:
        """Note the process behind a name; return the jobs that an earlier process has lost."""
        if not incarnation:
            return []
        before = self._incarnations.get(worker_id, incarnation)
        self._incarnations[worker_id] = incarnation
        if before == incarnation:
            return []
        return self._take_all([worker_id])[worker_id]

    def runs(self, worker_id: str, job_ids: Iterable[str]) -> None:
        """Note the jobs that a worker itself says it has."""
        self._said[worker_id] = set(job_ids)

    def has(self, job_id: str) -> bool:
        """Return whether some worker has the job."""
        return job_id in self._owners or any(job_id in said for said in self._said.values())

    def _take_all(self, workers: Iterable[str]) -> dict[str, list[str]]:
        """Take all their jobs from these workers; return them by worker."""
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
        """Return whether the worker was heard within the timeout."""
        at = self._heard.get(worker_id)
        return at is not None and self._monotonic() - at < self._timeout

    def give(self, worker_id: str, job_id: str) -> None:
        self._owners[job_id] = worker_id

    def owner(self, job_id: str) -> str | None:
        """Return the worker that has the job, as far as it is known."""
        return self._owners.get(job_id)

    def take(self, job_id: str) -> None:
        """Take the job from the worker that has it."""
        owner = self._owners.pop(job_id, None)
        for worker_id in self._said if owner is None else (owner,):
            self._said.get(worker_id, set()).discard(job_id)

    def silent(self) -> list[tuple[str, list[str]]]:
        """Forget the workers that were not heard in time; return them with their jobs."""
        # A worker may have been forgotten while a job was on its way to it.
        known = dict.fromkeys([*self._heard, *self._owners.values()])
        found = self._take_all([name for name in known if not self.alive(name)])
        for worker_id in found:
            self._heard.pop(worker_id, None)
            self._incarnations.pop(worker_id, None)
        return list(found.items())
