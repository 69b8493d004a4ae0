"""Events are read as they are committed: none is skipped, none comes twice."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.core.stream import JobEvent
from jobqueue.stores.postgres import streaming
from jobqueue.stores.postgres.statements import SQL, array
from jobqueue.stores.postgres.store import PostgresStore
from tests.stores.driver import accept, new, spec, worker


class Follower:
    """Reads on from where it was."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._position = 0

    async def read(self, page: int = 3) -> list[str]:
        seen: list[str] = []
        while found := await self._store.events_after(self._position, page):
            self._position = found[-1][0]
            seen += [event.job_id for _, event in found]
        return seen


class Streamer:
    """The same as the event stream reads."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._position = 0

    async def read(self, page: int = 3) -> list[str]:
        seen: list[str] = []
        while True:
            found = await self._store.changes_after(self._position, page, 1 << 20)
            if not found.items:
                return seen
            self._position = found.position
            seen += [item.event.job_id for item in found.items if isinstance(item, JobEvent)]


@pytest.fixture(params=[Follower, Streamer])
def follower(request: pytest.FixtureRequest, store: PostgresStore) -> Follower | Streamer:
    return request.param(store)


async def submit_in(connection) -> str:
    """Submit in a transaction that the test commits when it likes."""
    (job,) = new(spec())
    await connection.fetch(
        SQL["submit"], ["q"], None, ["q"], array([job.id]), [""], [b"x"], [None], [0], [None],
        [None], [None], [None], [None], "", None, None,
    )  # fmt: skip
    return job.id


@pytest.mark.req("jq:FR-011")
async def test_transactions_that_commit_in_reverse_order(store, follower, postgres_dsn):
    first, second = await asyncpg.connect(postgres_dsn), await asyncpg.connect(postgres_dsn)
    early, late = first.transaction(), second.transaction()
    await early.start()
    one = await submit_in(first)
    await late.start()
    two = await submit_in(second)
    await late.commit()
    assert await follower.read() == [two]
    (three,) = await accept(store)
    assert await follower.read() == [three]
    await early.commit()
    assert await follower.read() == [one]
    assert await follower.read() == []
    await first.close()
    await second.close()


@pytest.mark.req("jq:FR-011")
async def test_a_transaction_left_open_holds_up_nothing_but_its_own(store, follower, postgres_dsn):
    idle = await asyncpg.connect(postgres_dsn)
    forgotten = idle.transaction()
    await forgotten.start()
    await submit_in(idle)
    written = await accept(store, 20)
    assert sorted(await follower.read()) == sorted(written)
    more = await accept(store, 5)
    assert sorted(await follower.read()) == sorted(more)
    await forgotten.rollback()
    await idle.close()
    assert await follower.read() == []


@pytest.mark.req("jq:FR-011")
async def test_everything_that_many_write_at_once_is_read_once(store, follower):
    written: list[str] = []
    seen: list[str] = []

    async def write() -> None:
        for _ in range(20):
            written.extend(await accept(store, 3))

    writers = asyncio.gather(*(write() for _ in range(5)))
    while not writers.done():
        seen += await follower.read(page=7)
    await writers
    seen += await follower.read(page=7)
    assert sorted(seen) == sorted(written)


MOVE_ON = """
INSERT INTO job_event (seq, xid, at, version, attempt, from_state, to_state, reason)
SELECT seq, pg_current_xact_id()::text::bigint, 1, 2, 1, 1, 2, 2 FROM job_record WHERE id = $1
"""


@pytest.mark.req("jq:FR-011")
async def test_far_behind_what_one_transaction_overtook_keeps_its_place(
    store, postgres_dsn, monkeypatch
):
    """A transaction has its number before it touches a job that was written by a later one."""
    monkeypatch.setattr(streaming, "_KEYS_AT_ONCE", 1)
    other = await asyncpg.connect(postgres_dsn)
    async with other.transaction():
        first = await submit_in(other)
        (overtaken,) = await accept(store)
        await other.execute(MOVE_ON, overtaken)
    await other.close()
    (last,) = await accept(store)
    for page in (1, 10):
        position, seen = 0, []
        while (found := await store.changes_after(position, page, 1 << 20)).items:
            position = found.position
            seen += [(item.event.job_id, item.event.version) for item in found.items]
            # Whoever goes on from the mark finds the same.
            store._streaming._ahead.clear()
        assert list(dict.fromkeys(seen)) == [(first, 1), (overtaken, 1), (overtaken, 2), (last, 1)]


async def test_what_an_older_server_removed_hides_nothing_that_is_large(store, db):
    """It keeps nothing for a stream: what was there to be read may be gone."""
    _, gone, last = await accept(store, 3)
    found = await store.changes_after(0, 1, 1)
    async with db.transaction():
        await db.execute("SET LOCAL jobqueue.retention = 'on'")
        await db.execute(
            "DELETE FROM job_event WHERE seq = (SELECT seq FROM job_record WHERE id = $1)", gone
        )
    found = await store.changes_after(found.position, 10, 1)
    assert [item.event.job_id for item in found.items] == [last]


async def test_what_was_read_is_not_undone_by_a_crash(own_postgres):
    """A claim does not wait for the disk; whoever reads of it does."""
    server = await asyncio.to_thread(
        own_postgres, {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    )
    store = PostgresStore(server.dsn(), patience=30.0)
    await store.open()
    try:
        await store.create_queue(Queue(name="q"))
        await store.register_worker(worker())
        (job_id,) = await accept(store)
        await store.claim([Claim(("q",), ["w"])])
        read = [event for _, event in await store.events_after(0, 10)]
        assert [event.to_state for event in read] == [State.PENDING, State.ASSIGNED]
        await asyncio.to_thread(server.restart, "immediate")
        assert await store.history(job_id) == read
    finally:
        await store.close()
