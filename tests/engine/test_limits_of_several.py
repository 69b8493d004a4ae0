"""Several servers on one store share the limits of a queue; the history judges it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Assignment, JobSpec, Transition, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.limits import rate_of
from jobqueue.core.queue import QueueUpdate
from jobqueue.core.store import Rules, Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.redis.store import RedisStore
from tests import patience
from tests.engine.rig import until
from tests.history.checker import Evidence, assert_kept
from tests.stores.driver import Driver

SERVERS = 4
OpenStore = Callable[[Rules], Store]


class Busy:
    """A worker that does each job for a time, and reports it."""

    def __init__(self, engine: Engine, name: str, slots: int, seconds: float) -> None:
        self._engine = engine
        self._info = WorkerInfo(
            id=name, incarnation=1, hostname="h", pid=1, concurrency=slots, queues=("default",)
        )
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self.begun: dict[str, float] = {}

    async def start(self) -> None:
        self._link = await self._engine.connect(self._info, self)
        self._link.grant(self._info.concurrency)

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        for one in assignments:
            self.begun[one.id] = time.monotonic()
            task = asyncio.create_task(self._run(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, one: Assignment) -> None:
        await asyncio.sleep(self._seconds)
        await self._link.report([Transition.succeeded(one.seq, one.lease, None)], freed=1)

    def cancel(self, leases: object) -> None: ...

    def set_status(self, status: WorkerStatus) -> None: ...

    def holds(self) -> None:
        return

    def moved(self) -> None: ...

    async def stop(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)


class Site:
    """Engines on one store, each with a worker."""

    def __init__(self, engines: list[Engine], workers: list[Busy]) -> None:
        self.engines = engines
        self.workers = workers

    @property
    def begun(self) -> dict[str, float]:
        return {id: at for worker in self.workers for id, at in worker.begun.items()}

    async def submit(self, count: int, key: str | None = None, place: int = 0) -> list[str]:
        specs = [JobSpec(payload=b"x", concurrency_key=key) for _ in range(count)]
        return [result.unwrap() for result in await self.engines[place].submit(specs)]

    async def judge(self, **limits: object) -> Evidence:
        """Let what runs end, start nothing more, and judge the history."""
        await self.engines[0].pause_queue("default")
        async with patience.timeout(30):
            while await self.engines[0].store.workers.held():
                await asyncio.sleep(0.05)
        driver = Driver(self.engines[0].store, ManualClock(), Rules())
        jobs = {job.id: job for job in await driver.all_jobs()}
        evidence = Evidence(
            events=await driver.all_events(),
            jobs=jobs,
            **limits,  # type: ignore[arg-type]
        )
        assert_kept(evidence)
        return evidence


@asynccontextmanager
async def site(open_store: OpenStore, slots: int, seconds: float) -> AsyncIterator[Site]:
    settings = EngineSettings(interval=5.0)  # the safety net comes too late to help
    engines = [Engine(open_store(Rules()), settings) for _ in range(SERVERS)]
    workers = [Busy(engine, f"w{n}", slots, seconds) for n, engine in enumerate(engines)]
    for engine in engines:
        await engine.start()
    try:
        for worker in workers:
            await worker.start()
        yield Site(engines, workers)
    finally:
        for worker in workers:
            await worker.stop()
        for engine in engines:
            await engine.stop()


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.integration),
        pytest.param("redis", marks=pytest.mark.integration),
    ]
)
def shared_store(request: pytest.FixtureRequest) -> OpenStore:
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        return lambda rules: RedisStore(url, rules=rules, patience=patience.stretched(5.0))
    if request.param == "postgres":
        from jobqueue.stores.postgres.store import PostgresStore

        dsn = request.getfixturevalue("postgres_dsn")
        return lambda rules: PostgresStore(dsn, rules=rules, patience=patience.stretched(5.0))
    from jobqueue.stores.sqlite.store import SqliteStore

    path = request.getfixturevalue("tmp_path") / "jobs.db"
    return lambda rules: SqliteStore(path, rules=rules)


async def test_several_servers_keep_limits_together(shared_store: OpenStore):
    async with site(shared_store, slots=6, seconds=0.001) as running:
        limits = QueueUpdate(max_running=5, key_max_running=2)
        await running.engines[0].update_queue("default", limits)
        for n in range(12):
            await running.submit(20, key=[None, "a", "b", "c"][n % 4], place=n % SERVERS)
        async with patience.timeout(50):
            while len(running.begun) < 240:
                await asyncio.sleep(0.01)
        evidence = await running.judge(running={"default": 5}, key_running={"default": 2})
    assert sum(event.to_state is State.DONE for event in evidence.events) == 240


async def test_several_servers_keep_rates_together(shared_store: OpenStore):
    async with site(shared_store, slots=20, seconds=0.0) as running:
        limits = QueueUpdate(rate=100, rate_burst=20, key_rate=50, key_rate_burst=5)
        await running.engines[0].update_queue("default", limits)
        for place, key in enumerate((None, "a", "b")):
            await running.submit(40, key, place)
        await until(lambda: len(running.begun) == 120)
        rate, of_key = rate_of(100, None, 20), rate_of(50, None, 5)
        assert rate is not None
        assert of_key is not None
        await running.judge(rates={"default": rate}, key_rates={"default": of_key})


@pytest.mark.nightly("measures how much of a rate is used, and times of waiting")
@pytest.mark.timeout(300)
async def test_a_rate_is_used_nearly_to_the_full(shared_store: OpenStore):
    seconds, starts = 20, 100
    async with site(shared_store, slots=20, seconds=0.0) as running:
        update = QueueUpdate(rate=starts, rate_burst=starts // 5)
        await running.engines[0].update_queue("default", update)
        await running.submit(seconds * starts * 2)
        await until(lambda: len(running.begun) > starts)
        before, began = len(running.begun), time.monotonic()
        await asyncio.sleep(seconds)
        used = (len(running.begun) - before) / (time.monotonic() - began)
        rate = rate_of(starts, None, starts // 5)
        assert rate is not None
        await running.judge(rates={"default": rate})
    print(f"{used:.1f} of {starts} starts in a second were used")
    assert used >= 0.95 * starts


@pytest.mark.nightly("measures how much of a rate is used, and times of waiting")
@pytest.mark.timeout(300)
async def test_a_tenant_that_floods_does_not_make_the_others_wait(shared_store: OpenStore):
    """50 tenants: the p99 from submit to end stays within twice that of an idle system."""

    async def rounds(running: Site) -> list[float]:
        took: list[float] = []
        for n in range(200):
            began = time.monotonic()
            (job_id,) = await running.submit(1, key=f"tenant:{n % 49}", place=n % SERVERS)
            await running.engines[n % SERVERS].wait(job_id, 30.0)
            took.append(time.monotonic() - began)
        return sorted(took)

    async with site(shared_store, slots=10, seconds=0.1) as running:
        await running.engines[0].update_queue("default", QueueUpdate(key_weights={"*": 1}))
        idle = await rounds(running)
        for _ in range(20):
            await running.submit(1_000, key="flood")
        flooded = await rounds(running)
    print(f"p99 idle {idle[-2]:.3f} s, flooded {flooded[-2]:.3f} s")
    assert flooded[-2] <= 2 * idle[-2]
