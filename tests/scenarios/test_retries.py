"""Retries: which failures are tried again, and how long they wait, mean the same everywhere."""

from __future__ import annotations

import pytest

from jobqueue import Abort, Backoff, Context, JobHandle, QueueSpec, RetryLater, State
from jobqueue.core.job import Job
from jobqueue.core.lifecycle import TERMINAL, Reason
from tests.scenarios.place import Place


class Passing(Exception):
    """Goes away by itself."""


class Final(Passing):
    """Does not, although it is a kind of the other."""


async def wait_of(place: Place, job: JobHandle[None], attempt: int = 1) -> float:
    """How long the job waits after an attempt, or has waited where time leaps."""

    def failed(record: Job) -> bool:
        over = record.state in TERMINAL or record.attempt > attempt
        return over or (record.state is State.FAILED and record.attempt == attempt)

    record = await place.until(job, failed, "waits for its retry")
    events = [event for event in await job.history() if event.attempt == attempt]
    began = next(event.at for event in events if event.to_state is State.FAILED)
    if record.state is State.FAILED:
        assert record.next_retry_at is not None
        return record.next_retry_at - began
    return next(event.at for event in events if event.reason is Reason.RETRY_DUE) - began


async def test_only_what_the_task_retries_is_retried(place: Place) -> None:
    app = await place.app()
    kinds = {"passing": Passing, "final": Final, "other": ValueError, "abort": Abort}

    @app.task(retry_on=Passing, abort_on=(Final,), backoff=0, max_retries=2)
    async def on_loop(kind: str) -> None:
        raise kinds[kind]("no")

    @app.task(retry_on=Passing, abort_on=(Final,), backoff=0, max_retries=2)
    def in_thread(kind: str) -> None:
        raise kinds[kind]("no")

    async with place.worker(app):
        for task in (on_loop, in_thread):
            for kind, attempts, reason in (
                ("passing", 3, Reason.RETRIES_EXHAUSTED),
                ("final", 1, Reason.NOT_RETRYABLE),
                ("other", 1, Reason.NOT_RETRYABLE),
                ("abort", 1, Reason.NOT_RETRYABLE),
            ):
                ended = await place.ended(await task.submit(kind))
                assert (ended.attempt, ended.reason) == (attempts, reason), (task.name, kind)


async def test_a_handler_that_asks_for_a_retry_gets_it(place: Place) -> None:
    app = await place.app()

    @app.task(retry_on=OSError, abort_on=Exception, backoff=3_600)
    async def busy(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise RetryLater(0)
        return ctx.attempt

    async with place.worker(app):
        assert await place.result(await busy.submit()) == 2


async def test_a_task_says_how_long_its_retries_wait(place: Place) -> None:
    app = await place.app()

    @app.task(backoff=[0, 500, 700])
    async def stepped() -> None:
        raise ValueError("no")

    @app.task(backoff=Backoff(base=1_000, max=1_500, jitter=0))
    async def doubling() -> None:
        raise ValueError("no")

    async with place.worker(app):
        assert await wait_of(place, await doubling.submit()) == pytest.approx(1_000, abs=0.01)
        assert await wait_of(place, await stepped.submit(), 2) == pytest.approx(500, abs=0.01)


async def test_the_servers_settings_hold_where_a_queue_says_nothing(place: Place) -> None:
    place.settings = {
        "queue.retry_base": "700",
        "queue.retry_max": "800",
        "queue.retry_jitter": "0",
        "queue.max_retries": "1",
    }
    own = QueueSpec(name="own", retry_base=900.0, retry_max=900.0)
    app = await place.app(queues=[own])

    @app.task
    async def plain() -> None:
        raise ValueError("no")

    async with place.worker(app, queues=["default", "own"]):
        job = await plain.submit()
        assert await wait_of(place, job) == pytest.approx(700, abs=0.01)
        assert (await job.status()).max_retries == 1
        job = await plain.options(queue="own").submit()
        assert await wait_of(place, job) == pytest.approx(900, abs=0.01)


async def test_a_queue_that_stands_is_changed(place: Place) -> None:
    place.settings = {"queue.retry_profile": "scheduler"}
    app = await place.app()

    @app.task
    async def plain() -> None:
        raise ValueError("no")

    before = await plain.submit()  # the queue is there, and this job has its retries
    changed = await app.operator.update_queue(
        "default", max_retries=7, retry_base=700.0, retry_max=800.0
    )
    assert (changed.max_retries, changed.retry_profile) == (7, "scheduler")
    async with place.worker(app):
        after = await plain.submit()
        for job, retries in ((before, 3), (after, 7)):
            assert await wait_of(place, job) == pytest.approx(700, abs=0.01)
            assert (await job.status()).max_retries == retries
    back = await app.operator.update_queue("default", max_retries=None, retry_base=None)
    assert (back.max_retries, back.retry_base, back.retry_max) == (3, None, 800.0)
