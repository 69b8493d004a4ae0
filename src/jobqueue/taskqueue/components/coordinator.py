"""Serves workers: it judges who is alive, and carries out dispatch and the end of a job.

Dispatch: take from the queue, compare-and-set QUEUED -> RUNNING, assign. Taking is final, so a job
that was taken stays in here until its fate is known: after a lost answer, the next fetch asks again
under the same request id.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jobqueue.core.clock import Clock, SystemClock
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
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds until a job that met a defect is tried again
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
    """A job that is out of the queue, and the id of its compare-and-set.

    ``asked``: the compare-and-set was sent, so the job may be RUNNING. After a defect the job is
    not tried again before ``due``, and after the next one it waits twice as long.
    """

    job_id: str
    request_id: str = field(default_factory=new_request_id)
    asked: bool = False
    pause: float = _FIRST_PAUSE
    due: float = -math.inf


class Coordinator:
    """Dispatch and liveness over the three owners."""

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
        self._nowhere: dict[str, bool] = {}  # RUNNING jobs that no worker has: was it told?
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to judge workers."""
        self._watches = [asyncio.create_task(self._look()), asyncio.create_task(self._search())]

    async def stop(self, seconds: float = _SETTLE_SECONDS) -> None:
        """Let the calls under way end: they need a few seconds at most."""
        await self._protocols.settle(min(seconds, _SETTLE_SECONDS))
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches.clear()
        if self._unanswered:
            count = len(self._unanswered)
            journal.anomaly(
                f"stopped with {count} dequeues unanswered: as many jobs may be out of the queue"
            )
        for taken in self._taken:
            if taken.asked:
                journal.anomaly(
                    "the job may be RUNNING, but no worker was given it", job_id=taken.job_id
                )
        await asyncio.gather(*(self._put_back(taken.job_id) for taken in self._taken))
        self._taken.clear()

    @property
    def workers(self) -> int:
        """The number of workers that are alive."""
        return self._liveness.workers

    @property
    def assigned(self) -> int:
        """The number of jobs that workers have been given and not reported."""
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
                "worker_available", "a worker is available", worker_id=worker_id, capacity=capacity
            )
        # It came back before it was missed, so nothing else reports its jobs.
        if jobs := self._liveness.started_anew(worker_id, incarnation):
            journal.warn(
                journal.STATE_LOST,
                "a worker was restarted; the jobs that it was running stay RUNNING",
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
            await asyncio.sleep(self._worker_timeout)  # every worker that lives has been heard
            try:
                await self.find_lost()
            except JobQueueError as error:
                journal.note(
                    "search_failed", f"cannot look for RUNNING jobs: {error.message}; trying again"
                )
            except Exception:  # a defect; the next look may pass
                journal.log.exception(
                    "cannot look for RUNNING jobs; trying again", extra={"event": "search_failed"}
                )

    def look(self) -> None:
        """Log the workers that fell silent."""
        for worker_id, jobs in self._liveness.silent():
            journal.warn(
                "worker_unavailable",
                "a worker stopped its heartbeats and gets no more work"
                + ("; its jobs stay RUNNING" if jobs else ""),
                worker_id=worker_id,
                job_ids=jobs,
            )

    async def find_lost(self) -> None:
        """Log RUNNING jobs that no worker has, and end those with a cancel request.

        On its way to a worker, too, a job is with none: it is lost if the round before missed it as
        well.
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
                self._tell_nowhere(job.job_id, "its cancel is finished")
            elif not told[job.job_id]:
                self._tell_nowhere(job.job_id, "it is lost until CancelJob ends it")
                self._nowhere[job.job_id] = True

    def _has(self, job_id: str) -> bool:
        """Return whether a worker has the job, or is about to get it."""
        return (
            self._liveness.has(job_id)
            or job_id in self._starting
            or any(taken.job_id == job_id for taken in self._taken)
        )

    def _tell_nowhere(self, job_id: str, what: str) -> None:
        journal.warn("running_nowhere", f"no worker has this RUNNING job: {what}", job_id=job_id)

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
                "a worker without heartbeats asked for a job and got none",
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
        except asyncio.CancelledError:  # by the stop, which puts it back
            self._taken.append(taken)
            raise
        finally:
            self._starting.discard(taken.job_id)
        if record is None:
            return Work(retry_after_ms=RETRY_AFTER_RANGE_MS[0])  # there may be others
        return Work(taken.job_id, record.spec)

    async def _take(self, worker_id: str) -> _Taken | None:
        """Return a job that is out of the queue already, or the first one of the queue."""
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
        """Make the job RUNNING; return its record, or None if it cannot be given to a worker.

        The spec is read before the compare-and-set: a read that fails after it would leave a
        RUNNING job without a worker.
        """
        job_id = taken.job_id
        try:
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
            "a queued job is unknown to its owner: its submit was undone, or the owner started"
            " anew",
            job_id=job_id,
        )

    async def _keep(self, taken: _Taken, error: JobQueueError) -> None:
        """Keep a job that is out of the queue and may have started, so that the next fetch asks
        again.

        A defect is likely to be met again, and must not hold up other jobs: the job waits, or goes
        to the end of the queue if it cannot be RUNNING.
        """
        if error.code is Code.INTERNAL and taken.asked:
            journal.warn(
                "start_failed",
                f"it is unknown whether a job was started: {error.message}; asking again in"
                f" {taken.pause:g} s",
                job_id=taken.job_id,
            )
            taken.due = self._monotonic() + taken.pause
            taken.pause = min(2 * taken.pause, _LONGEST_PAUSE)
            self._taken.append(taken)
            return
        if error.code in _TRANSIENT:
            self._taken.append(taken)
            return
        journal.anomaly(f"a queued job could not be started: {error.message}", job_id=taken.job_id)
        await self._put_back(taken.job_id)

    async def _end_unstarted(self, job_id: str) -> bool:
        """End a job canceled between take and start. False: the worker's report ends it."""
        envelope = Envelope(job_id, Status.CANCELED, output_summary=CANCELED_UNSTARTED)
        with deadline(None):
            try:
                await self._end(envelope)
            except JobQueueError:
                return False
        return True

    async def _lost(self, taken: _Taken) -> None:
        """Put a job back that the compare-and-set did not start, if it is still QUEUED."""
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
            "taken from the queue, but not started: its status changed before",
            job_id=job_id,
            expected_status=Status.QUEUED.name,
            current_status=status.name,
        )
        if status is Status.QUEUED and not await self._put_back(job_id):
            self._taken.append(_Taken(job_id))

    async def _put_back(self, job_id: str) -> bool:
        """Try once to put the job back into the queue, and log the outcome."""
        if failure := await put_back(self._queue, job_id, self._now_ms()):
            journal.anomaly(f"a QUEUED job could not be put back: {failure}", job_id=job_id)
        else:
            journal.warn(journal.RESCUE, "a job was put back into the queue", job_id=job_id)
        return not failure

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
            self._refused(report, f"the job was given to {owner}", summary.status)
            return False
        if summary.status is Status.QUEUED:
            self._refused(report, "the job is not running", summary.status)
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
            self._refused(report, "the job has ended otherwise", ended)
        return accepted

    async def _end(self, envelope: Envelope) -> Stored:
        """Store the envelope, then set the status that the kept envelope has."""
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
                "another end came first; this one is ignored",
                level=logging.INFO if answer.current is final else logging.WARNING,
                job_id=job_id,
                expected_status=final.name,
                current_status=answer.current.name if answer.current else "",
            )
        return stored

    def _refused(self, report: Report, why: str, status: Status) -> None:
        journal.warn(
            "report_ignored",
            f"a report of {report.outcome.name} is ignored: {why}",
            job_id=report.job_id,
            worker_id=report.worker_id,
            current_status=status.name,
        )

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


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
    """Return the reason of the kept end, if it is known; of DONE, an empty text."""
    if stored.current is Status.DONE:
        return ""
    if envelope.status is stored.current:
        return envelope.output_summary
    if stored.current is Status.CANCELED:
        return ""
    return OUTPUT_TOO_LARGE if stored.stored else NO_REASON
