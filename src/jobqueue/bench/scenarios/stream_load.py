"""Submit jobs that end in every possible way, and wait until they have ended."""

from __future__ import annotations

import asyncio
import itertools
import time

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.scenarios.stand import Say
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import DEFAULT_QUEUE, JobSpec
from jobqueue.core.lifecycle import TERMINAL

_BATCH = 200
_CANCELS = 20  # in flight
_PAUSE = 0.1
_STUCK = 120.0  # seconds without a job that ended
_HOUR = 3_600.0


def spec(number: int, key: str | None = None) -> JobSpec:
    """Return the spec of the n-th job.

    Of a hundred jobs, 49 succeed at once, 20 succeed at the second attempt, and 20 become dead
    letters. Ten are delayed and one runs, until they are cancelled.
    """
    body = b'{"times": 1, "message": "job %d"}' % number
    kind = number % 10
    if kind in (4, 5):
        return JobSpec(payload=body, type="fail", max_retries=3, key=key)
    if kind in (6, 7):
        return JobSpec(payload=b"{}", type="fail", max_retries=kind - 6, key=key)
    if kind == 8:
        return JobSpec(payload=body, type="echo", delay=_HOUR, key=key)
    if kind == 9 and number % 100 == 99:  # few: each takes a slot until it is cancelled
        return JobSpec(payload=b'{"seconds": 3600}', type="sleep", priority=9, key=key)
    return JobSpec(payload=body, type="echo", priority=number % 3, key=key)


def is_cancelled(number: int) -> bool:
    """Return True if the n-th job ends only by a cancel."""
    return number % 10 == 8 or number % 100 == 99


class StreamLoad:
    """Submits and cancels jobs, and waits for them. Servers may be killed meanwhile."""

    def __init__(self, target: str, say: Say) -> None:
        self._backend = GrpcBackend(target, timeout=10.0)
        self._say = say
        self._numbers = itertools.count()
        self.submitted = 0

    async def close(self) -> None:
        await self._backend.stop()

    async def run(self, jobs: int) -> None:
        """Submit ``jobs`` jobs, and cancel those that end only by a cancel."""
        while jobs > 0:
            numbers = list(itertools.islice(self._numbers, min(jobs, _BATCH)))
            ids = await self._submit([spec(n, f"job {n}") for n in numbers])
            cancelled = [one for n, one in zip(numbers, ids, strict=True) if is_cancelled(n)]
            await self.cancel(cancelled)
            self.submitted += len(numbers)
            jobs -= len(numbers)
            self._say(f"{self.submitted:,} jobs")

    async def _submit(self, specs: list[JobSpec]) -> list[str]:
        """Submit jobs until a server confirms them. Each job's key makes repeats safe."""
        while True:
            try:
                return [result.unwrap() for result in await self._backend.submit(specs)]
            except JobQueueError:
                await asyncio.sleep(_PAUSE)

    async def cancel(self, job_ids: list[str]) -> None:
        left = iter(job_ids)

        async def some() -> None:
            for job_id in left:
                while True:
                    try:
                        await self._backend.cancel(job_id)
                    except JobQueueError:
                        await asyncio.sleep(_PAUSE)
                    else:
                        break

        await asyncio.gather(*(some() for _ in range(_CANCELS)))

    async def settled(self) -> None:
        """Wait until all jobs have ended."""
        last, since = -1, time.monotonic()
        while True:
            try:
                depth = (await self._backend.queue_stats(DEFAULT_QUEUE)).depth
            except JobQueueError:
                await asyncio.sleep(_PAUSE)
                continue
            left = sum(count for state, count in depth.items() if state not in TERMINAL)
            if not left:
                return
            self._say(f"{left:,} jobs to go")
            if left != last:
                last, since = left, time.monotonic()
            elif time.monotonic() > since + _STUCK:
                raise TimeoutError(f"{left:,} jobs are left, and none ended for {_STUCK:g} s")
            await asyncio.sleep(_PAUSE)
