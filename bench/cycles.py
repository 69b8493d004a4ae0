"""Scheduling cycles, timed from within: an observer, and a worker that takes what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobqueue.core.job import JobSpec, WorkerInfo
from jobqueue.core.observer import Deaf
from jobqueue.engine.engine import Engine

WHOLE = 100  # jobs of a cycle with default settings


class Cycles(Deaf):
    """Notes how long scheduling cycles took that handed out a whole batch."""

    def __init__(self) -> None:
        self.full: list[float] = []

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        if sum(assigned.values()) == WHOLE:
            self.full.append(seconds)


class _Sink:
    """A worker that takes whatever it is given."""

    def __init__(self, jobs: int) -> None:
        self._left = jobs
        self.full = asyncio.Event()

    def assigned(self, assignments: Sequence[object]) -> None:
        self._left -= len(assignments)
        if not self._left:
            self.full.set()

    def cancel(self, leases: Sequence[int]) -> None:
        raise AssertionError("nobody cancels")

    def set_status(self, status: object) -> None:
        raise AssertionError("nobody drains")

    def holds(self) -> None:
        return

    def moved(self) -> None:
        raise AssertionError("there is one server")


async def hand_out(engine: Engine, jobs: int) -> None:
    """Submit so many (thousands), then have them all handed out, in cycles."""
    for _ in range(jobs // 1_000):
        for result in await engine.submit([JobSpec(payload=b"x")] * 1_000):
            result.unwrap()
    sink = _Sink(jobs)
    info = WorkerInfo(
        id=f"sink-{id(sink)}",  # what another one holds is not this one's load
        incarnation=1,
        hostname="host",
        pid=1,
        concurrency=jobs,
        queues=("default",),
    )
    link = await engine.connect(info, sink)
    link.grant(jobs)
    async with asyncio.timeout(60):
        await sink.full.wait()
