"""A dump that was read into another cluster has the old one's transaction numbers in its rows."""

from __future__ import annotations

import pytest

from jobqueue.core.errors import Conflict, Unavailable
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim, Position
from jobqueue.core.stream import JobEvent, QueueEvent
from jobqueue.stores.postgres.following import Snapshot, StreamPlace, between
from jobqueue.stores.postgres.store import PostgresStore
from tests.stores.driver import accept

pytestmark = pytest.mark.req("jq:FR-036")

AHEAD = 1_000_000_000  # of the new cluster


def moved(snapshot: Snapshot) -> Snapshot:
    unfinished = tuple(xid + AHEAD for xid in snapshot.open)
    return Snapshot(snapshot.below + AHEAD, snapshot.above + AHEAD, unfinished)


async def move(db) -> None:
    """As if everything had been written where a billion transactions came before."""
    async with db.transaction():
        await db.execute("SET LOCAL jobqueue.renumbering = 'on'")
        for table in ("job_event", "job_steps", "job_done", "outbox"):
            await db.execute(f"UPDATE {table} SET xid = xid + {AHEAD}")
    mark = await db.fetchval("SELECT position FROM stream")
    if mark is None:
        return
    at = StreamPlace.of_stored(mark)
    there = StreamPlace(moved(at.since), moved(at.until), at.seq, at.version, at.number)
    await db.execute(
        "UPDATE stream SET position = $1, since = $2, since_open = $3, until = $4, until_open = $5",
        there.stored(), *between(there),
    )  # fmt: skip


async def read(store: PostgresStore, position: Position) -> list[str]:
    seen: list[str] = []
    while (found := await store.stream.changes_after(position, 3, 1 << 20)).items:
        position = found.position
        seen += [item.event_id for item in found.items]
    return list(dict.fromkeys(seen))


def of_jobs(event_ids: list[str]) -> list[str]:
    return [one for one in event_ids if not one.startswith("queue:")]


async def done(store: PostgresStore) -> str:
    await accept(store)
    (one,) = await store.jobs.claim([Claim(("q",), ["w"])])
    await store.jobs.apply([Transition.succeeded(one.seq, one.lease, None, 0.1)])
    return one.id


async def test_the_stream_goes_on_where_it_was(store, db):
    term = await store.leadership.lead(1, 600.0)
    published = await done(store)
    found = await store.stream.changes_after(await store.stream.begin(term), 100, 1 << 20)
    assert [type(item) for item in found.items] == [QueueEvent] + [JobEvent] * 4
    await store.stream.move_mark(found.position, term)
    waiting = await done(store)
    await store.queues.create(Queue(name="waiting"))
    await move(db)

    early = await done(store)  # before anybody noticed
    position = await store.stream.begin(term)
    fresh = await done(store)
    ids = [f"{job_id}:{n}" for job_id in (waiting, early, fresh) for n in range(1, 5)]
    seen = await read(store, position)
    assert of_jobs(seen) == ids
    assert [one for one in seen if one.startswith("queue:waiting:")]
    assert await store.upkeep.delete_job(published) is State.DONE
    with pytest.raises(Conflict, match="not in the event stream yet"):
        await store.upkeep.delete_job(waiting)
    assert await store.stream.begin(term) == position  # nothing is left to be done


async def test_a_stream_begins_there_with_everything(store, db):
    before = await done(store)
    await move(db)
    after = await done(store)
    position = await store.stream.begin(await store.leadership.lead(1, 600.0))
    ids = [f"{job_id}:{n}" for job_id in (before, after) for n in range(1, 5)]
    assert of_jobs(await read(store, position)) == ids


async def test_a_database_may_be_moved_again_before_everything_was_read(store, db):
    term = await store.leadership.lead(1, 600.0)
    job_id = await done(store)
    await move(db)
    assert await store.stream.begin(term) == BEGINNING
    await done(store)
    await db.execute(f"UPDATE outbox SET xid = {AHEAD}")  # numbers of a third cluster
    assert (await read(store, await store.stream.begin(term)))[1:5] == [
        f"{job_id}:{n}" for n in range(1, 5)
    ]


async def test_a_server_that_knows_less_than_was_read_is_not_read_on_from(store):
    """A replica that took over has not got everything: begin again at the mark that it has."""
    await accept(store)
    at = StreamPlace.of((await store.stream.changes_after(BEGINNING, 10, 1 << 20)).position)
    beyond = StreamPlace(at.since, moved(at.until), at.seq, at.version)
    with pytest.raises(Unavailable, match="lacks transactions that were read"):
        await store.stream.changes_after(beyond.text(), 10, 1 << 20)
