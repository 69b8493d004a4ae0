"""The load itself, through the routing client, and what came of it.

Three stretches, one after another: requests in the shares of the mix, as fast as the callers get
their answers; jobs, each caller submitting its next one when its last one is done; listings.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bench.taskqueue.profile import METHODS, Profile
from jobqueue import TaskQueueClient
from jobqueue.core.errors import JobQueueError
from jobqueue.taskqueue import JobState, JobStatus, Submitted

LISTING = "ListJobs"
_RECENT = 1_000  # jobs that status, result and cancel choose from
_LATEST = 50  # jobs: when these are done, so are about all
_READERS = 32
_DRAIN = 120.0
_GLANCE = 0.1
_SEED = 4


@dataclass(slots=True)
class Measured:
    """Of one design under one profile. Times in milliseconds."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    requests_a_second: float = 0.0
    jobs_a_second: float = 0.0
    jobs: int = 0
    unfinished: int = 0
    to_done: list[float] = field(default_factory=list)


async def apply(client: TaskQueueClient, profile: Profile) -> Measured:
    """All three stretches; nothing is left running or queued that could weigh on the next."""
    requests = _Requests(client, profile)
    measured = await requests.run()
    measured.to_done = await _job_after_job(client, profile, measured.errors)
    measured.latencies[LISTING] = await _listings(client, profile)
    return measured


class _Requests:
    """A closed loop of so many callers."""

    def __init__(self, client: TaskQueueClient, profile: Profile) -> None:
        self._client = client
        self._profile = profile
        self._draw = random.Random(_SEED)  # the same requests in the same order for both designs
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._counted: list[str] = []
        self._measured = Measured(latencies={method: [] for method in METHODS})
        self._calls: dict[str, Callable[[], Awaitable[object]]] = {
            "SubmitJob": self._submit,
            "GetJobStatus": lambda: client.get_job_status(self._some_job()),
            "GetJobResult": lambda: client.get_job_result(self._some_job()),
            "CancelJob": lambda: client.cancel_job(self._some_job(), "load"),
        }

    async def run(self) -> Measured:
        profile, measured = self._profile, self._measured
        self._opens = time.perf_counter() + profile.warm_up
        self._closes = self._opens + profile.seconds
        opened_at_ms = (time.time() + profile.warm_up) * 1000
        await asyncio.gather(*(self._caller() for _ in range(profile.concurrency)))
        answered = sum(map(len, measured.latencies.values()))
        measured.requests_a_second = answered / profile.seconds
        await self._drain(opened_at_ms)
        return measured

    async def _caller(self) -> None:
        while (began := time.perf_counter()) < self._closes:
            method = self._next()
            try:
                made = await self._calls[method]()
            except JobQueueError as error:
                self._measured.errors[f"{method} {error.code}"] += 1
                continue
            ended = time.perf_counter()
            if began >= self._opens and ended <= self._closes:
                self._measured.latencies[method].append((ended - began) * 1e3)
            if method == "SubmitJob" and began >= self._opens:
                self._counted.append(str(made))

    def _next(self) -> str:
        (method,) = self._draw.choices(METHODS, self._profile.mix.shares)
        return method if self._recent else "SubmitJob"

    async def _submit(self) -> str:
        job_id = (await _submit(self._client, self._profile)).job_id
        self._recent.append(job_id)
        return job_id

    def _some_job(self) -> str:
        return self._draw.choice(self._recent)

    async def _drain(self, opened_at_ms: float) -> None:
        """Until the jobs of the counted stretch are done; their number by the time of the last."""
        give_up = time.monotonic() + _DRAIN
        for job_id in self._counted[-_LATEST:]:
            await self._end_of(job_id, give_up)  # asking for all at once would be a load as well
        waiting = iter(self._counted)
        ends: list[JobState] = []

        async def reader() -> None:
            for job_id in waiting:
                ends.append(await self._end_of(job_id, give_up))

        await asyncio.gather(*(reader() for _ in range(_READERS)))
        finished = [one.finished_at_ms for one in ends if one.status is JobStatus.DONE]
        self._measured.jobs = len(finished)
        self._measured.unfinished = sum(not one.status.terminal for one in ends)
        if finished:
            self._measured.jobs_a_second = len(finished) / (max(finished) - opened_at_ms) * 1000

    async def _end_of(self, job_id: str, give_up: float) -> JobState:
        state = await self._client.get_job_status(job_id)
        while not state.status.terminal and time.monotonic() < give_up:
            await asyncio.sleep(_GLANCE)
            state = await self._client.get_job_status(job_id)
        return state


async def _job_after_job(
    client: TaskQueueClient, profile: Profile, errors: Counter[str]
) -> list[float]:
    """From before the submit, by this machine's clock, to the server's time of the end."""
    taken: list[float] = []
    opens = time.perf_counter() + profile.warm_up
    closes = opens + profile.seconds

    async def caller() -> None:
        while (began := time.perf_counter()) < closes:
            began_ms = time.time() * 1000
            try:
                job = await _submit(client, profile)
                await client.wait_result(job.job_id, _DRAIN)
                state = await client.get_job_status(job.job_id)
            except JobQueueError as error:
                errors[f"job after job {error.code}"] += 1
                continue
            if began >= opens:
                # A server's milliseconds are whole: the end may seem to come before the submit.
                taken.append(max(0.0, state.finished_at_ms - began_ms))

    await asyncio.gather(*(caller() for _ in range(profile.concurrency)))
    return taken


async def _listings(client: TaskQueueClient, profile: Profile) -> list[float]:
    taken = []
    for _ in range(profile.listings):
        began = time.perf_counter()
        await client.list_jobs()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def _submit(client: TaskQueueClient, profile: Profile) -> Awaitable[Submitted]:
    return client.submit_job(
        job_type="noop",
        work_duration_ms=profile.work_duration_ms,
        payload_size_bytes=profile.payload_size_bytes,
    )
