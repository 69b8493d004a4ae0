"""When an app opens and closes, on which loop, and in which process."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from pathlib import Path

import pytest

from jobqueue import InvalidArgument, JobQueue, JobQueueError
from jobqueue.core.errors import Conflict, OutcomeUnknown, Unavailable
from tests import patience


def engine_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("jobqueue-")]


def test_nothing_is_opened_at_construction(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    app = JobQueue(f"sqlite:///{file}")

    @app.task
    async def noop() -> None: ...

    assert not file.exists()
    assert engine_threads() == []

    async def use() -> None:
        await noop.submit()
        assert file.exists()
        await app.close()

    asyncio.run(use())
    assert engine_threads() == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("jobs.db", "not a known form; allowed: memory://, sqlite:///FILE"),
        ("sqlite://jobs.db", "three slashes"),
        ("mysql://localhost", "allowed: memory://"),
        ("grpc://localhost", "needs a host and a port, like grpc://127.0.0.1:50051"),
        ("postgresql://user:hush@db:x/jobs", "expected HOST or HOST:PORT"),
        ("redis://:hush@cache/jobs", "the path must be the number of a database"),
    ],
)
def test_a_bad_url_is_refused_with_the_allowed_forms(url: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refused:
        JobQueue(url)
    assert "hush" not in str(refused.value)


def test_the_password_is_not_shown() -> None:
    assert "memory://" in repr(JobQueue("memory://"))


def test_an_app_that_nobody_closes_is_closed_with_its_loop(url: str) -> None:
    app = JobQueue(url)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async def once() -> int:
        async with app.worker():
            return await (await add.submit(1, 2)).result(timeout=patience.longest(10))

    for _ in range(2):  # and it opens again on the next loop
        assert asyncio.run(once()) == 3
        assert engine_threads() == []
        assert app.shared.loop is None
    gc.collect()


async def test_many_first_calls_open_it_once(app: JobQueue, monkeypatch) -> None:
    opened = []
    create = app.shared.create

    def counted():
        opened.append(1)
        return create()

    monkeypatch.setattr(app.shared, "create", counted)

    @app.task
    async def noop() -> None: ...

    async with app:
        jobs = await asyncio.gather(*(noop.submit() for _ in range(50)))
        assert len({job.id for job in jobs}) == 50
    assert opened == [1]


async def test_a_first_call_that_is_cancelled_does_not_spoil_it_for_others(app: JobQueue) -> None:
    @app.task
    async def noop() -> None: ...

    first = asyncio.create_task(noop.submit())
    second = asyncio.create_task(noop.submit())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).id
    await app.close()


async def test_closing_twice_or_before_opening_is_harmless(app: JobQueue) -> None:
    await app.close()
    await app.open()
    await asyncio.gather(app.close(), app.close())
    await app.close()


async def test_a_failed_opening_is_told_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file where the folder should be")
    app = JobQueue(f"sqlite:///{folder / 'jobs.db'}")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await app.open()
    folder.unlink()
    async with app:
        assert (await app.operator.health()).ok


async def test_other_loops_and_threads_reach_the_backend_where_it_lives(app: JobQueue) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async def elsewhere() -> tuple[int, int]:
        job = await add.submit(1, 2)
        events = [event async for event in job.events()]
        return await job.result(timeout=patience.longest(10)), len(events)

    async with app, app.worker():
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == (3, 4)
        with pytest.raises(Conflict, match="run its worker on that loop"):
            await asyncio.to_thread(asyncio.run, app.work())


async def test_a_loop_that_does_not_run_is_named_as_the_reason(app: JobQueue) -> None:
    loop = asyncio.new_event_loop()

    def in_thread(coroutine) -> None:
        loop.run_until_complete(coroutine)

    await asyncio.to_thread(in_thread, app.open())
    try:
        with pytest.raises(Conflict, match="open on an event loop that is not running"):
            await app.operator.health()
    finally:
        await asyncio.to_thread(in_thread, app.close())
        loop.close()


async def test_a_call_under_way_when_its_home_ends_is_told_apart() -> None:
    began, ended = threading.Event(), threading.Event()
    app = JobQueue("memory://")

    async def live() -> None:
        await app.open()
        began.set()
        await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    await asyncio.to_thread(began.wait)

    async def slow(_: object) -> None:
        ended.set()
        await asyncio.sleep(60)

    with pytest.raises(OutcomeUnknown, match="closed while the call was under way"):
        await app.shared.call(slow)
    await asyncio.to_thread(thread.join)


def test_homes_are_forgotten_with_their_apps() -> None:
    app: JobQueue | None = JobQueue("memory://")
    assert app is not None
    home = weakref.ref(app.shared)
    app = None
    gc.collect()
    assert home() is None


def test_errors_are_of_one_family() -> None:
    with pytest.raises(JobQueueError):
        JobQueue("")
