"""Serve clients: carry out submit, result and cancel by calls to other parts.

The gateway itself stores no job. The specification fixes the order of the calls. Comments say what
happens when a call fails or its answer is lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from jobqueue.core.clock import Clock, SystemClock, milliseconds
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
    """Implements the public API by calls to the job, queue and result owners."""

    def __init__(
        self, jobs: JobOwner, queue: QueueOwner, results: ResultOwner, *, clock: Clock | None = None
    ) -> None:
        self._jobs = jobs
        self._queue = queue
        self._results = results
        self._clock = clock or SystemClock()
        self._protocols = Protocols()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by key
        # Deletes without an answer: job id -> request id.
        self._undoing: OrderedDict[str, str] = OrderedDict()

    async def stop(self, seconds: float = _SETTLE_SECONDS) -> None:
        """Wait at most ``seconds`` for running calls to end, then cancel the others."""
        await self._protocols.settle(min(seconds, _SETTLE_SECONDS))

    # -- submit: create, enqueue; if that fails, undo the create ---------------------------------

    async def submit(self, spec: Spec, key: str) -> Submitted:
        check_spec(spec)
        check_key(key)
        # One submit at a time for each key: a second caller must not get the id of a job that the
        # first submit is about to delete. A caller that leaves while it waits has changed nothing.
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
            with in_hand("the job may be QUEUED but missing from the queue", created.job_id):
                return await self._enqueue(created)
        finally:
            lock.release()

    async def _create(self, spec: Spec, key: str) -> CreatedJob:
        request_id = new_request_id()
        try:
            return await self._jobs.create(spec, key, request_id=request_id)
        except JobQueueError as error:
            if is_uncertain(error):  # only the lost answer had the id of the job
                journal.anomaly(
                    f"a submit failed, but its job may exist: {error.message}; if it exists, the"
                    " reconciler puts it into the queue",
                    request_id=request_id,
                )
            raise

    async def _enqueue(self, created: CreatedJob) -> Submitted:
        # An existing job may be missing from the queue, if its creator died before it enqueued the
        # job. Enqueueing it again is harmless: the queue holds each job once, and a job that was
        # taken before is not QUEUED when it is taken for the second time.
        try:
            enqueued = await self._queue.enqueue(
                created.job_id, milliseconds(self._clock.now()), request_id=new_request_id()
            )
        except JobQueueError as error:
            failure: JobQueueError = Unavailable(
                f"the job could not be queued: {error.message}; submit it again"
            )
        else:
            if enqueued:
                return self._accepted(created)
            failure = QueueFull("the queue is full: submit the job again later")
        if created.created:
            answer = await self._undo(created.job_id)
            if answer is not None and answer.current is not None:
                # The job was taken from the queue: only the answer to the enqueue was lost.
                journal.note(
                    journal.RACE,
                    f"job {created.job_id} was queued although the answer to the enqueue was lost;"
                    " its submit is accepted",
                    job_id=created.job_id,
                )
                return self._accepted(created)
        raise failure

    async def _undo(self, job_id: str) -> Applied | None:
        """Delete the job if it is still QUEUED; return None if the outcome is unknown."""
        request_id = self._undoing.pop(job_id, "") or new_request_id()
        with deadline(None):  # also after the client has left
            try:
                answer = await self._jobs.delete_if(job_id, Status.QUEUED, request_id=request_id)
            except JobQueueError as error:
                journal.anomaly(
                    f"cannot undo the submit of job {job_id}: {error.message}; the next submit with"
                    " its key, or the reconciler, tries again",
                    job_id=job_id,
                )
                self._undoing[job_id] = request_id
                if len(self._undoing) > _MAX_UNDOING:
                    self._undoing.popitem(last=False)
                return None
        if answer.applied:
            journal.warn(
                "compensated",
                f"job {job_id} could not be queued, so it was deleted again",
                job_id=job_id,
            )
        return answer

    async def _undone(self, created: CreatedJob, spec: Spec, key: str) -> CreatedJob:
        """Repeat the delete of a failed submit's job; return the job that has the key afterwards.

        The first delete got no answer and may still arrive. Until its outcome is known, no submit
        may accept the job.
        """
        answer = await self._undo(created.job_id)
        if answer is None:
            raise Unavailable(
                "client_request_id: an earlier submit with this id failed and is not undone yet;"
                " submit again"
            )
        if answer.current is None:
            return await self._create(spec, key)
        return CreatedJob(created.job_id, answer.current, created=False)

    def _accepted(self, created: CreatedJob) -> Submitted:
        return Submitted(created.job_id, milliseconds(self._clock.now()))

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
                f"job {job_id} is {status.name}, but the status of its result is {kept};"
                " GetJobResult fails with UNAVAILABLE",
                job_id=job_id,
                current_status=status.name,
            )
            raise Unavailable(
                f"job {job_id} is {status.name}, but its result is missing or has another status;"
                " try again"
            )
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
            with in_hand("the job may be QUEUED but missing from the queue", job_id):
                ended = await self._cancel_queued(job_id, reason, again=job.cancel_requested)
            if ended is not None:
                return Canceled(job_id, True, ended, already_terminal=False)
        return await self._request_cancel(job_id, reason)

    async def _cancel_queued(self, job_id: str, reason: str, *, again: bool) -> Status | None:
        """End a queued job; return its final status, or None if it did not end.

        With ``again``, an earlier cancel did not find the job in the queue. The job then ends even
        if it is still missing from the queue.
        """
        try:
            removed = await self._queue.remove(job_id, request_id=new_request_id())
        except JobQueueError as error:
            if is_uncertain(error):
                await self._put_back(job_id, "because a cancel of it got no answer")
            raise
        if not removed and not again:
            return None
        # If a worker gets the job at this moment, only one of the two compare-and-sets succeeds.
        try:
            status = await self._end_queued(job_id, reason)
        except JobQueueError:
            await self._put_back(job_id, "because a cancel of it failed")
            raise
        if status is Status.QUEUED:
            await self._put_back(job_id, "because a cancel of it had no effect")
        return status if status.terminal else None

    async def _end_queued(self, job_id: str, reason: str) -> Status:
        """Store a CANCELED envelope, then make the QUEUED job CANCELED; return its status."""
        envelope = Envelope(job_id, Status.CANCELED, output_summary=CANCELED_UNSTARTED)
        stored = await self._results.store(envelope, request_id=new_request_id())
        if stored.current is not Status.CANCELED:
            journal.anomaly(
                f"the queued job {job_id} already has a result, which is {stored.current.name}; the"
                " result stays",
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
            journal.note(
                "canceled",
                f"job {job_id} was canceled while it was QUEUED",
                job_id=job_id,
                reason=reason,
            )
        return answer.current

    async def _put_back(self, job_id: str, why: str) -> None:
        """Put a job back into the queue after a cancel failed.

        If the CANCELED envelope was stored, it stays: the job runs, but ends as CANCELED. If the
        job is no longer QUEUED, the coordinator drops the job when it takes it from the queue.
        """
        retries = "the reconciler tries again"
        now_ms = milliseconds(self._clock.now())
        await put_back(self._queue, job_id, now_ms, why=why, retries=retries)

    async def _request_cancel(self, job_id: str, reason: str) -> Canceled:
        answer = await self._jobs.request_cancel(job_id, reason, request_id=new_request_id())
        assert answer.current is not None
        journal.note(
            "cancel_requested",
            f"a cancel of job {job_id} was requested; its status is {answer.current.name}",
            job_id=job_id,
            reason=reason,
            current_status=answer.current.name,
        )
        return Canceled(job_id, True, answer.current, already_terminal=False)

    # -- QUEUED jobs that are missing from the queue ---------------------------------------------

    async def settle(self, job: Summary) -> None:
        """Finish the submit or cancel of a QUEUED job that is missing from the queue.

        The job is deleted, canceled or put back into the queue.
        """
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
            f"the QUEUED job {job_id} is missing from the queue: "
            + ("it ends now, because it was canceled" if canceled else "it is put back"),
            job_id=job_id,
        )
        if canceled:
            await self._end_queued(job_id, "an earlier cancel that was not finished")
        else:
            await self._put_back(job_id, "because it was missing from the queue")
