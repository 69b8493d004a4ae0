"""What workers talk to: it judges who is alive, and carries out dispatch and the end of a job.

Dispatch: take from the queue, compare-and-set QUEUED -> RUNNING, assign. Taking is final, so what
was taken stays in here until it is known what became of it: an answer that was lost is asked for
again under the same request id, by the next fetch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.errors import Code, JobQueueError, NotFound
from jobqueue.services import journal
from jobqueue.services.liveness import Liveness
from jobqueue.services.model import (
    HEARTBEAT_INTERVAL_MS,
    OUTPUT_TOO_LARGE,
    RETRY_AFTER_MS,
    RETRY_AFTER_RANGE_MS,
    WORKER_TIMEOUT_MS,
    Actor,
    Envelope,
    Outcome,
    Record,
    Report,
    Status,
    Work,
)
from jobqueue.services.protocols import Jobs, Queue, Results, new_request_id
from jobqueue.services.repeats import Protocols
from jobqueue.services.requests import check_worker_id

CANCELED_RUNNING = "canceled while it ran"
MAX_SUMMARY = 4_096
_SETTLE_SECONDS = 2.0
_TRANSIENT = frozenset(
    {Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED, Code.QUEUE_FULL}
)
_ENDS = {
    Outcome.SUCCEEDED: Status.DONE,
    Outcome.FAILED: Status.FAILED,
    Outcome.CANCELED: Status.CANCELED,
}


@dataclass(slots=True)
class _Taken:
    """A job that is out of the queue, and the id of its compare-and-set."""

    job_id: str
    request_id: str = field(default_factory=new_request_id)


class Coordinator:
    """Dispatch and liveness over three owners."""

    def __init__(
        self,
        jobs: Jobs,
        queue: Queue,
        results: Results,
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
        self._look_every = worker_timeout_ms / 1000 / 8
        self._protocols = Protocols()
        self._taken: deque[_Taken] = deque()
        self._unanswered: list[str] = []  # request ids of takes
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to judge workers."""
        self._watch = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Let what was begun end."""
        await self._protocols.settle(_SETTLE_SECONDS)
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._taken:
            journal.anomaly(
                "stopped with jobs taken from the queue and not assigned",
                job_ids=[taken.job_id for taken in self._taken],
            )

    @property
    def workers(self) -> int:
        """Workers that are known."""
        return self._liveness.workers

    @property
    def assigned(self) -> int:
        """Jobs that workers have been given and not reported."""
        return self._liveness.given

    # -- liveness --------------------------------------------------------------------------------

    async def heartbeat(self, worker_id: str, at_ms: int, capacity: int) -> int:
        """Refresh; by this process's clock, not by the worker's."""
        check_worker_id(worker_id)
        if self._liveness.beat(worker_id):
            journal.note(
                "worker_available", "a worker is there", worker_id=worker_id, capacity=capacity
            )
        return self._heartbeat_interval_ms

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_every)
            self.look()

    def look(self) -> None:
        """Tell of the workers that fell silent."""
        for worker_id, jobs in self._liveness.silent():
            journal.warn(
                "worker_unavailable",
                "a worker stopped its heartbeats and gets no more work"
                + ("; its jobs stay RUNNING" if jobs else ""),
                worker_id=worker_id,
                job_ids=jobs,
            )

    # -- dispatch --------------------------------------------------------------------------------

    async def fetch(self, worker_id: str, *, request_id: str) -> Work:
        """A job, once it is RUNNING."""
        check_worker_id(worker_id)
        return await self._protocols.once("fetch", request_id, lambda: self._fetch(worker_id))

    async def _fetch(self, worker_id: str) -> Work:
        if not self._liveness.alive(worker_id):
            journal.warn("worker_not_alive", "no work without heartbeats", worker_id=worker_id)
            return Work(retry_after_ms=self._retry_after_ms)
        taken = await self._take(worker_id)
        if taken is None:
            return Work(retry_after_ms=self._retry_after_ms)
        record = await self._start(taken)
        if record is None:
            return Work(retry_after_ms=RETRY_AFTER_RANGE_MS[0])  # there may be others
        self._liveness.give(worker_id, taken.job_id)
        return Work(taken.job_id, record.spec)

    async def _take(self, worker_id: str) -> _Taken | None:
        """What is already here, or the first of the queue."""
        if self._taken:
            return self._taken.popleft()
        request_id = self._unanswered.pop() if self._unanswered else new_request_id()
        try:
            job_id = await self._queue.dequeue(worker_id, request_id=request_id)
        except JobQueueError as error:
            if error.code in _TRANSIENT:
                self._unanswered.append(request_id)
            raise
        return None if job_id is None else _Taken(job_id)

    async def _start(self, taken: _Taken) -> Record | None:
        """The record of the job, if it is RUNNING now for us.

        The spec is read before the compare-and-set: a read that fails after it would leave a job
        RUNNING that nobody was given.
        """
        job_id = taken.job_id
        try:
            record = await self._jobs.get(job_id)
            answer = await self._jobs.transition(
                job_id,
                Status.QUEUED,
                Status.RUNNING,
                actor=Actor.COORDINATOR,
                request_id=taken.request_id,
            )
        except NotFound:
            journal.warn(journal.RACE, "a queued job is unknown to its owner", job_id=job_id)
            return None
        except JobQueueError as error:
            if error.code in _TRANSIENT:
                self._taken.append(taken)
            raise
        if not answer.applied:
            await self._lost(taken)
            return None
        if record.summary.cancel_requested and await self._end_unstarted(job_id):
            return None
        return record

    async def _end_unstarted(self, job_id: str) -> bool:
        """A cancel came between the take and the start; False: let the worker's report end it."""
        envelope = Envelope(job_id, Status.CANCELED, output_summary=CANCELED_RUNNING)
        try:
            return await self._end(envelope)
        except JobQueueError:
            return False

    async def _lost(self, taken: _Taken) -> None:
        """The compare-and-set failed: nobody is given the job; still QUEUED, it goes back."""
        job_id = taken.job_id
        try:
            status = (await self._jobs.get(job_id)).summary.status
        except JobQueueError as error:
            if error.code in _TRANSIENT:
                self._taken.append(_Taken(job_id))
            raise
        journal.note(
            journal.RACE,
            "taken from the queue, but not started: somebody was faster",
            job_id=job_id,
            expected_status=Status.QUEUED.name,
            current_status=status.name,
        )
        if status is not Status.QUEUED:
            return
        try:
            await self._queue.enqueue(
                job_id, self._now_ms(), rescue=True, request_id=new_request_id()
            )
        except JobQueueError as error:
            journal.anomaly(f"a queued job could not be put back: {error.message}", job_id=job_id)
            self._taken.append(_Taken(job_id))
        else:
            journal.warn(journal.RESCUE, "put back: it is still queued", job_id=job_id)

    # -- the end of a job ------------------------------------------------------------------------

    async def report(self, report: Report, *, request_id: str) -> bool:
        """Envelope, then compare-and-set; the envelope that is kept decides."""
        check_worker_id(report.worker_id)
        return await self._protocols.once("report", request_id, lambda: self._report(report))

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
        wanted = Status.CANCELED if summary.cancel_requested else _ENDS[report.outcome]
        if summary.status.terminal:
            self._liveness.take(job_id)
            if summary.status is not wanted:
                self._refused(report, "the job has ended otherwise", summary.status)
            return summary.status is wanted
        return await self._end(_envelope(report, wanted), report.failure_reason)

    async def _end(self, envelope: Envelope, failure_reason: str = "") -> bool:
        """Whether the job has ended as the envelope that is kept says."""
        job_id = envelope.job_id
        stored = await self._results.store(envelope, request_id=new_request_id())
        final = stored.current
        if final is Status.FAILED and envelope.status is Status.DONE:
            failure_reason = OUTPUT_TOO_LARGE
        answer = await self._jobs.transition(
            job_id,
            Status.RUNNING,
            final,
            actor=Actor.COORDINATOR,
            reason=failure_reason if final is Status.FAILED else "",
            request_id=new_request_id(),
        )
        self._liveness.take(job_id)
        if not answer.applied:
            journal.warn(
                "terminal_race",
                "another end came first; this one is ignored",
                job_id=job_id,
                expected_status=final.name,
                current_status=answer.current.name if answer.current else "",
            )
        return answer.current is final

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
            report.job_id,
            status,
            runtime_ms=report.runtime_ms,
            output_summary=CANCELED_RUNNING,
        )
    summary = report.output_summary
    if status is Status.FAILED:
        summary = report.failure_reason or summary
    return Envelope(
        report.job_id,
        status,
        runtime_ms=report.runtime_ms,
        output_summary=summary[:MAX_SUMMARY],
        output=report.output,
        checksum=report.checksum,
    )


def clamp_hint(milliseconds: int) -> int:
    """How long an idle worker waits, within the bounds."""
    least, most = RETRY_AFTER_RANGE_MS
    return min(max(milliseconds, least), most)
