"""Queues: those that tasks declare exist wherever the app runs, and no others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from jobqueue import JobQueue, QueueSpec
from jobqueue.client.sender import BatchRefused
from jobqueue.core.errors import NotFound
from tests import patience
from tests.scenarios.place import LONGEST, Place


async def names(app: JobQueue) -> set[str]:
    return {stats.queue.name for stats in await app.operator.list_queues()}


async def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """The log lines with this text, once there is one."""
    limit = patience.Limit(LONGEST)
    while not (found := [line for line in caplog.messages if text in line]):
        assert not limit.over, f"nobody said {text!r}: {caplog.messages}"
        await asyncio.sleep(0.01)
    return found


async def test_the_first_submit_creates_the_queues_that_tasks_declare(place: Place) -> None:
    app = await place.app()

    @app.task(queue="mail")
    async def send() -> str:
        return "sent"

    @app.task(queue="reports")
    async def report() -> str:
        return "made"

    job = await send.submit()
    assert await names(app) == {"default", "mail", "reports"}
    async with place.worker(app):
        assert await place.result(job) == "sent"
        assert await place.result(await report.submit()) == "made"


async def test_a_worker_creates_the_queues_that_its_tasks_declare(place: Place) -> None:
    app = await place.app(queues=["extra"])

    @app.task(queue="mail")
    async def send() -> None: ...

    app.periodic("0 0 1 1 *", send, queue="yearly")
    async with place.worker(app):
        assert await names(app) == {"default", "extra", "mail", "yearly"}


@pytest.mark.req("jq:FR-006")
async def test_a_queue_that_nobody_declared_is_refused(place: Place) -> None:
    app = await place.app()

    @app.task(queue="mail")
    async def send() -> None: ...

    with pytest.raises(NotFound, match=r"no queue 'mial'; .*jq-ctl queue create mial") as refused:
        await send.options(queue="mial").submit()
    assert "declare it: JobQueue(url, queues=['mial'])" in str(refused.value)
    with pytest.raises(NotFound, match="'elsewhere'"):
        await app.submit("some", queue="elsewhere")
    assert await names(app) == {"default", "mail"}


async def test_a_batch_creates_its_queue_and_names_what_is_refused(place: Place) -> None:
    app = await place.app()

    @app.task(queue="mail")
    async def send(number: int) -> int:
        return number

    handles = await send.submit_many([(number,) for number in range(3)])
    with pytest.raises(BatchRefused, match="jq-ctl queue create mial"):
        await send.options(queue="mial").submit_many([(1,)])
    async with place.worker(app):
        assert [await place.result(handle) for handle in handles] == [0, 1, 2]


async def test_options_of_a_declared_queue_hold_and_change_no_queue_that_exists(
    place: Place,
) -> None:
    first = await place.app(queues=[QueueSpec(name="mail", capacity=7, max_retries=1)])

    @first.task(queue="mail")
    async def send() -> None: ...

    await send.submit()
    made = (await first.operator.queue_stats("mail")).queue
    assert (made.capacity, made.max_retries) == (7, 1)

    second = await place.app(queues=[QueueSpec(name="mail", capacity=9)])

    @second.task(queue="mail", name="send")
    async def same() -> None: ...

    await second.submit("send", queue="mail")
    async with place.worker(second):
        assert (await second.operator.queue_stats("mail")).queue.capacity == 7


async def test_a_task_that_is_defined_later_has_its_queue_too(place: Place) -> None:
    app = await place.app()

    @app.task
    async def first() -> None: ...

    await first.submit()

    @app.task(queue="late")
    async def second() -> str:
        return "here"

    job = await second.submit()
    async with place.worker(app):
        assert await place.result(job) == "here"


async def test_a_queue_that_an_operator_deletes_stays_deleted(place: Place) -> None:
    app = await place.app()

    @app.task(queue="mail")
    async def send() -> str:
        return "sent"

    async with place.worker(app):
        await place.result(await send.submit())
        await app.operator.delete_queue("mail")
        with pytest.raises(NotFound, match="jq-ctl queue create mail") as refused:
            await send.submit()
        assert "declare" not in str(refused.value)
        await app.operator.create_queue(QueueSpec(name="mail"))
        assert await place.result(await send.submit()) == "sent"


async def test_a_worker_says_which_queue_is_missing_and_takes_it_up(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobqueue.worker")
    app, operator = await place.app(), await place.app()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with place.worker(app, ["later", "default"]):
        [line] = await said(caplog, "does not exist")
        assert "'later'" in line
        assert "jq-ctl queue create later" in line
        assert await names(operator) == {"default"}
        await operator.operator.create_queue(QueueSpec(name="later"))
        job = await operator.submit("add", {"a": 1, "b": 2}, queue="later")
        assert await place.result(job) == 3
        [line] = await said(caplog, "exists now")
        assert "'later'" in line


async def test_a_drained_worker_can_be_taken_back(place: Place) -> None:
    app = await place.app()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with place.worker(app, concurrency=2):
        assert await place.result(await add.submit(1, 2)) == 3
        [worker] = await app.operator.list_workers()
        for _ in range(2):
            await app.operator.drain_worker(worker.info.id)
            jobs = await add.submit_many([(number, 1) for number in range(5)])
            await app.operator.undrain_worker(worker.info.id)
            assert [await place.result(job) for job in jobs] == [1, 2, 3, 4, 5]
