"""A place where the same app means the same: inline, a store of its own, or a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from jobqueue import Job, JobHandle, JobQueue
from jobqueue.client.inline import InlineJobs
from jobqueue.config import Settings, load
from jobqueue.core.errors import JobFailed
from jobqueue.engine.engine import Engine
from jobqueue.server import options
from jobqueue.server.process import ServerProcess
from jobqueue.stores.memory import MemoryStore
from tests import patience

Ask = Callable[[str], Any]
"""Gives a fixture by its name: only what a place needs is made."""

LONGEST = 30.0  # seconds of a quiet machine that a job may take


class Place:
    """Makes apps on one place. All that it makes is closed at the end of the test.

    ``settings`` are those of jq-server ("queue.max_retries"), as text; set them before the first
    app. They hold wherever the engine runs: in the app, inline or in the server.
    """

    name = ""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._stack = contextlib.AsyncExitStack()
        self._url: str | None = None
        self.settings: dict[str, str] = {}

    async def app(self, **how: Any) -> JobQueue:
        """Another app on this place, made with what ``JobQueue`` takes. All see the same jobs."""
        if self._url is None:
            self._url = await self._open()
        app = self._connected(self._url, **how)
        await self._begin(app)
        return app

    @contextlib.asynccontextmanager
    async def worker(
        self, app: JobQueue, queues: Iterable[str] | None = None, concurrency: int | None = None
    ) -> AsyncIterator[None]:
        """A worker of the app, as long as the block runs."""
        async with app.worker(queues, concurrency):
            yield

    async def result(self, job: JobHandle[Any]) -> Any:
        """The result of a job, delayed or not; JobFailed if it has none."""
        await self.ripen()
        return await job.result(timeout=patience.longest(LONGEST))

    async def ended(self, job: JobHandle[Any]) -> Job:
        """The record of a job, delayed or not, once it has ended."""
        with contextlib.suppress(JobFailed):
            await self.result(job)
        return await job.status()

    async def until(self, job: JobHandle[Any], so: Callable[[Job], bool], what: str) -> Job:
        """The record of a job once something is so; for what is not an end."""
        limit = patience.Limit(LONGEST)
        while not so(record := await job.status()):
            assert not limit.over, f"{self.name}: {what}: {record}"
            await asyncio.sleep(0.01)
        return record

    async def ripen(self) -> None:
        """Let the time of delayed jobs come; where time passes by itself it is waited for."""

    async def close(self) -> None:
        await self._stack.aclose()

    # -- what places differ in -------------------------------------------------------------

    async def _open(self) -> str:
        """Make what apps connect to; returns their URL."""
        raise NotImplementedError

    def _connected(self, url: str, **how: Any) -> JobQueue:
        loaded = self._loaded()
        how.setdefault("settings", options.engine(loaded))
        how.setdefault("rules", options.rules(loaded))
        return JobQueue(url, **how)

    async def _begin(self, app: JobQueue) -> None:
        self._stack.push_async_callback(app.close)

    def _loaded(self, **own: str) -> Settings:
        return load(flags=own | self.settings, environ={}).settings


class Inline(Place):
    """No store, no server: a job has run before its submit returns."""

    name = "inline"

    def __init__(self, ask: Ask) -> None:
        super().__init__(ask)
        self._jobs: list[InlineJobs] = []

    async def _open(self) -> str:
        return "memory://"

    async def _begin(self, app: JobQueue) -> None:
        await super()._begin(app)
        self._jobs.append(await self._stack.enter_async_context(app.inline()))

    @contextlib.asynccontextmanager
    async def worker(
        self, app: JobQueue, queues: Iterable[str] | None = None, concurrency: int | None = None
    ) -> AsyncIterator[None]:
        yield

    async def ripen(self) -> None:
        for jobs in self._jobs:
            await jobs.run_delayed()


class Memory(Place):
    """One engine in memory. Apps of a user have one each; here they share it."""

    name = "memory"

    async def _open(self) -> str:
        loaded = self._loaded()
        self._engine = _Lent(MemoryStore(rules=options.rules(loaded)), options.engine(loaded))
        await Engine.start(self._engine)
        self._stack.push_async_callback(Engine.stop, self._engine)
        return "memory://"

    def _connected(self, url: str, **how: Any) -> JobQueue:
        app = super()._connected(url, **how)
        app.shared.create = lambda: self._engine
        return app


class _Lent(Engine):
    """An engine that no single app starts or stops."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Sqlite(Place):
    """One file."""

    name = "sqlite"

    async def _open(self) -> str:
        return f"sqlite:///{self._ask('tmp_path') / 'jobs.db'}"


class Postgres(Place):
    """One database."""

    name = "postgres"

    async def _open(self) -> str:
        return str(self._ask("postgres_dsn"))


class Redis(Place):
    """The store on Redis."""

    name = "redis"

    async def _open(self) -> str:
        return str(self._ask("redis_url"))


class Grpc(Place):
    """A jq-server in memory, wired as the program does it; apps and workers speak gRPC.

    Its own pool is off unless ``settings`` say otherwise.
    """

    name = "grpc"

    async def _open(self) -> str:
        own = {"db.url": "memory://", "http.port": "0", "grpc.port": "0", "worker.concurrency": "0"}
        server = ServerProcess(self._loaded(**own))
        await server.start()
        self._stack.push_async_callback(server.stop)
        return f"grpc://{server.grpc_target}"

    def _connected(self, url: str, **how: Any) -> JobQueue:
        return JobQueue(url, **how)


PLACES: dict[str, type[Place]] = {
    place.name: place for place in (Inline, Memory, Sqlite, Postgres, Redis, Grpc)
}
