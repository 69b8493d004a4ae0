"""A job's concurrency key: given at the submit, by the task, or by a function of its arguments."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobqueue import Context, InvalidArgument, JobQueue, QueueSpec
from jobqueue.client.tasks import Task, times


async def key(task: Task[Any, Any], *args: Any, **options: Any) -> str | None:
    job = await task.options(**options).submit(*args)
    return (await job.status()).spec.concurrency_key


async def test_a_key_is_made_of_the_arguments_unless_one_is_given():
    app = JobQueue("memory://")

    @app.task(concurrency_key=lambda tenant, **_: f"tenant:{tenant}" if tenant else None)
    def send(ctx: Context, to: str, tenant: int = 7) -> None: ...

    @app.task(concurrency_key="mails")
    def mail(to: str) -> None: ...

    @app.task
    def plain(to: str) -> None: ...

    async with app:
        assert await key(send, "a@b.c", 42) == "tenant:42"
        assert await key(send, "a@b.c") == "tenant:7"  # by the default
        assert await key(send, "a@b.c", 0) is None
        assert await key(send, "a@b.c", 42, concurrency_key="other") == "other"
        assert await key(mail, "a@b.c") == "mails"
        assert await key(plain, "a@b.c") is None
        assert await key(plain, "a@b.c", concurrency_key="k") == "k"
        many = await send.submit_many([("a@b.c", n) for n in (1, 2)])
        assert [(await job.status()).spec.concurrency_key for job in many] == [
            "tenant:1", "tenant:2",
        ]  # fmt: skip
        by_name = await app.submit("send", {"to": "a@b.c", "tenant": 3})
        assert (await by_name.status()).spec.concurrency_key == "tenant:3"
        said = await app.submit("elsewhere", {"n": 1}, concurrency_key="k")
        assert (await said.status()).spec.concurrency_key == "k"


async def test_a_function_that_fails_or_gives_no_text_is_named():
    app = JobQueue("memory://")

    @app.task(concurrency_key=lambda tenant: tenant)
    def strict(to: str, tenant: int) -> None: ...

    @app.task(concurrency_key=lambda **_: 42)  # type: ignore[arg-type]
    def wrong(to: str) -> None: ...

    async with app:
        with pytest.raises(InvalidArgument, match=r"task 'strict' raised TypeError.*'to'") as error:
            await strict.submit("a@b.c", 1)
        assert error.value.field == "concurrency_key"
        with pytest.raises(
            InvalidArgument, match="task 'wrong' must return a text or None, got 42"
        ):
            await wrong.submit("a@b.c")
        with pytest.raises(InvalidArgument, match="1 to 200 characters"):
            await wrong.options(concurrency_key="").submit("a@b.c")
    with pytest.raises(InvalidArgument, match="expected a text, or a function"):
        app.task(concurrency_key=5)  # type: ignore[call-overload]


async def test_jobs_of_batches_schedules_and_own_transactions_have_keys(tmp_path: Path):
    file = tmp_path / "jobs.db"
    app = JobQueue(f"sqlite:///{file}")

    @app.task(batch=10, concurrency_key=lambda tenant, **_: f"tenant:{tenant}")
    def load(tenant: list[int], name: list[str]) -> None: ...

    @app.task(
        concurrency_key=lambda tenant=9: f"tenant:{tenant}",
    )
    def clean(tenant: int = 9) -> None: ...

    async with app:
        assert await key(load, 1, "a") == "tenant:1"
        assert times(None, 3_600).schedule(clean).job.concurrency_key == "tenant:9"
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("BEGIN IMMEDIATE")
            job = await load.options(connection=db).submit(2, "b")
        assert (await job.status()).spec.concurrency_key == "tenant:2"


async def test_inline_jobs_do_not_wait_for_a_limit():
    app = JobQueue(
        "memory://", queues=[QueueSpec("mail", max_running=1, rate=1, rate_period=3_600)]
    )
    ran: list[int] = []

    @app.task(queue="mail", concurrency_key=lambda n: f"k{n}")
    def note(n: int) -> None:
        ran.append(n)

    with app.inline():
        jobs = await note.submit_many([(n,) for n in range(3)])
        for job in jobs:
            await job.result()
    assert ran == [0, 1, 2]
