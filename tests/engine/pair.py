"""Two engines on one store: two servers as far as the engine can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from jobqueue.core.job import Job, JobSpec, WorkerInfo
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.sessions import Session
from jobqueue.engine.settings import EngineSettings
from tests import patience
from tests.engine.rig import PATIENCE, Worker, session_of


class Replica:
    """One of the two."""

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self.store = store
        self.engine = Engine(self.store, settings)

    def session(self, worker_id: str = "w") -> Session | None:
        return session_of(self.engine, worker_id)

    @property
    def leads(self) -> bool:
        return self.engine._sweeper._leadership.term is not None

    async def submit(self, payload: bytes = b"x", **fields: Any) -> str:
        (result,) = await self.engine.submit([JobSpec(payload=payload, **fields)])
        return result.unwrap()

    async def worker(
        self, worker_id: str = "w", *, slots: int = 0, incarnation: int = 1, concurrency: int = 4
    ) -> Worker:
        worker = Worker(
            WorkerInfo(
                id=worker_id,
                incarnation=incarnation,
                hostname="host",
                pid=1,
                concurrency=concurrency,
                queues=("default",),
            )
        )
        worker.link = await self.engine.connect(worker.info, worker)
        worker.link.grant(slots)
        return worker

    async def running(self, worker: Worker) -> str:
        """A job that the worker has started; its slot must be free."""
        job_id = await self.submit()
        await worker.start(await worker.gets_one())
        return job_id

    async def reaches(self, job_id: str, state: State) -> Job:
        async with patience.timeout(PATIENCE):
            while (job := await self.engine.get(job_id)).state is not state:
                await asyncio.sleep(0.005)
        return job

    def crash(self) -> None:
        """End what it does by itself, without a word to anybody."""
        engine = self.engine
        for task in (
            engine._sweeper._task,
            engine._sweeper._leadership._task,
            engine._scheduler._task,
            engine._control._task,
            engine._ticker._task,
        ):
            assert task is not None
            task.cancel()


OpenPair = Callable[..., Awaitable[tuple[Replica, Replica]]]


async def until_true(condition: Callable[[], Awaitable[bool]], within: float = PATIENCE) -> None:
    async with patience.timeout(within):
        while not await condition():
            await asyncio.sleep(0.01)
