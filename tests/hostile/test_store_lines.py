"""A caller's calls at a store, waiting or given up, do not keep out those of others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobqueue.api.grpc.registrations import Registrations
from jobqueue.core.job import JobSpec, Transition, WorkerStatus
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.core.waiting import FairSemaphore, Recent, account, to_its_end
from jobqueue.engine.engine import Engine
from jobqueue.stores.postgres import connections, queue_cache
from jobqueue.stores.postgres.heads import _kinds, kinds_of
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.redis.connections import RedisConnections
from jobqueue.stores.redis.store import RedisStore
from tests import patience
from tests.stores.driver import new, spec, worker

MIB = 1024 * 1024
MANY = 50
NOBODY = "3f0c2a5e-8d1b-4f53-9a37-2b7d5f0c9e11"


async def as_caller(name: str, work: Callable[[], Awaitable[Any]]) -> Any:
    account.set(f"name {name}")
    return await work()


def begin(name: str, work: Callable[[], Awaitable[Any]], times: int = 1) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(as_caller(name, work)) for _ in range(times)]


async def test_callers_take_turns_at_a_place():
    line = FairSemaphore(2)
    done: list[str] = []

    async def work() -> None:
        async with line:
            await asyncio.sleep(0)
            done.append(account.get())

    hungry = begin("hungry", work, MANY)
    await asyncio.sleep(0)
    healthy = begin("healthy", work, 2)
    await asyncio.gather(*hungry, *healthy)
    assert len(done) == MANY + 2
    assert done[:8].count("name healthy") == 2


async def test_the_process_itself_has_every_second_turn():
    """It writes for all callers, and one who has many addresses is many callers."""
    line = FairSemaphore()
    done: list[str] = []

    async def work() -> None:
        async with line:
            await asyncio.sleep(0)
            done.append(account.get())

    hungry = [task for n in range(MANY) for task in begin(f"hungry {n}", work)]
    await asyncio.sleep(0)
    own = [asyncio.create_task(work()) for _ in range(5)]
    await asyncio.gather(*hungry, *own)
    assert done[:12].count("") == 5
    assert done[1:11:2].count("") in (0, 5)


async def test_those_who_give_up_leave_their_place_to_others():
    line = FairSemaphore()
    await line.acquire()
    waiting = begin("hungry", line.acquire, 3) + begin("healthy", line.acquire)
    await asyncio.sleep(0)
    waiting[0].cancel()
    line.release()  # to the second one, who gives up at the same moment
    waiting[1].cancel()
    await asyncio.sleep(0)
    await patience.wait_for(waiting[3], 10)
    line.release()
    await patience.wait_for(waiting[2], 10)
    line.release()
    async with line:
        pass


async def test_a_shared_read_is_not_in_the_line_of_the_caller_who_began_it():
    """Before, all others waited for it behind that caller's calls, and again if it gave up."""
    line = FairSemaphore()
    done: list[str] = []

    async def call() -> None:
        async with line:
            await asyncio.sleep(0)
            done.append("call")

    async def ask() -> str:
        async with line:
            await asyncio.sleep(0)
            done.append("read")
        return "answer"

    recent = Recent(ask)
    hungry = begin("hungry", call, MANY)
    await asyncio.sleep(0)
    first, second = begin("hungry", recent.read) + begin("healthy", recent.read)
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "answer"
    assert done.count("call") <= 3
    await asyncio.gather(*hungry)
    assert (done.count("read"), first.cancelled()) == (1, True)


async def test_an_answer_from_before_a_change_is_not_kept():
    answers = iter("abc")
    gate = asyncio.Event()

    async def ask() -> str:
        answer = next(answers)
        await gate.wait()
        return answer

    recent = Recent(ask, fresh=1_000.0)
    (early,) = begin("one", recent.read)
    await asyncio.sleep(0)
    recent.forget()
    (late,) = begin("two", recent.read)
    await asyncio.sleep(0)
    gate.set()
    assert [await early, await late, await recent.read()] == ["a", "b", "b"]


async def test_an_owner_registers_although_others_name_its_worker():
    """Before, it waited for all calls of everybody who named the worker."""
    registrations = Registrations()
    done: list[str] = []

    async def register() -> None:
        async with registrations.changing("w"):
            await asyncio.sleep(0)
            done.append(account.get())

    hungry = begin("hungry", register, MANY)
    await asyncio.sleep(0)
    await asyncio.gather(*hungry, *begin("owner", register))
    assert "name owner" in done[:4]


@pytest.mark.integration
async def test_calls_of_one_caller_do_not_take_all_connections(postgres_dsn: str):
    """Before, a thousand registrations failed the submits of all others."""
    store = PostgresStore(postgres_dsn, patience=patience.stretched(5.0))
    await store.open()
    try:
        number = iter(range(10 * MANY))
        hungry = begin(
            "hungry", lambda: store.workers.register(worker(f"w{next(number)}")), 4 * MANY
        )
        await asyncio.sleep(0)
        status = WorkerStatus.DRAINING
        await asyncio.gather(*begin("healthy", lambda: store.workers.set_status("w", status)))
        left = sum(not task.done() for task in hungry)
        await asyncio.gather(*hungry)
        assert left > 2 * MANY
    finally:
        await store.close()


async def give_up(work: Callable[[], Awaitable[Any]]) -> None:
    """Begin a call and leave while it is at the store."""
    (task,) = begin("hasty", work)
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.integration
async def test_a_call_that_is_given_up_costs_no_connection_to_postgresql(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
):
    """Before, each took one with it, and the reads of others waited for new ones."""
    store = PostgresStore(postgres_dsn, patience=patience.stretched(5.0))
    await store.open()
    made: list[object] = []
    connect = connections.connect

    async def counted(*args: Any) -> Any:
        made.append(args)
        return await connect(*args)

    monkeypatch.setattr(connections, "connect", counted)
    try:
        for _ in range(MANY):
            await give_up(lambda: store.reads.get(NOBODY))
        assert len(made) <= 1
    finally:
        await store.close()


@pytest.mark.integration
async def test_a_call_that_is_given_up_costs_no_connection_to_redis(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    store = RedisStore(redis_url, prefix="{given-up}:")
    await store.open()
    made: list[object] = []
    connect = RedisConnections.connected

    async def counted(self: RedisConnections) -> Any:
        made.append(self)
        return await connect(self)

    monkeypatch.setattr(RedisConnections, "connected", counted)
    try:
        for _ in range(MANY):
            await give_up(lambda: store.reads.get(NOBODY))
        assert len(made) <= 1
    finally:
        await store.close()


async def test_what_is_given_up_and_takes_long_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobqueue.core.waiting._LAST_ANSWER", 0.01)
    ended = asyncio.Event()

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    (task,) = begin("hasty", lambda: to_its_end(long()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await patience.wait_for(ended.wait(), 10)


async def test_one_write_has_so_many_bytes_at_most(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Before, the small job of another waited for a hundred of the largest in one statement."""
    sizes: list[int] = []
    submit = engine.store.jobs.submit

    async def sized(jobs: Any, claims: Any = ()) -> Any:
        sizes.append(sum(len(job.spec.payload) for job in jobs))
        await asyncio.sleep(0)
        return await submit(jobs, claims)

    monkeypatch.setattr(type(engine.store.jobs), "submit", lambda self, *given: sized(*given))
    large = b"x" * (MIB - 1)
    hungry = begin("hungry", lambda: engine.submit([JobSpec(payload=large)]), MANY)
    await asyncio.sleep(0)
    await asyncio.gather(*begin("healthy", lambda: engine.submit([JobSpec(payload=b"1")])), *hungry)
    assert sum(sizes) == MANY * len(large) + 1
    assert max(sizes) <= 6 * MIB


async def test_batches_belong_to_no_caller(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """They have the calls of all, and must not stand in the line of one."""
    whose: list[str] = []
    submit = engine.store.jobs.submit

    async def noted(jobs: Any, claims: Any = ()) -> Any:
        whose.append(account.get())
        return await submit(jobs, claims)

    monkeypatch.setattr(type(engine.store.jobs), "submit", lambda self, *given: noted(*given))
    await asyncio.gather(*begin("hungry", lambda: engine.submit([JobSpec(payload=b"1")])))
    assert whose == [""]


def test_lists_of_types_are_kept_while_a_worker_has_them():
    """Before, a thousand of five thousand names each stayed for ever."""
    before = len(_kinds)
    kept = frozenset({"a", "b"})
    for number in range(MANY):
        # A type has two numbers: for jobs without and with a concurrency key.
        assert len(kinds_of(frozenset(f"{number}.{at}" for at in range(10)))) == 20
        kinds_of(kept)
    assert len(_kinds) <= before + 2


@pytest.mark.integration
async def test_the_names_of_workers_that_were_seen_take_bounded_memory(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(queue_cache, "_MOST_NAMES", 10)
    store = PostgresStore(postgres_dsn, patience=patience.stretched(5.0))
    await store.open()
    try:
        await store.queues.create(Queue(name="q"))
        await store.workers.register(worker("w"))
        await store.jobs.submit(new(spec(), spec()))
        (held,) = await store.jobs.claim([Claim(("q",), ["w"])])
        for number in range(30):
            await store.workers.register(worker(f"w{number}"))
        names = store.workers._names
        assert len(names.known) <= 10
        assert "w" not in names.known
        done = Transition.succeeded(held.seq, held.lease, b"r", 0.1)
        done.worker_id = "w"
        (outcome,) = (await store.jobs.apply([done])).outcomes
        assert (outcome.applied, outcome.worker_id) == (True, "w")
        assert len(await store.jobs.claim([Claim(("q",), ["w"])])) == 1
        assert "w" in names.known
    finally:
        await store.close()
