"""A worker gets jobs of the tasks that it knows; what nobody knows waits, and says so."""

from __future__ import annotations

import asyncio

from jobqueue import JobQueue, State
from jobqueue.core.queue import WaitingType
from tests import patience
from tests.scenarios.place import LONGEST, Place


def task(app: JobQueue, name: str) -> None:
    async def who() -> str:
        return name

    app.task(name=name)(who)


async def test_two_apps_share_a_queue(place: Place) -> None:
    one, other = await place.app(), await place.app()
    task(one, "add")
    task(other, "mul")
    async with place.worker(one), place.worker(other):
        jobs = [await one.submit(name, {}) for name in ("add", "mul") * 10]
        assert [await place.result(job) for job in jobs] == ["add", "mul"] * 10
        assert {(await job.status()).attempt for job in jobs} == {1}


async def test_a_job_that_nobody_knows_waits_for_its_worker(place: Place) -> None:
    one, other = await place.app(), await place.app()
    task(one, "add")
    task(other, "mul")
    async with place.worker(one):
        strangers = [await one.submit("mul", {}) for _ in range(3)]
        known = await one.submit("add", {})
        assert await place.result(known) == "add"
        for job in strangers:
            record = await job.status()
            assert (record.state, record.attempt) == (State.PENDING, 0)
            assert record.hint == "no connected worker takes type 'mul' from queue 'default'"
        assert (await known.status()).hint == ""
        limit = patience.Limit(LONGEST)  # what is said of types may be a second old
        while list((await one.operator.queue_stats("default")).unserved) != [
            WaitingType("default", "mul", 3)
        ]:
            assert not limit.over
            await asyncio.sleep(0.05)
        async with place.worker(other):
            assert [await place.result(job) for job in strangers] == ["mul"] * 3
            assert {(await job.status()).attempt for job in strangers} == {1}
            assert not (await one.operator.queue_stats("default")).unserved


async def test_a_job_says_that_no_worker_serves_its_queue(place: Place) -> None:
    app = await place.app()
    task(app, "add")
    job = await app.submit("add", {})
    assert (await job.status()).hint == "no connected worker takes jobs from queue 'default'"
    async with place.worker(app):
        assert await place.result(job) == "add"
        assert (await job.status()).hint == ""


async def test_a_task_that_is_defined_while_the_worker_runs(place: Place) -> None:
    app = await place.app()
    async with place.worker(app):
        task(app, "late")
        assert await place.result(await app.submit("late", {})) == "late"


async def test_a_worker_shows_the_types_that_it_knows(place: Place) -> None:
    app = await place.app()
    task(app, "add")
    async with place.worker(app):
        (worker,) = await app.operator.list_workers()
        assert worker.info.types is not None
        assert {"", "add", "echo"} <= worker.info.types


async def test_order_holds_across_types(place: Place) -> None:
    app, other = await place.app(), await place.app()
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    for name in ("a", "b"):
        app.task(name=name)(note)
    jobs = []
    for number in range(12):
        name = ("a", "stranger", "b")[number % 3]
        jobs.append(
            await other.submit(name, {"number": number}, priority=9 if number % 4 == 0 else 0)
        )
    mine = [number for number in range(12) if number % 3 != 1]
    async with place.worker(app, concurrency=1):
        for number in mine:
            await place.result(jobs[number])
    assert order == sorted(mine, key=lambda number: (number % 4 != 0, number))
