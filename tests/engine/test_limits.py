"""The scheduler and limits of queues: without the poll interval, no job waits too long."""

from __future__ import annotations

import asyncio
import random

import pytest

from jobqueue.core.job import JobSpec, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSpec, QueueUpdate
from jobqueue.core.store import Change
from tests import patience
from tests.engine.conftest import OpenRig
from tests.engine.pair import OpenPair
from tests.engine.rig import Rig, Worker, until

NO_SAFETY_NET = 3_600.0


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.core.waiting.RECENT", -1.0)


async def limited(open_rig: OpenRig, **limits: int | float | None) -> Rig:
    rig = await open_rig(interval=NO_SAFETY_NET)
    await rig.engine.update_queue("default", QueueUpdate(**limits))  # type: ignore[arg-type]
    return rig


async def test_the_end_of_a_job_lets_the_next_one_start(open_rig: OpenRig):
    rig = await limited(open_rig, max_running=2)
    worker = await rig.worker(slots=10)
    ids = [await rig.submit(b"%d" % n) for n in range(5)]
    first, second = await worker.gets(2)
    await asyncio.sleep(1)
    assert worker.got == []
    assert await worker.succeed(first, freed=1)
    third = await worker.gets_one()
    assert await worker.succeed(second, freed=0)  # its slot is kept, others are free
    await worker.gets_one()
    assert third.id == ids[2]
    assert worker.got == []


async def test_a_job_that_a_sweep_gives_up_lets_the_next_one_start(open_rig: OpenRig):
    rig = await limited(open_rig, max_running=1)
    worker = await rig.worker(slots=10)
    await rig.submit(max_retries=0, timeout=10.0)
    await rig.submit()
    first = await worker.gets_one()
    await worker.start(first)
    rig.clock.advance(100)
    assert await rig.engine.sweep() == 1
    await worker.gets_one()


async def test_a_worker_of_another_scope_gets_the_place(open_rig: OpenRig):
    rig = await limited(open_rig, max_running=1)
    one = await rig.worker("one", slots=1, types=frozenset({"a"}))
    two = await rig.worker("two", slots=1, types=frozenset({"b"}))
    await rig.submit(type="a")
    first = await one.gets_one()
    await rig.submit(type="b")
    await asyncio.sleep(1)
    assert two.got == []
    assert await one.succeed(first, freed=1)
    await two.gets_one()


async def test_a_rate_is_waited_for_and_no_longer(open_rig: OpenRig):
    rig = await limited(open_rig, rate=2, rate_burst=1)
    worker = await rig.worker(slots=10)
    for n in range(3):
        await rig.submit(b"%d" % n)
    await worker.gets_one()
    began = asyncio.get_running_loop().time()
    for _ in range(2):
        rig.clock.advance(0.5)
        await worker.gets_one()
    assert 0.99 < asyncio.get_running_loop().time() - began < 1.1


async def test_a_limit_that_is_lifted_lets_jobs_start_at_once(open_rig: OpenRig):
    rig = await limited(open_rig, max_running=1, rate=1, rate_period=3_600)
    worker = await rig.worker(slots=10)
    for n in range(4):
        await rig.submit(b"%d" % n)
    await worker.gets_one()
    await rig.engine.update_queue("default", QueueUpdate(max_running=3))
    await asyncio.sleep(1)
    assert worker.got == []
    await rig.engine.update_queue("default", QueueUpdate(rate=0))
    await worker.gets(2)
    await rig.engine.update_queue("default", QueueUpdate(max_running=0))
    await worker.gets_one()


async def test_word_of_another_server_starts_a_claim(open_rig: OpenRig):
    rig = await limited(open_rig, max_running=1)
    worker = await rig.worker(slots=2)
    await rig.submit()
    await rig.submit()
    first = await worker.gets_one()
    await rig.memory.jobs.apply([Transition.succeeded(first.seq, first.lease, b"r")])
    await asyncio.sleep(1)
    assert worker.got == []
    rig.hears(Change.WORK)
    await worker.gets_one()


async def test_a_queue_without_a_limit_is_not_asked_for_again(open_rig: OpenRig):
    rig = await open_rig(interval=NO_SAFETY_NET)
    worker = await rig.worker(slots=10)
    await rig.submit()
    first = await worker.gets_one()
    await asyncio.sleep(1)
    rig.store.calls.clear()
    assert await worker.succeed(first)
    await asyncio.sleep(1)
    assert "jobs.claim" not in rig.store.calls


@pytest.mark.parametrize("seed", range(4))
async def test_no_place_is_lost(open_rig: OpenRig, seed: int):
    """Workers of several scopes take and report jobs in any order; every job runs."""
    rng = random.Random(seed)
    rig: Rig = await open_rig(interval=NO_SAFETY_NET, batch_size=rng.choice([1, 3, 100]))
    for name, most in (("a", 1), ("b", 4)):
        await rig.engine.create_queue(QueueSpec(name=name, max_running=most))
    total, done = 150, 0
    kinds = [("default",), ("a",), ("b",), ("a", "b"), ("*",)]
    workers = [
        await rig.worker(f"w{n}", queues=queues, slots=rng.choice([0, 1, 4]))
        for n, queues in enumerate(kinds)
    ]

    async def work(worker: Worker) -> None:
        nonlocal done
        worker.link.grant(1)
        while done < total:
            if not worker.got:
                await asyncio.sleep(0)
                continue
            held, worker.got = worker.got, []
            if rng.random() < 0.1:
                reports = [Transition.handed_back(a.seq, a.lease) for a in held]
            else:
                reports = [Transition.succeeded(a.seq, a.lease, None) for a in held]
                done += len(held)
            await worker.link.report(reports, freed=len(held))

    async with patience.timeout(20):
        specs = [JobSpec(payload=b"x", queue=rng.choice("ab")) for _ in range(total)]
        for start in range(0, total, 10):
            await rig.engine.submit(specs[start : start + 10])
        await asyncio.gather(*(work(worker) for worker in workers))
    depths = [s.depth for s in await rig.engine.list_queues()]
    assert sum(depth[State.DONE] for depth in depths) == total


async def test_figures_and_hints_name_the_jobs_that_a_limit_holds_back(open_rig: OpenRig):
    rig = await limited(open_rig, max_running=1, rate=1, rate_period=60)
    worker = await rig.worker(slots=10)
    await rig.submit()
    waiting = await rig.submit()
    await rig.submit(delay=60)
    first = await worker.gets_one()
    (by_running, by_rate) = (await rig.engine.queue_stats("default")).held_back
    assert (by_running.limit, by_running.jobs, by_running.opens_in) == ("max_running", 1, None)
    assert (by_rate.limit, by_rate.jobs) == ("rate", 1)
    assert by_rate.opens_in == pytest.approx(60)
    assert (await rig.engine.get(waiting)).hint == (
        "waits until a job of queue 'default' ends: 1 run, and max_running is 1"
    )
    assert await worker.succeed(first)
    rig.clock.advance(30)
    assert (await rig.engine.get(waiting)).hint == (
        "waits for the rate limit of queue 'default' (1 starts in 60 s): the next start is possible"
        " in 30 s"
    )
    await rig.engine.update_queue("default", QueueUpdate(rate=0))
    await worker.gets_one()
    assert (await rig.engine.queue_stats("default")).held_back == ()


async def test_hints_and_figures_tell_the_keys_that_are_held_back(open_rig: OpenRig):
    rig = await limited(open_rig, key_max_running=1, key_rate=1, key_rate_period=60.0)
    worker = await rig.worker(slots=10)
    for key in ("a", "b"):
        await rig.submit(concurrency_key=key)
    waiting = [await rig.submit(concurrency_key=key) for key in ("a", "a", "b")]
    first, _ = await worker.gets(2)
    assert await worker.succeed(first)
    found = (await rig.engine.queue_stats("default")).held_back
    shown = [(one.limit, one.key, one.jobs, one.opens_in is None) for one in found]
    assert shown == [
        ("key_rate", "a", 2, False),
        ("key_max_running", "b", 1, True),
        ("key_rate", "b", 1, False),
    ]
    assert (await rig.engine.get(waiting[2])).hint == (
        "waits until a job of key 'b' in queue 'default' ends: 1 run, and key_max_running is 1"
    )
    assert (await rig.engine.get(waiting[0])).hint.startswith(
        "waits for the rate limit of key 'a' in queue 'default' (1 starts in 60 s): the next start"
    )


async def test_a_key_that_holds_nothing_is_served_before_one_that_floods(open_rig: OpenRig):
    rig = await open_rig(interval=NO_SAFETY_NET)
    await rig.engine.update_queue("default", QueueUpdate(key_weights={"*": 1}))
    worker = await rig.worker(slots=4)
    for _ in range(20):
        await rig.submit(concurrency_key="flood")
    first = await worker.gets(4)
    light = await rig.submit(concurrency_key="light")
    assert await worker.succeed(first[0], freed=1)
    assert (await worker.gets_one()).id == light


async def test_two_servers_share_a_limit_and_lose_no_time(open_pair: OpenPair):
    one, two = await open_pair(interval=NO_SAFETY_NET)
    await one.engine.update_queue("default", QueueUpdate(max_running=1))
    here = await one.worker("here", slots=4)
    there = await two.worker("there", slots=4)
    for n in range(8):
        await one.submit(b"%d" % n)
    for _ in range(8):
        await until(lambda: len(here.got) + len(there.got) == 1)
        worker = here if here.got else there
        await worker.succeed(await worker.gets_one(), freed=1)
