"""A server that hands out what a test says and remembers what the worker reports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobqueue.core.api import Inbox
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.job import Assignment, Pulse, Transition, WorkerInfo
from jobqueue.core.lifecycle import Move
from jobqueue.core.observer import Observer
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.tasks.task import TaskOptions, define
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings
from tests import patience
from tests.records import made


class FakeServer:
    """Implements ``DispatchApi`` and ``Link``."""

    def __init__(self) -> None:
        self.info: WorkerInfo | None = None
        self.inbox: Inbox | None = None
        self.connects = 0
        self.free = 0
        self.grants = 0  # how often slots were offered, also none
        self.jobs = 0
        self.calls: list[list[Transition]] = []  # every call, those that failed too
        self.reports: list[Transition] = []  # what was answered
        self.errors: list[Exception] = []  # raised by the next calls, one each
        self.refuse: Callable[[Transition], bool] = lambda report: False
        self.gate = asyncio.Event()  # a report waits for it
        self.gate.set()
        self.drained = False
        self.closed = 0
        self.pulses: list[list[int]] = []
        self.begun: list[list[int]] = []
        self.complete: list[bool] = []
        self.overrun: int | None = None
        self.breakers: list[OpenBreaker] = []
        self.told_breakers = 0
        self.progress: list[dict[int, Progress]] = []
        self.beat = threading.Event()
        self.answer: Callable[[Sequence[int]], Pulse] = lambda leases: Pulse(True)
        self._changed = asyncio.Event()

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> FakeServer:
        if self.errors:
            raise self.errors.pop(0)
        self.info, self.inbox = info, inbox
        self.connects += 1
        self.free = 0
        self._changed.set()
        return self

    def grant(self, slots: int) -> None:
        self.free += slots
        self.grants += 1
        self._changed.set()

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        self.calls.append(list(reports))
        self._changed.set()
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.free += freed
        self.reports += reports
        self._changed.set()
        return [not self.refuse(report) for report in reports]

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ) -> Pulse:
        self.pulses.append(list(leases))
        self.progress.append(dict(progress))
        self.begun.append(list(begun))
        self.complete.append(complete)
        self.overrun = overrun
        self.beat.set()
        return self.answer(leases)

    def set_breakers(self, breakers: Sequence[OpenBreaker]) -> None:
        self.breakers = list(breakers)
        self.told_breakers += 1
        self._changed.set()

    async def drain(self, *, pause: bool = False) -> None:
        self.drained = True
        self.free = 0

    async def close(self) -> None:
        self.closed += 1

    # -- for tests -----------------------------------------------------------------------------

    def job(self, type: str = "", payload: bytes = b"{}", **fields: Any) -> Assignment:
        self.jobs += 1
        values: dict[str, Any] = {
            "seq": self.jobs,
            "id": f"job-{self.jobs}",
            "queue": "default",
            "attempt": 1,
            "lease": 1000 + self.jobs,
            "worker_id": "w1",
            "priority": 0,
            "retry_count": 0,
            "max_retries": 3,
            "created_at": 0.0,
        } | fields
        return made(Assignment, type=type, payload=payload, **values)

    def deliver(self, type: str = "", payload: bytes = b"{}", **fields: Any) -> Assignment:
        job = self.job(type, payload, **fields)
        self.hand_out([job])
        return job

    def hand_out(self, jobs: Sequence[Assignment]) -> None:
        assert self.inbox is not None
        assert self.free >= len(jobs), "more than the worker offered"
        self.free -= len(jobs)
        self.inbox.assigned(jobs)

    async def until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        async with patience.timeout(timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def moves(self, job: Assignment) -> list[Move]:
        return [report.move for report in self.reports if report.lease == job.lease]

    def ends(self) -> list[Transition]:
        return [report for report in self.reports if report.move is not Move.START]

    async def end(self, job: Assignment, timeout: float = 20.0) -> Transition:
        def found() -> list[Transition]:
            return [report for report in self.ends() if report.lease == job.lease]

        await self.until(lambda: bool(found()), timeout)
        assert len(found()) == 1
        return found()[0]

    async def start_of(self, job: Assignment) -> None:
        await self.until(lambda: Move.START in self.moves(job))

    async def next_beat(self) -> list[int]:
        """The leases that the next heartbeat lists."""
        self.beat.clear()
        seen = len(self.pulses)
        limit = patience.Limit(10)
        while len(self.pulses) == seen:
            assert not limit.over, "no heartbeat"
            await asyncio.sleep(0.002)
        return self.pulses[seen]


def registry(*fns: Callable[..., Any], **options: Any) -> Registry:
    tasks = Registry()
    for fn in fns:
        tasks.add(define(fn, options=TaskOptions(**options)))
    return tasks


class Worker:
    """``async with Worker(server, fn, …) as runtime``: a running worker, stopped afterwards."""

    def __init__(
        self,
        server: Any,
        *fns: Callable[..., Any],
        tasks: Registry | None = None,
        observer: Observer | None = None,
        stop_within: float = 2.0,
        **fields: Any,
    ) -> None:
        """``stop_within``: seconds that its jobs have to end when the block is left."""
        self._stop_within = stop_within
        values: dict[str, Any] = {"id": "w1", "heartbeat_interval": 30.0} | fields
        self.settings = WorkerSettings(**values)
        self.runtime = WorkerRuntime(server, tasks or registry(*fns), self.settings, observer)

    async def __aenter__(self) -> WorkerRuntime:
        await self.runtime.start()
        return self.runtime

    async def __aexit__(self, *exc: object) -> None:
        await self.runtime.stop(self._stop_within)
