"""The worker on the real engine: the memory store, nothing faked."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from jobqueue.core.job import JobSpec, Transition, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.memory import MemoryStore
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import define
from jobqueue.worker.runtime import WorkerRuntime
from tests import patience
from tests.worker.fakes import Worker, registry


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(MemoryStore(), EngineSettings(batch_size=1000))
    await engine.start()
    yield engine
    await engine.stop()


async def submit(engine: Engine, type: str, payload: bytes = b"{}", **fields: object) -> str:
    (result,) = await engine.submit([JobSpec(payload=payload, type=type, **fields)])  # type: ignore[arg-type]
    return result.unwrap()


async def test_a_job_from_submit_to_result(engine: Engine) -> None:
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with Worker(engine, greet):
        job = await engine.wait(await submit(engine, "greet", b'{"name": "you"}'), 10)
        assert (job.state, job.result) == (State.DONE, b'"hello you"')
        events = await engine.history(job.id)
        assert [event.to_state for event in events] == [
            State.PENDING,
            State.ASSIGNED,
            State.RUNNING,
            State.DONE,
        ]


async def test_a_job_waits_for_the_task_that_is_defined_later(engine: Engine) -> None:
    async def late() -> str:
        return "here"

    tasks = registry()
    async with Worker(engine, tasks=tasks):
        job_id = await submit(engine, "late")
        job = await engine.get(job_id)
        assert job.hint == "no connected worker takes type 'late' from queue 'default'"
        tasks.add(define(late))
        job = await engine.wait(job_id, 10)
        assert (job.state, job.attempt) == (State.DONE, 1)


async def test_failures_are_retried_and_then_given_up(engine: Engine) -> None:
    async with Worker(engine):
        payload = b'{"message": "not today"}'
        job = await engine.wait(await submit(engine, "fail", payload, max_retries=0), 10)
        assert (job.state, job.reason) == (State.DEAD_LETTERED, Reason.RETRIES_EXHAUSTED)
        assert job.error.startswith("RuntimeError: not today")
        bad = await engine.wait(await submit(engine, "sleep", b'{"seconds": "x"}'), 10)
        assert (bad.state, bad.reason) == (State.DEAD_LETTERED, Reason.NOT_RETRYABLE)


async def test_cancel_of_running_jobs(engine: Engine) -> None:
    running = threading.Event()

    def polite(ctx: Context) -> None:
        running.set()
        while not ctx.cancelled:
            time.sleep(0.002)

    async with Worker(engine, polite):
        jobs = [
            await submit(engine, "sleep", b'{"seconds": 60}'),
            await submit(engine, "polite"),
        ]
        for job_id in jobs:
            while (await engine.get(job_id)).state is not State.RUNNING:
                await asyncio.sleep(0.002)
            assert (await engine.cancel(job_id)).requested
            job = await engine.wait(job_id, patience.longest(10))
            assert (job.state, job.reason) == (State.DEAD_LETTERED, Reason.CANCELLED)


async def test_timeouts(engine: Engine) -> None:
    async with Worker(engine):
        payload = b'{"seconds": 60}'
        job_id = await submit(engine, "sleep", payload, timeout=0.05, max_retries=0)
        job = await engine.wait(job_id, patience.longest(10))
        assert (job.state, job.error) == (State.DEAD_LETTERED, "timed out after 0.05 s")
        events = await engine.history(job_id)
        assert Reason.TIMED_OUT in [event.reason for event in events]


@pytest.mark.req("jq:FR-021", "inp:POOL")
async def test_many_jobs_through_few_slots(engine: Engine) -> None:
    now = peak = 0

    async def count() -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0)
        now -= 1

    async with Worker(engine, count, concurrency=3):
        results = await engine.submit([JobSpec(payload=b"{}", type="count") for _ in range(300)])
        for result in results:
            assert (await engine.wait(result.unwrap(), patience.longest(20))).state is State.DONE
    assert peak == 3


@pytest.mark.req("jq:FR-023", "jq:FR-024")
async def test_an_operator_drains_and_stops_workers(engine: Engine) -> None:
    async with Worker(engine, id="one") as one:
        await engine.drain_worker("one")
        (worker,) = await engine.list_workers()
        assert worker.status is WorkerStatus.DRAINING
        job_id = await submit(engine, "echo")
        assert (await engine.wait(job_id, 0.1)).state is State.PENDING
        async with Worker(engine, id="two") as two:
            assert (await engine.wait(job_id, patience.longest(10))).state is State.DONE
            await engine.shutdown_worker("two")
            await patience.wait_for(two.finished, 10)
            assert [worker.info.id for worker in await engine.list_workers()] == ["one"]
        assert one.running == 0


async def test_a_worker_that_is_busy_when_its_drain_is_taken_back_takes_jobs_again(
    engine: Engine,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await go_on.wait()

    async with Worker(engine, hold, concurrency=1):
        first = await submit(engine, "hold")
        await begun.wait()
        await engine.drain_worker("w1")
        await asyncio.sleep(0.05)  # a task of the worker withdraws its slots
        await engine.undrain_worker("w1")
        await asyncio.sleep(0.05)  # and another one offers them again
        second = await submit(engine, "hold")
        go_on.set()
        for job_id in (first, second):
            assert (await engine.wait(job_id, patience.longest(3))).state is State.DONE


async def test_a_stopped_workers_unstarted_jobs_go_to_another(engine: Engine) -> None:
    worker = Worker(engine, id="one").runtime
    await worker.start()
    ids = [await submit(engine, "echo") for _ in range(4)]
    await worker.stop()
    async with Worker(engine, id="two"):
        for job_id in ids:
            job = await engine.wait(job_id, patience.longest(10))
            assert (job.state, job.retry_count) == (State.DONE, 0)


async def test_lost_leases_are_noticed_by_heartbeat(engine: Engine) -> None:
    stopped = asyncio.Event()

    async def hold() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with Worker(engine, hold, heartbeat_interval=0.02) as worker:
        job_id = await submit(engine, "hold", max_retries=0)
        while (await engine.get(job_id)).state is not State.RUNNING:
            await asyncio.sleep(0.002)
        (held,) = await engine.store.workers.held("w1")
        await engine.store.jobs.apply([Transition.worker_lost(held.seq, held.lease, "by the test")])
        await patience.wait_for(stopped.wait(), 10)
        while worker.running:
            await asyncio.sleep(0.002)
        # The slot is offered again.
        for _ in range(8):
            assert (await engine.wait(await submit(engine, "echo"), 10)).state is State.DONE


@pytest.mark.bench
@pytest.mark.parametrize("is_async", [True, False])
async def test_no_op_rate(engine: Engine, is_async: bool) -> None:
    async def on_loop() -> None: ...

    def in_thread() -> None: ...

    total = 30_000
    name = "on_loop" if is_async else "in_thread"
    for _ in range(total // 1000):
        await engine.submit([JobSpec(payload=b"{}", type=name) for _ in range(1000)])
    worker = Worker(engine, on_loop, in_thread, concurrency=100).runtime
    assert isinstance(worker, WorkerRuntime)
    begun = time.perf_counter()
    await worker.start()
    while (await engine.queue_stats("default")).succeeded < total:
        await asyncio.sleep(0.01)
    rate = total / (time.perf_counter() - begun)
    await worker.stop()
    print(f"{name}: {rate:,.0f} jobs/s through the engine on the memory store")
