"""How fast the relay publishes a backlog, as after an outage, and what memory it takes for it.

Jobs that were submitted, claimed and finished have four events each. They are published from the
beginning, by a relay in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from bench.processes import server
from bench.progress import Say
from bench.report import Figure
from bench.streaming.ground import Ground
from bench.streaming.sizes import Sizes
from jobqueue.bench.machine import resident_bytes
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec, NewJob, Transition
from jobqueue.core.observer import Deaf
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim, Store
from jobqueue.events.kafka import KafkaPublisher
from jobqueue.events.relay import Relay
from jobqueue.events.settings import KafkaSettings
from jobqueue.events.topics import MESSAGE_MARGIN, Topics
from jobqueue.topology.connect import create_store

_EVENTS = 4  # of each job
_LARGE = 256 << 10
_MIB = 1 << 20
_TARGET = 20_000
_MEMORY = 256  # MiB: a few pages of 8 MiB, as rows, as records and in librdkafka
_SETTLED = 2.0
_GLANCE = 0.02


class Watch(Deaf):
    """Counts what was published, and the store's time."""

    def __init__(self) -> None:
        self.reading = 0.0
        self.left = 0
        self.done = asyncio.Event()

    def published(self, topic: str, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            self.done.set()

    def queried(self, name: str, seconds: float) -> None:
        if name == "changes_after":
            self.reading += seconds


async def relay(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    """Events each second, from either store."""
    figures = []
    for store in ("postgresql", "sqlite"):
        say(store)
        async with _place(ground, store) as url:
            rate, how = await _publish(ground, url, sizes.jobs, sizes.payload, say)
        figures.append(Figure(f"relay from {store}", rate, "events/s", _TARGET, how))
    return figures


async def memory(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    """What publishing takes for a backlog of large payloads: of a jq-server with the stream, more
    than of one without."""
    async with ground.servers.database() as site:
        async with _filled(site.url, sizes.large, _LARGE, Watch(), say):
            pass
        say("without the stream")
        async with server(site.url) as process:
            await asyncio.sleep(_SETTLED)
            before = resident_bytes(process.pid)
        say("publishing")
        stage = ground.stage_on(site, concurrency=0)
        async with server(site.url, stage.kafka) as process:
            most = 0
            while (lag := await site.store.stream_lag()) is None or lag.events:
                most = max(most, resident_bytes(process.pid))
                await asyncio.sleep(_GLANCE)
    backlog = sizes.large * _LARGE / _MIB
    what = f"memory for a backlog of {backlog:,.0f} MiB"
    how = (
        f"{sizes.large:,} jobs with {_LARGE >> 10} KiB; resident set of jq-server at most"
        f" {most / _MIB:,.0f} MiB while it publishes, {before / _MIB:,.0f} MiB without the stream"
    )
    return [Figure(what, (most - before) / _MIB, "MiB", _MEMORY, how)]


@contextlib.asynccontextmanager
async def _place(ground: Ground, store: str) -> AsyncIterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{ground.folder}/{ground.prefix()}jobs.db"  # the folder goes in the end
    else:
        async with ground.servers.database() as site:
            yield site.url


async def _publish(
    ground: Ground, url: str, jobs: int, payload: int, say: Say
) -> tuple[float, str]:
    """Events each second, and how that was measured."""
    watch = Watch()
    async with _filled(url, jobs, payload, watch, say) as store:
        term = await store.lead(1, 3_600.0)
        assert term is not None
        watch.reading = 0.0
        watch.left = jobs * _EVENTS + len(await store.stats())  # queues are published, too
        prefix = ground.prefix()
        topics = Topics(f"{prefix}jobs", f"{prefix}dead", f"{prefix}queues")
        told = KafkaSettings(
            bootstrap=ground.kafka.bootstrap,
            topics=topics.all,
            max_message_bytes=(1 << 20) + MESSAGE_MARGIN,
            replication=1,
        )
        publisher = KafkaPublisher(told)
        await publisher.open()  # making topics is no part of it
        running = Relay(publisher, topics, watch)
        say("publishing")
        cpu, began = ground.cpu(), time.perf_counter()
        running.start(store, lambda: term)
        await watch.done.wait()
        took, spent = time.perf_counter() - began, cpu.spent().shares()
        await running.stop()
    events = jobs * _EVENTS
    how = (
        f"backlog of {jobs:,} jobs with {payload:,} B, {events:,} events; reading took"
        f" {watch.reading:.1f} of {took:.1f} s; {spent}"
    )
    return events / took, how


@contextlib.asynccontextmanager
async def _filled(
    url: str, jobs: int, payload: int, watch: Watch, say: Say
) -> AsyncIterator[Store]:
    store = create_store(url, observer=watch)
    await store.open()
    try:
        await store.create_queue(Queue(name="q"))
        body, left = b"x" * payload, jobs
        while left:
            say(f"{left:,} jobs to write")
            count = min(left, 1_000, max(1, (32 << 20) // payload))
            left -= count
            specs = [JobSpec(payload=body, queue="q", type="noop") for _ in range(count)]
            new = [NewJob(one, spec) for one, spec in zip(new_job_ids(count), specs, strict=True)]
            await store.submit(new)
            held = await store.claim([Claim(("q",), ["w"] * count)])
            assert len(held) == count
            await store.apply(
                [Transition.succeeded(one.seq, one.lease, b"ok", 0.001) for one in held]
            )
        yield store
    finally:
        await store.close()
