"""A target in memory, at a time that only its calls move."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from jobqueue.bench.load import Stopwatch
from jobqueue.bench.targets import ALREADY_ENDED, NOT_READY, Fate, LoadWork, SeenJob
from jobqueue.core.errors import QueueFull, Unavailable

STEP = 0.125  # seconds that a call takes; times are sums of it, without a rounding


class Time(Stopwatch):
    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at

    wall = now

    async def sleep(self, seconds: float) -> None:
        until = self.at + seconds
        await asyncio.sleep(0)  # the others go on
        self.at = max(self.at, until)


class MemoryTarget:
    """Answers after one step. A job is done when it is accepted, unless ``backlog`` keeps it."""

    def __init__(
        self,
        time: Time,
        *,
        fails: float = 0.0,
        full: float = 0.0,
        hangs: float = 0.0,
        backlog: float = 0.0,
        step: float = STEP,
    ) -> None:
        self._time = time
        self._step = step
        self._chances = random.Random(7)
        self._fails, self._full, self._hangs, self._backlog = fails, full, hangs, backlog
        self._by_key: dict[str, str] = {}
        self.jobs: dict[str, SeenJob] = {}
        self.calls: list[tuple[str, float]] = []  # and when each was begun
        self.works: set[LoadWork] = set()
        self.keys: list[str] = []
        self.under_way = self.most = 0

    async def submit(self, work: LoadWork, keys: Sequence[str]) -> list[str]:
        await self._called("submit")
        if self._chances.random() < self._full:
            raise QueueFull("full")
        self.works.add(work)
        self.keys += keys
        return [self._job(key) for key in keys]

    def _job(self, key: str) -> str:
        if key in self._by_key:
            return self._by_key[key]
        job_id = f"job-{len(self.jobs)}"
        open_ = self._chances.random() < self._backlog
        now = self._time.now()
        self.jobs[job_id] = SeenJob(Fate.OPEN) if open_ else SeenJob(Fate.DONE, now, now)
        if key:
            self._by_key[key] = job_id
        return job_id

    async def status(self, job_id: str) -> SeenJob:
        await self._called("status")
        return self.jobs[job_id]

    async def result(self, job_id: str) -> str | None:
        await self._called("result")
        return NOT_READY if self.jobs[job_id].fate is Fate.OPEN else None

    async def cancel(self, job_id: str) -> str | None:
        await self._called("cancel")
        if self.jobs[job_id].fate is not Fate.OPEN:
            return ALREADY_ENDED
        self.jobs[job_id] = SeenJob(Fate.CANCELED, 0.0, self._time.now())
        return None

    async def list(self) -> None:
        await self._called("list")

    async def end(self, job_id: str, patience: float) -> SeenJob:
        await self._called("end")
        return self.jobs[job_id]

    async def close(self) -> None: ...

    def answer_all(self) -> None:
        """From now on nothing fails or hangs."""
        self._fails = self._full = self._hangs = 0.0

    def begun(self) -> Counter[str]:
        return Counter(method for method, _ in self.calls)

    async def _called(self, method: str) -> None:
        self.calls.append((method, self._time.now()))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self._chances.random() < self._hangs:
                await asyncio.Event().wait()
            await asyncio.sleep(0)  # the others begin theirs
            self._time.at += self._step
        finally:
            self.under_way -= 1
        if self._chances.random() < self._fails:
            raise Unavailable("away")
