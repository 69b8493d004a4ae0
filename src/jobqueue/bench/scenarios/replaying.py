"""Measure the time to rebuild a store from Kafka, and compare the result with the original."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios.relaying import own_topics
from jobqueue.bench.scenarios.stand import Stand, caught_up, opened_store
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import Event, Job, JobSpec, NewJob, Transition
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.core.rebuild import Restored, gather
from jobqueue.core.store import BEGINNING, Claim, JobFilter, Store, Term
from jobqueue.events.kafka import KafkaPublisher
from jobqueue.events.record import Record
from jobqueue.events.relay import Relay
from jobqueue.events.replay import Replay
from jobqueue.events.settings import KafkaSettings
from jobqueue.events.topics import Topics
from jobqueue.fleet.backing import PrivateRedis

_BATCH = 1_000
_PAGE = 2_000
_QUEUE = "q"


async def fill(store: Store, jobs: int, payload: int) -> None:
    """Write jobs in every state into the store.

    Of twenty jobs, two are delayed, one runs, and two wait for a retry. One was cancelled, one
    failed for good, and one failed and was retried by hand. The other twelve are done.
    """
    await store.queues.create(Queue(name=_QUEUE, retry_profile="scheduler"))
    body = b"x" * payload
    for start in range(0, jobs, _BATCH):
        count = min(_BATCH, jobs - start)
        specs = [
            JobSpec(
                payload=body,
                queue=_QUEUE,
                type="noop",
                key=f"k{start + n}" if n % 10 == 0 else None,
                delay=3_600.0 if n % 20 < 2 else None,
            )
            for n in range(count)
        ]
        new = [NewJob(one, spec) for one, spec in zip(new_job_ids(count), specs, strict=True)]
        await store.jobs.submit(new)
        held = await store.jobs.claim([Claim((_QUEUE,), ["w"] * count)])
        moves: list[Transition] = []
        by_hand: list[Transition] = []
        for n, one in enumerate(held):
            kind = n % 18
            if kind == 0:
                moves.append(Transition.started(one.seq, one.lease))
            elif kind in (1, 2):
                moves.append(Transition.failed(one.seq, one.lease, "boom", retry_after=3_600.0))
            elif kind == 3:
                moves.append(Transition.cancelled(one.seq))
            elif kind in (4, 5):
                moves.append(Transition.failed(one.seq, one.lease, "never", retryable=False))
                if kind == 5:
                    by_hand.append(Transition.retried_by_hand(one.seq))
            else:
                moves.append(Transition.succeeded(one.seq, one.lease, b"ok", 0.001))
        for outcome in (await store.jobs.apply(moves)).outcomes:
            assert outcome.applied, outcome
        await store.jobs.apply(by_hand)


async def content(store: Store) -> tuple[list[Job], dict[str, list[Event]]]:
    """Return all jobs, and the events of each job by its id."""
    jobs: list[Job] = []
    before: int | None = None
    while page := await store.reads.list_jobs(JobFilter(before_seq=before, limit=_PAGE)):
        jobs += page
        before = page[-1].seq
    histories: dict[str, list[Event]] = defaultdict(list)
    position = BEGINNING
    while found := await store.stream.events_after(position, _PAGE):
        for _, event in found:
            histories[event.job_id].append(event)
        position = found[-1][0]
    return jobs, histories


async def replay(stand: Stand) -> list[Figure]:
    """Publish an SQLite store to Kafka, and rebuild each kind of store from Kafka."""
    told, topics = own_topics(stand)
    jobs = stand.sizes.jobs
    stand.say(f"{jobs:,} jobs to write and to publish")
    async with opened_store(f"sqlite:///{stand.folder}/{stand.prefix()}source.db") as source:
        await fill(source, jobs, stand.sizes.payload)
        term = await source.leadership.lead(1, 3_600.0)
        assert term is not None
        await _publish(source, term, told, topics)
        expected = Compared(*await content(source), _figures(await source.queues.stats()))
    stand.say("reading")
    began = time.perf_counter()
    found = await asyncio.to_thread(_read, told, topics)
    found.check()
    state = gather(found.world, published=True)
    took = time.perf_counter() - began
    how = f"{found.records:,} records of {len(state.jobs):,} jobs in every state, from Kafka"
    figures = [Figure("replay, reading", found.records / took, "records/s", None, how)]
    async with stand.database() as site, _durable_redis(stand) as redis:
        rebuilt = f"sqlite:///{stand.folder}/{stand.prefix()}rebuilt.db"
        for url in (rebuilt, site.url, redis):
            async with opened_store(url) as target:
                stand.say(f"writing into {target.name}")
                figures.append(await _write(target, state, expected))
    return figures


@contextlib.asynccontextmanager
async def _durable_redis(stand: Stand) -> AsyncIterator[str]:
    """Start a Redis that confirms a write only when it is on disk, and yield its URL."""
    settings = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    redis = PrivateRedis(stand.folder / f"{stand.prefix()}redis", settings=settings)
    await asyncio.to_thread(redis.start)
    try:
        yield redis.url
    finally:
        await asyncio.to_thread(redis.stop)


@dataclass(frozen=True, slots=True)
class Compared:
    """Holds everything that the original and the rebuilt store must have in common."""

    jobs: list[Job]
    histories: dict[str, list[Event]]
    figures: list[tuple[object, ...]]


async def _write(target: Store, state: Restored, expected: Compared) -> Figure:
    began = time.perf_counter()
    await target.restore(state, lambda count: None)
    took = time.perf_counter() - began
    found = Compared(*await content(target), _figures(await target.queues.stats()))
    if found != expected:
        raise RuntimeError(
            f"{target.name}: the rebuilt jobs, histories or statistics differ from the original"
        )
    how = f"{len(state.jobs):,} jobs in {took:.1f} s; every job, history and figure as it was"
    return Figure(f"replay into {target.name}", len(state.jobs) / took, "jobs/s", None, how)


def _figures(stats: Sequence[QueueStats]) -> list[tuple[object, ...]]:
    return [(one.queue.name, one.depth, one.succeeded, one.failed) for one in stats]


async def _publish(store: Store, term: Term, told: KafkaSettings, topics: Topics) -> None:
    relay = Relay(KafkaPublisher(told), topics)
    relay.start(store.stream, lambda: term)
    try:
        await caught_up(store)
    finally:
        await relay.stop()


def _read(told: KafkaSettings, topics: Topics) -> Replay:
    found = Replay()
    with Record(told, (topics.jobs, topics.queues)) as record:
        found.read(record, lambda count: None)
    return found
