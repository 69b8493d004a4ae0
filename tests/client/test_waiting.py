"""Tasks that wait for other jobs keep their slots; a worker that has none left says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from jobqueue import JobQueue
from jobqueue.worker import slots
from jobqueue.worker.settings import WorkerSettings
from tests import patience

MESSAGE = "slots wait for other jobs"


class Heard(logging.Handler):
    """The warnings, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.said: list[str] = []
        self.some = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if MESSAGE in record.getMessage():
            self.said.append(record.getMessage())
            self.loop.call_soon_threadsafe(self.some.set)


@pytest.fixture
async def heard(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Heard]:
    monkeypatch.setattr(slots, "_PATIENCE", 0.05)
    handler = Heard()
    logging.getLogger("jobqueue.worker").addHandler(handler)
    yield handler
    logging.getLogger("jobqueue.worker").removeHandler(handler)


@pytest.mark.parametrize("parent", ["parent", "blocking_parent", "late_parent"])
async def test_all_slots_waiting_for_their_own_jobs_are_named(heard: Heard, parent: str) -> None:
    app = JobQueue("memory://", queue="family")

    @app.task
    async def child() -> int:
        return 1

    async def parent_() -> int:
        return await (await child.submit()).result(timeout=300)

    async def late_parent_() -> int:  # by a handle that does not know the queue
        return int(await app.job((await child.submit()).id).result(timeout=300))

    def blocking_parent_() -> int:
        return app.sync().submit(child).result(timeout=300)

    made = {"parent": parent_, "blocking_parent": blocking_parent_, "late_parent": late_parent_}
    task = app.task(name=parent)(made[parent])
    async with app:
        # Before there is a worker: else a child could have the slot of the second parent.
        parents = [await task.submit() for _ in range(2)]
        async with app.worker(concurrency=2):
            await patience.wait_for(heard.some.wait(), 20)
            (said,) = heard.said
            of = "" if parent == "late_parent" else " of queue family"
            assert said.startswith(
                f"the handlers in 2 of 2 slots wait for other jobs{of}, and worker "
            )
            async with app.worker(concurrency=1):  # what the warning advises
                assert [await job.result(timeout=patience.longest(20)) for job in parents] == [1, 1]


async def test_it_is_said_once_for_each_time_that_it_happens(heard: Heard) -> None:
    waiting = slots.WaitingSlots(WorkerSettings(id="w1", concurrency=2))
    for _ in range(2):
        heard.some.clear()
        with waiting.waits(1, "default"), waiting.waits(2, "default"):
            await patience.wait_for(heard.some.wait(), 20)
            with waiting.waits(2, "default"):  # a second job, of a slot that waits already
                await asyncio.sleep(0.2)
    assert len(heard.said) == 2


async def test_a_worker_with_a_slot_left_says_nothing(heard: Heard) -> None:
    app = JobQueue("memory://", queues=["elsewhere"])

    @app.task
    async def child() -> int:
        await asyncio.sleep(0.2)
        return 1

    @app.task(queue="elsewhere")
    async def far() -> int:
        await asyncio.sleep(0.2)
        return 1

    @app.task
    async def parent() -> int:
        return await (await child.submit()).result(timeout=300)

    @app.task
    async def caller() -> int:
        return await (await far.submit()).result(timeout=300)

    async with app, app.worker(concurrency=2, queues=["default"]):
        assert await (await parent.submit()).result(timeout=300) == 1
        async with app.worker(queues=["elsewhere"]):  # those jobs take no slot of the first
            calls = [await caller.submit() for _ in range(2)]
            assert [await job.result(timeout=patience.longest(20)) for job in calls] == [1, 1]
    assert heard.said == []


async def test_what_a_handler_leaves_waiting_takes_no_slot(heard: Heard) -> None:
    app = JobQueue("memory://")
    left: list[asyncio.Task[int]] = []

    @app.task
    async def slow() -> int:
        await asyncio.sleep(0.3)
        return 1

    @app.task
    async def parent() -> None:
        left.append(asyncio.create_task((await slow.submit()).result()))
        await asyncio.sleep(0)  # it begins to wait

    async with app, app.worker(concurrency=1):
        await (await parent.submit()).result(timeout=patience.longest(20))
        assert await patience.wait_for(left[0], 20) == 1
    assert heard.said == []
