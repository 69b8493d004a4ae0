"""Measure how fast a relay publishes a backlog, its memory, and how much it slows jobs down."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

from jobqueue.bench.machine import resident_bytes
from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios.fleet import fleet, load
from jobqueue.bench.scenarios.stand import Say, Stand, caught_up, opened_store
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec, NewJob, Transition
from jobqueue.core.observer import Observer
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim, Store
from jobqueue.events.kafka import KafkaPublisher
from jobqueue.events.relay import Relay
from jobqueue.events.settings import KafkaSettings
from jobqueue.events.topics import MESSAGE_MARGIN, Topics

_EVENTS = 4  # of each job that was submitted, claimed and finished
_LARGE = 256 << 10
_MIB = 1 << 20
_TARGET = 20_000
_MEMORY = 256  # MiB: a few pages of 8 MiB, as rows, as records and in librdkafka
_SETTLED = 2.0
_GLANCE = 0.02
_SHARE = 0.80  # of the rate without the stream


class Watch(Observer):
    """Counts the records left to publish, and adds up the time of reads from the store."""

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


async def relay(stand: Stand) -> list[Figure]:
    """Measure the events per second that a relay publishes, from PostgreSQL and from SQLite."""
    figures = []
    for store in ("postgresql", "sqlite"):
        stand.say(store)
        async with _place(stand, store) as url:
            rate, how = await _publish(stand, url)
        figures.append(Figure(f"relay from {store}", rate, "events/s", _TARGET, how))
    return figures


async def memory(stand: Stand) -> list[Figure]:
    """Measure how much memory a jq-server needs to publish a backlog of large payloads.

    The figure is the difference from a jq-server without the event stream.
    """
    large = stand.sizes.large
    async with stand.database() as site:
        async with _filled(site.url, large, _LARGE, Watch(), stand.say):
            pass
        stand.say("without the stream")
        async with fleet(site, workers=0) as programs:
            await asyncio.sleep(_SETTLED)
            before = resident_bytes(programs.pids["server-1"])
        stand.say("publishing")
        async with fleet(site, workers=0, told=_stream_settings(stand)) as programs:
            most = 0
            while (lag := await site.store.stream.lag()) is None or lag.events:
                most = max(most, resident_bytes(programs.pids["server-1"]))
                await asyncio.sleep(_GLANCE)
    backlog = large * _LARGE / _MIB
    what = f"memory for a backlog of {backlog:,.0f} MiB"
    how = (
        f"{large:,} jobs with {_LARGE >> 10} KiB; resident set of jq-server at most"
        f" {most / _MIB:,.0f} MiB while it publishes, {before / _MIB:,.0f} MiB without the stream"
    )
    return [Figure(what, (most - before) / _MIB, "MiB", _MEMORY, how)]


async def drain(stand: Stand) -> list[Figure]:
    """Measure the drain of a backlog without and with the event stream."""
    sizes = stand.sizes
    cpu = stand.cpu()
    stand.say("without the stream")
    without, before, _ = await _drained(stand, {})
    stand.say("with the stream")
    streamed, costs, behind = await _drained(stand, _stream_settings(stand))
    how = (
        f"{sizes.jobs:,} no-op jobs, 1 server, 1 jq-worker, concurrency {sizes.concurrency},"
        f" batch size {sizes.batch_size}; {without:,.0f} jobs/s without and {streamed:,.0f}"
        f" with the stream, in turn; {cpu.spent().busy_elsewhere}"
    )
    ratio = streamed / without
    return [
        Figure("drain with the event stream, against without", ratio, "of the rate", _SHARE, how),
        Figure(
            "drain with the event stream", streamed, "jobs/s", None,
            f"{behind}; {costs}; without: {before}",
        ),
    ]  # fmt: skip


async def _drained(stand: Stand, told: Mapping[str, str]) -> tuple[float, str, str]:
    """Return the drain rate, the processor time by part, and how far the stream was behind."""
    jobs = stand.sizes.jobs
    async with stand.database() as site:
        await load(site, jobs)
        async with fleet(site, for_drains=True, told=told) as programs:
            if told:
                await caught_up(site.store)
            cpu = stand.cpu(**programs.pids)
            rate = await site.drain_rate(jobs)
            spent = cpu.spent().per_job(jobs)
            behind = ""
            if told:
                lag = await site.store.stream.lag()
                assert lag is not None
                behind = f"{lag.events:,} events behind when the last job was done"
                await caught_up(site.store)
    return rate, spent, behind


def kafka_settings(bootstrap: str, prefix: str) -> dict[str, str]:
    """Return the environment variables of a server whose topic names start with ``prefix``."""
    topics = {"JOBS": "jobs", "DEAD_LETTERS": "dead", "QUEUES": "queues"}
    return {
        "JQ_KAFKA_BOOTSTRAP": bootstrap,
        "JQ_KAFKA_REPLICATION": "1",
        **{f"JQ_KAFKA_TOPIC_{name}": prefix + topic for name, topic in topics.items()},
    }


def _stream_settings(stand: Stand) -> dict[str, str]:
    return kafka_settings(stand.kafka.bootstrap, stand.prefix())


def own_topics(stand: Stand) -> tuple[KafkaSettings, Topics]:
    """Return Kafka settings and unique topic names for a publisher in this process."""
    prefix = stand.prefix()
    topics = Topics(f"{prefix}jobs", f"{prefix}dead", f"{prefix}queues")
    told = KafkaSettings(
        bootstrap=stand.kafka.bootstrap,
        topics=topics.all,
        max_message_bytes=(1 << 20) + MESSAGE_MARGIN,
        replication=1,
    )
    return told, topics


@contextlib.asynccontextmanager
async def _place(stand: Stand, store: str) -> AsyncIterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{stand.folder}/{stand.prefix()}jobs.db"  # removed with the folder
    else:
        async with stand.database() as site:
            yield site.url


async def _publish(stand: Stand, url: str) -> tuple[float, str]:
    """Return the published events per second, and a description of the measurement."""
    watch, jobs, payload = Watch(), stand.sizes.jobs, stand.sizes.payload
    async with _filled(url, jobs, payload, watch, stand.say) as store:
        term = await store.leadership.lead(1, 3_600.0)
        assert term is not None
        watch.reading = 0.0
        watch.left = jobs * _EVENTS + len(await store.queues.stats())  # queues are published, too
        told, topics = own_topics(stand)
        publisher = KafkaPublisher(told)
        await publisher.open()  # creates the topics, before the measurement starts
        running = Relay(publisher, topics, watch)
        stand.say("publishing")
        cpu, began = stand.cpu(), time.perf_counter()
        running.start(store.stream, lambda: term)
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
    async with opened_store(url, watch) as store:
        await store.queues.create(Queue(name="q"))
        body, left = b"x" * payload, jobs
        while left:
            say(f"{left:,} jobs to write")
            count = min(left, 1_000, max(1, (32 << 20) // payload))
            left -= count
            specs = [JobSpec(payload=body, queue="q", type="noop") for _ in range(count)]
            new = [NewJob(one, spec) for one, spec in zip(new_job_ids(count), specs, strict=True)]
            await store.jobs.submit(new)
            held = await store.jobs.claim([Claim(("q",), ["w"] * count)])
            assert len(held) == count
            await store.jobs.apply(
                [Transition.succeeded(one.seq, one.lease, b"ok", 0.001) for one in held]
            )
        yield store
