"""A PostgreSQL that goes, comes back, is full or may only be read."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg
import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import SubmitStatus, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.stores.postgres.store import PostgresStore
from tests.stores.driver import accept, new, spec, worker
from tests.stores.postgres.waiting import until


async def set_for_database(db, setting: str, value: str) -> None:
    """For every connection that is made from now on."""
    name = await db.fetchval("SELECT current_database()")
    await db.execute(f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'")


async def drop_connections(store, db) -> None:
    """And wait until the store knows."""
    await db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    async def all_are_closed() -> bool:
        return all(one.raw.is_closed() for one in store._database.writing.connections._idle)

    await until(all_are_closed)


@pytest.mark.req("jq:NFR-005")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restarted_server_is_found_again_and_nothing_is_lost(own_postgres, mode):
    """Nobody has to do anything: calls that come meanwhile wait for it."""
    server = await asyncio.to_thread(own_postgres, {"fsync": "on"})
    store = PostgresStore(server.dsn(), patience=30.0)
    await store.open()
    try:
        await store.queues.create(Queue(name="q"))
        await store.workers.register(worker())
        before = await accept(store, 20)
        restart = asyncio.create_task(asyncio.to_thread(server.restart, mode))
        during: list[str] = []
        while not restart.done():
            during += await accept(store)
        await restart
        await store.ping()
        got = await store.jobs.claim([Claim(("q",), ["w"] * (len(before) + len(during)))])
        assert sorted(one.id for one in got) == sorted(before + during)
        done = [Transition.succeeded(one.seq, one.lease, None, 0.1) for one in got]
        assert all(outcome.applied for outcome in (await store.jobs.apply(done)).outcomes)
        assert store.workers.pulse("w", 1, []).known
        assert (await store.queues.stats("q"))[0].depth[State.DONE] == len(got)
    finally:
        await store.close()


@pytest.mark.req("jq:NFR-005")
async def test_a_server_that_is_away_refuses_and_keeps_nothing(own_postgres):
    server = await asyncio.to_thread(own_postgres)
    store = PostgresStore(server.dsn(), patience=0.3)
    await store.open()
    try:
        await store.queues.create(Queue(name="q"))
        await asyncio.to_thread(server.stop)
        with pytest.raises(Unavailable, match="PostgreSQL"):
            await store.jobs.submit(new(spec()))
        with pytest.raises(Unavailable, match="PostgreSQL"):
            await store.ping()
        with pytest.raises(Unavailable, match="PostgreSQL"):
            await asyncio.to_thread(store.workers.pulse, "w", 1, [])
    finally:
        await store.close()


@pytest.mark.req("jq:NFR-005")
async def test_a_server_that_may_only_be_read_is_not_ready(store, db):
    """After a failover the old address may lead to a standby."""
    await set_for_database(db, "default_transaction_read_only", "on")
    await drop_connections(store, db)
    with pytest.raises(Unavailable, match="read-only"):
        await store.ping()
    with pytest.raises(Unavailable, match="read-only"):
        await store.jobs.submit(new(spec()))
    assert await store.queues.stats("q")


@pytest.mark.req("jq:NFR-005")
async def test_a_full_disk_is_an_error_to_the_submitter(store, db):
    await db.execute(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$;"
        "CREATE TRIGGER full_disk BEFORE INSERT ON job_event EXECUTE FUNCTION full_disk()"
    )
    with pytest.raises(Unavailable, match="no space left"):
        await store.jobs.submit(new(spec(), spec(key="k")))
    await db.execute("DROP TRIGGER full_disk ON job_event")
    assert await db.fetchval("SELECT count(*) FROM job_record") == 0
    assert await db.fetchval("SELECT count(*) FROM job_key") == 0
    assert [one.status for one in (await store.jobs.submit(new(spec(key="k")))).results] == [
        SubmitStatus.ACCEPTED
    ]


async def test_too_many_connections_are_waited_out(own_postgres):
    server = await asyncio.to_thread(
        own_postgres, {"max_connections": "12", "superuser_reserved_connections": "0"}
    )
    store = PostgresStore(server.dsn(), patience=20.0)
    await store.open()
    others = []
    try:
        await store.queues.create(Queue(name="q"))
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                others.append(await asyncpg.connect(server.dsn()))
        submits = [asyncio.create_task(store.jobs.submit(new(spec()))) for _ in range(6)]
        for one in await asyncio.gather(*submits):  # with the connections it has
            assert one.results[0].status is SubmitStatus.ACCEPTED
        # And with none at all, as soon as there is one again.
        for one in others:
            await one.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'jobqueue'"
            )
        submit = asyncio.create_task(store.jobs.submit(new(spec())))
        await others.pop().close()
        assert (await submit).results[0].status is SubmitStatus.ACCEPTED
    finally:
        for one in others:
            await one.close()
        await store.close()


async def test_nothing_is_left_open_by_a_close_while_connections_are_in_use(open_store, db):
    store = await open_store()
    transaction = db.transaction()
    await transaction.start()
    await db.execute("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE")
    read = asyncio.create_task(store.workers.all())

    async def waiting() -> bool:
        return bool(await db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await until(waiting)
    await store.close()
    await transaction.rollback()
    await read

    async def all_gone() -> bool:
        return not await db.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'jobqueue'"
        )

    await until(all_gone)


async def test_a_nul_harms_no_other_job_of_the_batch(store):
    results = (
        await store.jobs.submit(new(spec(), spec(type="a\0b"), spec(key="a\0b"), spec(key="fine")))
    ).results
    assert [one.status for one in results] == [
        SubmitStatus.ACCEPTED,
        SubmitStatus.REFUSED,
        SubmitStatus.REFUSED,
        SubmitStatus.ACCEPTED,
    ]
    assert "type" in str(results[1].error)
    assert "idempotency_key" in str(results[2].error)


async def test_a_hundred_thousand_bytes_of_odd_text_come_back(store):
    odd = spec(bytes(range(256)) * 400, labels={"nul": "\0", "text": "ä\u2028😀"}, type="ü" * 50)
    job_id = (await store.jobs.submit(new(odd))).results[0].job_id
    job = await store.reads.get(job_id)
    assert (job.payload, job.labels, job.type) == (odd.payload, odd.labels, odd.type)


async def test_a_huge_batch_is_one_write(store, db):
    jobs = new(*(spec(key=f"k{n}" if n % 2 else None) for n in range(20_000)))
    results = (await store.jobs.submit(jobs)).results
    assert all(one.status is SubmitStatus.ACCEPTED for one in results)
    assert await db.fetchval("SELECT count(*) FROM ready_job") == 20_000


async def test_a_server_whose_connections_are_all_busy_is_not_called_away(postgres_dsn):
    store = PostgresStore(postgres_dsn)
    await store.open()
    writing = store._database.writing.connections
    try:
        async with contextlib.AsyncExitStack() as busy:
            for _ in range(writing._size):
                await busy.enter_async_context(writing.use())
            with pytest.raises(Unavailable, match="every connection is busy"):
                await store._database.writing.read("look", lambda db: db.execute("SELECT 1"), 0.0)
            await store.ping()
    finally:
        await store.close()
