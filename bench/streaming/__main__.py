"""``make bench-streaming``: how fast the relay publishes, and how fast a store is rebuilt, on a
private PostgreSQL, Redis and Kafka.

relay: a backlog of jobs that were submitted, claimed and finished (four events each) is published
from the beginning: what the relay does after an outage. The broker shares the machine.
replay: as many jobs in every state are published, read back and written into each store, and
everything is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench.replicated.ground import scratch
from bench.streaming import replaying
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec, NewJob, Queue, Transition
from jobqueue.core.observer import Deaf
from jobqueue.core.store import Claim, Store
from jobqueue.events.kafka import KafkaPublisher, KafkaSettings
from jobqueue.events.relay import Relay
from jobqueue.events.topics import MESSAGE_MARGIN, Topics
from jobqueue.topology.backing import PrivateKafka, PrivatePostgres, PrivateRedis
from jobqueue.topology.connect import create_store

_BATCH = 1_000
_EVENTS = 4  # of each job


class Stages(Deaf):
    """Where the store's time goes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.left = 0
        self.done = asyncio.Event()

    def published(self, topic: str, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            self.done.set()

    def queried(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


@asynccontextmanager
async def filled(url: str, jobs: int, payload: int, stages: Stages) -> AsyncIterator[Store]:
    store = create_store(url, observer=stages)
    await store.open()
    try:
        await store.create_queue(Queue(name="q"))
        body = b"x" * payload
        for _ in range(jobs // _BATCH):
            specs = [JobSpec(payload=body, queue="q", type="noop") for _ in range(_BATCH)]
            new = [NewJob(one, spec) for one, spec in zip(new_job_ids(_BATCH), specs, strict=True)]
            await store.submit(new)
            held = await store.claim([Claim(("q",), ["w"] * _BATCH)])
            await store.apply(
                [Transition.succeeded(one.seq, one.lease, b"ok", 0.001) for one in held]
            )
        yield store
    finally:
        await store.close()


async def measure(url: str, bootstrap: str, jobs: int, payload: int, profiled: bool) -> float:
    """Events each second."""
    stages = Stages()
    async with filled(url, jobs, payload, stages) as store:
        term = await store.lead(1, 3_600.0)
        assert term is not None
        stages.seconds.clear()
        stages.left = jobs * _EVENTS + 1  # and the queue
        prefix = f"bench-{time.time_ns()}-"
        topics = Topics(f"{prefix}jobs", f"{prefix}dead", f"{prefix}queues")
        told = KafkaSettings(
            bootstrap=bootstrap,
            topics=topics.all,
            max_message_bytes=(1 << 20) + MESSAGE_MARGIN,
            replication=1,
        )
        publisher = KafkaPublisher(told)
        await publisher.open()  # making topics is no part of it
        relay = Relay(publisher, topics, stages)
        profile = cProfile.Profile()
        if profiled:
            profile.enable()
        began, cpu = time.perf_counter(), time.process_time()
        relay.start(store, lambda: term)
        await stages.done.wait()
        took, busy = time.perf_counter() - began, time.process_time() - cpu
        profile.disable()
        await relay.stop()
    events = jobs * _EVENTS
    print(
        f"{url.partition(':')[0]:12} {events:8} events, payload {payload} B:"
        f" {events / took:8.0f} events/s ({took:.2f} s, {busy:.2f} s of it CPU of this process)"
    )
    for name, seconds in sorted(stages.seconds.items(), key=lambda item: -item[1])[:4]:
        print(f"             {name:16} {seconds:6.2f} s")
    if profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)
    return events / took


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs in the backlog")
    parser.add_argument("--payload", type=int, default=100, help="bytes")
    parser.add_argument("--bootstrap", help="a Kafka that is there")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--store", nargs="*", default=["postgres", "sqlite"])
    parser.add_argument("--only", choices=["relay", "replay"], help="one part")
    options = parser.parse_args()
    replayed = options.only != "relay"
    with scratch() as folder:
        kafka = None if options.bootstrap else PrivateKafka(folder / "kafka")
        postgres = PrivatePostgres(folder / "postgres")
        redis = PrivateRedis(
            folder / "redis", settings={"appendonly": "yes", "appendfsync": "always"}
        )
        try:
            bootstrap = options.bootstrap
            if kafka is not None:
                kafka.start()
                bootstrap = kafka.bootstrap
            if "postgres" in options.store or replayed:
                postgres.start()
            for name in options.store if options.only != "replay" else ():
                url = _place(name, postgres, folder)
                work = measure(url, bootstrap, options.jobs, options.payload, options.profile)
                uvloop.run(work)
            if replayed:
                redis.start()
                database = asyncio.run(replaying.empty_database(postgres))
                targets = [f"sqlite:///{folder}/rebuilt.db", database, redis.url]
                source = f"sqlite:///{folder}/source.db"
                uvloop.run(
                    replaying.measure(source, targets, bootstrap, options.jobs, options.payload)
                )
        finally:
            redis.stop()
            postgres.stop("immediate")
            if kafka is not None:
                kafka.stop()
    return 0


def _place(name: str, postgres: PrivatePostgres, folder: Path) -> str:
    return postgres.dsn() if name == "postgres" else f"sqlite:///{folder}/jobs.db"


if __name__ == "__main__":
    sys.exit(main())
