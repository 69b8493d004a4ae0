"""Keep the workers of a memory store, and read their leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.decide import answer_heartbeat
from jobqueue.core.errors import not_your_worker, too_many_workers
from jobqueue.core.job import (
    Held,
    Pulse,
    Worker,
    WorkerInfo,
    WorkerStatus,
    is_limited,
    owner_allows,
)
from jobqueue.core.lifecycle import State
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Term
from jobqueue.stores.memory.contents import Contents, MemoryPart


class MemoryWorkers(MemoryPart):
    """Implements ``core.store.WorkerStore``."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(contents)
        self._leases = contents.held
        self._progress = contents.progress
        self._workers: dict[str, Worker] = {}

    async def register(self, info: WorkerInfo) -> list[Held]:
        known = self._workers.get(info.id)
        allowed = known is None or owner_allows(known.info.owner, info.owner)
        if known is not None and not allowed and known.status is not WorkerStatus.OFFLINE:
            raise not_your_worker(info.id)
        self._make_room(info)
        same = allowed and known is not None and known.info.incarnation == info.incarnation
        status = WorkerStatus.ONLINE
        if known is not None and same and known.status is not WorkerStatus.OFFLINE:
            status = known.status  # a reconnect does not undo an operator's drain
        now = self._clock.now()
        self._workers[info.id] = Worker(info=info, status=status, registered_at=now, last_seen=now)
        return [] if known is None or same else self._held_by(info.id)

    def _make_room(self, info: WorkerInfo) -> None:
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
        holding = {record.worker_id for record in self._leases.values()}
        for worker in others:
            if worker.status is WorkerStatus.OFFLINE and worker.info.id not in holding:
                del self._workers[worker.info.id]
                most += 1
        if len(others) >= most:
            raise too_many_workers(info.owner, self._rules.workers_per_owner)

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
        *,
        owner: str = "",
    ) -> Pulse:
        now = self._clock.now()
        worker = self._known(worker_id, incarnation, owner)
        if worker is None or worker.status is WorkerStatus.OFFLINE:
            return Pulse(False)
        worker.last_seen = now
        if overrun is not None:
            worker.overrun = overrun
        standing = {one.lease: one for one in self._held_by(worker_id)}
        answer = answer_heartbeat(worker.status, leases, begun, progress, standing)
        due = now + self._rules.assignment_timeout
        for one in answer.begun:
            begins = self._leases.get(one.lease)
            # The event loop may have changed the job by now. It cannot do so between this check and
            # the write, because threads switch at calls only.
            if begins is not None and begins.state is State.ASSIGNED:
                begins.due = due
        if progress:
            self._keep_progress(answer.told, now)
        return answer.pulse

    def _keep_progress(self, told: Mapping[int, Progress], now: float) -> None:
        for lease, progress in told.items():
            self._progress[lease] = replace(progress, at=now)
        for kept in list(self._progress):
            if kept not in self._leases:
                self._progress.pop(kept, None)

    async def set_breakers(
        self, worker_id: str, incarnation: int, breakers: Sequence[OpenBreaker]
    ) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None and worker.info.incarnation == incarnation:
            worker.breakers = tuple(breakers)

    async def held(self, worker_id: str | None = None) -> list[Held]:
        return self._held_by(worker_id)

    def _held_by(self, worker_id: str | None) -> list[Held]:
        # list() of a dictionary's values is one step: safe beside the loop's thread.
        return [
            record.held()
            for record in list(self._leases.values())
            if worker_id in (None, record.worker_id)
        ]

    async def set_status(self, worker_id: str, status: WorkerStatus) -> bool:
        worker = self._workers.get(worker_id)
        if worker is None or not worker.status.may_become(status):
            return False
        worker.status = status
        return True

    async def all(self, *, names: bool = True) -> list[Worker]:
        running = Counter(record.worker_id for record in self._leases.values())
        found = [
            replace(worker, running=running[worker_id])
            for worker_id, worker in sorted(self._workers.items())
        ]
        if not names:
            for worker in found:
                worker.info = replace(worker.info, queues=(), types=None)
        return found

    async def infos(self, worker_ids: Sequence[str]) -> list[WorkerInfo]:
        found = (self._workers.get(worker_id) for worker_id in worker_ids)
        return [worker.info for worker in found if worker is not None]

    async def status(self, worker_id: str) -> WorkerStatus | None:
        worker = self._workers.get(worker_id)
        return None if worker is None else worker.status

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        self._check_term(term)
        since = self._clock.now() - silent_for
        silent = [
            worker
            for worker in self._workers.values()
            if worker.status is not WorkerStatus.OFFLINE and worker.last_seen < since
        ]
        for worker in silent:
            worker.status = WorkerStatus.OFFLINE
        return [worker.info.id for worker in silent]

    async def retire(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        worker = self._known(worker_id, incarnation, owner)
        if worker is None or self._held_by(worker_id):
            return False
        del self._workers[worker_id]
        return True

    async def forget(self, worker_id: str) -> bool:
        worker = self._workers.get(worker_id)
        if worker is None or worker.status is not WorkerStatus.OFFLINE:
            return False
        del self._workers[worker_id]
        return True

    def _known(self, worker_id: str, incarnation: int, owner: str) -> Worker | None:
        """Return the worker if this incarnation is registered.

        Raise PermissionDenied if the worker belongs to another owner.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return None
        if not owner_allows(worker.info.owner, owner):
            raise not_your_worker(worker_id)
        return worker if worker.info.incarnation == incarnation else None
