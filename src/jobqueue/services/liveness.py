"""Which workers are alive, judged by their heartbeats alone, and which jobs they were given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from jobqueue.core.errors import QueueFull

MAX_WORKERS = 10_000


class Liveness:
    """Workers by name. One that falls silent is forgotten with its jobs, until it beats again."""

    def __init__(self, timeout_ms: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout_ms / 1000
        self._monotonic = monotonic
        self._heard: dict[str, float] = {}
        self._owners: dict[str, str] = {}
        self._said: dict[str, set[str]] = {}  # the jobs that a worker says it has
        self._incarnations: dict[str, str] = {}

    @property
    def workers(self) -> int:
        """How many are known."""
        return len(self._heard)

    @property
    def given(self) -> int:
        """How many jobs they have."""
        return len(self._owners)

    def beat(self, worker_id: str) -> bool:
        """It lives; True if that is news."""
        news = not self.alive(worker_id)
        if worker_id not in self._heard and len(self._heard) >= MAX_WORKERS:
            raise QueueFull(f"there are {MAX_WORKERS} workers already")
        self._heard[worker_id] = self._monotonic()
        return news

    def started_anew(self, worker_id: str, incarnation: str) -> list[str]:
        """The jobs of an earlier process of that name, which nobody has any more."""
        if not incarnation:
            return []
        before = self._incarnations.get(worker_id, incarnation)
        self._incarnations[worker_id] = incarnation
        if before == incarnation:
            return []
        return self._take_all([worker_id])[worker_id]

    def runs(self, worker_id: str, job_ids: Iterable[str]) -> None:
        """What the worker says that it runs, given to it by whomever."""
        self._said[worker_id] = set(job_ids)

    def has(self, job_id: str) -> bool:
        """Whether some worker has the job."""
        return job_id in self._owners or any(job_id in said for said in self._said.values())

    def _take_all(self, workers: Iterable[str]) -> dict[str, list[str]]:
        """The jobs of these workers, which have none any more."""
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
        """Whether it was heard within the timeout."""
        at = self._heard.get(worker_id)
        return at is not None and self._monotonic() - at < self._timeout

    def give(self, worker_id: str, job_id: str) -> None:
        """The worker has the job."""
        self._owners[job_id] = worker_id

    def owner(self, job_id: str) -> str | None:
        """Who has the job, as far as it is known."""
        return self._owners.get(job_id)

    def take(self, job_id: str) -> None:
        """Nobody has the job any more."""
        owner = self._owners.pop(job_id, None)
        for worker_id in self._said if owner is None else (owner,):
            self._said.get(worker_id, set()).discard(job_id)

    def silent(self) -> list[tuple[str, list[str]]]:
        """Workers that were not heard in time, with their jobs; each is told of once."""
        # A worker may have been forgotten while a job was on its way to it.
        known = dict.fromkeys([*self._heard, *self._owners.values()])
        found = self._take_all([name for name in known if not self.alive(name)])
        for worker_id in found:
            self._heard.pop(worker_id, None)
            self._incarnations.pop(worker_id, None)
        return list(found.items())
