"""Serves clients: it owns no job, and carries out submit, result and cancel over the owners.

The order of the calls is the document's. Comments say what happens when a call in the middle fails,
or its answer is lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.errors import JobQueueError, QueueFull, Unavailable
from jobqueue.core.waiting import deadline
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import (
    CANCELED_UNSTARTED,
    Actor,
    Applied,
    Canceled,
    CreatedJob,
    Envelope,
    JobRecord,
    Listing,
    Spec,
    Status,
    Submitted,
    Summary,
    SummaryPage,
)
from jobqueue.taskqueue.components.protocols import (
    JobOwner,
    QueueOwner,
    ResultOwner,
    is_uncertain,
    new_request_id,
    put_back,
)
from jobqueue.taskqueue.components.repeats import Protocols, in_hand
from jobqueue.taskqueue.components.requests import check_key, check_reason, check_spec

_SETTLE_SECONDS = 2.0
_MAX_UNDOING = 10_000


class Gateway:
    """The public API over the three owners."""

    def __init__(
        self, jobs: JobOwner, queue: QueueOwner, results: ResultOwner, *, clock: Clock | None = None
    ) -> None:
        self._jobs = jobs
        self._queue = queue
        self._results = results
        self._clock = clock or SystemClock()
        self._protocols = Protocols()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by key
        self._undoing: OrderedDict[str, str] = OrderedDict()  # unanswered deletes: job, request

    async def stop(self, seconds: float = _SETTLE_SECONDS) -> None:
        """Let the calls under way end: they need a few seconds at most."""
        await self._protocols.settle(min(seconds, _SETTLE_SECONDS))

    # -- submit: create, enqueue; if that fails, undo the create ---------------------------------

    async def submit(self, spec: Spec, key: str) -> Submitted:
        check_spec(spec)
        check_key(key)
        # One at a time for each key: a second caller must not be told of a job that the first is
        # about to undo. Who leaves while waiting for that has begun nothing.
        lock = asyncio.Lock()
        if key:
            lock = self._locks.setdefault(key, lock)
        await lock.acquire()
        return await self._protocols.run(self._submit(spec, key, lock))

    async def _submit(self, spec: Spec, key: str, lock: asyncio.Lock) -> Submitted:
        try:
            created = await self._create(spec, key)
            if created.job_id in self._undoing:
                created = await self._undone(created, spec, key)
            if not created.created and created.status is not Status.QUEUED:
                return self._accepted(created)
            with in_hand("a job may exist that is not in the queue", created.job_id):
                return await self._enqueue(created)
        finally:
            lock.release()

    async def _create(self, spec: Spec, key: str) -> CreatedJob:
        request_id = new_request_id()
        try:
            return await self._jobs.create(spec, key, request_id=request_id)
        except JobQueueError as error:
            if is_uncertain(error):  # only the answer knows the id of the job
                journal.anomaly(
                    "a job may exist that is not in the queue; if so, it is queued later: "
                    + error.message,
                    request_id=request_id,
                )
            raise

    async def _enqueue(self, created: CreatedJob) -> Submitted:
        # An older job may be missing from the queue, if its creator died in between.
        # Enqueueing it again is harmless: it is there once, or was taken, and then it is not
        # QUEUED when it is taken for the second time.
        try:
            enqueued = await self._queue.enqueue(
                created.job_id, self._now_ms(), request_id=new_request_id()
            )
        except JobQueueError as error:
            failure: JobQueueError = Unavailable(f"the job could not be queued: {error.message}")
        else:
            if enqueued:
                return self._accepted(created)
            failure = QueueFull("the queue is full")
        if created.created:
            answer = await self._undo(created.job_id)
            if answer is not None and answer.current is not None:
                # It has been taken from the queue: only the answer to the enqueue was lost.
                journal.note(
                    journal.RACE,
                    "the job was queued, although the answer was lost",
                    job_id=created.job_id,
                )
                return self._accepted(created)
        raise failure

    async def _undo(self, job_id: str) -> Applied | None:
        """Delete the job if it is still QUEUED. None: it is unknown whether it is deleted."""
        request_id = self._undoing.pop(job_id, "") or new_request_id()
        with deadline(None):  # though the client may have left
            try:
                answer = await self._jobs.delete_if(job_id, Status.QUEUED, request_id=request_id)
            except JobQueueError as error:
                journal.anomaly(
                    "a job was created; it is unknown whether it is queued, or deleted again: "
                    + error.message,
                    job_id=job_id,
                )
                self._undoing[job_id] = request_id
                if len(self._undoing) > _MAX_UNDOING:
                    self._undoing.popitem(last=False)
                return None
        if answer.applied:
            journal.warn(
                "compensated", "could not be queued, so it is deleted again", job_id=job_id
            )
        return answer

    async def _undone(self, created: CreatedJob, spec: Spec, key: str) -> CreatedJob:
        """Return the job that a key stands for, after a delete of its first job was not answered.

        That delete may still arrive, so the first job must not be reported as accepted.
        """
        answer = await self._undo(created.job_id)
        if answer is None:
            raise Unavailable(
                "an earlier submit of this client_request_id is not undone yet; try again"
            )
        if answer.current is None:
            return await self._create(spec, key)
        return CreatedJob(created.job_id, answer.current, created=False)

    def _accepted(self, created: CreatedJob) -> Submitted:
        return Submitted(created.job_id, self._now_ms())

    # -- reads -----------------------------------------------------------------------------------

    async def status(self, job_id: str) -> JobRecord:
        return await self._jobs.get(job_id)

    async def result(self, job_id: str) -> Envelope | None:
        status = (await self._jobs.get(job_id)).summary.status
        if not status.terminal:
            return None
        envelope = await self._results.get(job_id)
        if envelope is None or envelope.status is not status:
            kept = "none" if envelope is None else envelope.status.name
            journal.anomaly(
                f"the job is {status.name}, its result is {kept}",
                job_id=job_id,
                current_status=status.name,
            )
            raise Unavailable("the result of this job cannot be read now")
        return envelope

    async def list(self, listing: Listing) -> SummaryPage:
        return await self._jobs.list(listing)

    # -- cancel: queued: remove, envelope, compare-and-set; otherwise: a flag --------------------

    async def cancel(self, job_id: str, reason: str) -> Canceled:
        check_reason(reason)
        return await self._protocols.run(self._cancel(job_id, reason))

    async def _cancel(self, job_id: str, reason: str) -> Canceled:
        job = (await self._jobs.get(job_id)).summary
        status = job.status
        if status.terminal:
            return Canceled(job_id, True, status, already_terminal=True)
        if status is Status.QUEUED:
            with in_hand("a job may be out of the queue", job_id):
                ended = await self._cancel_queued(job_id, reason, again=job.cancel_requested)
            if ended is not None:
                return Canceled(job_id, True, ended, already_terminal=False)
        return await self._request_cancel(job_id, reason)

    async def _cancel_queued(self, job_id: str, reason: str, *, again: bool) -> Status | None:
        """End a queued job; return its status. None: it has left the queue, or is back in it.

        ``again``: an earlier cancel found it out of the queue. If it still is, it ends now; should
        it start at this moment, the compare-and-set has one winner.
        """
        try:
            removed = await self._queue.remove(job_id, request_id=new_request_id())
        except JobQueueError as error:
            if is_uncertain(error):
                await self._put_back(job_id, "after a cancel that was not answered")
            raise
        if not removed and not again:
            return None
        try:
            status = await self._end_queued(job_id, reason)
        except JobQueueError:
            await self._put_back(job_id, "after an unfinished cancel")
            raise
        if status is Status.QUEUED:
            await self._put_back(job_id, "after an unfinished cancel")
        return status if status.terminal else None

    async def _end_queued(self, job_id: str, reason: str) -> Status:
        """Store the envelope, then compare-and-set; return the status afterwards."""
        envelope = Envelope(job_id, Status.CANCELED, output_summary=CANCELED_UNSTARTED)
        stored = await self._results.store(envelope, request_id=new_request_id())
        if stored.current is not Status.CANCELED:
            journal.anomaly(
                "a queued job has a result already",
                job_id=job_id,
                current_status=stored.current.name,
            )
        answer = await self._jobs.transition(
            job_id,
            Status.QUEUED,
            Status.CANCELED,
            actor=Actor.GATEWAY,
            reason=reason,
            request_id=new_request_id(),
        )
        assert answer.current is not None
        if answer.applied:
            journal.note("canceled", "a queued job was canceled", job_id=job_id, reason=reason)
        return answer.current

    async def _put_back(self, job_id: str, when: str) -> None:
        """Put a job back into the queue, however full it is, after half a cancel.

        If its envelope was stored after all, that decides when the job has run. If the job has left
        QUEUED after all, it is not given to a worker when it is taken.
        """
        failure = await put_back(self._queue, job_id, self._now_ms())
        if failure:
            journal.anomaly(f"a queued job may be missing from the queue: {failure}", job_id=job_id)
        else:
            journal.warn(journal.RESCUE, f"a job was put back into the queue {when}", job_id=job_id)

    async def _request_cancel(self, job_id: str, reason: str) -> Canceled:
        answer = await self._jobs.request_cancel(job_id, reason, request_id=new_request_id())
        assert answer.current is not None
        journal.note(
            "cancel_requested",
            "a running job was asked to end",
            job_id=job_id,
            reason=reason,
            current_status=answer.current.name,
        )
        return Canceled(job_id, True, answer.current, already_terminal=False)

    # -- QUEUED, and in no queue -----------------------------------------------------------------

    async def settle(self, job: Summary) -> None:
        """Finish the submit or cancel of a job that is QUEUED and in no queue, or put it back."""
        job_id = job.job_id
        if job_id in self._undoing:
            await self._undo(job_id)
            return
        envelope = await self._results.get(job_id)
        canceled = job.cancel_requested or (
            envelope is not None and envelope.status is Status.CANCELED
        )
        journal.warn(
            journal.NOT_IN_QUEUE,
            "a QUEUED job is in no queue: "
            + ("its cancel is finished" if canceled else "it is put back"),
            job_id=job_id,
        )
        if canceled:
            await self._end_queued(job_id, "a cancel that was left half-way")
        else:
            await self._put_back(job_id, "since it was in no queue")

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)
