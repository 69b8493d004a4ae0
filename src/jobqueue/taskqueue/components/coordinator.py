"""Serve workers: track which of them are alive, hand out jobs, and end jobs.

A dispatch takes a job from the queue, changes it from QUEUED to RUNNING by a compare-and-set, and
assigns it to a worker. The queue does not keep a job that was taken. The coordinator therefore
keeps the job until it is RUNNING, ended or back in the queue. After a lost answer, the next fetch
repeats the compare-and-set with the same request id.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jobqueue.core.clock import Clock, SystemClock, milliseconds
from jobqueue.core.errors import Code, JobQueueError, NotFound
from jobqueue.core.waiting import deadline
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.liveness import Liveness
from jobqueue.taskqueue.components.model import (
    CANCELED_LOST,
    CANCELED_RUNNING,
    CANCELED_UNSTARTED,
    HEARTBEAT_INTERVAL_MS,
    MAX_PAGE_SIZE,
    MAX_SUMMARY,
    OUTPUT_TOO_LARGE,
    RETRY_AFTER_MS,
    RETRY_AFTER_RANGE_MS,
    WORKER_TIMEOUT_MS,
    Actor,
    Envelope,
    JobRecord,
    Listing,
    Report,
    Sort,
    Status,
    Stored,
    Summary,
    Work,
    WorkOutcome,
    clamp_hint,
)
from jobqueue.taskqueue.components.protocols import (
    JobOwner,
    QueueOwner,
    ResultOwner,
    is_uncertain,
    new_request_id,
    put_back,
)
from jobqueue.taskqueue.components.repeats import Protocols
from jobqueue.taskqueue.components.requests import check_worker_id

NO_REASON = "failed, and the worker gave no reason"
_SETTLE_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds until a job is retried after an internal error
_RUNNING = Listing(frozenset({Status.RUNNING}), Sort.CREATED_AT_ASC, limit=MAX_PAGE_SIZE)
_TRANSIENT = frozenset(
    {Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED, Code.QUEUE_FULL}
)
_ENDS = {
    WorkOutcome.SUCCEEDED: Status.DONE,
    WorkOutcome.FAILED: Status.FAILED,
    WorkOutcome.CANCELED: Status.CANCELED,
}


@dataclass(slots=True)
class _Taken:
    """Holds a job that was taken from the queue, and the request id of its compare-and-set.

    ``asked`` is True if the compare-and-set was sent, so that the job may be RUNNING. After an
    internal error the job is not retried before the time ``due``, and the delay ``pause`` doubles.
    """

    job_id: str
    request_id: str = field(default_factory=new_request_id)
    asked: bool = False
    pause: float = _FIRST_PAUSE
    due: float = -math.inf


class Coordinator:
    """Hands out jobs to workers and ends jobs, by calls to the job, queue and result owners."""

    def __init__(
        self,
        jobs: JobOwner,
        queue: QueueOwner,
        results: ResultOwner,
        *,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        worker_timeout_ms: int = WORKER_TIMEOUT_MS,
        retry_after_ms: int = RETRY_AFTER_MS,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._queue = queue
        self._results = results
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._retry_after_ms = clamp_hint(retry_after_ms)
        self._clock = clock or SystemClock()
        self._liveness = Liveness(worker_timeout_ms, monotonic)
        self._worker_timeout = worker_timeout_ms / 1000
        self._look_every = self._worker_timeout / 8
        self._monotonic = monotonic
        self._protocols = Protocols()
        self._taken: deque[_Taken] = deque()
        self._starting: set[str] = set()
        self._unanswered: list[str] = []  # request ids of takes
        self._nowhere: dict[str, bool] = {}  # RUNNING jobs without a worker -> was that logged?
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start to search for silent workers and for RUNNING jobs that no worker has."""
        self._watches = [asyncio.create_task(self._look()), asyncio.create_task(self._search())]

    async def stop(self, seconds: float = _SETTLE_SECONDS) -> None:
        """Wait at most ``seconds`` for running calls to end, then put unassigned jobs back."""
        await self._protocols.settle(min(seconds, _SETTLE_SECONDS))
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches.clear()
        if self._unanswered:
            count = len(self._unanswered)
            journal.anomaly(
                f"this process stops while {count} dequeues have no answer: up to {count} QUEUED"
                " jobs may be missing from the queue"
            )
        for taken in self._taken:
            if taken.asked:
                journal.anomaly(
                    "this process stops while a job may be RUNNING that no worker was given",
                    job_id=taken.job_id,
                )
        await asyncio.gather(*(self._put_back(taken.job_id) for taken in self._taken))
        self._taken.clear()

    @property
    def workers(self) -> int:
        """Return the number of workers that are alive."""
        return self._liveness.workers

    @property
    def assigned(self) -> int:
        """Return the number of jobs that were given to workers and have not ended."""
        return self._liveness.given

    # -- liveness --------------------------------------------------------------------------------

    async def heartbeat(
        self,
        worker_id: str,
        at_ms: int,
        capacity: int,
        *,
        incarnation: str = "",
        running: Sequence[str] = (),
    ) -> int:
        check_worker_id(worker_id)
        if self._liveness.beat(worker_id):
            journal.note(
                "worker_available",
                f"worker {worker_id} is available: it sends heartbeats and may get jobs",
                worker_id=worker_id,
                capacity=capacity,
            )
        # It came back before it was found silent, so nothing else logs its lost jobs.
        if jobs := self._liveness.started_anew(worker_id, incarnation):
            journal.warn(
                journal.STATE_LOST,
                f"worker {worker_id} was restarted and has lost its {len(jobs)} jobs; they stay"
                " RUNNING",
                worker_id=worker_id,
                job_ids=jobs,
            )
        self._liveness.runs(worker_id, running)
        return self._heartbeat_interval_ms

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_every)
            self.look()

    async def _search(self) -> None:
        while True:
            # After this time, every living worker has sent a heartbeat.
            await asyncio.sleep(self._worker_timeout)
            try:
                await self.find_lost()
            except JobQueueError as error:
                journal.note(
                    "search_failed",
                    f"cannot look for RUNNING jobs that no worker has: {error.message}; trying"
                    f" again in {self._worker_timeout:g} s",
                )
            except Exception:  # a defect; the next search may succeed
                journal.log.exception(
                    f"cannot look for RUNNING jobs that no worker has; trying again in"
                    f" {self._worker_timeout:g} s",
                    extra={"event": "search_failed"},
                )

    def look(self) -> None:
        """Log the workers that no longer send heartbeats, with their jobs."""
        for worker_id, jobs in self._liveness.silent():
            journal.warn(
                "worker_unavailable",
                f"worker {worker_id} stopped its heartbeats and gets no more jobs"
                + (f"; its {len(jobs)} jobs stay RUNNING" if jobs else ""),
                worker_id=worker_id,
                job_ids=jobs,
            )

    async def find_lost(self) -> None:
        """Log RUNNING jobs that no worker has, and end those that have a cancel request.

        A job that is being handed to a worker also has no worker for a moment. A job therefore
        counts as lost only if two searches in a row found no worker for it.
        """
        running: list[Summary] = []
        offset: int | None = 0
        while offset is not None:
            page = await self._jobs.list(replace(_RUNNING, offset=offset))
            running += page.jobs
            offset = page.next_offset
        told = self._nowhere
        nowhere = [job for job in running if not self._has(job.job_id)]
        self._nowhere = {job.job_id: told.get(job.job_id, False) for job in nowhere}
        for job in nowhere:
            if job.job_id not in told or self._has(job.job_id):
                continue
            if job.cancel_requested:
                await self._end(Envelope(job.job_id, Status.CANCELED, output_summary=CANCELED_LOST))
                self._log_lost(job.job_id, "it ends now, because a cancel was requested")
            elif not told[job.job_id]:
                self._log_lost(job.job_id, "it stays RUNNING until CancelJob ends it")
                self._nowhere[job.job_id] = True

    def _has(self, job_id: str) -> bool:
        """Return True if a worker has the job, or is about to get it."""
        return (
            self._liveness.has(job_id)
            or job_id in self._starting
            or any(taken.job_id == job_id for taken in self._taken)
        )

    def _log_lost(self, job_id: str, then: str) -> None:
        journal.warn(
            "running_nowhere", f"no worker has the RUNNING job {job_id}: {then}", job_id=job_id
        )

    # -- dispatch --------------------------------------------------------------------------------

    async def fetch(self, worker_id: str, *, request_id: str) -> Work:
        check_worker_id(worker_id)
        what = ("fetch", worker_id)
        return await self._protocols.once(what, request_id, lambda: self._fetch(worker_id))

    async def _fetch(self, worker_id: str) -> Work:
        idle = Work(retry_after_ms=self._retry_after_ms)
        if not self._liveness.alive(worker_id):
            journal.note(
                "worker_not_alive",
                f"worker {worker_id} asked for a job and got none, because it sends no heartbeats",
                worker_id=worker_id,
            )
            return idle
        taken = await self._take(worker_id)
        if taken is None:
            return idle
        if not self._liveness.alive(worker_id):  # it fell silent while the queue was slow
            self._taken.append(taken)
            return idle
        self._starting.add(taken.job_id)
        try:
            record = await self._start(taken)
            if record is not None:
                self._liveness.give(worker_id, taken.job_id)
        except asyncio.CancelledError:  # ``stop`` cancels this call and puts the job back
            self._taken.append(taken)
            raise
        finally:
            self._starting.discard(taken.job_id)
        if record is None:
            return Work(retry_after_ms=RETRY_AFTER_RANGE_MS[0])  # other jobs may wait
        return Work(taken.job_id, record.spec)

    async def _take(self, worker_id: str) -> _Taken | None:
        """Return a job that was taken from the queue before, else the queue's first job."""
        now = self._monotonic()
        if due := next((taken for taken in self._taken if taken.due <= now), None):
            self._taken.remove(due)
            return due
        request_id = self._unanswered.pop() if self._unanswered else new_request_id()
        try:
            job_id = await self._queue.dequeue(worker_id, request_id=request_id)
        except asyncio.CancelledError:
            self._unanswered.append(request_id)
            raise
        except JobQueueError as error:
            if is_uncertain(error):
                self._unanswered.append(request_id)
            raise
        return None if job_id is None else _Taken(job_id)

    async def _start(self, taken: _Taken) -> JobRecord | None:
        """Make the job RUNNING; return its record, or None if it cannot be given to a worker."""
        job_id = taken.job_id
        try:
            # Read first: a read that fails after the compare-and-set would leave a RUNNING job
            # without a worker.
            record = await self._jobs.get(job_id)
            taken.asked = True
            answer = await self._jobs.transition(
                job_id,
                Status.QUEUED,
                Status.RUNNING,
                actor=Actor.COORDINATOR,
                request_id=taken.request_id,
            )
        except NotFound:
            self._unknown(job_id)
            return None
        except JobQueueError as error:
            await self._keep(taken, error)
            raise
        if not answer.applied:
            await self._lost(taken)
            return None
        if record.summary.cancel_requested and await self._end_unstarted(job_id):
            return None
        return record

    def _unknown(self, job_id: str) -> None:
        journal.warn(
            journal.RACE,
            f"the job service does not know the queued job {job_id}, which is dropped: its submit"
            " was undone, or the job service was restarted and lost its memory",
            job_id=job_id,
        )

    async def _keep(self, taken: _Taken, error: JobQueueError) -> None:
        """Keep a taken job after an error, so that a later fetch retries its start.

        After an internal error the job waits before the next try, because the error is likely to
        repeat and must not delay other jobs. If a retry cannot help, the job goes to the end of
        the queue instead.
        """
        if error.code is Code.INTERNAL and taken.asked:
            journal.warn(
                "start_failed",
                f"it is unknown whether job {taken.job_id} was made RUNNING: {error.message};"
                f" trying again in {taken.pause:g} s",
                job_id=taken.job_id,
            )
            taken.due = self._monotonic() + taken.pause
            taken.pause = min(2 * taken.pause, _LONGEST_PAUSE)
            self._taken.append(taken)
            return
        if error.code in _TRANSIENT:
            self._taken.append(taken)
            return
        journal.anomaly(
            f"cannot make job {taken.job_id} RUNNING: {error.message}; putting it back into the"
            " queue",
            job_id=taken.job_id,
        )
        await self._put_back(taken.job_id)

    async def _end_unstarted(self, job_id: str) -> bool:
        """End a job that was canceled before its start; return False if that fails.

        If the end fails, the job goes to the worker, and the worker's report ends it.
        """
        envelope = Envelope(job_id, Status.CANCELED, output_summary=CANCELED_UNSTARTED)
        with deadline(None):
            try:
                await self._end(envelope)
            except JobQueueError:
                return False
        return True

    async def _lost(self, taken: _Taken) -> None:
        """Put the job back into the queue if it is still QUEUED after a failed compare-and-set."""
        job_id = taken.job_id
        try:
            status = (await self._jobs.get(job_id)).summary.status
        except NotFound:
            self._unknown(job_id)
            return
        except JobQueueError as error:
            await self._keep(_Taken(job_id), error)
            raise
        journal.note(
            journal.RACE,
            f"job {job_id} was taken from the queue but not started: it is {status.name} already"
            if status is not Status.QUEUED
            else f"job {job_id} was taken from the queue but not started; it is put back",
            job_id=job_id,
            expected_status=Status.QUEUED.name,
            current_status=status.name,
        )
        if status is Status.QUEUED and not await self._put_back(job_id):
            self._taken.append(_Taken(job_id))

    async def _put_back(self, job_id: str) -> bool:
        retries = "a later fetch or the reconciler retries"
        now_ms = milliseconds(self._clock.now())
        return await put_back(self._queue, job_id, now_ms, retries=retries)

    # -- the end of a job ------------------------------------------------------------------------

    async def report(self, report: Report, *, request_id: str) -> bool:
        check_worker_id(report.worker_id)
        what = ("report", report.worker_id, report.job_id, report.outcome)
        return await self._protocols.once(what, request_id, lambda: self._report(report))

    async def _report(self, report: Report) -> bool:
        job_id = report.job_id
        summary = (await self._jobs.get(job_id)).summary
        owner = self._liveness.owner(job_id)
        if owner is not None and owner != report.worker_id:
            self._refused(report, f"the job was given to worker {owner}", summary.status)
            return False
        if summary.status is Status.QUEUED:
            self._refused(report, "the job is still QUEUED", summary.status)
            return False
        said = _ENDS[report.outcome]
        wanted = Status.CANCELED if summary.cancel_requested else said
        ended: Status = summary.status
        ours = False
        if ended.terminal:
            self._liveness.take(job_id)
        else:
            stored = await self._end(_envelope(report, wanted))
            ended, ours = stored.current, stored.stored
        accepted = ours or ended in (wanted, said)
        if not accepted:
            self._refused(report, f"the job has ended as {ended.name}", ended)
        return accepted

    async def _end(self, envelope: Envelope) -> Stored:
        """Store the envelope unless the job has one, then give the job its envelope's status."""
        job_id = envelope.job_id
        stored = await self._results.store(envelope, request_id=new_request_id())
        final = stored.current
        answer = await self._jobs.transition(
            job_id,
            Status.RUNNING,
            final,
            actor=Actor.COORDINATOR,
            reason=_reason(envelope, stored),
            request_id=new_request_id(),
        )
        self._liveness.take(job_id)
        if not answer.applied:
            journal.note(
                "terminal_race",
                f"job {job_id} has ended already; this change to {final.name} is ignored",
                level=logging.INFO if answer.current is final else logging.WARNING,
                job_id=job_id,
                expected_status=final.name,
                current_status=answer.current.name if answer.current else "",
            )
        return stored

    def _refused(self, report: Report, why: str, status: Status) -> None:
        journal.warn(
            "report_ignored",
            f"ignored the report {report.outcome.name} of worker {report.worker_id} for job"
            f" {report.job_id}: {why}",
            job_id=report.job_id,
            worker_id=report.worker_id,
            current_status=status.name,
        )


def _envelope(report: Report, status: Status) -> Envelope:
    if status is Status.CANCELED:
        return Envelope(
            report.job_id, status, runtime_ms=report.runtime_ms, output_summary=CANCELED_RUNNING
        )
    summary = report.output_summary
    if status is Status.FAILED:
        summary = report.failure_reason or summary or NO_REASON
    return Envelope(
        report.job_id,
        status,
        runtime_ms=report.runtime_ms,
        output_summary=summary[:MAX_SUMMARY],
        output=report.output,
        checksum=report.checksum,
    )


def _reason(envelope: Envelope, stored: Stored) -> str:
    """Return the reason for a job's final status; empty if it is DONE or has no known reason."""
    if stored.current is Status.DONE:
        return ""
    if envelope.status is stored.current:
        return envelope.output_summary
    if stored.current is Status.CANCELED:
        return ""
    return OUTPUT_TOO_LARGE if stored.stored else NO_REASON
