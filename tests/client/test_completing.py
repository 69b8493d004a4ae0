"""``ctx.complete``: the result and the effects of a handler are one transaction."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from jobqueue import Context, JobFailed, JobQueue, State
from jobqueue.core.errors import Conflict, InvalidArgument
from jobqueue.core.job import Job
from jobqueue.tasks.context import JobCancelled
from tests import patience
from tests.client import completing_tasks
from tests.client.drivers import ASYNC, BLOCKING, begun, begun_blocking

SECONDS = patience.longest(30)


@pytest_asyncio.fixture
async def db(postgres_dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)")
    yield connection
    await connection.close()


def app_of(url: str, **options: Any) -> JobQueue:
    return JobQueue(url, max_retries=3, **options)


COUNT = "UPDATE counter SET n = n + 1"


async def ended(app: JobQueue, job: Any, state: State = State.DONE) -> Job:
    """The job, when it has ended."""
    async with patience.timeout(30):
        while (found := await job.status()).state is not state:
            await asyncio.sleep(0.02)
    return found


@pytest.mark.parametrize("driver", ASYNC)
async def test_with_every_asynchronous_driver(driver: str, postgres_dsn: str, db: Any):
    app = app_of(postgres_dsn)

    @app.task
    async def count(ctx: Context) -> str:
        async with begun(driver, postgres_dsn) as own:
            await own.run(COUNT)
            await ctx.complete(f"attempt {ctx.attempt}", connection=own.connection)
        return "ignored"

    async with app, app.worker():
        job = await count.submit()
        assert await job.result(SECONDS) == "attempt 1"
        states = [event.to_state.name for event in await job.history()]
        assert states == ["PENDING", "ASSIGNED", "RUNNING", "DONE"]
    assert await db.fetchval("SELECT n FROM counter") == 1


@pytest.mark.parametrize("driver", BLOCKING)
async def test_with_every_blocking_driver(driver: str, postgres_dsn: str, db: Any):
    app = app_of(postgres_dsn)

    @app.task
    def count(ctx: Context) -> int:
        with begun_blocking(driver, postgres_dsn) as own:
            own.run(COUNT)
            ctx.complete_blocking(7, connection=own.connection)
        return 8

    async with app, app.worker():
        assert await (await count.submit()).result(SECONDS) == 7
    assert await db.fetchval("SELECT n FROM counter") == 1


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_dsn"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.mark.integration
@pytest.mark.parametrize("ends", ["committed", "rolled back"])
async def test_in_a_process(ends: str, url: str, monkeypatch: Any):
    monkeypatch.setenv("COMPLETING_URL", url)
    tasks = importlib.reload(completing_tasks)
    async with tasks.app, tasks.app.worker():
        read = await counter(url)
        job = await tasks.in_a_process.options(max_retries=1).submit(ends)
        assert await job.result(SECONDS) == "completed"
        assert (await job.status()).attempt == (1 if ends == "committed" else 2)
        assert await read() == 1
        if url.startswith("postgres"):
            assert await (await tasks.async_in_a_process.submit()).result(SECONDS) == "completed"
            assert await read() == 2


async def counter(url: str) -> Callable[[], Any]:
    """Make the counter, and return a function that reads it."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")

        async def lite() -> int:
            with closing(sqlite3.connect(path)) as file:
                return int(file.execute("SELECT n FROM counter").fetchone()[0])

        with closing(sqlite3.connect(path)) as file:
            file.execute("CREATE TABLE counter (n int)")
            file.execute("INSERT INTO counter VALUES (0)")
            file.commit()
        return lite

    async def run(sql: str) -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    await run("CREATE TABLE counter (n int)")
    await run("INSERT INTO counter VALUES (0)")
    return lambda: run("SELECT n FROM counter")


# -- attempts that do not end, on each store-------------------------------------------------------


class Own:
    """A transaction on the app's database, the shortest way for both stores."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection: Any = None
        self._transaction: Any = None

    async def __aenter__(self) -> Own:
        if self.url.startswith("sqlite"):
            self.connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        else:
            self.connection = await asyncpg.connect(self.url)
            self._transaction = self.connection.transaction()
            await self._transaction.start()
        return self

    async def count(self) -> None:
        if self._transaction is None:
            self.connection.execute(COUNT)
        else:
            await self.connection.execute(COUNT)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._transaction is None:
            (self.connection.rollback if kind else self.connection.commit)()
            self.connection.close()
            return
        await (self._transaction.rollback if kind else self._transaction.commit)()
        await self.connection.close()


@pytest.mark.integration
async def test_a_transaction_that_is_rolled_back_is_retried(url: str):
    """The attempt is retried if the handler raises the error, and also if it returns normally."""
    app = app_of(url)

    @app.task(backoff=0)
    async def count(ctx: Context) -> Any:
        try:
            async with Own(url) as own:
                await own.count()
                await ctx.complete(ctx.attempt, connection=own.connection)
                if ctx.attempt < 3:
                    raise RuntimeError("boom")
        except RuntimeError:
            if ctx.attempt == 1:
                raise
        return "returned"

    async with app, app.worker():
        read = await counter(url)
        job = await count.submit()
        assert (await ended(app, job)).result == b"3"
        details = [event.detail for event in await job.history() if event.to_state is State.FAILED]
        assert "RuntimeError: boom" in details[0]
        assert details[1] == "ctx.complete() was called, but its transaction was not committed"
        assert await read() == 1


@pytest.mark.integration
async def test_an_outcome_after_the_commit_changes_nothing(url: str, caplog: Any):
    app = app_of(url)

    @app.task(backoff=0)
    async def count(ctx: Context) -> str:
        async with Own(url) as own:
            await own.count()
            await ctx.complete("first", connection=own.connection)
        raise RuntimeError("too late")

    async with app, app.worker():
        read = await counter(url)
        job = await count.submit()
        assert await job.result(SECONDS) == "first"
        async with patience.timeout(20):
            while "its handler failed after its result was accepted" not in caplog.text:
                await asyncio.sleep(0.02)
        assert "RuntimeError: too late" in caplog.text
        assert (await job.status()).attempt == 1
        assert await read() == 1


@pytest.mark.integration
async def test_a_handler_repeats_its_transaction(url: str):
    """A repeat after a failure completes the job; a repeat after the commit has no effect."""
    app = app_of(url)
    refused: list[str] = []

    @app.task(backoff=0)
    async def count(ctx: Context) -> Any:
        for turn in range(3):
            try:
                async with Own(url) as own:
                    await own.count()
                    await ctx.complete(turn, connection=own.connection)
                    if turn == 0:
                        raise TimeoutError
            except TimeoutError:
                continue
            except Conflict as error:
                refused.append(error.message)
        return "returned"

    async with app, app.worker():
        read = await counter(url)
        job = await count.submit()
        assert await job.result(SECONDS) == 1
        async with patience.timeout(20):
            while not refused:
                await asyncio.sleep(0.02)
        assert "this attempt is over" in refused[0]
        assert await read() == 1
        assert (await job.status()).attempt == 1


@pytest.mark.integration
async def test_a_cancel_wins(url: str):
    app = app_of(url)
    begun_, go = asyncio.Event(), asyncio.Event()
    raised: list[type] = []

    @app.task
    async def count(ctx: Context) -> str:
        begun_.set()
        with suppress(asyncio.CancelledError):  # the handler ignores the cancel
            await go.wait()
        try:
            async with Own(url) as own:
                await own.count()
                await ctx.complete("done", connection=own.connection)
        except JobCancelled as error:
            raised.append(type(error))
            raise
        return "returned"

    async with app, app.worker():
        read = await counter(url)
        job = await count.submit()
        async with patience.timeout(20):
            await begun_.wait()
            while (await job.status()).state is not State.RUNNING:
                await asyncio.sleep(0.01)
        await job.cancel()
        go.set()
        with pytest.raises(JobFailed, match="CANCELLED"):
            await job.result(SECONDS)
        assert raised == [JobCancelled]
        assert await read() == 0


@pytest.mark.integration
async def test_an_attempt_that_was_failed_over_ends_nothing(url: str):
    app = app_of(url)
    begun_, go = asyncio.Event(), asyncio.Event()
    refused: list[str] = []

    @app.task(backoff=0)
    async def count(ctx: Context) -> int:
        if ctx.attempt == 1:
            begun_.set()
            await go.wait()
        try:
            async with Own(url) as own:
                await own.count()
                await ctx.complete(ctx.attempt, connection=own.connection)
        except Conflict as error:
            refused.append(error.message)
            raise
        return 0

    async with app, app.worker():
        read = await counter(url)
        job = await count.submit()
        async with patience.timeout(20):
            await begun_.wait()
        backend: Any = await app.shared.open()
        found = await job.status()
        (held,) = await backend.store.workers.held()
        from jobqueue.core.job import Transition

        lost = Transition.worker_lost(found.seq, held.lease, "judged lost")
        (outcome,) = (await backend.store.jobs.apply([lost])).outcomes
        assert outcome.applied
        go.set()
        assert await job.result(SECONDS) == 2
        assert "this attempt is over" in refused[0]
        assert await read() == 1


async def test_a_handler_goes_on_after_heartbeats_that_miss_its_lease(postgres_dsn: str, db: Any):
    """The worker does not stop a handler that goes on after its commit, to send a mail."""
    app = app_of(postgres_dsn)
    committed, go = asyncio.Event(), asyncio.Event()
    after: list[bool] = []

    @app.task
    async def count(ctx: Context) -> str:
        async with begun("asyncpg", postgres_dsn) as own:
            await ctx.complete("done", connection=own.connection)
        committed.set()
        await go.wait()
        after.append(ctx.cancelled)
        return "returned"

    async with app, app.worker() as worker:
        job = await count.submit()
        async with patience.timeout(20):
            await committed.wait()
        pulse = await asyncio.to_thread(worker._beat, True)
        assert len(pulse.lost) == 1
        worker._on_pulse(pulse)
        await asyncio.sleep(0)
        go.set()
        assert await job.result(SECONDS) == "done"
        async with patience.timeout(20):
            while not after:
                await asyncio.sleep(0.01)
        assert after == [False]


async def test_the_other_jobs_of_a_worker_end_while_a_transaction_is_open(
    postgres_dsn: str, db: Any
):
    app = app_of(postgres_dsn)
    opened, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold(ctx: Context) -> str:
        async with begun("asyncpg", postgres_dsn) as own:
            await ctx.complete("held", connection=own.connection)
            opened.set()
            await go.wait()
        return "returned"

    @app.task
    async def plain(n: int) -> int:
        return n

    async with app, app.worker(concurrency=30):
        held = await hold.submit()
        jobs = await plain.submit_many([(n,) for n in range(100)])
        async with patience.timeout(20):
            await opened.wait()
        assert [await job.result(SECONDS) for job in jobs] == list(range(100))
        with pytest.raises(Conflict, match="a database transaction that has not ended"):
            await held.cancel()
        go.set()
        assert await held.result(SECONDS) == "held"


async def test_the_jobs_of_a_batch_end_in_one_transaction(postgres_dsn: str, db: Any):
    """Jobs that the transaction leaves out end with the handler's own results."""
    app = app_of(postgres_dsn)

    @app.task(batch=10, batch_wait=0.2)
    async def count(numbers: list[int], contexts: list[Context]) -> list[int]:
        async with begun("asyncpg", postgres_dsn) as own:
            for number, ctx in zip(numbers, contexts, strict=True):
                if number != 3:
                    await own.run(COUNT)
                    await ctx.complete(100 + number, connection=own.connection)
        return list(numbers)

    async with app, app.worker():
        jobs = await count.submit_many([(n,) for n in range(5)])
        results = [await job.result(SECONDS) for job in jobs]
        assert results == [100, 101, 102, 3, 104]
    assert await db.fetchval("SELECT n FROM counter") == 4


# -- what is refused ---------------------------------------------------------------------------


async def test_other_stores_name_the_supported_ones():
    app = JobQueue("memory://")
    refused: list[str] = []

    @app.task
    async def count(ctx: Context) -> str:
        with closing(sqlite3.connect(":memory:")) as own:
            try:
                await ctx.complete("x", connection=own)
            except InvalidArgument as error:
                refused.append(error.message)
        return "returned"

    async with app, app.worker():
        # The call had no effect, so the result that the handler returns counts.
        assert await (await count.submit()).result(SECONDS) == "returned"
    assert "use an app on postgresql:// or sqlite://, or on grpc://" in refused[0]


async def test_wrong_connections_and_results_are_refused(postgres_dsn: str, db: Any):
    app = app_of(postgres_dsn)
    refused: list[str] = []

    @app.task
    async def count(ctx: Context) -> int:
        async with begun("asyncpg", postgres_dsn) as own:
            for result, connection in (
                ("no number", own.connection),
                (1, object()),
                (1, db),
            ):
                try:
                    await ctx.complete(result, connection=connection)
                except InvalidArgument as error:
                    refused.append(error.message)
        return 1

    async with app, app.worker():
        job = await count.submit()
        with pytest.raises(JobFailed):
            await job.result(SECONDS)
    assert "result: expected `int`" in refused[0]
    assert "builtins.object is not supported" in refused[1]
    assert "is not in a transaction" in refused[2]


async def test_a_context_without_an_attempt_says_so():
    with pytest.raises(Conflict, match="belongs to no attempt"):
        await Context().complete(1, connection=object())
    with pytest.raises(Conflict, match="belongs to no attempt"):
        Context().complete_blocking(1, connection=object())


async def test_inline_mode_takes_the_result(tmp_path: Path):
    app = JobQueue("postgresql://nobody@127.0.0.1:1/none")

    @app.task
    async def count(ctx: Context) -> int:
        await ctx.complete(7, connection=object())
        return 8

    @app.task
    def blocking(ctx: Context, fails: bool) -> int:
        ctx.complete_blocking(7, connection=object())
        if fails:
            raise ValueError("boom")
        return 8

    with app.inline():
        assert await (await count.submit()).result() == 7
        assert await (await blocking.submit(False)).result() == 7
        with pytest.raises(JobFailed):
            await (await blocking.options(max_retries=0).submit(True)).result()


@pytest.mark.e2e
async def test_a_worker_of_a_server(postgres_dsn: str, tmp_path: Path, db: Any):
    """The worker reports the start over gRPC; the handler's transaction writes the end."""
    from tests.cli import processes

    arguments = ("--db-url", postgres_dsn, "--worker-concurrency", "0")
    with processes.server(tmp_path, *arguments) as running:
        app = app_of(f"grpc://{running.line('ready')['grpc']}")

        @app.task
        async def count(ctx: Context, n: int) -> int:
            async with begun("asyncpg", postgres_dsn) as own:
                await own.run(COUNT)
                await ctx.complete(n, connection=own.connection)
            return -1

        async with app.worker(concurrency=5):
            jobs = await count.submit_many([(n,) for n in range(40)])
            assert [await job.result(SECONDS) for job in jobs] == list(range(40))
        await app.close()
        assert running.stop() == 0
    assert await db.fetchval("SELECT n FROM counter") == 40
