"""What only the Redis store does for the event stream."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import Unavailable
from jobqueue.core.identity import UNNAMED
from jobqueue.core.job import Transition, WorkerStatus
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim, Position
from jobqueue.core.stream import (
    CancelRequested,
    JobDeleted,
    JobEvent,
    QueueEvent,
    StreamItem,
    WorkerChange,
    WorkerEvent,
)
from jobqueue.events.relay import Relay
from jobqueue.stores.redis.store import RedisStore
from jobqueue.stores.rows import pack, unpack
from tests import patience
from tests.events.fake import FakePublisher
from tests.stores.cutting import Cut
from tests.stores.driver import accept, new, spec, worker
from tests.stores.redis.test_lost_answers import SIDES, at_every_script

CLAIM = [Claim(("q",), ["w"])]
PAGE = 1 << 20


async def read(
    store: RedisStore, position: Position = BEGINNING, page: int = 500
) -> list[StreamItem]:
    items: list[StreamItem] = []
    while (found := await store.stream.changes_after(position, page, PAGE)).items:
        items += found.items
        position = found.position
    return items


async def publish(store: RedisStore, term) -> None:
    """Move the mark past everything there is."""
    position = await store.stream.begin(term)
    while (found := await store.stream.changes_after(position, 500, PAGE)).items:
        position = found.position
    await store.stream.move_mark(position, term)


async def finish(store: RedisStore, count: int = 1) -> list[str]:
    await accept(store, count)
    held = await store.jobs.claim([Claim(("q",), ["w"] * count)])
    await store.jobs.apply([Transition.succeeded(one.seq, one.lease, b"r") for one in held])
    return [one.id for one in held]


async def test_numbers_of_events_have_no_gaps(open_store, client):
    """However many a batch might have needed."""
    store = await open_store()
    await store.jobs.submit(new(spec(), spec(queue="nowhere"), spec()), [Claim(("q",), ["w"] * 50)])
    await accept(store)
    (got,) = await store.jobs.claim([Claim(("q",), ["w"] * 70)])
    await store.jobs.apply([Transition.started(got.seq, got.lease)])
    await store.jobs.apply([Transition.failed(got.seq, got.lease, "boom")])
    places = [place for place, _ in await store.stream.events_after(BEGINNING, 100)]
    assert places == [pack(event) for event in range(1, 9)]
    assert int(await client.hget("{jq}:counters", "events")) == 8


async def test_nothing_piles_up(open_store, client):
    store = await open_store()
    term = await store.leadership.lead(1, 60.0)
    await publish(store, term)
    for _ in range(3):
        (job_id,) = await finish(store)
        await publish(store, term)
        await store.upkeep.delete_job(job_id)
        await store.queues.pause("q", True)
        await store.queues.pause("q", False)
        assert await client.xlen("{jq}:outbox") == 3
    await publish(store, term)
    assert await client.xlen("{jq}:events") == 0
    assert await client.xlen("{jq}:outbox") == 0
    await store.queues.pause("q", True)
    await store.stream.end(term)
    assert await client.exists("{jq}:outbox", "{jq}:stream") == 0
    await store.queues.pause("q", False)
    assert await client.exists("{jq}:outbox") == 0  # nobody would read it


async def test_a_payload_is_kept_once(open_store, client):
    store = await open_store()
    term = await store.leadership.lead(1, 60.0)
    await store.stream.begin(term)
    await store.jobs.submit(new(spec(b"PAYLOAD" * 10, key="k", labels={"a": "b"})))
    (got,) = await store.jobs.claim(CLAIM)
    await store.jobs.apply([Transition.succeeded(got.seq, got.lease, b"RESULT" * 10)])
    written = str(await client.xrange("{jq}:events")) + str(await client.xrange("{jq}:outbox"))
    assert "PAYLOAD" not in written
    assert "RESULT" not in written
    events = [item for item in await read(store) if isinstance(item, JobEvent)]
    assert events[0].created is not None
    assert events[0].created.spec.payload == b"PAYLOAD" * 10
    assert events[-1].finished is not None
    assert events[-1].finished.result == b"RESULT" * 10


async def test_a_page_of_any_size_is_the_same_stream(open_store):
    store = await open_store()
    term = await store.leadership.lead(1, 60.0)
    await store.stream.begin(term)
    for _ in range(3):
        await finish(store, 400)
        await store.queues.pause("q", True)
        await store.queues.pause("q", False)
    await accept(store)
    (got,) = await store.jobs.claim(CLAIM)
    await store.jobs.apply([Transition.started(got.seq, got.lease)])
    await store.jobs.request_cancel(got.seq)
    await store.jobs.request_cancel(got.seq)  # no second record
    whole = await read(store, page=100_000)
    assert len(whole) > 4_800
    assert await read(store, page=7) == whole
    assert await read(store, page=501) == whole
    versions = [item for item in whole if isinstance(item, CancelRequested)]
    assert [item.version for item in versions] == [3]
    queues = [item.number for item in whole if isinstance(item, QueueEvent)]
    assert queues == sorted(queues)


async def test_old_jobs_go_although_newer_ones_are_kept(open_store):
    clock = ManualClock()
    store = await open_store(clock=clock)
    term = await store.leadership.lead(1, 36_000.0)
    old = await finish(store, 3)
    await publish(store, term)
    clock.advance(10.0)
    new_ones = await finish(store, 3)
    clock.advance(10.0)
    assert await store.upkeep.prune_done(clock.now(), 100, term) == 3
    assert [await store.reads.get(job_id) for job_id in old] == [None] * 3
    assert None not in [await store.reads.get(job_id) for job_id in new_ones]
    await publish(store, term)
    assert await store.upkeep.prune_done(clock.now(), 100, term) == 3
    gone = [item for item in await read(store) if isinstance(item, JobDeleted)]
    assert {item.job_id for item in gone} == set(new_ones)


# -- workers ---------------------------------------------------------------------------------


async def test_workers_that_come_and_are_lost_are_told_while_there_is_a_stream(open_store):
    clock = ManualClock()
    store = await open_store(clock=clock)
    term = await store.leadership.lead(1, 3_600.0)
    await store.workers.register(worker("gone"))
    await store.workers.set_status("gone", WorkerStatus.OFFLINE)
    await store.workers.register(worker("early"))
    await store.stream.begin(term)
    await store.stream.begin(term)
    largest = 2**63 - 1
    await store.workers.register(worker("w", largest))
    await store.workers.register(worker("w", largest, link=2))  # a reconnect
    clock.advance(40.0)
    began = clock.now() - 40.0
    await store.workers.register(worker("other"))
    assert sorted(await store.workers.retire_silent(30.0, term)) == ["early", "w"]
    assert await store.workers.retire_silent(30.0, term) == []
    clock.advance(1.0)
    await store.workers.register(worker("w", largest))  # it was not dead
    await store.workers.register(worker("w", 2))
    told = [item for item in await read(store) if isinstance(item, WorkerEvent)]
    now = clock.now()
    came, lost = WorkerChange.REGISTERED, WorkerChange.DEAD
    assert sorted(told, key=lambda one: (one.at, one.worker_id, -one.incarnation)) == [
        WorkerEvent(came, "early", 1, began),
        WorkerEvent(came, "w", largest, began),
        WorkerEvent(lost, "early", 1, now - 1.0),
        WorkerEvent(came, "other", 1, now - 1.0),
        WorkerEvent(lost, "w", largest, now - 1.0),
        WorkerEvent(came, "w", largest, now),
        WorkerEvent(came, "w", 2, now),
    ]
    assert len({item.event_id for item in told}) == len(told)


# -- under a line that breaks ----------------------------------------------------------------


@SIDES
async def test_a_mark_is_moved_once_and_an_entry_is_put_once(
    cuttable, proxy, open_store, side: Cut
):
    other = await open_store()
    term = await cuttable.leadership.lead(1, 600.0)
    start = await cuttable.stream.begin(term)
    refused = 0

    async def once(script: int) -> None:
        nonlocal refused
        await cuttable.queues.pause("q", script % 2 == 1)
        changed = await cuttable.queues.update("q", {"capacity": 1_000 + script})
        assert changed.capacity == 1_000 + script
        page = await cuttable.stream.changes_after(start, 10_000, PAGE)
        await cuttable.stream.move_mark(start, term, 1)
        refused += 1
        lag = await other.stream.lag()
        assert lag.refused == refused
        assert sum(isinstance(item, QueueEvent) for item in page.items) == 1 + 2 * script

    await at_every_script(proxy, side, once)


@pytest.mark.parametrize("status", [WorkerStatus.DRAINING, WorkerStatus.STOPPING])
async def test_a_reconnect_tells_nothing_whatever_the_status(open_store, status):
    store = await open_store()
    term = await store.leadership.lead(1, 60.0)
    await store.stream.begin(term)
    await store.workers.register(worker())
    await store.workers.set_status("w", status)
    await store.workers.register(worker())
    assert sum(isinstance(item, WorkerEvent) for item in await read(store)) == 1


@pytest.mark.req("sch:TOPICS")
async def test_workers_that_were_there_before_the_stream_are_told_of(open_store):
    """Whoever starts everything at once does not know which is first."""
    store = await open_store()
    for name in ("there", "lost"):
        await store.workers.register(worker(name, 2**63 - 1))
    await store.workers.set_status("lost", WorkerStatus.OFFLINE)
    term = await store.leadership.lead(1, 60.0)
    await store.stream.begin(term)
    await store.stream.begin(term)
    told = [item for item in await read(store) if isinstance(item, WorkerEvent)]
    (came,) = told
    assert (came.change, came.worker_id) == (WorkerChange.REGISTERED, "there")
    assert came.incarnation == 2**63 - 1


@pytest.mark.req("sch:AOF")
async def test_a_redis_that_lost_writes_is_published_from_its_own_mark_on(open_store, client):
    """Its events have numbers that were used before: whoever read on from there would leave them
    out, and the record would lack jobs that were accepted."""
    store = await open_store()
    term = await store.leadership.lead(1, 600.0)
    publisher = FakePublisher()
    relay = Relay(publisher)
    relay.start(store.stream, lambda: term)

    async def published(job_id: str) -> None:
        async with patience.timeout(20):
            while job_id.encode() not in {message.key for message in publisher.log}:
                relay.wake()
                await asyncio.sleep(0.02)

    try:
        for job_id in await accept(store, 5):
            await published(job_id)
        instance = f"{store._runner.prefix}instance"
        known = await client.hgetall(instance)
        await client.flushdb()  # all of them: the same as some, and the same leader
        await client.hset(instance, mapping=known)  # the oldest write is not among them
        await store.queues.create(Queue(name="q"))
        assert await store.leadership.lead(1, 600.0) == term
        (after,) = await accept(store)
        await published(after)
        lag = await store.stream.lag()
        assert lag is not None
    finally:
        await relay.stop()


async def test_a_redis_that_knows_less_than_was_read_is_not_read_on_from(open_store):
    """A replica that took over has not got everything: begin again at the mark that it has."""
    store = await open_store()
    await accept(store, 2)
    there = (await store.stream.changes_after(BEGINNING, 10, PAGE)).position
    assert (await store.stream.changes_after(there, 10, PAGE)).items == []
    with pytest.raises(Unavailable, match="lacks events"):
        await store.stream.changes_after(pack(unpack(there)[0] + 1), 10, PAGE)


async def test_a_stream_of_an_earlier_version_is_this_stores(redis_url, open_store):
    """Its records do not say whose they are."""
    store = await open_store()
    term = await store.leadership.lead(1, 60.0)
    await store.stream.begin(term)
    fresh = await store.stream.identity()
    assert not fresh.continues
    await store._runner.command("del", "DEL", f"{store._runner.prefix}instance")
    await store.stream.begin(term)
    known = await store.stream.identity()
    assert known.store != fresh.store
    assert known.continues == {UNNAMED}


async def test_a_redis_that_was_emptied_is_not_read_on_from(redis_url, open_store):
    """It counts from the beginning again, and may have come to the same numbers."""
    store = await open_store()
    await store.stream.begin(await store.leadership.lead(1, 60.0))
    await accept(store, 3)
    position = (await store.stream.changes_after(BEGINNING, 100, PAGE)).position
    await store._runner.command("flush", "FLUSHDB")
    await store.queues.create(Queue(name="q"))
    await accept(store, 5)
    with pytest.raises(Unavailable, match="it was emptied"):
        await store.stream.changes_after(position, 100, PAGE)
