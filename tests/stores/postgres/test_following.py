"""Events are read as they are committed: none is skipped, none comes twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim
from jobqueue.core.stream import JobEvent
from jobqueue.stores.postgres import streaming
from jobqueue.stores.postgres.following import Snapshot, StreamPlace
from jobqueue.stores.postgres.statements import BATCH, LAYOUT, array
from jobqueue.stores.postgres.store import PostgresStore
from tests.stores.driver import accept, new, spec, worker


class Follower:
    """Reads on from where it was."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._position = BEGINNING

    async def read(self, page: int = 3) -> list[str]:
        seen: list[str] = []
        while found := await self._store.stream.events_after(self._position, page):
            self._position = found[-1][0]
            seen += [event.job_id for _, event in found]
        return seen


class Streamer:
    """The same as the event stream reads."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._position = BEGINNING

    async def read(self, page: int = 3) -> list[str]:
        seen: list[str] = []
        while True:
            found = await self._store.stream.changes_after(self._position, page, 1 << 20)
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
    await connection.execute(f"SET jobqueue.layout = {LAYOUT}")
    await connection.fetch(
        BATCH["submit"], ["q"], None, ["q"], array([job.id]), [""], [b"x"], [None], [0], [None],
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
@pytest.mark.parametrize("few", [1, 16])
async def test_far_behind_what_one_transaction_overtook_keeps_its_place(
    open_store, postgres_dsn, monkeypatch, few
):
    """A transaction has its number before it touches a job that was written by a later one."""
    monkeypatch.setattr(streaming, "_KEYS_AT_ONCE", 1)
    store = await open_store(few=few)
    other = await asyncpg.connect(postgres_dsn)
    async with other.transaction():
        first = await submit_in(other)
        (overtaken,) = await accept(store)
        await other.execute(MOVE_ON, overtaken)
    await other.close()
    (last,) = await accept(store)
    for page in (1, 10):
        position, seen = BEGINNING, []
        while (found := await store.stream.changes_after(position, page, 1 << 20)).items:
            position = found.position
            seen += [(item.event.job_id, item.event.version) for item in found.items]
            # Whoever goes on from the mark finds the same.
            store.stream._ahead.clear()
        assert list(dict.fromkeys(seen)) == [(first, 1), (overtaken, 1), (overtaken, 2), (last, 1)]


async def test_what_an_older_server_removed_hides_nothing_that_is_large(store, db):
    """It keeps nothing for a stream: what was there to be read may be gone."""
    _, gone, last = await accept(store, 3)
    found = await store.stream.changes_after(BEGINNING, 1, 1)
    async with db.transaction():
        await db.execute("SET LOCAL jobqueue.retention = 'on'")
        await db.execute(
            "DELETE FROM job_event WHERE seq = (SELECT seq FROM job_record WHERE id = $1)", gone
        )
    found = await store.stream.changes_after(found.position, 10, 1)
    assert [item.event.job_id for item in found.items] == [last]


async def test_what_was_read_is_not_undone_by_a_crash(own_postgres):
    """A claim does not wait for the disk; whoever reads of it does."""
    server = await asyncio.to_thread(
        own_postgres, {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    )
    store = PostgresStore(server.dsn(), patience=30.0)
    await store.open()
    try:
        await store.queues.create(Queue(name="q"))
        await store.workers.register(worker())
        (job_id,) = await accept(store)
        await store.jobs.claim([Claim(("q",), ["w"])])
        read = [event for _, event in await store.stream.events_after(BEGINNING, 10)]
        assert [event.to_state for event in read] == [State.PENDING, State.ASSIGNED]
        await asyncio.to_thread(server.restart, "immediate")
        assert await store.reads.history(job_id) == read
    finally:
        await store.close()


# What a server wrote before positions were text.
EARLIER = (
    "13686535522158116845001963204895433637282883107597086371748055672125988991914936844179118742773"
    "987693109139138692867421"
)


def test_a_mark_of_an_earlier_version_is_read_and_written():
    """Servers of both versions run side by side during an upgrade."""
    place = StreamPlace(Snapshot(748, 755, (748, 751)), Snapshot(760, 762, (760,)), 17, 3, 2, True)
    assert StreamPlace.of_stored(EARLIER) == place
    assert place.stored() == EARLIER
    assert StreamPlace.of(place.text()) == place


async def test_a_stream_goes_on_from_the_mark_of_an_earlier_version(store, db):
    term = await store.leadership.lead(1, 600.0)
    await store.stream.begin(term)
    published = await accept(store, 3)
    found = await store.stream.changes_after(BEGINNING, 10, 1 << 20)
    await store.stream.move_mark(found.position, term)
    mark = int(await db.fetchval("SELECT position FROM stream"))
    raw = mark.to_bytes((mark.bit_length() + 7) // 8)
    assert raw[1:].decode() == found.position  # what earlier versions wrote, and read
    left = await accept(store, 2)
    position = await store.stream.begin(term)
    following = await store.stream.changes_after(position, 10, 1 << 20)
    assert [item.event.job_id for item in following.items] == left
    assert not set(left) & set(published)


async def test_a_mark_tells_of_any_number_of_open_transactions(store, db):
    """Python refuses to write a number of so many digits."""
    term = await store.leadership.lead(1, 600.0)
    await store.stream.begin(term)
    await accept(store)
    found = await store.stream.changes_after(BEGINNING, 10, 1 << 20)
    place = StreamPlace.of(found.position)
    until = place.until
    opened = replace(until, open=tuple(range(until.above - 500, until.above)))
    there = replace(place, until=opened)
    await store.stream.move_mark(there.text(), term)
    assert await store.stream.begin(term) == there.text()
