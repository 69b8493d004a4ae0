"""Inline mode, as the tests of a user's application use it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jobqueue import (
    Abort,
    Context,
    InvalidArgument,
    JobFailed,
    JobQueue,
    QueueFull,
    RetryLater,
    State,
)
from jobqueue.core.errors import Conflict, KeyConflict, NotFound
from jobqueue.core.job import JobQuery
from jobqueue.core.lifecycle import TRANSITIONS, Reason


@pytest.fixture
def app() -> JobQueue:
    return JobQueue("sqlite:////nowhere/that/can/be/opened.db")


async def test_a_submit_runs_the_handler_before_it_returns(app: JobQueue) -> None:
    ran = []

    @app.task(queue="mail")
    async def send(to: str, ctx: Context) -> dict[str, str | int]:
        ran.append(to)
        return {"to": to, "attempt": ctx.attempt, "thread": threading.get_ident()}

    async with app.inline() as jobs:
        job = await send.submit("a@b.c")
        assert ran == ["a@b.c"]
        result = await job.result()
        assert result == {"to": "a@b.c", "attempt": 1, "thread": threading.get_ident()}
        assert [(j.type, j.queue, j.state) for j in jobs] == [("send", "mail", State.DONE)]
        assert len(jobs) == 1
        assert jobs[0].payload == b'{"to":"a@b.c"}'
        assert jobs[:1] == jobs.of(send) == jobs.of("send")
        assert jobs.of("other") == []
    assert await job.result() == result  # what was read inside can be read afterwards


def test_the_blocking_client_runs_inline_too_without_thread_or_store(app: JobQueue) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    q = app.sync()
    before = threading.active_count()
    with app.inline() as jobs:
        assert q.submit(add, 1, 2).result() == 3
        assert [job.result() for job in q.submit_many(add, [(1, 1), (2, 2)])] == [2, 4]
        assert threading.active_count() == before
        assert len(jobs) == 3


async def test_values_go_through_json_as_in_earnest(app: JobQueue) -> None:
    @app.task
    async def pair(value: tuple[int, ...]) -> tuple[int, ...]:
        assert isinstance(value, tuple)
        return value

    @app.task
    async def unwritable() -> object:
        return object()

    with app.inline():
        assert await (await pair.submit((1, 2))).result() == (1, 2)
        with pytest.raises(InvalidArgument, match=r"value\[0\]: expected `int`"):
            await pair.submit(("x",))  # type: ignore[arg-type]
        with pytest.raises(JobFailed, match="cannot be written as JSON"):
            await (await unwritable.submit()).result()
        with pytest.raises(InvalidArgument, match="priority"):
            await pair.options(priority=77).submit((1,))


async def test_retries_follow_at_once_and_are_recorded(app: JobQueue) -> None:
    @app.task(max_retries=2)
    async def third_time(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise RetryLater(3600)
        return ctx.attempt

    @app.task(max_retries=1)
    def always() -> None:
        raise ValueError("broken")

    @app.task
    async def hopeless() -> None:
        raise Abort("never")

    with app.inline() as jobs:
        job = await third_time.submit()
        assert await job.result() == 3
        assert (jobs[0].attempt, jobs[0].retry_count) == (3, 2)
        events = [event async for event in job.events()]
        assert [e.version for e in events] == list(range(1, len(events) + 1))
        assert all(e.reason in TRANSITIONS[e.from_state, e.to_state] for e in events)
        with pytest.raises(JobFailed, match="ValueError: broken") as failed:
            await (await always.submit()).result()
        assert failed.value.reason == Reason.RETRIES_EXHAUSTED
        with pytest.raises(JobFailed) as failed:
            await (await hopeless.submit()).result()
        assert failed.value.reason == Reason.NOT_RETRYABLE
        assert jobs[2].attempt == 1


async def test_a_timeout_is_kept_and_a_handlers_own_is_not_mistaken_for_it(app: JobQueue) -> None:
    @app.task(timeout=0.01, max_retries=0)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.task(timeout=60, max_retries=0)
    async def own() -> None:
        raise TimeoutError("upstream")

    with app.inline() as jobs:
        with pytest.raises(JobFailed, match=r"timed out after 0\.01 s"):
            await (await slow.submit()).result()
        with pytest.raises(JobFailed, match="TimeoutError: upstream"):
            await (await own.submit()).result()
    assert [e.reason for e in await app_history(jobs, 0)].count(Reason.TIMED_OUT) == 1
    assert [e.reason for e in await app_history(jobs, 1)].count(Reason.HANDLER_FAILED) == 1


async def app_history(jobs, index):
    return await jobs._backend.history(jobs[index].id)


async def test_delayed_jobs_wait_until_they_are_run(app: JobQueue) -> None:
    ran: list[str] = []

    @app.task
    async def note(name: str) -> str:
        ran.append(name)
        if name == "early":
            await note.options(delay=60).submit("again")
        return name

    async with app.inline() as jobs:
        late = await note.options(delay=3600).submit("late")
        early = await note.options(delay=10).submit("early")
        gone = await note.options(delay=20).submit("gone")
        assert (await gone.cancel()).state is State.DEAD_LETTERED
        assert (await gone.cancel()).already_terminal
        with pytest.raises(Conflict, match="run_delayed"):
            await late.result(timeout=1)
        assert await jobs.run_delayed() == 2
        assert ran == ["early", "late"]
        assert await early.result() == "early"
        assert await jobs.run_delayed() == 1
        assert ran == ["early", "late", "again"]


async def test_keys_and_reading(app: JobQueue) -> None:
    @app.task
    async def charge(n: int) -> int:
        return n

    async with app.inline() as jobs:
        first = await charge.options(key="k", labels={"a": "b"}).submit(1)
        again = await charge.options(key="k").submit(1)
        assert (first.id, again.created) == (again.id, False)
        assert len(jobs) == 1
        with pytest.raises(KeyConflict):
            await charge.options(key="k").submit(2)
        assert await app.job(first.id).result() == 1
        with pytest.raises(NotFound):
            await app.job("00000000-0000-4000-8000-000000000000").status()
        page = await jobs._backend.list_jobs(JobQuery(queue="default", states=(State.DONE,)))
        assert [job.id for job in page.jobs] == [first.id]


async def test_a_dead_letter_can_be_retried(app: JobQueue) -> None:
    broken = [True]

    @app.task
    async def fragile() -> str:
        if broken:
            raise Abort("broken")
        return "mended"

    async with app.inline():
        job = await fragile.submit()
        assert (await job.status()).state is State.DEAD_LETTERED
        broken.clear()
        await job.retry()
        assert await job.result() == "mended"
        with pytest.raises(Conflict, match="only a dead letter"):
            await job.retry()


async def test_a_task_that_lives_elsewhere_is_recorded(app: JobQueue) -> None:
    async with app.inline() as jobs:
        job = await app.submit("elsewhere", {"a": 1}, queue="far")
        assert (jobs[0].state, jobs[0].queue) == (State.PENDING, "far")
        with pytest.raises(Conflict, match="no task 'elsewhere' in this app"):
            await job.result()
        assert await (await app.submit("echo", {"a": 1})).result() == {"a": 1}


def test_a_handler_that_submits_more_by_the_blocking_client(app: JobQueue) -> None:
    q = app.sync()

    @app.task
    def leaf(n: int) -> int:
        return n * 10

    @app.task
    def root(n: int) -> int:
        return q.submit(leaf, n).result() + 1

    with app.inline() as jobs:
        assert q.submit(root, 4).result() == 41
        assert [job.type for job in jobs] == ["root", "leaf"]


async def test_blocks_nest_and_end(app: JobQueue) -> None:
    @app.task
    async def noop() -> None: ...

    with app.inline() as outer:
        await noop.submit()
        with app.inline() as inner:
            await noop.submit()
            await noop.submit()
        await noop.submit()
        assert (len(outer), len(inner)) == (2, 2)
    assert not app.inlined


async def test_a_handler_sees_a_cancel_of_its_own_job(app: JobQueue) -> None:
    @app.task
    async def suicidal(ctx: Context) -> None:
        cancelled = await app.job(ctx.job_id).cancel()
        assert cancelled.requested
        raise QueueFull("stop")

    with app.inline(), pytest.raises(JobFailed, match="CANCELLED"):
        await (await suicidal.submit()).result()
