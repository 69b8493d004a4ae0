"""Without the safety net: every job is handed out because somebody said so."""

from __future__ import annotations

import asyncio
import random

import pytest

from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec, NewJob, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue, QueueSpec
from tests import patience
from tests.engine.rig import Rig, Worker, until

NO_SAFETY_NET = 3_600.0
QUEUES = ("default", "a", "b")


@pytest.mark.req("inp:QUEUE")
@pytest.mark.parametrize("seed", range(6))
async def test_no_wake_up_is_lost(open_rig, seed: int):
    """Workers of several kinds come, go, take and report in any order; nothing stays behind."""
    rng = random.Random(seed)
    rig: Rig = await open_rig(interval=NO_SAFETY_NET, batch_size=rng.choice([1, 3, 100]))
    for name in QUEUES[1:]:
        await rig.engine.create_queue(QueueSpec(name=name))
    total, done = 200, 0
    workers: list[Worker] = []
    for n, queues in enumerate([("default",), ("a",), ("b",), ("a", "b"), ("*",)]):
        workers.append(await rig.worker(f"w{n}", queues=queues, slots=rng.choice([0, 1, 4])))

    async def produce() -> None:
        left = total
        while left:
            count = min(left, rng.choice([1, 1, 2, 7, 30]))
            left -= count
            specs = [
                JobSpec(payload=b"x", queue=rng.choice(QUEUES), priority=rng.randrange(10))
                for _ in range(count)
            ]
            await rig.engine.submit(specs)
            if rng.random() < 0.3:
                await asyncio.sleep(0.001)

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
            if rng.random() < 0.5:
                await worker.link.report(reports, freed=len(held))
            else:
                await worker.link.report(reports)
                worker.link.grant(len(held))

    async with patience.timeout(20):
        await asyncio.gather(produce(), *(work(worker) for worker in workers))
    depths = [s.depth for s in await rig.engine.list_queues()]
    assert sum(depth[State.DONE] for depth in depths) == total


async def test_a_queue_that_has_nothing_does_not_hold_up_another(open_rig):
    rig: Rig = await open_rig(interval=NO_SAFETY_NET)
    await rig.engine.create_queue(QueueSpec(name="a"))
    idle = await rig.worker("idle", slots=50, queues=("a",))
    busy = await rig.worker("busy", slots=1)
    for n in range(20):
        await rig.submit(b"%d" % n)
    for _ in range(20):
        assignment = await busy.gets_one()
        await busy.succeed(assignment, freed=1)
    job_id = await rig.submit(queue="a")
    assert (await idle.gets_one()).id == job_id


@pytest.mark.parametrize(
    "event", ["resume", "retry by hand", "hand back", "new worker", "cancel frees nothing"]
)
async def test_whatever_makes_a_job_claimable_wakes_the_scheduler(open_rig, event: str):
    rig: Rig = await open_rig(interval=NO_SAFETY_NET)
    worker = await rig.worker(slots=0 if event == "new worker" else 1)
    if event == "resume":
        await rig.engine.pause_queue("default")
        await rig.submit()
        await rig.engine.resume_queue("default")
    elif event == "retry by hand":
        job_id = await rig.submit(delay=1e6)
        await rig.engine.cancel(job_id)
        await rig.engine.retry(job_id)
    elif event == "hand back":
        await rig.submit()
        assignment = await worker.gets_one()
        worker.link.grant(1)
        await worker.link.report([Transition.handed_back(assignment.seq, assignment.lease)])
    elif event == "new worker":
        await rig.submit()
        worker = await rig.worker("later", slots=1)
    else:
        first = await rig.submit(b"first", delay=1e6)
        await rig.engine.cancel(first)
        await rig.submit(b"second")
    await worker.gets_one()


async def test_a_retry_that_is_due_is_handed_out_without_the_safety_net(open_rig):
    rig: Rig = await open_rig(queue=Queue(name="default", retry_profile="scheduler"), interval=0.05)
    worker, assignment = await rig.running()
    await worker.fail(assignment)
    worker.link.grant(1)
    rig.clock.advance(1.0)
    assert (await worker.gets_one()).attempt == 2


@pytest.mark.req("jq:FR-017")
async def test_the_interval_is_the_longest_idle_wait(open_rig, monkeypatch):
    """What no signal announced is found when it has passed, and (so it is the interval) not before.

    The loop's clock is moved, so that an hour takes no time.
    """
    rig: Rig = await open_rig(interval=NO_SAFETY_NET)
    worker = await rig.worker(slots=1)
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)

    async def settle() -> None:
        for _ in range(200):  # turns of the loop: nothing here waits for anything else
            await asyncio.sleep(0)

    await settle()  # it has looked, and sleeps
    unannounced = NewJob(new_job_ids(1)[0], JobSpec(payload=b"x"))
    await rig.memory.jobs.submit([unannounced])  # as another process does, which says nothing
    ahead = NO_SAFETY_NET / 2
    await settle()
    assert worker.got == []
    ahead = NO_SAFETY_NET
    assert (await worker.gets_one()).id == unannounced.id


async def test_a_fallback_pool_leaves_queues_alone_that_others_serve(open_rig):
    rig: Rig = await open_rig()
    await rig.engine.create_queue(QueueSpec(name="a"))
    pool = await rig.worker("pool", slots=5, queues=("*",), fallback=True)
    other = await rig.worker("other", slots=1)
    first = await rig.submit(b"1")
    second = await rig.submit(b"2")
    third = await rig.submit(b"3", queue="a")
    assert (await other.gets_one()).id == first
    assert (await pool.gets_one()).id == third, "nobody else serves that queue"
    await asyncio.sleep(0.1)
    assert (pool.got, await rig.state(second)) == ([], State.PENDING)
    await other.link.close()
    await until(lambda: [a.id for a in pool.got] == [second])
