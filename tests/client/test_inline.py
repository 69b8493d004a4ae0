"""Inline mode, as the tests of a user's application use it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
    Task,
)
from jobqueue.core.errors import Conflict, KeyConflict, NotFound
from jobqueue.core.job import JobQuery
from jobqueue.core.lifecycle import TRANSITIONS, Reason
from tests import patience


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
        histories = [await app.job(job.id).history() for job in jobs]
    assert [e.reason for e in histories[0]].count(Reason.TIMED_OUT) == 1
    assert [e.reason for e in histories[1]].count(Reason.HANDLER_FAILED) == 1


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
        page = await app.operator.list_jobs(JobQuery(queue="default", states=(State.DONE,)))
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
        with pytest.raises(Conflict, match="only FAILED and DEAD_LETTERED"):
            await job.retry()


async def test_a_task_that_lives_elsewhere_is_recorded() -> None:
    app = JobQueue("memory://", queues=["far"])
    async with app.inline() as jobs:
        job = await app.submit("elsewhere", {"a": 1}, queue="far")
        assert (jobs[0].state, jobs[0].queue) == (State.PENDING, "far")
        with pytest.raises(Conflict, match="this app has no task 'elsewhere'"):
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


async def test_time_passes_for_retries_and_run_delayed_alone(app: JobQueue) -> None:
    ran: list[str] = []

    @app.task(max_retries=1)
    async def note(name: str, ctx: Context) -> None:
        ran.append(name)
        if name == "again" and ctx.attempt == 1:
            raise RetryLater(100)

    async with app.inline() as jobs:
        await note.options(delay=200).submit("late")
        soon = await note.options(delay=50).submit("soon")
        assert (await soon.status()).state is State.PENDING
        await note.submit("again")
        assert ran == ["again", "soon", "again"]  # as elsewhere, within those 100 seconds
        assert await jobs.run_delayed() == 1
        assert ran[3:] == ["late"]
        assert await jobs.run_delayed() == 0
        first, last = jobs[0].created_at, jobs[0].completed_at
        assert last is not None
        assert last - first >= 200


async def test_a_delayed_job_runs_before_its_ttl_ends_however_far_time_passes(
    app: JobQueue,
) -> None:
    @app.task(max_retries=1)
    async def note(name: str, ctx: Context) -> str:
        if name == "again" and ctx.attempt == 1:
            raise RetryLater(86_400)
        return name

    async with app.inline() as jobs:
        first = await note.options(delay=10, ttl=20).submit("first")
        same = await note.options(delay=10, ttl=20).submit("same")
        second = await note.options(delay=1800, ttl=3600).submit("second")
        await note.options(delay=7200).submit("last")
        assert await jobs.run_delayed() == 4
        assert [await job.result() for job in (first, same, second)] == ["first", "same", "second"]
        waiting = await note.options(delay=10, ttl=20).submit("waiting")
        await note.submit("again")
        assert await waiting.result() == "waiting"
        assert (jobs[-1].completed_at or 0) - jobs[-1].created_at >= 86_400


async def test_the_long_retries_of_a_child_do_not_time_its_parent_out(app: JobQueue) -> None:
    @app.task
    async def child(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise RetryLater(3600)
        return ctx.attempt

    @app.task(timeout=60)
    async def parent() -> int:
        return await (await child.submit()).result()

    async with app.inline():
        assert await (await parent.submit()).result() == 2


async def test_jobs_submitted_together_all_end(app: JobQueue) -> None:
    release = asyncio.Event()

    @app.task
    async def slow(n: int) -> int:
        await release.wait()
        return n

    async with app.inline() as jobs:
        keyed = slow.options(key="k")
        submits = [asyncio.create_task(one.submit(1)) for one in (keyed, keyed, slow)]
        many = asyncio.create_task(slow.submit_many([(2,), (3,)]))
        async with patience.timeout(30):
            while len(jobs) < 4 or any(job.state is not State.RUNNING for job in jobs[:3]):
                await asyncio.sleep(0)
        reading = asyncio.create_task(app.job(jobs[3].id).result())
        release.set()
        first, second, third = await asyncio.gather(*submits)
        assert first.id == second.id != third.id
        assert [await job.result() for job in (first, second, third)] == [1, 1, 1]
        assert [await job.result() for job in await many] == [2, 3]
        assert await reading == 3


async def test_a_caller_that_gives_up_does_not_end_the_job(app: JobQueue) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        began.set()
        await release.wait()
        return "finished"

    async with app.inline() as jobs:
        submitting = asyncio.create_task(slow.submit())
        await began.wait()
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        release.set()
        assert await app.job(jobs[0].id).result() == "finished"


async def test_the_verdict_of_a_test_reaches_it(app: JobQueue) -> None:
    """What pytest raises is no handler's own failure: nobody may have to ask for it."""

    @app.task
    async def asserting() -> None:
        pytest.fail("seen")

    @app.task
    def asserting_too() -> None:
        pytest.fail("seen")

    async with app.inline() as jobs:
        for task in (asserting, asserting_too):
            with pytest.raises(pytest.fail.Exception, match="seen"):
                await task.submit()
    assert [job.error.split("\n")[0] for job in jobs] == ["Failed: seen"] * 2


async def test_operators_are_served_inline() -> None:
    app = JobQueue("sqlite:////nowhere/that/can/be/opened.db", queues=["q"])

    @app.task
    async def noop() -> None: ...

    async with app.inline() as jobs:
        await app.operator.pause_queue("q")
        job = await noop.options(queue="q").submit()
        with pytest.raises(Conflict, match="its queue 'q' is paused"):
            await job.result()
        await app.operator.resume_queue("q")
        assert jobs[0].state is State.DONE
        stats = {one.queue.name: one.succeeded for one in await app.operator.list_queues()}
        assert stats == {"default": 0, "q": 1}
        await app.operator.delete_job(job.id)
        assert len(jobs) == 0
        (worker,) = await app.operator.list_workers()
        assert worker.info.types is not None
        assert (worker.info.id, "noop" in worker.info.types) == ("inline", True)
        await app.operator.drain_worker("inline")
        with pytest.raises(Conflict, match="'inline' was drained"):
            await (await noop.submit()).result()


def test_the_blocking_client_reads_every_event(app: JobQueue) -> None:
    @app.task
    def noop() -> None: ...

    with app.inline():
        events = list(app.sync().submit(noop).events())
    assert [event.reason for event in events] == [
        *(Reason.SUBMITTED, Reason.ASSIGNED, Reason.STARTED, Reason.SUCCEEDED),
    ]


async def test_a_timeout_has_no_cause_and_a_failure_that_of_its_last_attempt(
    app: JobQueue,
) -> None:
    @app.task(timeout=0.01, max_retries=0)
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.task(max_retries=1)
    async def broken(ctx: Context) -> None:
        raise ValueError(ctx.attempt)

    async with app.inline():
        with pytest.raises(JobFailed) as failed:
            await (await slow.submit()).result()
        assert failed.value.__cause__ is None
        with pytest.raises(JobFailed) as failed:
            await (await broken.submit()).result()
        assert isinstance(failed.value.__cause__, ValueError)
        assert failed.value.__cause__.args == (2,)


def test_threads_share_an_inline_block(app: JobQueue) -> None:
    q = app.sync()

    @app.task
    def leaf(n: int) -> int:
        return n

    @app.task
    def root(n: int) -> int:
        return q.submit(leaf, n).result() * 10

    with app.inline() as jobs, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: q.submit(root, n).result(), range(20))) == [
            n * 10 for n in range(20)
        ]
        assert [job.state for job in jobs] == [State.DONE] * 40


async def test_a_def_handler_submits_while_others_do(app: JobQueue) -> None:
    q = app.sync()

    @app.task
    def leaf(n: int) -> int:
        return n

    @app.task
    def root(n: int) -> int:
        return q.submit(leaf, n).result() * 10

    async with app.inline():
        submits = [task.submit(n) for n in range(5) for task in (leaf, root)]
        jobs = await asyncio.gather(*submits)
        assert [await job.result() for job in jobs] == [0, 0, 1, 10, 2, 20, 3, 30, 4, 40]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_interrupt_in_a_handler_reaches_the_caller_and_ends_the_attempt(
    app: JobQueue, kind: str
) -> None:
    @app.task(max_retries=0)
    def blocking() -> None:
        raise KeyboardInterrupt("enough")

    @app.task(max_retries=0)
    async def waiting() -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt("enough")

    q = app.sync()
    with app.inline() as jobs:
        with pytest.raises(KeyboardInterrupt, match="enough"):
            q.submit(blocking if kind == "def" else waiting)
        assert (jobs[0].state, jobs[0].error[:25]) == (
            State.DEAD_LETTERED,
            "KeyboardInterrupt: enough",
        )
        with pytest.raises(JobFailed) as failed:
            q.job(jobs[0].id).result()
        assert isinstance(failed.value.__cause__, KeyboardInterrupt)


def test_a_handler_whose_loop_ends_has_failed(app: JobQueue) -> None:
    ran: list[int] = []

    @app.task(max_retries=1)
    async def endless(ctx: Context) -> int:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return ctx.attempt

    async def give_up() -> None:
        submitting = asyncio.create_task(endless.submit())
        while not ran:
            await asyncio.sleep(0)
        submitting.cancel()

    with app.inline() as jobs:
        asyncio.run(give_up())
        assert app.sync().job(jobs[0].id).result() == 2


@pytest.mark.parametrize(
    "way", ["returned", "later", "failed", "aborted", "late", "late def", "cancelled", "unaware"]
)
async def test_an_attempt_ends_inline_as_under_a_worker(app: JobQueue, way: str) -> None:
    """One handler for each way; every transition is compared, and what the job shows."""

    def declare(app: JobQueue) -> Task[Any, Any]:
        async def returned() -> int:
            return 42

        async def later(ctx: Context) -> int:
            if ctx.attempt == 1:
                raise RetryLater(0.01)
            return ctx.attempt

        async def failed() -> None:
            raise RetryLater(0.01, "again")

        async def aborted() -> None:
            raise Abort("never")

        async def late() -> None:
            await asyncio.sleep(60)

        def late_def() -> None:
            time.sleep(0.2)

        async def cancel(ctx: Context) -> None:
            job = app.job(ctx.job_id)
            while (await job.status()).state is not State.RUNNING:
                await asyncio.sleep(0.01)  # its start is on its way
            await job.cancel()

        async def cancelled(ctx: Context) -> None:
            await cancel(ctx)
            await asyncio.sleep(60)

        async def unaware(ctx: Context) -> int:
            await cancel(ctx)
            return 1

        handlers: list[Callable[..., Any]] = [
            returned, later, failed, aborted, late, late_def, cancelled, unaware
        ]  # fmt: skip
        chosen = {one.__name__.replace("_", " "): one for one in handlers}[way]
        limit = 0.05 if way.startswith("late") and way != "later" else None
        retries = 0 if limit else 1
        return app.task(name="task", max_retries=retries, timeout=limit)(chosen)

    async def ended(app: JobQueue, task: Task[Any, Any]) -> list[object]:
        job = await task.submit()
        try:
            shown: object = await job.result(timeout=patience.longest(10))
        except JobFailed as error:
            shown = str(error).replace(job.id, "")
        record = await job.status()
        steps = [
            (e.version, e.from_state, e.to_state, e.reason, e.attempt, e.detail)
            for e in await job.history()
        ]
        kept = record.state, record.reason, record.attempt, record.retry_count, record.error
        return [shown, kept, record.cancel_requested, record.result, steps]

    task = declare(app)
    with app.inline():
        inline = await ended(app, task)
    real = JobQueue("memory://")
    task = declare(real)
    async with real, real.worker():
        assert await ended(real, task) == inline
