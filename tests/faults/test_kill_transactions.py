"""Kills around users' transactions: jobs and effects exist if and only if they were committed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import JobSpec, SubmitStatus
from jobqueue.core.lifecycle import State
from tests import patience
from tests.client.drivers import ASYNC, BLOCKING
from tests.faults.buyers import app_of, is_kept
from tests.faults.conftest import evidence_of
from tests.faults.load import settled
from tests.faults.processes import ROOT, Process, Site
from tests.history.checker import assert_kept

SEED = int(os.environ.get("JQ_TEST_KILL_SEED", "0")) or random.randrange(1, 2**32)
LONG = pytest.mark.nightly("a thousand transactions with each driver, ten thousand increments")
on_postgres = [pytest.mark.integration]

pytestmark = [pytest.mark.faults, pytest.mark.slow]


class Reader:
    """Runs statements on the database of the jobs, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    async def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        if self._url.startswith("sqlite"):
            if self._connection is None:
                path = self._url.removeprefix("sqlite:///")
                self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
            found: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
            return found
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
        return [tuple(row) for row in await self._connection.fetch(sql)]

    async def number(self, sql: str) -> int:
        ((number,),) = await self(sql)
        return int(number)

    async def close(self) -> None:
        if self._connection is not None:
            closed = self._connection.close()
            if closed is not None:
                await closed


@pytest_asyncio.fixture
async def reader_of() -> AsyncIterator[Callable[[str], Reader]]:
    readers: list[Reader] = []

    def make(url: str) -> Reader:
        readers.append(Reader(url))
        return readers[-1]

    yield make
    for one in readers:
        await one.close()


# -- submits -----------------------------------------------------------------------------------

SOME = ["asyncpg", "django"]  # that every driver commits and rolls back shows test_transactions.py
CASES = [
    *(pytest.param(one, 30, 1, marks=on_postgres, id=one) for one in SOME),
    pytest.param("sqlite3", 30, 1, id="sqlite3"),
    *(
        pytest.param(one, 1_000, 10, marks=[*on_postgres, LONG], id=f"{one}, a thousand")
        for one in (*ASYNC, *BLOCKING)
    ),
    pytest.param("sqlite3", 1_000, 10, marks=LONG, id="sqlite3, a thousand"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("driver", "count", "kills"), CASES)
async def test_exactly_the_committed_jobs_exist_and_run(
    driver: str,
    count: int,
    kills: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    reader_of: Callable[[str], Reader],
):
    """Half of the transactions are rolled back, and some buyers are killed in the middle of one."""
    if driver == "sqlite3":
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        url = request.getfixturevalue("postgres_dsn")
    moments = random.Random(SEED)
    print(f"JQ_TEST_KILL_SEED={SEED}")
    app, _ = app_of(url)
    async with app, app.worker():
        read = reader_of(url)
        await read("CREATE TABLE orders (number int)")
        first, left = 0, kills
        while first < count:
            # A buyer that the test kills runs several transactions; the kill hits one of them.
            several = count - first if not left else max(2, (count - first) // (left + 1))
            buyer = await start_buyer(driver, url, first, several)
            if left:
                await until_bought(read, first, several, moments)
                await asyncio.sleep(moments.uniform(0, 0.02))
                buyer.kill()
                await buyer.wait()
                left -= 1
            else:
                assert await buyer.wait() == 0
            first += several
        committed = sorted(row[0] for row in await read("SELECT number FROM orders"))
        async with patience.timeout(120):
            while (await app.operator.queue_stats("orders")).unfinished:
                await asyncio.sleep(0.05)
    assert len(committed) == len(set(committed))
    assert all(is_kept(number) for number in committed)
    assert committed
    evidence = await evidence_of_url(url)
    jobs = evidence.jobs.values()
    assert sorted(json.loads(job.spec.payload)["number"] for job in jobs) == committed
    assert {job.state for job in jobs} == {State.DONE}
    assert_kept(evidence)


async def start_buyer(driver: str, url: str, first: int, count: int) -> Any:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.buyers", driver, url, str(first), str(count)),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )


async def until_bought(read: Reader, first: int, several: int, moments: random.Random) -> None:
    """Wait until a buyer has committed something, or some more."""
    wanted = moments.randint(1, max(1, several // 4))
    async with patience.timeout(60):
        while True:
            sql = f"SELECT count(*) FROM orders WHERE number >= {first}"
            if await read.number(sql) >= wanted:
                return
            await asyncio.sleep(0.01)


async def evidence_of_url(url: str) -> Any:
    class Place:
        db_url = url

        @staticmethod
        def runs() -> None:
            return None

    return await evidence_of(Place())  # type: ignore[arg-type]


# -- effects -----------------------------------------------------------------------------------

SETTINGS = {
    "JQ_QUEUE_MAX_RETRIES": "1000",
    "JQ_QUEUE_POISON_AFTER": "0",
    "JQ_QUEUE_RETRY_BASE": "0.1",
    "JQ_QUEUE_RETRY_MAX": "0.5",
    "JQ_WORKER_CONCURRENCY": "4",
    "JQ_WORKER_HEARTBEAT_INTERVAL": "0.3",
    "JQ_WORKER_HEARTBEAT_TIMEOUT": "2",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_LOG_LEVEL": "info",
}
NO_POOL = {"JQ_WORKER_CONCURRENCY": "0"}
APP = ("--app", "counting_app:app")


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    ("any_site_of", "count", "kills"),
    [
        pytest.param("sqlite", 40, 2, id="sqlite"),
        pytest.param("postgres", 120, 4, marks=on_postgres, id="postgres"),
        pytest.param(
            "postgres", 10_000, 60, marks=[*on_postgres, LONG], id="postgres, ten thousand"
        ),
    ],
    indirect=["any_site_of"],
)
async def test_a_counter_is_exact_under_kills(any_site_of, reader_of, count: int, kills: int):
    """``ctx.complete``: as many increments as jobs, whichever process is killed."""
    moments = random.Random(SEED)
    print(f"JQ_TEST_KILL_SEED={SEED}")
    site: Site = any_site_of(servers=2, **SETTINGS)
    servers = [await site.server(number, **NO_POOL) for number in range(2)]
    read = reader_of(site.db_url)
    await read("CREATE TABLE counter (n int)")
    await read("CREATE TABLE counted (number int, attempt int)")
    await read("INSERT INTO counter VALUES (0)")

    async def worker(name: str) -> Process:
        told = {"JQ_WORKER_ID": name, "JQ_WORKER_SERVER": site.target}
        told["JQ_WORKER_METRICS_PORT"] = "0"
        return await site.start("jobqueue.cli.worker", APP, told)

    workers = [await worker(f"w{number}-0") for number in range(3)]
    accepted = await submit(site, count)
    for turn in range(1, kills + 1):
        wanted = count * turn // (kills + 1)
        async with patience.timeout(60):
            while await read.number("SELECT n FROM counter") < wanted:
                await asyncio.sleep(0.02)
        await asyncio.sleep(moments.uniform(0, 0.1))
        if turn % 4 == 0:
            number = turn // 4 % 2
            await site.kill(servers[number])
            servers[number] = await site.server(number, **NO_POOL)
        else:
            number = turn % 3
            await site.kill(workers[number])
            workers[number] = await worker(f"w{number}-{turn}")
    await settled(site, 600)
    for process in (*workers, *servers):
        process.send_signal(signal.SIGTERM)
        async with patience.timeout(30):
            assert await process.wait() == 0, site.log_tail()

    assert await read("SELECT n FROM counter") == [(count,)]
    numbers = sorted(row[0] for row in await read("SELECT number FROM counted"))
    assert numbers == list(range(count))
    evidence = await evidence_of(site, accepted=accepted, settled=True, dead_letters_allowed=False)
    assert {job.state for job in evidence.jobs.values()} == {State.DONE}
    assert sorted(int(job.result or b"-1") for job in evidence.jobs.values()) == numbers
    last = dict(await read("SELECT number, attempt FROM counted"))
    for job in evidence.jobs.values():
        # The attempt whose effect is there is the one whose result was accepted.
        assert last[int(job.result or b"-1")] == job.attempt
    assert_kept(evidence)


async def submit(site: Site, count: int) -> list[str]:
    backend = GrpcBackend(site.target, timeout=10)
    accepted: list[str] = []
    try:
        for first in range(0, count, 500):
            numbers = range(first, min(count, first + 500))
            specs = [
                JobSpec(payload=b'{"number": %d}' % n, type="count", key=f"count-{n}")
                for n in numbers
            ]
            async with patience.timeout(60):
                while True:
                    try:
                        results = await backend.submit(specs)
                        break
                    except JobQueueError:
                        await asyncio.sleep(0.1)
            assert all(one.status is not SubmitStatus.REFUSED for one in results)
            accepted += [one.job_id for one in results]
    finally:
        await backend.stop()
    return accepted
