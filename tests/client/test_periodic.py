"""Periodic tasks as a user writes them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from jobqueue import Context, InvalidArgument, JobQueue, JobQueueError, State
from jobqueue.config import Settings
from jobqueue.config_section import CronSection, QueueSection
from jobqueue.core.api import Backend
from jobqueue.core.job import Job, JobQuery
from jobqueue.core.store import Rules
from jobqueue.server import options
from tests import patience

EVERY_MINUTE = "* * * * *"


async def jobs_of(app: JobQueue) -> list[Job]:
    async def read(backend):
        return (await backend.list_jobs(JobQuery(limit=100))).jobs

    return await app.shared.call(read)


@pytest.mark.req("inp:PROD")
async def test_a_task_with_cron_runs_by_itself(app: JobQueue) -> None:
    ran: asyncio.Queue[str] = asyncio.Queue()

    @app.task(cron=EVERY_MINUTE, queue="night")
    async def clean_up(ctx: Context, days: int = 30) -> None:
        ran.put_nowait(f"{ctx.labels['cron']} {days} {ctx.queue}")

    async with app, app.worker():
        assert await patience.wait_for(ran.get(), 10) == "clean_up 30 night"


async def test_a_schedule_has_arguments_and_options(app: JobQueue) -> None:
    ran: asyncio.Queue[str] = asyncio.Queue()

    @app.task
    async def report(kind: str) -> None:
        ran.put_nowait(kind)

    app.periodic("@hourly", report, "old", name="old-report")
    app.periodic(
        EVERY_MINUTE,
        report.options(max_retries=7, labels={"team": "a"}),
        "new",
        timezone="Asia/Kolkata",
        priority=9,
        queue="reports",
    )
    assert app.worker_queues() == ("default", "reports")
    async with app, app.worker(concurrency=2):
        assert {await patience.wait_for(ran.get(), 10) for _ in range(2)} == {"old", "new"}
        new = next(job for job in await jobs_of(app) if job.queue == "reports")
        stored = await app.operator.get_schedule("report")
    assert (new.type, new.priority, new.max_retries) == ("report", 9, 7)
    assert new.labels == {"team": "a", "cron": "report"}
    assert new.key is not None
    assert new.key.startswith("cron:report:")
    assert (stored.spec.cron, stored.spec.timezone) == (EVERY_MINUTE, "Asia/Kolkata")


async def test_two_apps_on_one_file_make_one_job_of_a_tick(tmp_path: Path) -> None:
    runs = 0
    done = asyncio.Event()
    minute = (datetime.now(UTC).minute + 30) % 60  # the next tick comes after the test

    def build() -> JobQueue:
        app = JobQueue(f"sqlite:///{tmp_path / 'jobs.db'}")

        @app.task(cron=f"{minute} * * * *")
        async def tick() -> None:
            nonlocal runs
            runs += 1
            done.set()

        return app

    first, second = build(), build()
    async with first, second:
        async with first.worker(), second.worker():
            await patience.wait_for(done.wait(), 10)
        async with first.worker():  # one of them is started again
            pass
        (job,) = await jobs_of(first)
        while (await first.job(job.id).status()).state is not State.DONE:
            await asyncio.sleep(0.01)
    assert runs == 1


async def test_without_catching_up_nothing_is_submitted_at_the_start(url: str) -> None:
    app = JobQueue(url, catch_up=0)

    @app.task(cron="@yearly")
    async def tick() -> None: ...

    async with app, app.worker():
        pass
    assert app.registry.catch_up == 0


async def test_inline_mode_ignores_schedules(app: JobQueue) -> None:
    ran = []

    @app.task(cron=EVERY_MINUTE)
    async def tick() -> None:
        ran.append("tick")

    with app.inline() as jobs:
        async with app, app.worker():
            assert await jobs_of(app) == []
        assert jobs.of(tick) == []
        await tick.submit()
    assert ran == ["tick"]


# -- what is refused, and without effect -------------------------------------------------------


def test_a_bad_schedule_is_refused_where_it_is_written(app: JobQueue) -> None:
    with pytest.raises(InvalidArgument, match="cron: day of month '31': no month of '2'"):
        app.task(cron="0 0 31 2 *")
    with pytest.raises(InvalidArgument, match="timezone: 'Mars/Base' is not a time zone"):
        app.task(cron=EVERY_MINUTE, timezone="Mars/Base")
    with pytest.raises(InvalidArgument, match="timezone: is only allowed together with cron="):
        app.task(timezone="Europe/Zurich")


def test_a_task_that_needs_arguments_is_refused_and_not_registered(app: JobQueue) -> None:
    with pytest.raises(
        InvalidArgument, match=r"schedule 'send': to: missing.*app\.periodic\(cron,"
    ):

        @app.task(cron=EVERY_MINUTE)
        async def send(to: str) -> None: ...

    assert "send" not in app.registry.names()
    assert app.registry.schedules == {}


def test_arguments_of_a_schedule_are_checked(app: JobQueue) -> None:
    @app.task
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidArgument, match=r"schedule 'send'.*to"):
        app.periodic(EVERY_MINUTE, send, 5)
    with pytest.raises(InvalidArgument, match="priority"):
        app.periodic(EVERY_MINUTE, send, "a", priority=10)
    with pytest.raises(InvalidArgument, match="is not a queue name"):
        app.periodic(EVERY_MINUTE, send, "a", queue="no queue")
    with pytest.raises(InvalidArgument, match="key: is not allowed: a schedule makes a key"):
        app.periodic(EVERY_MINUTE, send.options(key="k"), "a")
    with pytest.raises(InvalidArgument, match="run_at: is not allowed: a schedule has its own"):
        app.periodic(EVERY_MINUTE, send.options(run_at=1.0), "a")
    with pytest.raises(InvalidArgument, match="name: 1 to 200 characters"):
        app.periodic(EVERY_MINUTE, send, "a", name="")
    with pytest.raises(InvalidArgument, match="task: expected a task of this app"):
        app.periodic(EVERY_MINUTE, JobQueue("memory://").task(send.definition.fn), "a")
    with pytest.raises(InvalidArgument, match="task: expected a task of this app"):
        app.periodic(EVERY_MINUTE, send.definition.fn, "a")  # type: ignore[arg-type]
    assert app.registry.schedules == {}


def test_a_name_is_given_once(app: JobQueue) -> None:
    @app.task
    async def send(to: str = "") -> None: ...

    app.periodic(EVERY_MINUTE, send)
    with pytest.raises(JobQueueError, match="schedule 'send' is defined twice"):
        app.periodic("@daily", send)
    app.periodic("@daily", send, name="tidy")
    with pytest.raises(JobQueueError, match="schedule 'tidy' is defined twice"):

        @app.task(cron=EVERY_MINUTE)
        async def tidy() -> None: ...

    assert "tidy" not in app.registry.names()
    assert sorted(app.registry.schedules) == ["send", "tidy"]


def test_how_late_a_tick_may_be_is_bounded_by_the_life_of_its_key() -> None:
    assert JobQueue("memory://").registry.catch_up == 3600
    assert JobQueue("memory://", rules=Rules(key_ttl=60)).registry.catch_up == 60
    assert JobQueue("memory://", catch_up=timedelta(minutes=5)).registry.catch_up == 300
    for wrong in (-1, 86_401, float("nan")):
        with pytest.raises(InvalidArgument, match=r"catch_up: must be 0 to 86400 s"):
            JobQueue("memory://", catch_up=wrong)


def test_a_setting_comes_before_the_app_and_the_key_before_both() -> None:
    def chosen(**said: float) -> float:
        settings = Settings(
            cron=CronSection(catch_up=said.get("catch_up")),
            queue=QueueSection(key_ttl=said.get("key_ttl", 86_400)),
        )
        registry = JobQueue("memory://", catch_up=120).registry
        return options.code_schedules(settings, registry, cast("Backend", None)).catch_up

    assert chosen() == 120
    assert chosen(catch_up=0) == 0
    assert chosen(catch_up=7200) == 7200
    assert chosen(catch_up=7200, key_ttl=60) == chosen(key_ttl=60) == 60
