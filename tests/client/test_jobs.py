"""Submitting through a task, and what its handle can do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from jobqueue import (
    Abort,
    Context,
    DeadlineExceeded,
    InvalidArgument,
    JobFailed,
    JobQueue,
    JobQueueError,
    QueueFull,
    QueueSpec,
    RetryLater,
    State,
)
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.client.sender import BATCH_BYTES, BATCH_JOBS, BatchRefused
from jobqueue.core.errors import Conflict, KeyConflict, NotFound
from jobqueue.core.lifecycle import Reason
from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from tests import patience


@pytest_asyncio.fixture(params=["memory", "sqlite", "grpc"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "memory":
        yield "memory://"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        engine = Engine(MemoryStore())
        await engine.start()
        await engine.create_queue(QueueSpec(name="mail"))
        await engine.create_queue(QueueSpec(name="small", capacity=2))
        face = GrpcFace(engine)
        yield f"grpc://127.0.0.1:{await face.start('127.0.0.1', 0)}"
        await face.stop(1)
        await engine.stop()


@pytest.fixture
def app(url: str) -> JobQueue:
    return JobQueue(url)


@dataclasses.dataclass
class Order:
    id: int
    items: list[str]


async def test_a_task_is_submitted_executed_and_its_result_read_by_its_type(
    app: JobQueue,
) -> None:
    @app.task
    async def pack(order: Order, ctx: Context) -> Order:
        return Order(order.id + ctx.attempt, [*order.items, "label"])

    async with app, app.worker():
        job = await pack.submit(Order(1, ["book"]))
        assert await job.result(timeout=patience.longest(10)) == Order(2, ["book", "label"])
        record = await job.status()
        assert (record.state, record.type, record.queue) == (State.DONE, "pack", "default")


@pytest.mark.parametrize("place", ["first", "last", "none", "sync"])
async def test_handlers_of_every_shape(app: JobQueue, place: str) -> None:
    async def first(ctx: Context, a: int, b: int = 2) -> int:
        return a + b * ctx.attempt

    async def last(a: int, b: int, ctx: Context) -> int:
        return a + b * ctx.attempt

    async def none(a: int, *, b: int = 2) -> int:
        return a + b

    def sync(a: int, b: int = 2) -> int:
        return a + b

    handlers: dict[str, Any] = {"first": first, "last": last, "none": none, "sync": sync}
    task = app.task(handlers[place])
    async with app, app.worker():
        job = await (task.submit(1, 2) if place == "last" else task.submit(1, b=2))
        assert await job.result(timeout=patience.longest(10)) == 3


async def test_wrong_arguments_are_named_and_nothing_is_submitted(app: JobQueue) -> None:
    @app.task
    async def send(to: str, count: int) -> None: ...

    async with app:
        for args, kwargs, said in [
            (("a",), {}, "count: missing"),
            (("a", "b"), {}, "count: expected `int`, got `str`"),
            (("a", 1, 2), {}, "expected at most 2 by position, got 3"),
            (("a", 1), {"colour": "red"}, "colour: unexpected"),
            ((object(), 1), {}, "to: "),
        ]:
            with pytest.raises(InvalidArgument, match=said):
                await send.submit(*args, **kwargs)
        assert (await app.operator.list_jobs()).jobs == []


async def test_a_task_is_still_the_function(app: JobQueue) -> None:
    @app.task
    async def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    @app.task(name="mail.send")
    def plain(ctx: Context, n: int) -> int:
        return n + ctx.attempt

    assert await double(4) == 8
    assert plain(Context(attempt=3), 4) == 7
    assert (double.name, plain.name) == ("double", "mail.send")
    assert double.__doc__ == "Twice as much."
    assert double.__wrapped__ is double.definition.fn  # type: ignore[attr-defined]


def test_definitions_that_cannot_work_are_refused_at_once() -> None:
    app = JobQueue("memory://")

    @app.task
    def once() -> None: ...

    with pytest.raises(JobQueueError, match="'once' is defined twice"):
        app.task(name="once")(lambda: None)
    with pytest.raises(InvalidArgument, match="priority: 12 is outside 0 to 9"):
        app.task(priority=12)(test_definitions_that_cannot_work_are_refused_at_once)
    with pytest.raises(InvalidArgument, match="max_retries: -1"):
        app.task(name="a", max_retries=-1)(lambda: None)
    with pytest.raises(InvalidArgument, match="queue"):
        app.task(name="a", queue="not a name")(lambda: None)
    with pytest.raises(InvalidArgument, match="retries: is not an option of a task; allowed:"):
        app.task(retries=3)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="options are given by name"):
        app.task("mail")  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="is a task already"):
        app.task(once)
    assert app.registry.get("a") is None


async def test_the_options_of_a_task_and_of_a_submit(app: JobQueue) -> None:
    @app.task(queue="mail", priority=3, max_retries=7, timeout=timedelta(seconds=30), ttl=60)
    async def send() -> None: ...

    async with app:
        record = await (await send.submit()).status()
        assert (record.queue, record.priority, record.max_retries) == ("mail", 3, 7)
        assert (record.timeout, record.ttl) == (30, 60)

        other = send.options(priority=9, labels={"a": "1"}).options(
            max_retries=0, timeout=1.5, ttl=timedelta(minutes=2), key="k", labels={"b": "2"}
        )
        record = await (await other.submit()).status()
        assert (record.priority, record.max_retries, record.timeout) == (9, 0, 1.5)
        assert (record.ttl, record.key, dict(record.labels)) == (120, "k", {"a": "1", "b": "2"})

        at = datetime.now(UTC) + timedelta(hours=1)
        record = await (await send.options(run_at=at, ttl=7200).submit()).status()
        assert record.run_at == pytest.approx(at.timestamp(), abs=0.01)
        record = await (await send.options(run_at=at).options(delay=30).submit()).status()
        assert record.run_at is not None
        assert record.run_at - record.created_at == pytest.approx(30, abs=1)

        for wrong, said in [
            ({"priority": 10}, "priority: 10 is outside 0 to 9"),
            ({"max_retries": -1}, "max_retries: -1 is outside"),
            ({"delay": -1}, "delay: must be 0"),
            ({"delay": 1, "run_at": 1.0}, "delay or run_at, not both"),
            ({"run_at": datetime.now()}, "run_at: a datetime needs a time zone"),  # noqa: DTZ005
            ({"timeout": "3"}, "timeout: expected seconds or a timedelta"),
            ({"key": ""}, "key: 1 to 255 characters"),
        ]:
            with pytest.raises(InvalidArgument, match=said):
                await send.options(**wrong).submit()  # type: ignore[arg-type]


async def test_one_key_makes_one_job(app: JobQueue) -> None:
    @app.task
    async def charge(order: int) -> int:
        return order

    async with app:
        first = await charge.options(key="order-42").submit(42)
        again = await charge.options(key="order-42").submit(42)
        assert (first.id, first.created, again.created) == (again.id, True, False)
        with pytest.raises(KeyConflict):
            await charge.options(key="order-42").submit(43)
        with pytest.raises(InvalidArgument, match="a key identifies only one job"):
            await charge.options(key="order-42").submit_many([(1,), (2,)])


@pytest.mark.req("jq:FR-013")
async def test_a_job_that_gives_up_raises_job_failed_and_can_be_retried(app: JobQueue) -> None:
    broken = True

    @app.task
    async def fragile() -> str:
        if broken:
            raise Abort("no such account")
        return "mended"

    async with app, app.worker():
        job = await fragile.submit()
        with pytest.raises(JobFailed, match="no such account") as failed:
            await job.result(timeout=patience.longest(10))
        assert failed.value.reason == Reason.NOT_RETRYABLE
        assert failed.value.job_id == job.id
        (dead,) = (await app.operator.dead_letters()).jobs
        assert dead.id == job.id
        broken = False
        assert (await job.retry()).retry_count == 0
        assert await job.result(timeout=patience.longest(10)) == "mended"


async def test_a_retry_is_counted_and_its_events_are_told(app: JobQueue) -> None:
    @app.task(max_retries=2)
    async def third_time(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise RetryLater(0.01)
        return ctx.attempt

    async with app, app.worker():
        job = await third_time.submit()
        events = [event async for event in job.events()]
        assert await job.result(timeout=1) == 3
    assert [event.version for event in events] == list(range(1, len(events) + 1))
    assert [event.to_state for event in events].count(State.RUNNING) == 3
    assert events[-1].to_state is State.DONE


async def test_result_does_not_wait_longer_than_told(app: JobQueue) -> None:
    @app.task
    async def never() -> None: ...

    async with app:
        job = await never.submit()  # no worker
        with pytest.raises(DeadlineExceeded, match=r"is PENDING after 0\.05 s; it goes on") as late:
            await job.result(timeout=0.05)
        assert "(no connected worker takes jobs from queue 'default')" in str(late.value)
        held = await never.options(delay=60).submit()
        with pytest.raises(DeadlineExceeded, match=r"is PENDING after 0 s; it goes on$"):
            await held.result(timeout=0)
        with pytest.raises(DeadlineExceeded):
            await job.result(timeout=0)


@pytest.mark.req("jq:FR-012")
async def test_cancel(app: JobQueue) -> None:
    @app.task
    async def long() -> None:
        await asyncio.Event().wait()

    async with app:
        waiting = await long.submit()
        assert (await waiting.cancel()).state is State.DEAD_LETTERED
        assert (await waiting.cancel()).already_terminal
        with pytest.raises(JobFailed) as failed:
            await waiting.result()
        assert failed.value.reason == Reason.CANCELLED
        async with app.worker():
            running = await long.submit()
            async with patience.timeout(10):
                while (await running.status()).state is not State.RUNNING:
                    await asyncio.sleep(0.01)
            assert (await running.cancel()).requested
            with pytest.raises(JobFailed, match="CANCELLED"):
                await running.result(timeout=patience.longest(10))


async def test_a_job_is_found_again_by_its_id(app: JobQueue) -> None:
    @app.task
    async def pack(order: Order) -> Order:
        return order

    async with app, app.worker():
        job_id = (await pack.submit(Order(1, []))).id
        assert await app.job(job_id).result(timeout=patience.longest(10)) == Order(1, [])
        again = app.job(job_id, pack)
        assert await again.result(timeout=patience.longest(10)) == Order(1, [])
        assert (await app.job(job_id).history())[0].reason is Reason.SUBMITTED
    with pytest.raises(InvalidArgument, match="is not a UUID"):
        app.job("42")


async def test_untyped_submit_of_a_task_that_lives_elsewhere(app: JobQueue) -> None:
    @app.task(queue="mail", priority=4)
    async def add(a: int, b: int) -> int:
        return a + b

    async with app, app.worker(["default", "mail"]):
        job = await app.submit("echo", {"any": ["json", 1, None]})
        assert await job.result(timeout=patience.longest(10)) == {"any": ["json", 1, None]}
        raw = await app.submit("echo", b"\xff\x00")
        assert await raw.result(timeout=patience.longest(10)) == b"\xff\x00"
        known = await app.submit("add", {"a": 1, "b": 2})
        assert await known.result(timeout=patience.longest(10)) == 3
        assert (await known.status()).queue == "mail"
        with pytest.raises(InvalidArgument, match=r"payload: .* cannot be written as JSON"):
            await app.submit("echo", object())


async def test_many_calls_are_submitted_in_order_and_in_batches(app: JobQueue) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    count = BATCH_JOBS + 3
    async with app, app.worker(concurrency=50):
        jobs = await add.submit_many((n, 1) for n in range(count))
        assert len({job.id for job in jobs}) == count
        assert [await job.result(timeout=patience.longest(20)) for job in jobs] == list(
            range(1, count + 1)
        )
        assert await add.submit_many([]) == []


async def test_batches_are_bounded_in_bytes(app: JobQueue) -> None:
    @app.task
    async def swallow(text: str) -> int:
        return len(text)

    half = "x" * (BATCH_BYTES // 2 + 1)
    async with app:
        sizes = []
        send = app.sender._deliver

        async def deliver(port, specs):
            sizes.append(len(specs))
            return await send(port, specs)

        app.sender._deliver = deliver  # type: ignore[method-assign]
        await swallow.submit_many([(half,), (half,), (half,)])
        assert sizes == [1, 1, 1]


async def test_a_wrong_call_among_many_submits_none(app: JobQueue) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with app:
        with pytest.raises(InvalidArgument, match=r"calls\[1\]: b: missing"):
            await add.submit_many([(1, 2), (1,)])
        with pytest.raises(InvalidArgument, match=r"calls\[0\]: expected a tuple"):
            await add.submit_many([3])  # type: ignore[list-item]
        assert (await app.operator.list_jobs()).jobs == []


@pytest.mark.req("inp:BACKPRESSURE")
async def test_a_full_queue_says_so_and_the_accepted_jobs_stand(url: str) -> None:
    app = JobQueue(url, queues=[QueueSpec(name="small", capacity=2)])

    @app.task(queue="small")
    async def work(n: int) -> int:
        return n

    async with app:
        with pytest.raises(BatchRefused, match="1 of 3 jobs were refused") as refused:
            await work.submit_many([(1,), (2,), (3,)])
        error = refused.value
        assert [handle is not None for handle in error.handles] == [True, True, False]
        assert isinstance(error.errors[2], QueueFull)
        assert error.code == QueueFull.code
        with pytest.raises(QueueFull) as full:
            await work.submit(4)
        assert full.value.retry_after > 0
        assert len((await app.operator.list_jobs()).jobs) == 2


@pytest.mark.req("jq:FR-006")
async def test_a_store_that_is_opened_directly_has_the_declared_queues_at_once(
    app: JobQueue,
) -> None:
    @app.task(queue="early")
    async def early() -> None: ...

    async with app:
        if app.url.startswith("grpc://"):  # behind a server the first submit creates them
            await early.submit()
        names = {stats.queue.name for stats in await app.operator.list_queues()}
        assert {"default", "early"} <= names

        @app.task(queue="late")
        async def late() -> None: ...

        await late.submit()
        with pytest.raises(NotFound, match=r"create typo, or declare it: JobQueue\(url, queues="):
            await late.options(queue="typo").submit()
        with pytest.raises(BatchRefused, match="'typo'"):
            await late.options(queue="typo").submit_many([()])


async def test_a_script_retries_dead_letters_that_failed(app: JobQueue) -> None:
    @app.task(max_retries=0)
    async def shaky(fail: bool) -> None:
        if fail:
            raise ValueError("no route to host")

    async with app:
        await app.operator.pause_queue("default")
        cancelled = await shaky.submit(False)
        await cancelled.cancel()
        assert await app.operator.retry_dead_letters() == 0
        assert await app.operator.retry_dead_letters(reasons=["ALL"], error="no route") == 0
        assert await app.operator.retry_dead_letters("default", reasons=["cancelled"]) == 1
        await cancelled.cancel()
        long_ago = datetime(2001, 1, 1, tzinfo=UTC)
        assert await app.operator.retry_dead_letters(reasons=["ALL"], until=long_ago) == 0
        assert await app.operator.retry_dead_letters(reasons=["ALL"], since=long_ago) == 1
        with pytest.raises(InvalidArgument, match="boredom"):
            await app.operator.retry_dead_letters(reasons=["boredom"])


async def test_the_operators_calls(app: JobQueue) -> None:
    @app.task
    async def noop() -> None: ...

    operator = app.operator
    async with app:
        await operator.create_queue(QueueSpec(name="other", capacity=3))
        assert (await operator.queue_stats("other")).queue.capacity == 3
        await operator.pause_queue("other")
        assert (await operator.queue_stats("other")).queue.paused
        await operator.resume_queue("other")
        job = await noop.options(queue="other").submit()
        with pytest.raises(Conflict, match="not empty"):
            await operator.delete_queue("other")
        assert await operator.delete_queue("other", force=True) == 1
        await operator.delete_job(job.id)
        with pytest.raises(NotFound):
            await operator.retry(job.id)
        async with app.worker() as worker:
            (seen,) = await operator.list_workers()
            assert seen.info.id == worker.settings.id
            await operator.drain_worker(seen.info.id)
            await operator.shutdown_worker(seen.info.id)
            await patience.wait_for(worker.finished, 10)
        assert (await operator.health()).ok
