"""``ctx.progress()`` means the same wherever an app runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jobqueue import Abort, Context, Job, RetryLater, State
from jobqueue.worker import side_threads
from tests import patience
from tests.scenarios.place import Place


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two heartbeats that tell of progress."""
    monkeypatch.setattr(side_threads, "_PAUSE", 0.1)


def said(job: Job) -> tuple[float | None, str] | None:
    return None if job.progress is None else (job.progress.value, job.progress.text)


async def test_progress_is_shown_while_the_job_runs_and_gone_with_its_end(place: Place) -> None:
    app = await place.app()
    go_on, finish = asyncio.Event(), asyncio.Event()

    @app.task
    async def copy(files: int, ctx: Context) -> str:
        ctx.progress(1 / files, f"1 of {files} files")
        await go_on.wait()
        ctx.progress(text="the last one is long")
        await finish.wait()
        return "copied"

    async with place.worker(app):
        job = await copy.submit(4)
        seen = await place.until(job, lambda one: one.progress is not None, "no progress")
        assert seen.state is State.RUNNING
        assert said(seen) == (0.25, "1 of 4 files")
        assert seen.progress is not None
        assert seen.started_at is not None
        assert seen.progress.at >= seen.started_at - 1  # clocks of two machines
        go_on.set()
        last = (None, "the last one is long")
        seen = await place.until(job, lambda one: said(one) == last, "no second word")
        version = seen.version
        finish.set()
        assert await place.result(job) == "copied"
        done = await job.status()
        assert (done.state, done.progress, done.version) == (State.DONE, None, version + 1)
        assert len(await job.history()) == 4  # no event tells of progress


async def test_a_sync_handler_reports_progress(place: Place) -> None:
    app = await place.app()
    finish = threading.Event()

    @app.task
    def copy(ctx: Context) -> None:
        for n in range(1_000):
            ctx.progress((n + 1) / 1_000, f"{n + 1} of 1000 files")
        finish.wait(patience.longest(20))

    async with place.worker(app):
        job = await copy.submit()
        last = (1.0, "1000 of 1000 files")
        await place.until(job, lambda one: said(one) == last, "not the last word")
        finish.set()
        await place.result(job)


async def test_the_next_attempt_begins_without_progress(place: Place) -> None:
    app = await place.app()
    fail, finish = asyncio.Event(), asyncio.Event()

    @app.task
    async def copy(ctx: Context) -> None:
        if ctx.attempt == 1:
            ctx.progress(0.9, "nearly")
            await fail.wait()
            raise RetryLater(0.01)
        await finish.wait()

    async with place.worker(app):
        job = await copy.submit()
        await place.until(job, lambda one: one.progress is not None, "no progress")
        fail.set()
        second = await place.until(
            job, lambda one: one.attempt == 2 and one.state is State.RUNNING, "no second attempt"
        )
        assert second.progress is None
        finish.set()
        assert (await place.ended(job)).progress is None


async def test_progress_of_a_failed_job_is_gone(place: Place) -> None:
    app = await place.app()

    @app.task
    async def copy(ctx: Context) -> None:
        ctx.progress(0.5)
        raise Abort("never")

    async with place.worker(app):
        done = await place.ended(await copy.submit())
        assert (done.state, done.progress) == (State.DEAD_LETTERED, None)


async def test_bad_arguments_fail_the_job_and_say_what_is_allowed(place: Place) -> None:
    app = await place.app()

    @app.task
    async def percent(ctx: Context) -> None:
        ctx.progress(40, "forty percent")

    async with place.worker(app):
        done = await place.ended(await percent.submit())
        assert done.state is State.DEAD_LETTERED
        assert "progress.value: must be 0 to 1 (0.25 is 25 %), got 40" in done.error
