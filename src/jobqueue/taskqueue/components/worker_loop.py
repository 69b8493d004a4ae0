"""Implement a worker: it sends heartbeats, and each slot fetches, executes and reports jobs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from jobqueue.core.errors import Code, JobQueueError
from jobqueue.core.waiting import GrowingPause, is_set_within
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import (
    HEARTBEAT_INTERVAL_MS,
    MAX_OUTPUT_BYTES,
    MAX_SUMMARY,
    RETRY_AFTER_MS,
    TOTAL_WORKER_SLOTS,
    Report,
    Spec,
    Work,
    WorkOutcome,
    checksum,
    clamp_hint,
)
from jobqueue.taskqueue.components.protocols import Coordination, new_request_id
from jobqueue.taskqueue.components.state import too_large

# Seconds between calls that failed. Each call has already retried by itself.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0
_SHORTEST_BEAT_MS = 10  # even if the coordinator asks for less
_FINAL = frozenset({Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.PERMISSION_DENIED})


@dataclass(frozen=True, slots=True)
class Output:
    """Holds the output of a job, and a summary of it for people."""

    output: bytes = b""
    summary: str = ""


Execute = Callable[[Spec], Awaitable[Output]]
"""Runs a job. If it raises, the job has failed, and the exception's text is the reason."""


class WorkerLoop:
    """Sends heartbeats, and runs at most ``slots`` jobs at the same time."""

    def __init__(
        self,
        coordination: Coordination,
        execute: Execute,
        *,
        worker_id: str,
        slots: int = TOTAL_WORKER_SLOTS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> None:
        self._coordination = coordination
        self._execute = execute
        self._worker_id = worker_id
        self._slots = slots
        self._interval_ms = heartbeat_interval_ms
        self._max_output_bytes = max_output_bytes
        self._incarnation = new_request_id()
        self._stopping = asyncio.Event()
        self._idle = False
        self._hint_ms = RETRY_AFTER_MS
        self._asking = asyncio.Lock()  # while all slots are idle, only its holder fetches
        self._failing = False  # the latest fetch got no answer
        self._first_beat = asyncio.Event()
        self._beats: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._running: set[str] = set()

    @property
    def running(self) -> int:
        """Return the number of jobs that are running, or whose report has no answer yet."""
        return len(self._running)

    async def start(self) -> None:
        """Start heartbeats and slots. Return after the first heartbeat was sent or has failed."""
        self._beats = asyncio.create_task(self._beat())
        await self._first_beat.wait()
        self._tasks = [asyncio.create_task(self._slot()) for _ in range(self._slots)]

    async def stop(self, seconds: float) -> None:
        """Stop fetching jobs, wait for the running jobs and their reports, then stop heartbeats.

        Jobs that still run after ``seconds`` are interrupted.
        """
        self._stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
            for job_id in sorted(self._running):
                journal.warn(
                    "stopped_early",
                    f"the stop of this worker interrupted job {job_id}, which stays RUNNING",
                    job_id=job_id,
                    worker_id=self._worker_id,
                )
        tasks = [*self._tasks, *([self._beats] if self._beats else [])]
        self._tasks, self._beats = [], None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- heartbeats ------------------------------------------------------------------------------

    async def _beat(self) -> None:
        failing = False
        while True:
            wait_ms = self._interval_ms
            try:
                wait_ms = await self._coordination.heartbeat(
                    self._worker_id,
                    int(time.time() * 1000),
                    self._slots,
                    incarnation=self._incarnation,
                    running=sorted(self._running),
                )
            except Exception as error:  # of any kind: the next heartbeat may succeed
                if not failing:
                    journal.warn(
                        "heartbeat_failed",
                        f"cannot send heartbeats of worker {self._worker_id} to the coordinator:"
                        f" {error}; trying again",
                        worker_id=self._worker_id,
                    )
                failing = True
            else:
                if failing or not self._first_beat.is_set():
                    journal.note(
                        "heartbeat",
                        f"the coordinator receives the heartbeats of worker {self._worker_id}",
                        worker_id=self._worker_id,
                    )
                failing = False
            self._first_beat.set()
            await asyncio.sleep(max(wait_ms, _SHORTEST_BEAT_MS) / 1000)

    # -- slots -----------------------------------------------------------------------------------

    async def _slot(self) -> None:
        while not self._stopping.is_set():
            try:
                work = await self._next()
                if work is not None:
                    await self._work(work)
            except Exception:  # a defect; the slot must go on
                journal.log.exception(
                    f"a slot of worker {self._worker_id} failed; it fetches another job",
                    extra={"event": "slot_failed", "worker_id": self._worker_id},
                )
                await self._pause(_FIRST_PAUSE)

    async def _work(self, work: Work) -> None:
        assert work.spec is not None
        self._running.add(work.job_id)
        report = await self._run(work.job_id, work.spec)
        await self._deliver(report)
        self._running.discard(work.job_id)

    async def _next(self) -> Work | None:
        """Fetch and return a job; return None if the worker stops.

        While no jobs wait, only one slot at a time fetches.
        """
        while not self._stopping.is_set():
            if not self._all_idle():
                work = await self._ask()
            else:
                async with self._asking:
                    if self._all_idle() and await self._pause(self._hint_ms / 1000):
                        return None
                    work = await self._ask()
            if work is None:
                return None
            self._idle = not work.job_id
            if work.job_id:
                return work
            self._hint_ms = clamp_hint(work.retry_after_ms)
        return None

    def _all_idle(self) -> bool:
        """Return True if the latest fetch of any slot returned no job."""
        return self._idle

    async def _ask(self) -> Work | None:
        """Repeat a fetch until it is answered; return None if the worker stops before.

        A lost answer may have assigned a job, so every repetition has the same request id.
        """
        request_id = new_request_id()
        pause = GrowingPause(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                work = await self._coordination.fetch(self._worker_id, request_id=request_id)
            except JobQueueError as error:
                if not self._failing:
                    journal.warn(
                        "fetch_failed",
                        f"worker {self._worker_id} cannot fetch jobs: {error.message}; trying"
                        " again",
                        worker_id=self._worker_id,
                    )
                self._failing = True
            else:
                self._failing = False
                return work
            if await self._pause(pause.next()):
                journal.warn(
                    "stopped_early",
                    f"worker {self._worker_id} stops while a fetch has no answer: a job may be"
                    " RUNNING without a worker",
                    worker_id=self._worker_id,
                )
                return None

    async def _pause(self, seconds: float) -> bool:
        """Wait ``seconds``, or until the worker stops; return True if it stops."""
        return await is_set_within(self._stopping, seconds)

    async def _run(self, job_id: str, spec: Spec) -> Report:
        began = time.monotonic()
        failure = ""
        made = Output()
        try:
            made = await self._execute(spec)
        except Exception as error:
            failure = _sendable(str(error)) or type(error).__name__
        if len(made.output) > self._max_output_bytes:
            failure = too_large(len(made.output), self._max_output_bytes)
        if failure:
            made = Output()
        return Report(
            worker_id=self._worker_id,
            job_id=job_id,
            outcome=WorkOutcome.FAILED if failure else WorkOutcome.SUCCEEDED,
            runtime_ms=math.ceil((time.monotonic() - began) * 1000),
            failure_reason=failure,
            output_summary=_sendable(made.summary),
            output=made.output,
            checksum=checksum(made.output),
        )

    async def _deliver(self, report: Report) -> None:
        """Repeat the report until the coordinator answers or refuses it."""
        request_id = new_request_id()
        failed = False
        pause = GrowingPause(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                accepted = await self._coordination.report(report, request_id=request_id)
            except JobQueueError as error:
                final = error.code in _FINAL
                if final or not failed:
                    journal.warn(
                        "report_failed",
                        f"cannot report the end of job {report.job_id}: {error.message}; "
                        + ("giving up, so the job may stay RUNNING" if final else "trying again"),
                        job_id=report.job_id,
                        worker_id=self._worker_id,
                    )
                failed = True
                if final:
                    return
            else:
                if not accepted:
                    journal.warn(
                        "report_ignored",
                        f"the coordinator ignored the report of job {report.job_id}; its log says"
                        " why",
                        job_id=report.job_id,
                        worker_id=self._worker_id,
                    )
                return
            await pause.wait()


def _sendable(text: str) -> str:
    """Return the text cut to its maximum length, without characters that UTF-8 cannot encode."""
    return text[:MAX_SUMMARY].encode(errors="replace").decode()


# The simulated work of a job: it waits and returns an output, the same in every topology.

FAILING_TYPE = "fail"
FAILURE = "failed on purpose"


class WorkFailed(Exception):
    """Raised by the work of a job that fails. The text is the failure reason."""


async def simulate(spec: Spec) -> Output:
    """Wait for the job's duration, then return an output of the job's size.

    WorkFailed means that the job has the type ``fail``, or that its output would be too large.
    """
    await asyncio.sleep(spec.work_duration_ms / 1000)
    if spec.job_type == FAILING_TYPE:
        raise WorkFailed(FAILURE)
    size = spec.payload_size_bytes
    if size > MAX_OUTPUT_BYTES:  # do not allocate it: a small request must not cost gigabytes
        raise WorkFailed(too_large(size, MAX_OUTPUT_BYTES))
    return Output(b"x" * size, done_summary(size))


def done_summary(size: int) -> str:
    """Return the summary of an output of this size."""
    return f"{size} bytes of output"
