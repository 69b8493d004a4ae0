"""Define the handle with which a submitter reads, awaits and cancels a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from jobqueue.core.api import Backend
from jobqueue.core.attempt import current_attempt
from jobqueue.core.errors import DeadlineExceeded, JobFailed
from jobqueue.core.job import Cancellation, Event, Job
from jobqueue.core.lifecycle import TERMINAL, State

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_LONGEST_WAIT = 60.0  # seconds in one call to the backend; a longer wait makes several calls
_SHORTEST_TURN = 0.05  # seconds between calls, if a backend answers earlier than requested


class Port(Protocol):
    """Runs calls with an app's backend: either the shared backend or the inline mode's backend."""

    async def call(self, op: Callable[[Backend], Awaitable[T]]) -> T:
        """Call ``op`` with the backend, and return the result."""
        ...

    def iterate(self, op: Callable[[Backend], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Call ``op`` with the backend, and yield the items of the returned iterator."""
        ...

    def raised(self, job_id: str) -> BaseException | None:
        """Return the last exception of the handler of a job that ran inline, else None."""
        ...


class JobHandle(Generic[R_co]):
    """A handle of one job: reads its state, waits for its result, cancels or retries the job."""

    __slots__ = ("_decode", "_port", "_queue", "created", "id")

    def __init__(
        self,
        port: Port,
        job_id: str,
        decode: Callable[[Job], Any],
        *,
        created: bool = True,
        queue: str | None = None,
    ) -> None:
        self.id = job_id
        #: False if an earlier submit made the job: it has the idempotency key or the unique key.
        self.created = created
        self._port = port
        self._decode = decode
        self._queue = queue  # None: not known

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    async def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job's end, and return the result of its handler.

        Raises JobFailed if the job ends without a result. Raises DeadlineExceeded if the job has
        not ended after ``timeout`` seconds; the job itself goes on.
        """
        attempt = current_attempt()
        if attempt is None:
            job = await self._end(timeout)
        else:  # a waiting handler occupies a slot, so its worker must detect deadlocks
            with attempt.waiting_for(self._queue):
                job = await self._end(timeout)
        if job.state is State.DONE:
            decoded: R_co = self._decode(job)
            return decoded
        raise JobFailed(job.id, job.reason.value, job.error) from self._port.raised(job.id)

    async def status(self) -> Job:
        """Return the job's current record."""
        return await self._port.call(lambda backend: backend.get(self.id))

    async def cancel(self) -> Cancellation:
        """Cancel the job: at once if it is not running, else by a request to its worker."""
        return await self._port.call(lambda backend: backend.cancel(self.id))

    async def retry(self) -> Job:
        """Move a FAILED or DEAD_LETTERED job back to PENDING, and reset its retry counter."""
        return await self._port.call(lambda backend: backend.retry(self.id))

    async def history(self, before_version: int | None = None) -> list[Event]:
        """Return the job's newest transitions, at most 500, oldest first.

        The first transition of a job has version 1. With ``before_version``, only transitions
        before that version are returned.
        """
        return await self._port.call(lambda backend: backend.history(self.id, before_version))

    def events(self) -> AsyncIterator[Event]:
        """Yield the job's past transitions, then each new transition, until the job ends."""
        return self._port.iterate(lambda backend: backend.watch(self.id))

    async def _wait(self, seconds: float) -> Job:
        return await self._port.call(lambda backend: backend.wait(self.id, seconds))

    async def _end(self, timeout: float | None) -> Job:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            asked_at = time.monotonic()
            left = None if deadline is None else max(0.0, deadline - asked_at)
            turn = _LONGEST_WAIT if left is None else min(left, _LONGEST_WAIT)
            job = await self._wait(turn)
            if job.state in TERMINAL:
                return job
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise DeadlineExceeded(
                    f"job {self.id} is {job.state.name} after {timeout:g} s; it goes on"
                    f"{_why_it_waits(job)}"
                )
            if now - asked_at < min(turn, _SHORTEST_TURN):
                await asyncio.sleep(_SHORTEST_TURN)


def _why_it_waits(job: Job) -> str:
    held = job.run_at is not None and job.run_at > job.created_at  # submitted with a delay
    if job.hint:
        return f" ({job.hint})"
    if job.state is not State.PENDING or job.attempt or held:
        return ""
    return f" (no worker has started the job: does a worker run for queue {job.queue!r}?)"


def decode_json(job: Job) -> Any:
    """Decode the result of a job whose task is not in this app.

    Return the decoded JSON, or the bytes of the result if they are not JSON.
    """
    if job.result is None:
        return None
    try:
        return msgspec.json.decode(job.result)
    except msgspec.DecodeError:
        return job.result
