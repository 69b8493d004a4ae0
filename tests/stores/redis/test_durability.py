"""How safe an accepted job is, said aloud; and that it is as safe as was said."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import signal

import pytest

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Job, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim, JobFilter, Store
from jobqueue.stores.redis.store import RedisStore
from tests import patience
from tests.history.checker import Evidence, assert_kept
from tests.stores.driver import new, spec, worker
from tests.stores.redis.conftest import DURABLE, Victim

pytestmark = pytest.mark.req("sch:AOF")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_redis_that_flushes_every_write_is_durable(own_redis, open_store, caplog):
    store = await open_store(own_redis(DURABLE).url)
    assert store.durable
    assert store.components() == []
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("appendonly", "no", "nothing is written to its disk"),
        ("appendfsync", "everysec", "the newest writes are lost"),
        ("no-appendfsync-on-rewrite", "yes", "not flushed while the file is rewritten"),
        ("maxmemory-policy", "allkeys-lru", "thrown away when its memory is full"),
    ],
)
async def test_any_other_is_not_and_says_so(own_redis, open_store, caplog, setting, value, why):
    server = own_redis({**DURABLE, setting: value})
    store = await open_store(server.url)
    assert not store.durable
    (warning,) = warnings(caplog)
    assert warning.startswith("NOT DURABLE: jobs that were accepted can be lost")
    assert f"{setting} is {value}, not {DURABLE.get(setting, 'no')}" in warning
    assert why in warning
    (part,) = store.components()
    assert (part.name, part.ok) == ("redis", False)
    assert "NOT DURABLE" in part.detail
    assert setting in part.detail


async def test_a_change_of_its_settings_is_noticed(own_redis, open_store, caplog):
    victim = Victim(own_redis(DURABLE))
    store = await open_store(victim.url)
    victim.send("CONFIG", "SET", "appendfsync", "no")
    await store.ping()
    await store.ping()
    assert not store.durable
    assert len(warnings(caplog)) == 1
    victim.send("CONFIG", "SET", "appendfsync", "always")
    await store.ping()
    assert store.durable


async def test_settings_that_may_not_be_read_are_not_trusted(own_redis, open_store, caplog):
    victim = Victim(own_redis(DURABLE))
    victim.send("ACL", "SETUSER", "jq", "on", ">hush", "~*", "&*", "+@all", "-config")
    store = await open_store(f"redis://jq:hush@{victim.place}")
    assert not store.durable
    (warning,) = warnings(caplog)
    assert "its settings cannot be read" in warning
    assert "hush" not in warning


async def everything(store: Store) -> list[object]:
    """All that a store shows."""
    jobs = await store.reads.list_jobs(JobFilter(limit=1_000))
    return [
        jobs,
        [await store.reads.history(job.id) for job in jobs],
        await store.stream.events_after(BEGINNING, 10_000),
        await store.queues.stats(),
        sorted(await store.workers.held(), key=lambda held: held.seq),
        [dataclasses.replace(one, running=one.running) for one in await store.workers.all()],
    ]


async def test_a_restart_keeps_everything(own_redis, open_store):
    victim = Victim(own_redis(DURABLE))
    store = await open_store(victim.url)
    await store.queues.create(Queue(name="r", capacity=7, priority_weights={9: 2}, ttl=60.0))
    await store.workers.register(worker())
    await store.jobs.submit(new(*(spec(b"\x00\xff%d" % n, key=f"k{n}") for n in range(8))))
    await store.jobs.submit(new(spec(queue="r", delay=60.0, labels={"a": "ü"})))
    got = await store.jobs.claim([Claim(("q",), ["w"] * 6)])
    await store.jobs.apply(
        [
            Transition.succeeded(got[0].seq, got[0].lease, b"\x00result"),
            Transition.failed(got[1].seq, got[1].lease, "boom"),
            Transition.failed(got[2].seq, got[2].lease, "boom", retryable=False),
            Transition.started(got[3].seq, got[3].lease),
        ]
    )
    await store.jobs.request_cancel(got[3].seq)
    term = await store.leadership.lead(7, 60.0)
    before = await everything(store)
    victim.stop()
    victim.start()
    assert await everything(store) == before
    assert await store.leadership.lead(8, 60.0) is None
    assert await store.leadership.lead(7, 60.0) == term
    (again,) = (await store.jobs.submit(new(spec(b"\x00\xff0", key="k0")))).results
    assert again.job_id == got[0].id
    outcomes = (await store.jobs.apply([Transition.started(got[4].seq, got[4].lease)])).outcomes
    assert outcomes[0].applied


async def test_nothing_accepted_is_lost_when_redis_is_killed_under_load(own_redis, open_store):
    """Killed again and again while jobs are submitted, claimed and finished."""
    victim = Victim(own_redis(DURABLE))
    store: RedisStore = await open_store(victim.url)
    accepted: set[str] = set()
    finished: dict[str, bytes] = {}
    stop = asyncio.Event()

    async def produce() -> None:
        while not stop.is_set():
            try:
                results = (await store.jobs.submit(new(*(spec() for _ in range(10))))).results
            except JobQueueError:
                continue
            accepted.update(one.job_id for one in results if one.error is None)

    async def work(name: str) -> None:
        while not stop.is_set():
            try:
                got = await store.jobs.claim([Claim(("q",), [name] * 5)])
                asked = [Transition.succeeded(one.seq, one.lease, one.id.encode()) for one in got]
                outcomes = (await store.jobs.apply(asked)).outcomes
            except JobQueueError:
                continue
            for one, outcome in zip(got, outcomes, strict=True):
                assert outcome.applied, outcome
                finished[one.id] = one.id.encode()

    tasks = [asyncio.create_task(job) for job in (produce(), produce(), work("w1"), work("w2"))]
    try:
        for _ in range(3):
            count, done = len(accepted), len(finished)
            async with patience.timeout(60):
                while len(accepted) < count + 100 or len(finished) < done + 50:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(random.uniform(0, 0.02))
            victim.signal(signal.SIGKILL)
            await asyncio.to_thread(victim.stop)
            await asyncio.to_thread(victim.start)
        stop.set()
        async with patience.timeout(60):
            await asyncio.gather(*tasks)
    finally:
        stop.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    jobs: dict[str, Job] = {}
    before: int | None = None
    while page := await store.reads.list_jobs(JobFilter(before_seq=before, limit=500)):
        jobs |= {job.id: job for job in page}
        before = page[-1].seq
    assert accepted <= jobs.keys()
    for job_id, result in finished.items():
        assert (jobs[job_id].state, jobs[job_id].result) == (State.DONE, result)
    events = [event for _, event in await store.stream.events_after(BEGINNING, 1_000_000)]
    assert_kept(Evidence(events=events, jobs=jobs, accepted=accepted, removed=set()))
    # What the indexes count is what there is.
    (stats,) = await store.queues.stats("q")
    for state in State:
        assert stats.depth[state] == sum(job.state is state for job in jobs.values())
