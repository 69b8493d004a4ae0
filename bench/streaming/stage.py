"""Where scenarios play: a database, topics, servers that publish, a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Server, server, workers
from bench.progress import Say
from bench.streaming.comparing import Comparison, Reader, Record, compare, written
from bench.streaming.dying_server import ORDERS
from bench.streaming.jobs import Load
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.store import Store
from jobqueue.topology.connect import create_store

_POLL = 0.05
_STUCK = 120.0  # seconds in which nothing was published
_SETTINGS = {
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_LOG_LEVEL": "error",
}
_DYING = "bench.streaming.dying_server"


@dataclass(frozen=True, slots=True)
class Stage:
    """An empty database, and topics that nobody else has."""

    dsn: str
    bootstrap: str
    prefix: str
    folder: Path
    concurrency: int = 100

    @property
    def jobs(self) -> str:
        return f"{self.prefix}jobs"

    @property
    def dead(self) -> str:
        return f"{self.prefix}dead"

    @property
    def orders(self) -> Path:
        """Where the server that publishes is told to die."""
        return self.folder / "die-at"

    @property
    def kafka(self) -> Mapping[str, str]:
        """What a server is told about the stream."""
        return {
            "JQ_KAFKA_BOOTSTRAP": self.bootstrap,
            "JQ_KAFKA_TOPIC_JOBS": self.jobs,
            "JQ_KAFKA_TOPIC_DEAD_LETTERS": self.dead,
            "JQ_KAFKA_TOPIC_QUEUES": f"{self.prefix}queues",
            "JQ_KAFKA_REPLICATION": "1",
        }

    @property
    def settings(self) -> Mapping[str, str]:
        """What servers of a scenario are told."""
        return {**_SETTINGS, **self.kafka, ORDERS: str(self.orders)}

    @asynccontextmanager
    async def play(self, say: Say, servers: int = 1) -> AsyncIterator[Play]:
        """Servers, all of them started at once, and a worker that knows every one."""
        async with AsyncExitStack() as stack:
            say("starting")
            async with asyncio.TaskGroup() as starts:
                entered = [
                    starts.create_task(
                        stack.enter_async_context(server(self.dsn, self.settings, _DYING))
                    )
                    for _ in range(servers)
                ]
            running = [task.result() for task in entered]
            target = ",".join(one.target for one in running)
            operator = GrpcBackend(target)
            stack.push_async_callback(operator.stop)
            await stack.enter_async_context(
                workers(
                    {
                        "JQ_WORKER_SERVER": target,
                        "JQ_WORKER_CONCURRENCY": str(self.concurrency),
                    },
                    operator.list_workers,
                )
            )
            store = create_store(self.dsn)
            await store.open()
            stack.push_async_callback(store.close)
            load = Load(target, say)
            stack.push_async_callback(load.close)
            yield Play(self, running, store, load, say)


@dataclass(frozen=True, slots=True)
class Play:
    """A stage on which programs run."""

    stage: Stage
    servers: list[Server]
    store: Store
    load: Load
    say: Say

    async def lag(self) -> int:
        """Events that are not in the stream."""
        lag = await self.store.stream_lag()
        return lag.events if lag is not None else 1

    async def caught_up(self) -> None:
        """Wait until the stream has everything."""
        last, since = -1, time.monotonic()
        while left := await self.lag():
            self.say(f"{left:,} events behind")
            if left != last:
                last, since = left, time.monotonic()
            elif time.monotonic() > since + _STUCK:
                raise TimeoutError(f"the stream is {left:,} events behind, and stands still")
            await asyncio.sleep(_POLL)

    async def same(self) -> Comparison:
        """Wait for the end of everything, and compare."""
        await self.load.settled()
        await self.caught_up()
        self.say("comparing")
        events = await written(self.stage.dsn)

        def look() -> Comparison:
            bootstrap = self.stage.bootstrap
            with (
                Reader(bootstrap, self.stage.jobs) as jobs,
                Reader(bootstrap, self.stage.dead) as dead,
            ):
                return compare(events, jobs.all(), dead.all())

        return await asyncio.to_thread(look)


class Watcher:
    """Reads the stream of jobs as it comes, and notes when."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._stopping = False
        self.seen: dict[str, Record] = {}  # the first one by event id

    async def __aenter__(self) -> Watcher:
        self._task = asyncio.create_task(asyncio.to_thread(self._read))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await self._task

    def _read(self) -> None:
        with Reader(self._stage.bootstrap, self._stage.jobs) as reader:
            while not self._stopping:
                for record in reader.poll(0.1):
                    self.seen.setdefault(record.item.event_id, record)

    async def until(self, holds: Callable[[Mapping[str, Record]], bool], what: str) -> None:
        """Wait for that."""
        give_up = time.monotonic() + _STUCK
        while not holds(self.seen):
            if self._task.done():
                self._task.result()
            if time.monotonic() > give_up:
                raise TimeoutError(what)
            await asyncio.sleep(0.01)
