"""Adapt the public clients of both APIs to the one interface that a load calls."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from jobqueue import DeadlineExceeded, JobFailed, JobQueue, State, TaskQueueClient
from jobqueue.core.job import Job
from jobqueue.core.lifecycle import Reason
from jobqueue.taskqueue import JobState, JobStatus

# Soft outcomes: answers of a healthy system.
NOT_READY = "NOT_READY"
NO_RESULT = "NO_RESULT"  # the job failed or was canceled
ALREADY_ENDED = "ALREADY_ENDED"

_NOW = 0.001


class Fate(StrEnum):
    """Says how a job ended, or that it is still open."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class SeenJob:
    """Describes a job as its server reports it. Times are seconds since the epoch."""

    fate: Fate
    started: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadWork:
    """Describes the work of a job: its duration and the size of its output."""

    milliseconds: int = 0
    output_bytes: int = 0


class Target(Protocol):
    """Defines the calls that a load makes. Each call raises JobQueueError if it fails.

    ``result`` returns a code if the job has no result (yet), ``cancel`` if the job ended before.
    """

    async def submit(self, work: LoadWork, keys: Sequence[str]) -> list[str]:
        """Submit a job for each key in one call, and return the ids.

        A job with an empty key has no idempotency key.
        """
        ...

    async def status(self, job_id: str) -> SeenJob:
        """Read the job's present state."""
        ...

    async def result(self, job_id: str) -> str | None:
        """Read the job's result without waiting for it."""
        ...

    async def cancel(self, job_id: str) -> str | None:
        """Cancel the job."""
        ...

    async def list(self) -> None:
        """Read one page of jobs, with the API's default page size."""
        ...

    async def end(self, job_id: str, patience: float) -> SeenJob:
        """Wait until the job ends, at most ``patience`` seconds, and return its state."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class QueueTarget:
    """Calls jq.v1 through the SDK.

    Jobs have the built-in type ``simulate``, which every worker knows.
    """

    def __init__(self, app: JobQueue) -> None:
        self._app = app

        async def simulate(work_duration_ms: int = 0, payload_size_bytes: int = 0) -> Any:
            raise NotImplementedError  # the workers have it

        self._task = app.task(name="simulate")(simulate)

    async def submit(self, work: LoadWork, keys: Sequence[str]) -> list[str]:
        call = (work.milliseconds, work.output_bytes)
        if len(keys) > 1:
            handles = await self._task.submit_many([call] * len(keys))
            return [one.id for one in handles]
        (key,) = keys
        task = self._task.options(key=key) if key else self._task
        return [(await task.submit(*call)).id]

    async def status(self, job_id: str) -> SeenJob:
        return _seen_job(await self._app.job(job_id).status())

    async def result(self, job_id: str) -> str | None:
        try:
            await self._app.job(job_id).result(_NOW)
        except DeadlineExceeded:
            return NOT_READY
        except JobFailed:
            return NO_RESULT
        return None

    async def cancel(self, job_id: str) -> str | None:
        answer = await self._app.job(job_id).cancel()
        return ALREADY_ENDED if answer.already_terminal else None

    async def list(self) -> None:
        await self._app.operator.list_jobs()

    async def end(self, job_id: str, patience: float) -> SeenJob:
        handle = self._app.job(job_id)
        with contextlib.suppress(DeadlineExceeded, JobFailed):
            await handle.result(patience)
        return _seen_job(await handle.status())

    async def close(self) -> None:
        await self._app.close()


class TaskQueueTarget:
    """Calls taskqueue.v1 through its client, which chooses the server as each design requires."""

    def __init__(self, client: TaskQueueClient) -> None:
        self._client = client

    async def submit(self, work: LoadWork, keys: Sequence[str]) -> list[str]:
        (key,) = keys
        made = await self._client.submit_job(
            job_type="noop",
            work_duration_ms=work.milliseconds,
            payload_size_bytes=work.output_bytes,
            client_request_id=key,
        )
        return [made.job_id]

    async def status(self, job_id: str) -> SeenJob:
        return _seen_state(await self._client.get_job_status(job_id))

    async def result(self, job_id: str) -> str | None:
        found = await self._client.get_job_result(job_id)
        if found is None:
            return NOT_READY
        return None if found.status is JobStatus.DONE else NO_RESULT

    async def cancel(self, job_id: str) -> str | None:
        answer = await self._client.cancel_job(job_id, "load")
        return ALREADY_ENDED if answer.already_terminal else None

    async def list(self) -> None:
        await self._client.list_jobs()

    async def end(self, job_id: str, patience: float) -> SeenJob:
        with contextlib.suppress(DeadlineExceeded):
            await self._client.wait_result(job_id, patience)
        return _seen_state(await self._client.get_job_status(job_id))

    async def close(self) -> None:
        await self._client.close()


class InstantTarget:
    """Answers every call at once, so that a load on it shows the generator's own limit."""

    def __init__(self) -> None:
        self._count = 0

    async def submit(self, work: LoadWork, keys: Sequence[str]) -> list[str]:
        first, self._count = self._count, self._count + len(keys)
        return [str(number) for number in range(first, self._count)]

    async def status(self, job_id: str) -> SeenJob:
        return SeenJob(Fate.DONE)

    async def result(self, job_id: str) -> str | None:
        return None

    async def cancel(self, job_id: str) -> str | None:
        return ALREADY_ENDED

    async def list(self) -> None: ...

    async def end(self, job_id: str, patience: float) -> SeenJob:
        return SeenJob(Fate.DONE)

    async def close(self) -> None: ...


_STATUSES = {
    JobStatus.DONE: Fate.DONE,
    JobStatus.FAILED: Fate.FAILED,
    JobStatus.CANCELED: Fate.CANCELED,
}


def _seen_job(job: Job) -> SeenJob:
    fate = Fate.OPEN
    if job.state is State.DONE:
        fate = Fate.DONE
    elif job.state is State.DEAD_LETTERED:
        fate = Fate.CANCELED if job.reason is Reason.CANCELLED else Fate.FAILED
    return SeenJob(fate, job.started_at or 0.0, job.completed_at or 0.0)


def _seen_state(state: JobState) -> SeenJob:
    fate = _STATUSES.get(state.status, Fate.OPEN)
    return SeenJob(fate, state.started_at_ms / 1000, state.finished_at_ms / 1000)
