"""The option unique of tasks and submits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobqueue import InvalidArgument, JobHandle, JobQueue, NotUnique, State, Unique
from jobqueue.client.tasks import Task

Handle = JobHandle[Any]


async def key(handle: Handle) -> str:
    unique = (await handle.status()).spec.unique
    assert unique is not None
    return unique.key


async def test_calls_with_equal_arguments_are_one_job_until_it_has_ended():
    app = JobQueue("memory://")

    @app.task(unique=Unique())
    async def send(to: str, subject: str = "hello", *, urgent: bool = False) -> str:
        return f"{to} {subject}"

    async with app:
        first = await send.submit("a@b.c")
        same = [
            await send.submit("a@b.c", "hello"),
            await send.submit(urgent=False, subject="hello", to="a@b.c"),
            await app.submit("send", {"urgent": False, "to": "a@b.c"}),
            *(await send.submit_many([("a@b.c",), ("a@b.c", "hello")])),
        ]
        assert first.created
        assert {(one.id, one.created) for one in same} == {(first.id, False)}
        for other in (await send.submit("x@b.c"), await send.submit("a@b.c", urgent=True)):
            assert other.created
        async with app.worker():
            assert await same[0].result(10) == "a@b.c hello"
            later = await send.submit("a@b.c")
            assert later.created
            assert await later.result(10) == "a@b.c hello"


async def test_a_key_is_a_text_or_a_function_of_the_arguments():
    app = JobQueue("memory://")

    @app.task(unique=Unique(lambda to, **_: f"mail to {to}"))
    def send(to: str, subject: str = "hello") -> None: ...

    @app.task
    def plain(n: int) -> None: ...

    async with app:
        first = await send.submit("a@b.c")
        assert await key(first) == "mail to a@b.c"
        assert not (await send.submit("a@b.c", "another")).created
        assert not (await app.submit("send", {"to": "a@b.c", "subject": "x"})).created
        text = await plain.options(unique=Unique("mail to a@b.c")).submit(1)
        assert text.id == first.id, "the keys of a queue are those of all its tasks"
        assert (await plain.submit(1)).created
        other = await send.options(unique=Unique("k", scope="waiting")).submit("a@b.c")
        assert await key(other) == "k"
        unknown = await app.submit("elsewhere", {"b": 1, "a": 2}, unique=Unique())
        assert not (await app.submit("elsewhere", b'{"a":2, "b":1}', unique=Unique())).created
        assert (await key(unknown)).startswith("elsewhere:")


async def test_a_later_submit_returns_the_job_is_refused_or_takes_its_place():
    app = JobQueue("memory://")

    @app.task
    def index(page: int, text: str = "") -> None: ...

    def one(**how: Any) -> Task[Any, Any]:
        return index.options(delay=60, unique=Unique("page", **how))

    async with app:
        first = await one().submit(1)
        assert (await one(period=timedelta(hours=1)).submit(2)).id == first.id
        with pytest.raises(NotUnique, match=rf"unique.key: 'page' belongs to job {first.id}") as no:
            await one(on_conflict="reject").submit(3)
        assert no.value.job_id == first.id
        later = await one(scope="waiting", on_conflict="replace").submit(4)
        assert later.created
        old = await first.status()
        assert (old.state, old.error) == (State.DEAD_LETTERED, f"superseded by job {later.id}")


async def test_inline_the_job_has_ended_before_the_next_is_submitted():
    app = JobQueue("memory://")
    ran: list[int] = []

    @app.task(unique=Unique("k", scope="waiting", on_conflict="replace"))
    def note(n: int) -> None:
        ran.append(n)

    with app.inline() as jobs:
        for n in range(3):
            await note.submit(n)
        for n in range(3, 6):
            await note.options(delay=10).submit(n)
        await jobs.run_delayed()
    assert ran == [0, 1, 2, 5]


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: Unique(5), "unique.key: expected a text, or a function"),  # type: ignore[arg-type]
    (lambda: Unique(""), "unique.key: 1 to 255 characters are allowed"),
    (lambda: Unique(scope="x"), "unique.scope: 'x' is unknown; allowed: waiting, unfinished"),  # type: ignore[arg-type]
    (lambda: Unique(period=0), "unique.period: must be more than 0"),
    (lambda: Unique(period="1h"), "unique.period: expected seconds or a timedelta, got '1h'"),  # type: ignore[arg-type]
    (lambda: Unique(on_conflict="x"), "unique.on_conflict: 'x' is unknown; allowed: existing, "),  # type: ignore[arg-type]
    (lambda: Unique(on_conflict="replace"), "unique.on_conflict: 'replace' needs the scope 'wait"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_a_wrong_value_is_named_at_once(make: Callable[[], object], message: str):
    with pytest.raises(InvalidArgument) as refused:
        make()
    assert str(refused.value).startswith(message)


async def test_what_is_not_a_unique_or_gives_no_key_is_refused():
    app = JobQueue("memory://")

    @app.task(unique=Unique(lambda to: to))
    def strict(to: str, subject: str) -> None: ...

    @app.task(unique=Unique(lambda **_: 42))  # type: ignore[arg-type]
    def wrong(to: str) -> None: ...

    @app.task
    def plain(to: str) -> None: ...

    for value, shown in ((True, r"Unique\(\), got True"), ("k", r"Unique\('k'\), got 'k'")):
        with pytest.raises(InvalidArgument, match=rf"unique: expected a Unique, like {shown}"):
            plain.options(unique=value)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"unique: expected a Unique"):
            app.task(name="other", unique=value)(lambda to: None)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match=r"unique.key: the function for task 'strict' raised"):
        await strict.submit("a@b.c", "x")
    with pytest.raises(InvalidArgument, match="task 'wrong' must return a text, got 42"):
        await wrong.submit("a@b.c")
    with pytest.raises(InvalidArgument, match=r"unique.key: a function needs the arguments"):
        await app.submit("elsewhere", {}, unique=Unique(lambda: "k"))
    with pytest.raises(InvalidArgument, match=r"unique.key: one text for many jobs"):
        await plain.options(unique=Unique("k")).submit_many([("a",), ("b",)])
    with pytest.raises(InvalidArgument, match=r"unique: is not allowed for a schedule"):
        app.periodic("@hourly", plain.options(unique=Unique()), "a@b.c")
    with pytest.raises(InvalidArgument, match=r"unique: is not allowed for a schedule"):

        @app.task(every=60, unique=Unique())
        def often() -> None: ...

    await app.close()


async def test_a_submit_in_a_transaction_of_the_users_own_cannot_be_unique(tmp_path: Path):
    file = tmp_path / "jobs.db"
    app = JobQueue(f"sqlite:///{file}")

    @app.task(unique=Unique())
    def send(to: str) -> None: ...

    async with app:
        connection = sqlite3.connect(file)
        message = r"unique: cannot be given together with connection=.*key= makes a repeated submit"
        with pytest.raises(InvalidArgument, match=message):
            await send.submit("a@b.c", connection=connection)
        with app.inline(), pytest.raises(InvalidArgument, match=message):
            await send.submit("a@b.c", connection=connection)
        assert not connection.in_transaction
        connection.close()


async def test_many_programs_submit_one_job(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    apps = [JobQueue(url) for _ in range(4)]

    def task_of(app: JobQueue) -> Task[Any, Any]:
        @app.task(name="send", unique=Unique())
        def send(to: str) -> None: ...

        return send

    tasks = [task_of(app) for app in apps]
    for app in apps:
        await app.open()
    handles = await asyncio.gather(*(task.submit("a@b.c") for task in tasks for _ in range(5)))
    assert len({one.id for one in handles}) == 1
    assert sum(one.created for one in handles) == 1
    for app in apps:
        await app.close()
