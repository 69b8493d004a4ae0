"""A program of many that submit equal jobs: ``python -m tests.faults.unique_app URL SEED``.

It prints each answer as a line of JSON, until it is killed or reads a line.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec, NewJob, Transition
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim, Store
from jobqueue.core.unique import UniqueKey
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.redis.store import RedisStore
from jobqueue.stores.sqlite.store import SqliteStore

KEYS = 5


def store_of(url: str) -> Store:
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        return SqliteStore(rest)
    return RedisStore(url) if scheme == "redis" else PostgresStore(url, few=2)


def unique_key(n: int) -> UniqueKey:
    """Even keys are debounced; odd ones have one unfinished job at a time."""
    if n % 2:
        return UniqueKey(key=f"k{n}")
    return UniqueKey(key=f"k{n}", scope="waiting", on_conflict="replace")


async def submit(store: Store, keys: list[int]) -> list[list[str]]:
    """Submit a job for each key; return key, status and id of each."""
    specs = [JobSpec(payload=b"x", queue="q", unique=unique_key(n)) for n in keys]
    jobs = [NewJob(one, spec) for one, spec in zip(new_job_ids(len(specs)), specs, strict=True)]
    results = (await store.jobs.submit(jobs)).results
    return [
        [f"k{n}", result.status.value, result.job_id]
        for n, result in zip(keys, results, strict=True)
    ]


async def main(url: str, seed: int) -> None:
    store = store_of(url)
    await store.open()
    await store.queues.create(Queue(name="q"))
    draw = random.Random(seed)
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    while not over.done():
        print(json.dumps(await submit(store, draw.choices(range(KEYS), k=3))), flush=True)
        if draw.random() < 0.4:
            got = await store.jobs.claim([Claim(("q",), [f"w{seed}"] * 2)])
            ends = [Transition.succeeded(job.seq, job.lease, b"r", 0.0) for job in got]
            await store.jobs.apply(ends)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
