"""The workers that have registered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jobqueue.core.job import Worker, WorkerInfo, WorkerStatus


class Roster:
    """Workers by id."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    def register(self, info: WorkerInfo, now: float) -> bool:
        """Record a worker; True if an earlier incarnation was replaced."""
        known = self._workers.get(info.id)
        same = known is not None and known.info.incarnation == info.incarnation
        status = WorkerStatus.ONLINE
        if known is not None and same and known.status is not WorkerStatus.OFFLINE:
            status = known.status  # a reconnect does not undo an operator's drain
        self._workers[info.id] = Worker(info=info, status=status, registered_at=now, last_seen=now)
        return known is not None and not same

    def seen(self, worker_id: str, incarnation: int, now: float) -> WorkerStatus | None:
        """Note a heartbeat; None if it is not one of a worker we count on."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.info.incarnation != incarnation:
            return None
        if worker.status is WorkerStatus.OFFLINE:
            return None
        worker.last_seen = now
        return worker.status

    def set_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """False if the worker is unknown, or cannot become that."""
        worker = self._workers.get(worker_id)
        if worker is None or not worker.status.may_become(status):
            return False
        worker.status = status
        return True

    def all(self, running: Mapping[str, int]) -> list[Worker]:
        """Every worker with the number of jobs it holds, by id."""
        return [
            dataclasses.replace(worker, running=running.get(worker_id, 0))
            for worker_id, worker in sorted(self._workers.items())
        ]

    def retire_silent(self, since: float) -> list[str]:
        """Mark OFFLINE whoever was not heard of since."""
        silent = [
            worker_id
            for worker_id, worker in self._workers.items()
            if worker.status is not WorkerStatus.OFFLINE and worker.last_seen < since
        ]
        for worker_id in silent:
            self._workers[worker_id].status = WorkerStatus.OFFLINE
        return silent

    def remove(self, worker_id: str, incarnation: int) -> bool:
        """Remove a worker, if it is that incarnation."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.info.incarnation != incarnation:
            return False
        del self._workers[worker_id]
        return True

    def forget(self, worker_id: str) -> bool:
        """Remove an OFFLINE worker."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.status is not WorkerStatus.OFFLINE:
            return False
        del self._workers[worker_id]
        return True
