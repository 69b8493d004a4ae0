"""Inline mode means what every other place means: the cases in which it once did not."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobqueue import (
    Abort,
    Context,
    InvalidArgument,
    Job,
    JobFailed,
    JobHandle,
    QueueSpec,
    RetryLater,
    State,
)
from jobqueue.core.errors import Conflict, KeyConflict, NotFound
from jobqueue.core.lifecycle import Reason
from jobqueue.tasks.context import JobCancelled
from tests import patience
from tests.scenarios.place import Place

LARGE = 30 * 1024 * 1024  # bytes


async def way(job: JobHandle[object]) -> list[Reason]:
    """Why the job changed its state, from its submit on."""
    return [event.reason for event in await job.history()]


def runs(job: Job) -> bool:
    return job.state is State.RUNNING


def died(job: Job) -> tuple[State, Reason, int]:
    return job.state, job.reason, job.attempt


async def test_a_key_belongs_to_its_queue(place: Place) -> None:
    app = await place.app(queues=["one", "other"])

    @app.task
    async def charge(amount: int) -> int:
        return amount

    here, there = charge.options(queue="one", key="k"), charge.options(queue="other", key="k")
    async with place.worker(app, ["one", "other"]):
        first = await here.submit(1)
        assert await place.result(first) == 1
        other = await there.submit(2)
        assert (other.created, other.id == first.id) == (True, False)
        assert await place.result(other) == 2
        again = await here.submit(1)
        assert (again.created, again.id) == (False, first.id)
        with pytest.raises(KeyConflict):
            await here.submit(3)


async def test_a_queues_retries_hold_for_its_jobs(place: Place) -> None:
    app = await place.app(queues=[QueueSpec(name="once", max_retries=0)])

    @app.task(queue="once")
    async def fragile() -> None:
        raise ValueError("broken")

    async with place.worker(app):
        job = await fragile.submit()
        with pytest.raises(JobFailed, match="ValueError: broken"):
            await place.result(job)
        assert died(await job.status()) == (State.DEAD_LETTERED, Reason.RETRIES_EXHAUSTED, 1)


async def test_the_servers_defaults_hold_for_its_queues(place: Place) -> None:
    place.settings["queue.max_retries"] = "1"
    app = await place.app()

    @app.task
    async def fragile() -> None:
        raise RetryLater(0)

    async with place.worker(app):
        assert (await place.ended(await fragile.submit())).attempt == 2


async def test_a_cancel_wins_over_a_result(place: Place) -> None:
    app = await place.app()
    q = app.sync()

    @app.task
    async def careless(ctx: Context) -> int:
        await place.until(app.job(ctx.job_id), runs, "running")
        assert (await app.job(ctx.job_id).cancel()).requested
        return 7

    @app.task
    def unaware(ctx: Context) -> int:
        patience.until(lambda: runs(q.job(ctx.job_id).status()), "running")
        assert q.job(ctx.job_id).cancel().requested
        return 7

    async with place.worker(app):
        for task in (careless, unaware):
            job = await task.submit()
            ended = await place.ended(job)
            assert died(ended) == (State.DEAD_LETTERED, Reason.CANCELLED, 1)
            assert ended.result is None
            assert await way(job) == [
                *(Reason.SUBMITTED, Reason.ASSIGNED, Reason.STARTED),
                *(Reason.CANCELLED, Reason.CANCELLED),
            ]


async def test_a_running_handler_is_interrupted_by_a_cancel(place: Place) -> None:
    app = await place.app()
    began: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    interrupted = asyncio.Event()

    @app.task
    async def endless(ctx: Context) -> None:
        began.set_result(ctx.job_id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupted.set()
            raise

    async with place.worker(app):
        submitting = asyncio.create_task(endless.submit())
        running = app.job(await patience.wait_for(began, 30))
        await place.until(running, runs, "running")
        assert (await running.cancel()).requested
        await patience.wait_for(interrupted.wait(), 30)
        job = await submitting
        assert died(await place.ended(job)) == (State.DEAD_LETTERED, Reason.CANCELLED, 1)
        assert (await job.cancel()).already_terminal


async def test_only_a_cancel_cancels(place: Place) -> None:
    app = await place.app()

    @app.task(max_retries=0)
    async def pretends() -> None:
        raise JobCancelled("nobody asked for it")

    async with place.worker(app):
        job = await place.ended(await pretends.submit())
        assert died(job) == (State.DEAD_LETTERED, Reason.RETRIES_EXHAUSTED, 1)


async def test_a_large_result_is_a_failure(place: Place) -> None:
    app = await place.app()

    @app.task
    async def generous() -> str:
        return "x" * LARGE

    async with place.worker(app):
        job = await generous.submit()
        with pytest.raises(JobFailed, match=r"result: \d+ bytes, more than the 1048576 allowed"):
            await place.result(job)
        assert died(await job.status()) == (State.DEAD_LETTERED, Reason.NOT_RETRYABLE, 1)


async def test_retries_are_recorded_with_their_times(place: Place) -> None:
    app = await place.app()

    @app.task(max_retries=2)
    async def third_time(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise RetryLater(0.2)
        return ctx.retry_count

    async with place.worker(app):
        job = await third_time.submit()
        assert await place.result(job) == 2
        history = await job.history()
        once = [Reason.ASSIGNED, Reason.STARTED, Reason.HANDLER_FAILED, Reason.RETRY_DUE]
        done = [Reason.ASSIGNED, Reason.STARTED, Reason.SUCCEEDED]
        assert [event.reason for event in history] == [Reason.SUBMITTED, *once, *once, *done]
        failed = [event.at for event in history if event.reason is Reason.HANDLER_FAILED]
        due = [event.at for event in history if event.reason is Reason.RETRY_DUE]
        assert all(again - before > 0.19 for before, again in zip(failed, due, strict=True))


async def test_delayed_jobs_are_taken_by_priority_then_in_order(place: Place) -> None:
    app = await place.app(queues=["held"])
    ran: list[str] = []

    @app.task
    async def note(name: str) -> None:
        ran.append(name)

    async with place.worker(app, ["default", "held"], concurrency=1):
        await app.operator.pause_queue("held")
        soon = time.time() + 0.1
        jobs = [
            await note.options(queue="held", run_at=soon, priority=priority).submit(name)
            for name, priority in (("c", 0), ("d", 0), ("a", 9), ("b", 5))
        ]
        marker = await note.options(delay=0.5).submit("later")
        await place.ended(marker)
        assert {(await job.status()).state for job in jobs} == {State.PENDING}
        await app.operator.resume_queue("held")
        for job in jobs:
            await place.result(job)
        assert ran == ["later", "a", "b", "c", "d"]


async def test_a_time_that_has_passed_delays_nothing(place: Place) -> None:
    app = await place.app()

    @app.task
    async def noop() -> None: ...

    async with place.worker(app):
        job = await noop.options(run_at=time.time() - 60).submit()
        await job.result(timeout=patience.longest(30))


async def test_a_job_that_does_not_start_in_time_expires(place: Place) -> None:
    app = await place.app(queues=["held"])

    @app.task
    async def noop() -> None: ...

    async with place.worker(app, ["default", "held"]):
        await app.operator.pause_queue("held")
        job = await noop.options(queue="held", ttl=0.2).submit()
        await place.result(await noop.options(delay=0.5).submit())
        await place.until(job, lambda job: job.state is State.DEAD_LETTERED, "expired")
        assert await way(job) == [Reason.SUBMITTED, Reason.TTL_EXPIRED]
        with pytest.raises(InvalidArgument, match="ttl"):
            await noop.options(delay=60, ttl=1).submit()


async def test_an_attempt_has_so_much_time(place: Place) -> None:
    app = await place.app()

    @app.task(timeout=0.05, max_retries=0)
    async def endless() -> None:
        await asyncio.Event().wait()

    @app.task(timeout=0.05, max_retries=0)
    def slow() -> int:
        time.sleep(0.5)
        return 1

    async with place.worker(app):
        for task in (endless, slow):
            job = await task.submit()
            with pytest.raises(JobFailed, match=r"timed out after 0\.05 s"):
                await place.result(job)
            assert Reason.TIMED_OUT in await way(job)


async def test_a_handler_that_exits_has_failed(place: Place) -> None:
    app = await place.app()

    @app.task(max_retries=0)
    async def leaves() -> None:
        raise SystemExit(3)

    @app.task(max_retries=0)
    def leaves_too() -> None:
        raise SystemExit(3)

    async with place.worker(app):
        for task in (leaves, leaves_too):
            job = await place.ended(await task.submit())
            assert died(job) == (State.DEAD_LETTERED, Reason.RETRIES_EXHAUSTED, 1)
            assert job.error.startswith("SystemExit: 3")


async def test_dead_letters_are_sent_back(place: Place) -> None:
    app = await place.app()
    broken = [True]

    @app.task
    async def fragile() -> str:
        if broken:
            raise Abort("broken")
        return "mended"

    async with place.worker(app):
        jobs = [await fragile.submit() for _ in range(3)]
        for job in jobs:
            assert (await place.ended(job)).state is State.DEAD_LETTERED
        assert len((await app.operator.dead_letters()).jobs) == 3
        broken.clear()
        assert (await jobs[0].retry()).retry_count == 0
        assert await place.result(jobs[0]) == "mended"
        assert await app.operator.retry_dead_letters("default") == 2
        for job in jobs:
            assert await place.result(job) == "mended"
        with pytest.raises(Conflict, match="only FAILED and DEAD_LETTERED jobs can be retried"):
            await jobs[0].retry()
        figures = await app.operator.queue_stats("default")
        assert (figures.succeeded, figures.failed, figures.depth[State.DONE]) == (3, 3, 3)


async def test_a_queue_that_nobody_declared_is_not_there(place: Place) -> None:
    app = await place.app()

    @app.task
    async def noop() -> None: ...

    async with place.worker(app):
        with pytest.raises(NotFound, match="'nowhere'"):
            await noop.options(queue="nowhere").submit()


async def test_the_blocking_client_is_not_for_async_handlers(place: Place) -> None:
    app = await place.app()
    q = app.sync()

    @app.task
    def leaf(n: int) -> int:
        return n * 10

    @app.task
    def root(n: int) -> int:
        return q.submit(leaf, n).result() + 1

    @app.task(max_retries=0)
    async def wrong(n: int) -> int:
        return q.submit(leaf, n).result()

    async with place.worker(app):
        assert await place.result(await root.submit(4)) == 41
        with pytest.raises(JobFailed, match="this is the blocking client"):
            await place.result(await wrong.submit(4))
