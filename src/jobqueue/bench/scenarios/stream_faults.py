"""Faults of an event stream. After each of them Kafka equals ``job_event``, and the order
of every job's events was kept: ``StreamDiffers`` is raised where that does not hold.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg

from jobqueue.bench.cell import Cell
from jobqueue.bench.ground import Ground, brought_up
from jobqueue.bench.scenarios.dying_server import FAILPOINTS, ORDERS
from jobqueue.bench.scenarios.fleet import telling, until_online
from jobqueue.bench.scenarios.stand import Say
from jobqueue.bench.scenarios.stream_judge import (
    Reader,
    StreamComparison,
    StreamDiffers,
    StreamMessage,
    compare,
    written,
)
from jobqueue.bench.scenarios.stream_load import StreamLoad, is_cancelled, spec
from jobqueue.connect.backends import create_store
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import NewJob
from jobqueue.core.store import Rules, Store
from jobqueue.core.stream import JobEvent
from jobqueue.fleet.backing import PrivateKafka
from jobqueue.fleet.layout import Layout
from jobqueue.stores.postgres.heads import Heads
from jobqueue.stores.postgres.queue_cache import QueueCache
from jobqueue.stores.postgres.statements import LAYOUT
from jobqueue.stores.postgres.submitting import Submitting
from jobqueue.worker.executors.spawn import describe_exit

_POLL = 0.02
_PATIENCE = 60.0
_STUCK = 120.0  # seconds in which nothing was published
_TRANSACTION = 100  # jobs
_STEP = 0.1  # seconds
_BURST = 0.5  # seconds' worth of jobs at once, at most
_SETTINGS = {
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_LOG_LEVEL": "error",
}
_DYING = "jobqueue.bench.scenarios.dying_server"


@dataclass(frozen=True, slots=True)
class FaultStage:
    """An empty database, and topics of its own."""

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
        """The failpoint at which the publishing server dies."""
        return self.folder / "die-at"

    @property
    def kafka(self) -> Mapping[str, str]:
        """The settings of a server for the stream."""
        return {
            "JQ_KAFKA_BOOTSTRAP": self.bootstrap,
            "JQ_KAFKA_TOPIC_JOBS": self.jobs,
            "JQ_KAFKA_TOPIC_DEAD_LETTERS": self.dead,
            "JQ_KAFKA_TOPIC_QUEUES": f"{self.prefix}queues",
            "JQ_KAFKA_REPLICATION": "1",
        }

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of a scenario's servers."""
        return {**_SETTINGS, **self.kafka, ORDERS: str(self.orders)}

    @asynccontextmanager
    async def play(self, say: Say, servers: int = 1) -> AsyncIterator[Play]:
        """Servers, all of them started at once, and a worker that knows every one."""
        say("starting")
        wired = telling(self.settings, services={"postgres": self.dsn, "redis": None})

        def change(layout: Layout) -> Layout:
            made = wired(layout)
            processes = [
                replace(one, module=_DYING) if one.role == "server" else one
                for one in made.processes
            ]
            return replace(made, processes=tuple(processes))

        cell = Cell("replicated", servers=servers, slots=self.concurrency)
        async with AsyncExitStack() as stack:
            programs = brought_up(cell, change, within=self.folder)
            running = await stack.enter_async_context(programs)
            store = create_store(self.dsn)
            await store.open()
            stack.push_async_callback(store.close)
            await until_online(store, 1, running)
            load = StreamLoad(",".join(running.grpc), say)
            stack.push_async_callback(load.close)
            yield Play(self, running, store, load, say)


@dataclass(frozen=True, slots=True)
class Play:
    """A stage on which programs run."""

    stage: FaultStage
    servers: Ground
    store: Store
    load: StreamLoad
    say: Say

    async def lag(self) -> int:
        """Events that are not in the stream."""
        lag = await self.store.stream.lag()
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

    async def same(self) -> StreamComparison:
        """Wait for the end of everything, and compare."""
        await self.load.settled()
        await self.caught_up()
        self.say("comparing")
        events = await written(self.stage.dsn)

        def look() -> StreamComparison:
            bootstrap = self.stage.bootstrap
            with (
                Reader(bootstrap, self.stage.jobs) as jobs,
                Reader(bootstrap, self.stage.dead) as dead,
            ):
                return compare(events, jobs.all(), dead.all())

        return await asyncio.to_thread(look)


class StreamWatcher:
    """Reads the stream of jobs as it comes, and notes when."""

    def __init__(self, stage: FaultStage) -> None:
        self._stage = stage
        self._stopping = False
        self.seen: dict[str, StreamMessage] = {}  # the first one by event id

    async def __aenter__(self) -> StreamWatcher:
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

    async def until(self, holds: Callable[[Mapping[str, StreamMessage]], bool], what: str) -> None:
        """Wait for that."""
        give_up = time.monotonic() + _STUCK
        while not holds(self.seen):
            if self._task.done():
                self._task.result()
            if time.monotonic() > give_up:
                raise TimeoutError(what)
            await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The result of a scenario."""

    comparison: StreamComparison
    seconds: float  # how long whatever was asked about took
    delays: list[float]  # from an event's own time until it was read from Kafka


async def plain(stage: FaultStage, jobs: int, say: Say) -> ScenarioResult:
    """Nothing happens but work. ``seconds``: from the first submit until all is published."""
    async with stage.play(say) as play:
        began = time.perf_counter()
        await play.load.run(jobs)
        await play.load.settled()
        await play.caught_up()
        took = time.perf_counter() - began
        return ScenarioResult(await play.same(), took, [])


async def outage(
    stage: FaultStage,
    jobs: int,
    say: Say,
    broker: PrivateKafka,
    seconds: float,
    meanwhile: Callable[[Ground], Awaitable[None]] | None = None,
) -> ScenarioResult:
    """Kafka is stopped for a while, under load. ``seconds``: from its return until the stream has
    caught up."""
    async with stage.play(say) as play:
        async with StreamWatcher(stage) as watcher:
            await play.load.run(jobs // 3)
            await watcher.until(bool, "nothing is published")
        await asyncio.to_thread(broker.stop)
        back_at = time.monotonic() + seconds
        await play.load.run(jobs // 3)
        await play.load.settled()  # jobs go on
        if not await play.lag():
            raise StreamDiffers("the stream has everything, and Kafka is away")
        if meanwhile is not None:
            await meanwhile(play.servers)
        say("Kafka is away")
        await asyncio.sleep(max(0.0, back_at - time.monotonic()))
        await asyncio.to_thread(broker.start)
        began = time.perf_counter()
        await play.caught_up()
        took = time.perf_counter() - began
        await play.load.run(jobs - 2 * (jobs // 3))
        return ScenarioResult(await play.same(), took, [])


async def killed(stage: FaultStage, jobs: int, say: Say) -> ScenarioResult:
    """The server that publishes is killed with -9 at each failpoint, and another one goes on.

    ``seconds``: the longest time from a kill until the next one had caught up.
    """
    parts = len(FAILPOINTS) + 1
    longest = 0.0
    async with stage.play(say, servers=parts) as play:
        for died, place in enumerate(FAILPOINTS):
            await play.load.run(jobs // parts)
            stage.orders.write_text(place)
            began = await _a_server_died(play, died + 1)
            await play.caught_up()
            longest = max(longest, time.perf_counter() - began)
        await play.load.run(jobs - jobs // parts * len(FAILPOINTS))
        compared = await play.same()
    if not compared.repeated:
        raise StreamDiffers("killed after Kafka's answer, it repeats what Kafka had: not seen")
    return ScenarioResult(compared, longest, [])


async def _a_server_died(play: Play, count: int) -> float:
    """Wait until so many have; when that was."""
    give_up = time.monotonic() + _PATIENCE
    units = [keeper.unit for keeper in play.servers.keepers if keeper.unit.role == "server"]
    while len(ends := [how for unit in units if (how := unit.ended())]) < count:
        if time.monotonic() > give_up:
            raise TimeoutError("no server died: none of them publishes")
        await asyncio.sleep(_POLL)
    if set(ends) != {describe_exit(-signal.SIGKILL)}:
        raise RuntimeError(f"servers ended: {ends}")
    return time.perf_counter()


async def reverse(stage: FaultStage, jobs: int, say: Say) -> ScenarioResult:
    """Of two transactions that enqueue, the one that began and numbered its jobs first commits
    last, when the other's events are in Kafka already; over and over."""
    began = time.perf_counter()
    async with stage.play(say) as play, StreamWatcher(stage) as watcher:
        for first in range(0, jobs, 2 * _TRANSACTION):
            half = min(_TRANSACTION, (jobs - first) // 2)
            async with _enqueueing(stage, range(first, first + half)) as early:
                async with _enqueueing(stage, range(first + half, first + 2 * half)) as late:
                    pass
                await watcher.until(
                    lambda seen, ids=late: all(f"{one}:1" in seen for one in ids),  # type: ignore[misc]
                    "what was committed is not in Kafka",
                )
                if any(f"{one}:1" in watcher.seen for one in early):
                    raise StreamDiffers("what is not committed is in Kafka")
            await play.load.cancel(_to_cancel(first, early) + _to_cancel(first + half, late))
            say(f"{first:,} jobs")
        return ScenarioResult(await play.same(), time.perf_counter() - began, [])


async def left_open(stage: FaultStage, rate: int, say: Say, seconds: float) -> ScenarioResult:
    """One enqueueing transaction stays open, and other jobs' events appear all the same.

    So many jobs a second come meanwhile. ``delays`` are those of their events, ``seconds`` that of
    the transaction's own after its commit.
    """
    async with stage.play(say) as play, StreamWatcher(stage) as watcher:
        async with _enqueueing(stage, range(1)) as own:
            began = time.monotonic()
            while (elapsed := time.monotonic() - began) < seconds:
                due = min(rate * (elapsed + _STEP) - play.load.submitted, rate * _BURST)
                await play.load.run(int(due))
                await asyncio.sleep(_STEP)
                say(f"{seconds - elapsed:.0f} s to go")
            await play.load.settled()
            await play.caught_up()
            others = dict(watcher.seen)
            if any(record.key in own for record in others.values()):
                raise StreamDiffers("what is not committed is in Kafka")
        committed = time.perf_counter()
        await watcher.until(lambda seen: f"{own[0]}:1" in seen, "it never came")
        took = time.perf_counter() - committed
        delays = [
            record.seen_at - record.item.event.at
            for record in others.values()
            if isinstance(record.item, JobEvent)
        ]
        return ScenarioResult(await play.same(), took, delays)


def _to_cancel(first: int, job_ids: list[str]) -> list[str]:
    return [one for number, one in enumerate(job_ids, first) if is_cancelled(number)]


@asynccontextmanager
async def _enqueueing(stage: FaultStage, numbers: range) -> AsyncIterator[list[str]]:
    """Jobs that a transaction has written, which is committed in the end; their ids."""
    db: Any = await asyncpg.connect(stage.dsn)
    try:
        async with db.transaction():
            ids = new_job_ids(len(numbers))
            jobs = [NewJob(one, spec(number)) for one, number in zip(ids, numbers, strict=True)]
            await db.execute(f"SET LOCAL jobqueue.layout = {LAYOUT}")
            submitting = Submitting(jobs, None, Rules(), QueueCache(), Heads())
            await submitting.run(db)
            for result in submitting.results:
                assert result is not None
                result.unwrap()
            yield [job.id for job in jobs]
    finally:
        await db.close()
