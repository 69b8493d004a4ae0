"""``submit(..., connection=)``: the job is part of a user's own transaction, with every driver."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
import sqlalchemy
from sqlalchemy.ext import asyncio as alchemy

from jobqueue import InvalidArgument, JobQueue, QueueFull, QueueSpec
from jobqueue.client.sender import BatchRefused
from jobqueue.core.errors import KeyConflict, NotFound, PermissionDenied, Unavailable
from jobqueue.stores.sqlite.connection import SCHEMA_VERSION
from tests import patience
from tests.client.drivers import (
    ASYNC,
    BLOCKING,
    Own,
    RolledBack,
    begun,
    begun_blocking,
    django_connection,
    either,
)
from tests.journeys.pages import blocks

SECONDS = patience.longest(20)


def make(url: str, **options: Any) -> tuple[JobQueue, Any, Any]:
    app = JobQueue(url, **options)

    @app.task(queue="mail")
    async def send(to: str, subject: str = "hello") -> str:
        return f"{to}: {subject}"

    @app.task(queue="mail")
    def takes(connection: str, more: int = 0) -> str:
        return f"{connection} {more}"

    return app, send, takes


@contextmanager
def synced(app: JobQueue) -> Iterator[Any]:
    """The app's blocking client, closed before its loop ends."""
    with app.sync() as q:
        yield q
        q.run(app.close())


@pytest_asyncio.fixture
async def db(postgres_dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


# -- every driver ------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ASYNC)
async def test_a_job_exists_if_its_transaction_commits(driver: str, postgres_dsn: str, db: Any):
    """A waiting worker starts the job at once."""
    app, send, _ = make(postgres_dsn)
    await db.execute("CREATE TABLE shop (id int PRIMARY KEY)")
    async with app, app.worker():
        async with begun(driver, postgres_dsn) as own:
            await own.run("INSERT INTO shop VALUES (1)")
            job = await send.submit("a@b.c", connection=own.connection)
            assert job.created
            with pytest.raises(NotFound):
                await job.status()
        assert await job.result(SECONDS) == "a@b.c: hello"
        with suppress(RolledBack):
            async with begun(driver, postgres_dsn) as own:
                await own.run("INSERT INTO shop VALUES (2)")
                gone = await send.submit("gone", connection=own.connection)
                raise RolledBack
        with pytest.raises(NotFound):
            await gone.status()
    assert [row[0] for row in await db.fetch("SELECT id FROM shop")] == [1]
    assert await db.fetchval("SELECT count(*) FROM job_record") == 1


@pytest.mark.parametrize("driver", BLOCKING)
def test_the_blocking_client(driver: str, postgres_dsn: str):
    app, send, _ = make(postgres_dsn)
    with synced(app) as q:
        block = app.worker()
        q.run(block.__aenter__())
        with begun_blocking(driver, postgres_dsn) as own:
            own.run("CREATE TABLE shop (id int PRIMARY KEY)")
            job = q.submit(send, "a@b.c", connection=own.connection)
            several = q.submit_many(send, [("b", "1"), ("c", "2")], connection=own.connection)
            with pytest.raises(NotFound):
                job.status()
        assert job.result(SECONDS) == "a@b.c: hello"
        assert [one.result(SECONDS) for one in several] == ["b: 1", "c: 2"]
        with suppress(RolledBack), begun_blocking(driver, postgres_dsn) as own:
            own.run("INSERT INTO shop VALUES (2)")
            gone = q.submit(send, "gone", connection=own.connection)
            raise RolledBack
        with pytest.raises(NotFound):
            gone.status()
        q.run(block.__aexit__())


@pytest.mark.parametrize("driver", ASYNC + BLOCKING)
async def test_refusals_leave_the_transaction_usable(driver: str, postgres_dsn: str, db: Any):
    app, send, _ = make(postgres_dsn, queues=[QueueSpec(name="small", capacity=1)])
    outside = JobQueue(postgres_dsn)

    @outside.task(queue="nowhere")
    def unknown() -> None: ...

    async def work(own: Own) -> str:
        to = own.connection
        with pytest.raises(InvalidArgument, match="priority: 10 is outside"):
            await send.options(priority=10).submit("a", connection=to)
        await send.options(queue="small").submit("a", connection=to)
        with pytest.raises(QueueFull, match="queue 'small' is full"):
            await send.options(queue="small").submit("b", connection=to)
        first = await send.options(key="k").submit("a", connection=to)
        again = await send.options(key="k", connection=to).submit("a")
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(KeyConflict) as conflict:
            await send.options(key="k").submit("b", connection=to)
        assert conflict.value.job_id == first.id
        with pytest.raises(BatchRefused):
            await send.options(queue="small").submit_many([("a",), ("b",)], connection=to)
        with pytest.raises(NotFound, match="or declare it: JobQueue"):
            await outside.submit("any", queue="other", connection=to)
        return first.id

    def blocking(own: Own) -> str:
        q = app.sync()
        to = own.connection
        with pytest.raises(InvalidArgument, match="priority: 10 is outside"):
            q.submit(send.options(priority=10), "a", connection=to)
        q.submit(send.options(queue="small"), "a", connection=to)
        with pytest.raises(QueueFull):
            q.submit(send.options(queue="small"), "b", connection=to)
        first = q.submit(send.options(key="k"), "a", connection=to)
        again = q.submit(send.options(key="k", connection=to), "a")
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(KeyConflict):
            q.submit(send.options(key="k"), "b", connection=to)
        with pytest.raises(BatchRefused):
            q.submit_many(send.options(queue="small"), [("a",), ("b",)], connection=to)
        return first.id

    async with app, outside:
        job_id = await either(driver, postgres_dsn, work, blocking, commit=True)
        assert (await app.job(job_id).status()).key == "k"
    assert await db.fetchval("SELECT count(*) FROM job_record") == 2


# -- not in a transaction, or not a connection ----------------------------------------------------


async def test_a_connection_without_a_transaction_is_refused(postgres_dsn: str, db: Any):
    """Without a transaction, the job would exist even if the user's other writes fail."""
    app, send, _ = make(postgres_dsn)
    expected = "connection: .*is not in a transaction, so the call would take effect at once"
    async with app:
        with pytest.raises(InvalidArgument, match=f"{expected}.*async with connection.trans"):
            await send.submit("a", connection=db)
        async with await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True) as one:
            with pytest.raises(InvalidArgument, match=expected):
                await send.submit("a", connection=one)
            async with one.transaction():
                await send.submit("a", connection=one)
        url = postgres_dsn.replace("postgresql://", "postgresql+psycopg://")
        by_engine = alchemy.create_async_engine(url, isolation_level="AUTOCOMMIT")
        plain = alchemy.create_async_engine(url)
        async with by_engine.connect() as two:
            with pytest.raises(InvalidArgument, match=expected):
                await send.submit("a", connection=two)
        async with plain.connect() as three:
            chosen = await three.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(InvalidArgument, match=expected):
                await send.submit("a", connection=chosen)
        await by_engine.dispose()
        await plain.dispose()
    assert await db.fetchval("SELECT count(*) FROM job_record") == 1


def test_django_in_autocommit_is_refused(postgres_dsn: str):
    app, send, _ = make(postgres_dsn)
    from django.db import connection as proxy

    connection = django_connection(postgres_dsn)
    with synced(app) as q:
        for one in (connection, proxy):
            with pytest.raises(InvalidArgument, match=r"with transaction.atomic\(\):"):
                q.submit(send, "a", connection=one)
    connection.close()


async def test_other_objects_are_refused_with_the_supported_connections(postgres_dsn: str):
    app, send, _ = make(postgres_dsn)
    async with app:
        pool = asyncpg.create_pool(postgres_dsn, min_size=0)
        for wrong in (pool, postgres_dsn, sqlalchemy.create_engine("sqlite://"), object()):
            with pytest.raises(InvalidArgument, match="is not supported; allowed: a connection of"):
                await send.submit("a", connection=wrong)


def test_sqlalchemy_over_another_database_is_refused(postgres_dsn: str):
    app, send, _ = make(postgres_dsn)
    lite = sqlalchemy.create_engine("sqlite://")
    with (
        synced(app) as q,
        lite.connect() as connection,
        pytest.raises(InvalidArgument, match="is to sqlite; allowed:"),
    ):
        q.submit(send, "a", connection=connection)
    lite.dispose()


async def test_a_connection_of_the_other_kind_is_refused(postgres_dsn: str, tmp_path: Path):
    app, send, _ = make(postgres_dsn)
    async with app:
        for one, expected in (
            (psycopg.connect(postgres_dsn), r"would block the event loop.*app.sync\(\).submit"),
            (sqlite3.connect(tmp_path / "a.db"), "is to SQLite, and the app's jobs are in post"),
        ):
            with closing(one), pytest.raises(InvalidArgument, match=expected):
                await send.submit("a", connection=one)

        async def in_thread(connection: Any) -> None:
            with pytest.raises(InvalidArgument, match="belongs to an event loop"):
                await asyncio.to_thread(app.sync().submit, send, "a", connection=connection)

        async with begun("asyncpg", postgres_dsn) as own:
            await in_thread(own.connection)


@pytest.mark.parametrize("url", ["memory://", "redis://127.0.0.1:1/0"])
async def test_other_stores_are_refused_with_the_supported_ones(url: str, postgres_dsn: str):
    _, send, _ = make(url)
    async with begun("asyncpg", postgres_dsn) as own:
        with pytest.raises(
            InvalidArgument, match=r"use an app on postgresql:// or sqlite://, or on grpc"
        ):
            await send.submit("a", connection=own.connection)


async def test_another_database_is_refused(postgres_dsn: str, empty_postgres_dsn: str):
    """That database has no job queue."""
    app, send, _ = make(postgres_dsn)
    async with app:
        for driver in ASYNC:
            async with begun(driver, empty_postgres_dsn) as own:
                with pytest.raises(
                    InvalidArgument, match=r"lacks the functions of this version \(schema jq\)"
                ):
                    await send.submit("a", connection=own.connection)
        for driver in BLOCKING:

            def block(driver: str = driver) -> None:
                with (
                    begun_blocking(driver, empty_postgres_dsn) as own,
                    pytest.raises(
                        InvalidArgument, match=r"lacks the functions of this version \(schema jq\)"
                    ),
                ):
                    app.sync().submit(send, "a", connection=own.connection)

            await asyncio.to_thread(block)


async def test_a_role_without_rights_is_told_which(postgres_dsn: str, db: Any):
    app, send, _ = make(postgres_dsn)
    async with app:
        await db.execute("CREATE ROLE nobody_here NOLOGIN")
        try:
            async with begun("asyncpg", postgres_dsn) as own:
                await own.run("SET LOCAL ROLE nobody_here")
                with pytest.raises(PermissionDenied, match="GRANT USAGE ON SCHEMA jq"):
                    await send.submit("a", connection=own.connection)
        finally:
            await db.execute("DROP ROLE nobody_here")


# -- the app -----------------------------------------------------------------------------------


async def test_an_app_that_was_not_open_makes_the_schema_and_its_queues(empty_postgres_dsn: str):
    app, send, _ = make(empty_postgres_dsn)
    async with begun("asyncpg", empty_postgres_dsn) as own:
        job = await send.submit("a", connection=own.connection)
    async with app.worker():
        assert await job.result(SECONDS) == "a: hello"
    await app.close()


async def test_a_queue_that_a_later_task_declares_is_made_when_it_is_missing(postgres_dsn: str):
    app, _, _ = make(postgres_dsn)
    async with app:

        @app.task(queue="late")
        async def later() -> int:
            return 1

        async with begun("asyncpg", postgres_dsn) as own:
            job = await later.submit(connection=own.connection)
        async with app.worker():
            assert await job.result(SECONDS) == 1


async def test_a_parameter_of_this_name_gets_the_value(postgres_dsn: str, db: Any):
    app, send, takes = make(postgres_dsn)

    @app.task(queue="mail")
    def any_names(**kwargs: int) -> int:
        return sum(kwargs.values())

    async with app, app.worker():
        assert await (await takes.submit(connection="mine")).result(SECONDS) == "mine 0"
        assert await (await any_names.submit(connection=3)).result(SECONDS) == 3
        async with begun("asyncpg", postgres_dsn) as own:
            job = await takes.options(connection=own.connection).submit(connection="x", more=1)
            with pytest.raises(NotFound):
                await job.status()
        assert await job.result(SECONDS) == "x 1"
        assert await (await send.submit("a", connection=None)).result(SECONDS) == "a: hello"


async def test_inline_mode_runs_the_job_at_once(tmp_path: Path):
    app, send, _ = make("postgresql://nobody@127.0.0.1:1/none")
    with app.inline() as jobs:
        job = await send.submit("a", connection=object())
        assert await job.result() == "a: hello"
        assert len(jobs.of(send)) == 1

    def blocking() -> None:
        with app.inline():
            q = app.sync()
            assert q.submit(send, "b", connection=object()).result() == "b: hello"
            (several,) = q.submit_many(send, [("c",)], connection=object())
            assert several.result() == "c: hello"

    await asyncio.to_thread(blocking)


@pytest.mark.e2e
async def test_an_app_of_a_server_on_the_same_database(postgres_dsn: str, tmp_path: Path, db: Any):
    """The submit uses the transaction; all other calls go over gRPC."""
    from tests.cli import processes

    arguments = ("--db-url", postgres_dsn, "--worker-concurrency", "0")
    with processes.server(tmp_path, *arguments) as running:
        app, send, _ = make(f"grpc://{running.line('ready')['grpc']}")
        async with app.worker():
            async with begun("asyncpg", postgres_dsn) as own:
                # The first call must create the queue, through the server.
                job = await send.submit("a", connection=own.connection)
                with pytest.raises(NotFound):
                    await job.status()
            assert await job.result(SECONDS) == "a: hello"
        await app.close()
        assert running.stop() == 0


# -- SQLite ------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def lite(file: Path) -> Iterator[Any]:
    """Opens connections to the file, as sqlite3.connect does."""
    opened: list[sqlite3.Connection] = []

    def connect(**options: Any) -> sqlite3.Connection:
        opened.append(sqlite3.connect(file, **options))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


async def test_a_transaction_of_sqlite(file: Path, lite: Any):
    app, send, _ = make(f"sqlite:///{file}")
    async with app, app.worker():
        mine = lite()
        mine.row_factory = sqlite3.Row  # what users set is not in the way
        mine.execute("CREATE TABLE shop (id int PRIMARY KEY)")
        mine.execute("INSERT INTO shop VALUES (1)")
        job = await send.options(key="k").submit("a", connection=mine)
        with pytest.raises(NotFound):
            await job.status()
        mine.commit()
        assert await job.result(SECONDS) == "a: hello"
        assert mine.row_factory is sqlite3.Row
        mine.execute("INSERT INTO shop VALUES (2)")
        gone = await send.submit("gone", connection=mine)
        several = await send.submit_many([("b",), ("c",)], connection=mine)
        mine.rollback()
        for one in (gone, *several):
            with pytest.raises(NotFound):
                await one.status()
        again = await send.options(key="k").submit("a", connection=mine)
        assert (again.id, again.created) == (job.id, False)
        mine.rollback()
        assert [row["id"] for row in mine.execute("SELECT id FROM shop")] == [1]


def test_the_blocking_client_on_sqlite(file: Path, lite: Any):
    app, send, _ = make(f"sqlite:///{file}")
    with synced(app) as q:
        block = app.worker()
        q.run(block.__aenter__())
        by_hand = lite(isolation_level=None)
        with pytest.raises(InvalidArgument, match="BEGIN IMMEDIATE"):
            q.submit(send, "a", connection=by_hand)
        by_hand.execute("BEGIN IMMEDIATE")
        job = q.submit(send, "a", connection=by_hand)
        by_hand.execute("COMMIT")
        assert job.result(SECONDS) == "a: hello"
        q.run(block.__aexit__())


async def test_refusals_on_sqlite_leave_the_transaction_usable(file: Path, lite: Any):
    queues = [QueueSpec(name="small", capacity=1), QueueSpec(name="brief", ttl=1.0)]
    app, send, _ = make(f"sqlite:///{file}", queues=queues)
    async with app:
        mine = lite()
        small = send.options(queue="small", connection=mine)
        await small.submit("a")
        with pytest.raises(QueueFull):
            await small.submit("b")
        with pytest.raises(InvalidArgument, match="its queue's ttl ends 1 s"):
            await send.options(queue="brief", delay=2.0).submit("a", connection=mine)
        with pytest.raises(InvalidArgument, match="priority"):
            await send.options(priority=10).submit("a", connection=mine)
        with pytest.raises(NotFound):
            await send.options(queue="nowhere").submit("a", connection=mine)
        mine.commit()
        assert (await app.operator.queue_stats("small")).unfinished == 1


async def test_savepoints_of_sqlite(file: Path, lite: Any):
    app, send, _ = make(f"sqlite:///{file}")
    async with app:
        mine = lite(isolation_level=None)
        mine.execute("BEGIN")
        mine.execute("SAVEPOINT one")
        gone = await send.options(key="k").submit("gone", connection=mine)
        mine.execute("ROLLBACK TO one")
        kept = await send.options(key="k").submit("kept", connection=mine)
        mine.execute("COMMIT")
        assert kept.created
        with pytest.raises(NotFound):
            await gone.status()
        assert (await kept.status()).key == "k"


async def test_an_old_snapshot_of_sqlite_is_explained(file: Path, lite: Any):
    app, send, _ = make(f"sqlite:///{file}")
    async with app:
        mine = lite(isolation_level=None)
        mine.execute("BEGIN")
        mine.execute("SELECT count(*) FROM rec").fetchone()
        await send.submit("theirs")
        with pytest.raises(Unavailable, match="begin it with BEGIN IMMEDIATE"):
            await send.submit("mine", connection=mine)
        mine.execute("ROLLBACK")


async def test_an_app_that_is_not_open_cannot_be_opened_beside_a_transaction(file: Path, lite: Any):
    app, send, _ = make(f"sqlite:///{file}")
    async with app:
        pass
    mine = lite(isolation_level=None)
    mine.execute("BEGIN IMMEDIATE")
    with pytest.raises(
        InvalidArgument,
        match=r"open the app before the transaction begins, as `await app.open\(\)`",
    ):
        await send.submit("a", connection=mine)
    mine.execute("ROLLBACK")
    implicit = (
        lite()
    )  # Python begins its transaction with the first write: the app is opened before
    job = await send.submit("a", connection=implicit)
    implicit.commit()
    assert (await job.status()).queue == "mail"
    await app.close()


async def test_another_file_is_refused(file: Path, tmp_path: Path):
    app, send, _ = make(f"sqlite:///{file}")
    other, newer = tmp_path / "other.db", tmp_path / "newer.db"
    async with app:
        for place, expected in (
            (str(other), f"is to {other}, and the app's jobs are in {file}"),
            (":memory:", "is to a database in memory, and the app's jobs are in"),
        ):
            wrong = sqlite3.connect(place)
            with closing(wrong), pytest.raises(InvalidArgument, match=expected):
                await send.submit("a", connection=wrong)
    _, far, _ = make("grpc://127.0.0.1:1")
    newer.write_bytes(file.read_bytes())
    with closing(sqlite3.connect(newer)) as one:
        one.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    for path, expected in (
        (other, r"its file .*other.db has no job queue"),
        (newer, "install the newer version"),
    ):
        wrong = sqlite3.connect(path)
        with closing(wrong), pytest.raises(InvalidArgument, match=expected):
            await far.submit("a", connection=wrong)


@pytest.mark.parametrize(("number", "printed"), [(1, "PENDING PENDING\n"), (2, "PENDING\n")])
def test_the_examples_of_blocking_code(
    number: int, printed: str, tmp_path: Path, postgres_dsn: str
):
    """Of docs/transactions.md; the others are journeys."""
    shop, *others = blocks("docs/transactions.md", "python")
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "block.py").write_text(others[number - 1])
    environment = os.environ | {"SHOP_DB": postgres_dsn, "PYTHONPATH": os.pathsep.join(sys.path)}

    async def prepare() -> None:
        db = await asyncpg.connect(postgres_dsn)
        await db.execute("CREATE TABLE customer (email text)")
        await db.close()

    asyncio.run(prepare())
    ran = subprocess.run(
        [sys.executable, "block.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience.longest(50),
    )
    assert (ran.stdout, ran.stderr) == (printed, "")
