"""Producers under fault, what they were told, and the wait until nothing is left to do."""

from __future__ import annotations

import asyncio
import itertools

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import JobSpec, SubmitStatus
from jobqueue.core.lifecycle import State
from tests import patience
from tests.faults.processes import Site
from tests.plain_http import plain_http

# As many jobs may wait. Where the machine is slow a longer line only takes longer to be done.
BACKLOG = 200
# Pauses of producers and of their looks: some call is always under way, and the machine has time
# for the servers and workers that this is about.
SUBMIT_PAUSE = 0.1  # seconds
LOOK_PAUSE = 0.1


class Load:
    """Producers that know both servers; remembers what they were told."""

    def __init__(self, site: Site) -> None:
        self.accepted: set[str] = set()
        self.told_done: set[str] = set()
        self._numbers = itertools.count()
        self._backends = [GrpcBackend(site.target, timeout=5) for _ in range(3)]
        self._tasks: list[asyncio.Task[None]] = []
        self._room = asyncio.Event()
        self._room.set()

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._submit(backend)) for backend in self._backends]
        self._tasks.append(asyncio.create_task(self._look(self._backends[0])))
        self._tasks.append(asyncio.create_task(self._measure(self._backends[1])))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for backend in self._backends:
            await backend.stop()
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def _submit(self, backend: GrpcBackend) -> None:
        while True:
            await self._room.wait()
            number = next(self._numbers)
            spec = JobSpec(payload=b'{"number": %d}' % number, type="short", priority=number % 10)
            try:
                results = await backend.submit([spec] * 3)
            except JobQueueError:
                await asyncio.sleep(0.02)
                continue
            self.accepted |= {r.job_id for r in results if r.status is SubmitStatus.ACCEPTED}
            await asyncio.sleep(SUBMIT_PAUSE)

    async def _measure(self, backend: GrpcBackend) -> None:
        while True:
            try:
                depth = (await backend.queue_stats("default")).depth
            except JobQueueError:
                self._room.set()  # what is submitted meanwhile is what the test is about
            else:
                if depth.get(State.PENDING, 0) < BACKLOG:
                    self._room.set()
                else:
                    self._room.clear()
            await asyncio.sleep(0.1)

    async def _look(self, backend: GrpcBackend) -> None:
        while True:
            for job_id in itertools.islice(self.accepted - self.told_done, 20):
                try:
                    job = await backend.get(job_id)
                except JobQueueError:
                    break
                if job.state is State.DONE:
                    self.told_done.add(job_id)
            await asyncio.sleep(LOOK_PAUSE)


async def settled(site: Site, seconds: float) -> None:
    """Wait until the server says that nothing is left to do."""
    async with plain_http(site.url, timeout=5) as client, patience.timeout(seconds):
        while True:
            answer = (await client.get("/queues/default")).json()
            depth = answer["depth"]
            if not sum(depth.get(s.name, 0) for s in State if s not in (4, 6)):
                return
            await asyncio.sleep(0.1)


async def flows(site: Site, count: int = 50, seconds: float = 120) -> set[str]:
    """Submit jobs now and wait until each is DONE: the system works, whatever happened before."""
    spec = JobSpec(payload=b'{"number": 0}', type="short", priority=9)
    backend = GrpcBackend(site.target, timeout=5)
    accepted: list[str] = []
    try:
        async with patience.timeout(seconds):
            while len(accepted) < count:
                try:
                    results = await backend.submit([spec] * (count - len(accepted)))
                except JobQueueError:
                    await asyncio.sleep(0.05)
                    continue
                accepted += [r.job_id for r in results if r.status is SubmitStatus.ACCEPTED]
            for job_id in accepted:
                while True:
                    try:
                        job = await backend.wait(job_id, 5)
                    except JobQueueError:
                        await asyncio.sleep(0.05)
                        continue
                    if job.state is State.DONE:
                        break
    finally:
        await backend.stop()
    return set(accepted)
