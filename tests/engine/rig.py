"""An engine on the memory store, with a clock that stands still and workers made of lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from jobqueue.core.api import Link
from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Assignment, Job, JobSpec, Transition, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer
from jobqueue.core.store import Change, Rules, Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.sessions import Session
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.memory import MemoryStore
from tests import patience

PATIENCE = 5.0
PARTS = ("jobs", "reads", "upkeep", "queues", "workers", "leadership", "schedules", "stream")


def session_of(engine: Engine, worker_id: str) -> Session | None:
    """The engine's side of a connected worker."""
    return engine._scheduler.sessions.get(worker_id)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the loop will do by itself."""
    async with patience.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


class Unreliable:
    """A store whose calls fail on demand: ``fail`` names them, with the errors to raise in turn."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fail: dict[str, list[JobQueueError | None]] = {}
        self.calls: list[str] = []
        self.hear: Callable[[Change], None] = lambda changed: None
        for part in PARTS:
            setattr(self, part, _UnreliablePart(self, part, getattr(store, part)))

    def on_change(self, heard: Callable[[Change], None]) -> None:
        self.hear = heard
        self._store.on_change(heard)

    def __getattr__(self, name: str) -> Any:
        return self.wrapped(name, getattr(self._store, name))

    def wrapped(self, name: str, real: Any) -> Any:
        """The real call, unless it is to fail; under its name, such as ``jobs.claim``."""
        if not callable(real) or name in ("workers.pulse", "components"):
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            errors = self.fail.get(name)
            if errors and (error := errors.pop(0)) is not None:
                raise error
            return await real(*args, **kwargs)

        return call


class _UnreliablePart:
    def __init__(self, store: Unreliable, name: str, part: object) -> None:
        self._store, self._name, self._part = store, name, part

    def __getattr__(self, name: str) -> Any:
        return self._store.wrapped(f"{self._name}.{name}", getattr(self._part, name))


class Worker:
    """A worker's side of a link: keeps what it is told, and does what the test says."""

    def __init__(self, info: WorkerInfo) -> None:
        self.info = info
        self.got: list[Assignment] = []
        self.cancelled: list[int] = []
        self.status = WorkerStatus.ONLINE
        self.moves = 0
        self.link: Link

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self.got.extend(assignments)

    def cancel(self, leases: Sequence[int]) -> None:
        self.cancelled.extend(leases)

    def set_status(self, status: WorkerStatus) -> None:
        self.status = status

    def holds(self) -> None:
        return

    def moved(self) -> None:
        self.moves += 1

    async def gets(self, count: int = 1) -> list[Assignment]:
        """Wait for that many assignments and take them."""
        await until(lambda: len(self.got) >= count)
        taken, self.got = self.got[:count], self.got[count:]
        return taken

    async def gets_one(self) -> Assignment:
        return (await self.gets(1))[0]

    async def start(self, assignment: Assignment) -> None:
        assert await self.link.report([Transition.started(assignment.seq, assignment.lease)]) == [
            True
        ]

    async def succeed(self, assignment: Assignment, freed: int = 0) -> bool:
        report = Transition.succeeded(assignment.seq, assignment.lease, b"r", 0.1)
        return (await self.link.report([report], freed))[0]

    async def fail(self, assignment: Assignment, error: str = "boom") -> bool:
        report = Transition.failed(assignment.seq, assignment.lease, error, ran_for=0.1)
        return (await self.link.report([report]))[0]


class Rig:
    """The engine, its store and its clock."""

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        store: Callable[[Store], Unreliable] | None = None,
        observer: Observer | None = None,
        **settings: Any,
    ) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(rules=rules or Rules(), clock=self.clock)
        self.store = (store or Unreliable)(self.memory)
        settings.setdefault("interval", 0.02)
        self.engine = Engine(
            self.store, EngineSettings(**settings), clock=self.clock, observer=observer
        )

    def hears(self, changed: Change) -> None:
        """The store tells the engine of a change that another server made."""
        self.store.hear(changed)

    @property
    def is_watched(self) -> bool:
        """Whether anybody waits for a job."""
        return bool(self.engine._watchers)

    def session(self, worker_id: str = "w") -> Session | None:
        return session_of(self.engine, worker_id)

    async def submit(self, payload: bytes = b"x", **fields: Any) -> str:
        (result,) = await self.engine.submit([JobSpec(payload=payload, **fields)])
        return result.unwrap()

    async def worker(
        self, worker_id: str = "w", *, slots: int = 0, incarnation: int = 1, **fields: Any
    ) -> Worker:
        standard: dict[str, Any] = {
            "hostname": "host",
            "pid": 1,
            "concurrency": 10,
            "queues": ("default",),
        }
        worker = Worker(WorkerInfo(id=worker_id, incarnation=incarnation, **(standard | fields)))
        worker.link = await self.engine.connect(worker.info, worker)
        worker.link.grant(slots)
        return worker

    async def running(self, **fields: Any) -> tuple[Worker, Assignment]:
        """A new worker that runs a new job."""
        worker = await self.worker(slots=1)
        await self.submit(**fields)
        assignment = await worker.gets_one()
        await worker.start(assignment)
        return worker, assignment

    async def state(self, job_id: str) -> State:
        return (await self.engine.get(job_id)).state

    async def reaches(self, job_id: str, state: State) -> Job:
        async with patience.timeout(PATIENCE):
            while (job := await self.engine.get(job_id)).state is not state:
                await asyncio.sleep(0.002)
        return job
