"""Cause faults in an event stream, and compare Kafka with the store after each fault.

``StreamDiffers`` is raised unless Kafka has the store's events, those of each job in order.
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
from jobqueue.bench.scenarios.relaying import kafka_settings
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
from jobqueue.stores.postgres.submitting import HeldKeys, Submitting
from jobqueue.worker.executors.spawn import describe_exit

_POLL = 0.02
_PATIENCE = 60.0
_STUCK = 120.0  # seconds in which nothing was published
_TRANSACTION = 100  # jobs
_STEP = 0.1  # seconds
_BURST = 0.5  # at most the jobs of this many seconds are submitted at once
_SETTINGS = {
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_LOG_LEVEL": "error",
}
_DYING = "jobqueue.bench.scenarios.dying_server"


@dataclass(frozen=True, slots=True)
class FaultStage:
    """Describes the empty database and the new topics of one fault scenario."""

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
        """Return the file that names the failpoint at which the publishing server dies."""
        return self.folder / "die-at"

    @property
    def kafka(self) -> Mapping[str, str]:
        """Return the environment variables of a server that publishes to the scenario's topics."""
        return kafka_settings(self.bootstrap, self.prefix)

    @property
    def settings(self) -> Mapping[str, str]:
        """Return all environment variables of a scenario's servers."""
        return {**_SETTINGS, **self.kafka, ORDERS: str(self.orders)}

    @asynccontextmanager
    async def play(self, say: Say, servers: int = 1) -> AsyncIterator[Play]:
        """Start the servers together, and a worker that knows the address of each server."""
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
    """Holds the running programs, the store and the load of a fault scenario."""

    stage: FaultStage
    servers: Ground
    store: Store
    load: StreamLoad
    say: Say

    async def lag(self) -> int:
        """Return the number of events that the stream lacks, or 1 if the number is unknown."""
        lag = await self.store.stream.lag()
        return lag.events if lag is not None else 1

    async def caught_up(self) -> None:
        """Wait until the stream has every event of the store."""
        last, since = -1, time.monotonic()
        while left := await self.lag():
            self.say(f"{left:,} events behind")
            if left != last:
                last, since = left, time.monotonic()
            elif time.monotonic() > since + _STUCK:
                raise TimeoutError(
                    f"the stream is {left:,} events behind, without progress for {_STUCK:g} s"
                )
            await asyncio.sleep(_POLL)

    async def same(self) -> StreamComparison:
        """Wait until all jobs have ended and are published, then compare Kafka with the store."""
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
    """Reads the topic of job events in a thread, and keeps the first message of each event."""

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
        """Wait until ``holds`` returns True for the messages seen so far.

        Raises TimeoutError with the text ``what``.
        """
        give_up = time.monotonic() + _STUCK
        while not holds(self.seen):
            if self._task.done():
                self._task.result()
            if time.monotonic() > give_up:
                raise TimeoutError(what)
            await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Holds the result of a fault scenario: the comparison, a duration, and delays of events."""

    comparison: StreamComparison
    seconds: float  # the duration that the scenario measured
    delays: list[float]  # from an event's own time until it was read from Kafka


async def plain(stage: FaultStage, jobs: int, say: Say) -> ScenarioResult:
    """Run jobs without any fault.

    ``seconds`` in the result counts from the first submit until all events are published.
    """
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
    """Stop Kafka for a while under load.

    ``seconds`` in the result counts from Kafka's return until the stream has caught up.
    """
    async with stage.play(say) as play:
        async with StreamWatcher(stage) as watcher:
            await play.load.run(jobs // 3)
            await watcher.until(bool, "no event appears in Kafka")
        await asyncio.to_thread(broker.stop)
        back_at = time.monotonic() + seconds
        await play.load.run(jobs // 3)
        await play.load.settled()  # jobs end also without Kafka
        if not await play.lag():
            raise StreamDiffers("the stream has every event although Kafka is stopped")
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
    """Kill the publishing server at each failpoint in turn. Another server then publishes.

    ``seconds`` in the result is the longest time from a kill until the stream has caught up.
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
        raise StreamDiffers(
            "no event was repeated, but a relay that is killed before it stores Kafka's"
            " confirmation must repeat events"
        )
    return ScenarioResult(compared, longest, [])


async def _a_server_died(play: Play, count: int) -> float:
    """Wait until ``count`` servers have died, and return the time of the last death."""
    give_up = time.monotonic() + _PATIENCE
    units = [keeper.unit for keeper in play.servers.keepers if keeper.unit.role == "server"]
    while len(ends := [how for unit in units if (how := unit.ended())]) < count:
        if time.monotonic() > give_up:
            raise TimeoutError(
                f"{len(ends)} of {count} servers died in {_PATIENCE:g} s: no publishing server"
                " reached the failpoint"
            )
        await asyncio.sleep(_POLL)
    if set(ends) != {describe_exit(-signal.SIGKILL)}:
        raise RuntimeError(f"servers ended otherwise than by SIGKILL: {ends}")
    return time.perf_counter()


async def reverse(stage: FaultStage, jobs: int, say: Say) -> ScenarioResult:
    """Enqueue jobs in pairs of transactions that commit in the reverse order of their begin.

    The first transaction has the lower job numbers. It commits when the events of the second
    transaction are in Kafka.
    """
    began = time.perf_counter()
    async with stage.play(say) as play, StreamWatcher(stage) as watcher:
        for first in range(0, jobs, 2 * _TRANSACTION):
            half = min(_TRANSACTION, (jobs - first) // 2)
            async with _enqueueing(stage, range(first, first + half)) as early:
                async with _enqueueing(stage, range(first + half, first + 2 * half)) as late:
                    pass
                await watcher.until(
                    lambda seen, ids=late: all(f"{one}:1" in seen for one in ids),  # type: ignore[misc]
                    "the events of a committed transaction do not appear in Kafka",
                )
                if any(f"{one}:1" in watcher.seen for one in early):
                    raise StreamDiffers("Kafka has events of an open transaction of the store")
            await play.load.cancel(_to_cancel(first, early) + _to_cancel(first + half, late))
            say(f"{first:,} jobs")
        return ScenarioResult(await play.same(), time.perf_counter() - began, [])


async def left_open(stage: FaultStage, rate: int, say: Say, seconds: float) -> ScenarioResult:
    """Keep an enqueueing transaction open, and check that events of other jobs still reach Kafka.

    ``rate`` jobs per second are submitted meanwhile. In the result, ``delays`` are the delays of
    their events, and ``seconds`` is the delay of the transaction's own event after its commit.
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
                raise StreamDiffers("Kafka has events of an open transaction of the store")
        committed = time.perf_counter()
        await watcher.until(
            lambda seen: f"{own[0]}:1" in seen,
            "the event of the committed transaction does not appear in Kafka",
        )
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
    """Enqueue jobs in a transaction, yield their ids, and commit at the end of the block."""
    db: Any = await asyncpg.connect(stage.dsn)
    try:
        async with db.transaction():
            ids = new_job_ids(len(numbers))
            jobs = [NewJob(one, spec(number)) for one, number in zip(ids, numbers, strict=True)]
            await db.execute(f"SET LOCAL jobqueue.layout = {LAYOUT}")
            submitting = Submitting(jobs, None, Rules(), QueueCache(), Heads(), HeldKeys())
            await submitting.run(db)
            for result in submitting.results:
                assert result is not None
                result.unwrap()
            yield [job.id for job in jobs]
    finally:
        await db.close()
