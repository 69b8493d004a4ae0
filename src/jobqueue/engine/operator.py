"""Implement the calls of operators for queues, workers, single jobs and health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from jobqueue.core.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    NotFound,
    being_changed,
    no_such_job,
    no_such_queue,
)
from jobqueue.core.grouping import DeadLetterGroups, group
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import (
    DeadLetterCause,
    Deleted,
    Health,
    Job,
    NotDeleted,
    NotRetried,
    Outcome,
    Refusal,
    Retried,
    RetryQuery,
    Transition,
    Worker,
    WorkerStatus,
)
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.core.queue import SETTINGS, Queue, QueueSpec, QueueStats, QueueUpdate
from jobqueue.core.store import DeadLetters, JobFilter, Store
from jobqueue.core.waiting import TURN, turn
from jobqueue.engine import admission
from jobqueue.engine.health import Check
from jobqueue.engine.held_back import HeldBackJobs
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.settings import EngineSettings
from jobqueue.engine.unserved import Unserved
from jobqueue.engine.worker_names import list_shortened

_FORCE_CHUNK = 1_000
# Dead letters that one call reads, so that the call returns within its caller's timeout.
_RETRY_CHUNK = 1_000
_COUNT_CHUNK = 10_000
_DELETE_CHUNK = 500
_DELETES_AT_ONCE = 50
_MOST_GROUPED = 10_000  # dead letters that are read to group them
_MOST_GROUPS = 200


class OperatorCalls:
    """Implements ``core.api.OperatorApi`` with the parts of the engine."""

    _store: Store
    _settings: EngineSettings
    _store_check: Check
    _leader_check: Check
    _stream_check: Check | None
    _scheduler: Scheduler
    _unserved: Unserved
    _held_back: HeldBackJobs
    _apply: Callable[[Sequence[Transition]], Awaitable[list[Outcome]]]
    get: Callable[[str], Awaitable[Job]]

    async def create_queue(self, spec: QueueSpec) -> Queue:
        queue = spec.resolve(self._settings.queue)
        admission.check_queue(queue)
        if not await self._store.queues.create(queue):
            raise AlreadyExists(f"name: there is a queue {queue.name!r} already")
        return self._settings.complete(queue)

    async def update_queue(self, name: str, update: QueueUpdate) -> Queue:
        if not update.said:
            raise InvalidArgument("update", f"names no setting; allowed: {', '.join(SETTINGS)}")
        queue = (await self._queue_stats(name)).queue
        values = update.resolve(queue, self._settings.queue)
        admission.check_queue(replace(queue, **values))
        changed = await self._store.queues.update(name, values)
        if changed is None:
            raise no_such_queue(name)
        self._scheduler.wake()
        return self._settings.complete(changed)

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        admission.check_may_exist(name)
        dropped = 0
        while True:
            left = await self._store.queues.delete(name)
            if left is None:
                raise no_such_queue(name)
            if left == 0:
                return dropped
            if not force:
                raise Conflict(
                    f"queue {name!r} is not empty ({left} unfinished jobs); use force to"
                    " dead-letter them"
                )
            await self._store.queues.pause(name, True)
            seqs = await self._store.queues.unfinished(name, _FORCE_CHUNK)
            outcomes = await self._apply([Transition.dropped_with_queue(seq) for seq in seqs])
            dropped += sum(outcome.applied for outcome in outcomes)

    async def pause_queue(self, name: str) -> None:
        await self._pause(name, True)

    async def resume_queue(self, name: str) -> None:
        await self._pause(name, False)
        self._scheduler.wake()

    async def _pause(self, name: str, paused: bool) -> None:
        admission.check_may_exist(name)
        if not await self._store.queues.pause(name, paused):
            raise no_such_queue(name)

    async def queue_stats(self, name: str) -> QueueStats:
        found = await self._queue_stats(name)
        await self._complete([found])
        return found

    async def _queue_stats(self, name: str) -> QueueStats:
        admission.check_may_exist(name)
        found = await self._store.queues.stats(name)
        if not found:
            raise no_such_queue(name)
        return found[0]

    async def list_queues(self) -> list[QueueStats]:
        found = await self._store.queues.stats()
        await self._complete(found)
        return found

    async def _complete(self, found: list[QueueStats]) -> None:
        for stats in found:
            stats.queue = self._settings.complete(stats.queue)
        await self._unserved.complete(found)
        await self._held_back.complete(found)

    async def list_workers(self) -> list[Worker]:
        return await list_shortened(self._store.workers)

    async def drain_worker(self, worker_id: str) -> None:
        await self._set_worker_status(worker_id, WorkerStatus.DRAINING)

    async def undrain_worker(self, worker_id: str) -> None:
        await self._set_worker_status(worker_id, WorkerStatus.ONLINE)

    async def shutdown_worker(self, worker_id: str) -> None:
        await self._set_worker_status(worker_id, WorkerStatus.STOPPING)

    async def _set_worker_status(self, worker_id: str, status: WorkerStatus) -> None:
        now = await self._worker_status(worker_id)
        if now.may_become(status) and not await self._store.workers.set_status(worker_id, status):
            now = await self._worker_status(worker_id)  # the worker was stopped meanwhile
        if now.may_become(status):
            session = self._scheduler.sessions.get(worker_id)
            if session is not None:
                self._scheduler.tell(session, status)
        elif status is WorkerStatus.ONLINE:
            raise Conflict(
                f"worker {worker_id!r} is {now}: only a worker that is DRAINING can become ONLINE"
            )

    async def _worker_status(self, worker_id: str) -> WorkerStatus:
        status = None
        with suppress(InvalidArgument):  # no worker has such an id, and some stores cannot read it
            admission.check_worker_id(worker_id)
            status = await self._store.workers.status(worker_id)
        if status is None:
            raise NotFound(f"worker_id: there is no worker {worker_id[:120]!r}")
        if status is WorkerStatus.OFFLINE:
            raise Conflict(f"worker {worker_id!r} is OFFLINE: it sent no heartbeat for too long")
        return status

    async def retry(self, job_id: str) -> Job:
        job = await self.get(job_id)
        outcome = (await self._apply([Transition.retried_by_hand(job.seq)]))[0]
        if outcome.refusal is Refusal.NO_QUEUE:
            raise Conflict(f"job {job_id} cannot be retried: its queue {job.queue!r} is deleted")
        if outcome.refusal is Refusal.NO_SUCH_JOB:
            raise no_such_job(job_id)
        if outcome.refusal is Refusal.LOCKED:
            raise being_changed(job_id)
        if not outcome.applied:
            state = outcome.state.name if outcome.state else "gone"
            raise Conflict(
                f"job {job_id} is {state}; only FAILED and DEAD_LETTERED jobs can be retried"
            )
        return await self.get(job_id)

    async def _look(self, query: RetryQuery, limit: int) -> DeadLetters:
        """Read the next dead letters of a query, and return those that match."""
        admission.check_retry_query(query)
        if query.queue is not None:
            await self._queue_stats(query.queue)  # a mistyped name is an error
        before = admission.read_page_token(query.page_token)
        return await self._store.reads.dead_letters(
            JobFilter(before_seq=before, limit=limit, **query.conditions())
        )

    async def group_dead_letters(self, query: RetryQuery) -> DeadLetterGroups:
        query = replace(query, page_token="")
        letters: list[DeadLetterCause] = []
        answer = DeadLetterGroups()
        while True:
            looked = await self._look(query, _MOST_GROUPED - answer.looked_at)
            answer.looked_at += looked.looked_at
            numbers = [seq for seq, _ in looked.found]
            for start in range(0, len(numbers), TURN):
                await turn()
                letters += await self._store.reads.describe(numbers[start : start + TURN])
            if looked.before_seq is None:
                break
            if answer.looked_at >= _MOST_GROUPED:
                answer.complete = False
                break
            query.page_token = admission.write_page_token(looked.before_seq)
        answer.groups = group(letters, _MOST_GROUPS)
        answer.since = min((one.at for one in letters), default=0.0)
        answer.until = max((one.at for one in letters), default=0.0)
        return answer

    async def delete_dead_letters(self, query: RetryQuery) -> Deleted:
        looked = await self._look(query, _COUNT_CHUNK if query.dry_run else _DELETE_CHUNK)
        answer = Deleted(looked.looked_at, len(looked.found), 0)
        if looked.before_seq is not None:
            answer.next_page_token = admission.write_page_token(looked.before_seq)
        if query.dry_run or not looked.found:
            return answer
        found = await self._store.reads.describe([seq for seq, _ in looked.found])
        ended: list[int] = []

        async def delete(letter: DeadLetterCause) -> None:
            try:
                # The version is given, so a job that was retried meanwhile is not deleted.
                state = await self._store.upkeep.delete_job(letter.id, version=letter.version)
                if state in TERMINAL:
                    ended.append(letter.seq)
            except Conflict as error:
                answer.refused.append(NotDeleted(letter.id, error.message))

        for start in range(0, len(found), _DELETES_AT_ONCE):
            await asyncio.gather(*map(delete, found[start : start + _DELETES_AT_ONCE]))
        # A job that became a dead letter again meanwhile has another version, and is still there.
        answer.deleted = len(ended) - len(await self._store.reads.describe(ended))
        return answer

    async def retry_dead_letters(self, query: RetryQuery) -> Retried:
        looked = await self._look(query, _COUNT_CHUNK if query.dry_run else _RETRY_CHUNK)
        answer = Retried(looked.looked_at, len(looked.found), 0)
        if looked.before_seq is not None:
            answer.next_page_token = admission.write_page_token(looked.before_seq)
        if query.dry_run or not looked.found:
            return answer
        outcomes = await self._apply(
            # With the version: a job that has changed meanwhile is not retried.
            [Transition.retried_by_hand(seq, version) for seq, version in looked.found]
        )
        answer.retried = sum(outcome.applied for outcome in outcomes)
        answer.refused = [
            NotRetried(
                outcome.job_id,
                f"its queue {outcome.queue!r} is deleted; create it again, then retry",
            )
            for outcome in outcomes
            if outcome.refusal is Refusal.NO_QUEUE
        ]
        return answer

    async def delete_job(self, job_id: str) -> None:
        state = await self._store.upkeep.delete_job(parse_job_id(job_id))
        if state is None:
            raise no_such_job(job_id)
        if state not in TERMINAL:
            raise Conflict(
                f"job {job_id} is {state.name}; only DONE and DEAD_LETTERED jobs can be deleted"
            )

    async def health(self) -> Health:
        database = await self._store_check.answer()
        # The server works without the other parts, but the store is slower, and events wait.
        parts = [database, *self._store.components()]
        if database.ok:
            others = (self._leader_check, self._stream_check)
            parts += await asyncio.gather(*(one.answer() for one in others if one))
        return Health(database.ok, self._settings.version, parts)
