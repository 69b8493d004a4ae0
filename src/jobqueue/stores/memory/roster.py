"""The workers that have registered."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from jobqueue.core.errors import not_your_worker, too_many_workers
from jobqueue.core.job import Worker, WorkerInfo, WorkerStatus, is_limited, owner_allows
from jobqueue.core.store import Rules


class Roster:
    """Workers by id."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._workers: dict[str, Worker] = {}

    def register(self, info: WorkerInfo, now: float, holding: Collection[str]) -> bool:
        """Record a worker; True if an earlier incarnation was replaced.

        ``holding`` has the ids of workers that hold leases.
        """
        known = self._workers.get(info.id)
        allowed = known is None or owner_allows(known.info.owner, info.owner)
        if known is not None and not allowed and known.status is not WorkerStatus.OFFLINE:
            raise not_your_worker(info.id)
        self._make_room(info, holding)
        same = allowed and known is not None and known.info.incarnation == info.incarnation
        status = WorkerStatus.ONLINE
        if known is not None and same and known.status is not WorkerStatus.OFFLINE:
            status = known.status  # a reconnect does not undo an operator's drain
        self._workers[info.id] = Worker(info=info, status=status, registered_at=now, last_seen=now)
        return known is not None and not same

    def _make_room(self, info: WorkerInfo, holding: Collection[str]) -> None:
        most = self._rules.workers_per_owner
        if not most or not is_limited(info.owner):
            return
        others = [
            worker
            for worker in self._workers.values()
            if worker.info.owner == info.owner and worker.info.id != info.id
        ]
        if len(others) < most:
            return
        for worker in others:
            if worker.status is WorkerStatus.OFFLINE and worker.info.id not in holding:
                del self._workers[worker.info.id]
                most += 1
        if len(others) >= most:
            raise too_many_workers(info.owner, self._rules.workers_per_owner)

    def check_owner(self, worker_id: str, owner: str) -> None:
        """PermissionDenied if another caller has registered the worker."""
        worker = self._workers.get(worker_id)
        if worker is not None and not owner_allows(worker.info.owner, owner):
            raise not_your_worker(worker_id)

    def seen(
        self, worker_id: str, incarnation: int, now: float, owner: str, overrun: int | None
    ) -> WorkerStatus | None:
        """Note a heartbeat; None if it is not one of a worker we count on."""
        self.check_owner(worker_id, owner)
        worker = self._workers.get(worker_id)
        if worker is None or worker.info.incarnation != incarnation:
            return None
        if worker.status is WorkerStatus.OFFLINE:
            return None
        worker.last_seen = now
        if overrun is not None:
            worker.overrun = overrun
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
