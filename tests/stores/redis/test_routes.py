"""Partitions that workers read their assignments from, and what is said there once more."""

from __future__ import annotations

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Transition, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Claim, Term, TermEnded
from jobqueue.core.stream import AssignmentRepeated, JobEvent, Route
from jobqueue.stores.redis.store import RedisStore
from tests.stores.driver import accept, new, spec, worker
from tests.stores.redis.test_stream import read

pytestmark = pytest.mark.req("sch:WORKER")


async def allotted(store: RedisStore, worker_id: str, incarnation: int = 1) -> int | None:
    await store.workers.register(worker(worker_id, incarnation))
    return await store.workers.partition_of(worker_id, incarnation)


# -- partitions ------------------------------------------------------------------------------


async def test_without_partitions_nobody_has_one(open_store, client):
    store = await open_store()
    assert await allotted(store, "a") is None
    assert await client.hexists("{jq}:worker:a", "partition") is False


async def test_every_worker_has_the_lowest_free_one(open_store, client):
    store = await open_store(partitions=3)
    assert [await allotted(store, name) for name in "abc"] == [0, 1, 2]
    assert await client.hget("{jq}:worker:b", "partition") == "1"
    assert await store.workers.partition_of("b", 2) is None  # of another incarnation
    assert await store.workers.partition_of("nobody", 1) is None


async def test_when_all_are_taken_the_one_with_the_fewest_readers_is_shared(open_store):
    store = await open_store(partitions=2)
    assert [await allotted(store, name) for name in "abcde"] == [0, 1, 0, 1, 0]
    assert await store.workers.retire("b", 1)
    assert await store.workers.retire("d", 1)
    assert [await allotted(store, name) for name in "fg"] == [1, 1]


async def test_a_reconnect_keeps_it(open_store):
    store = await open_store(partitions=3)
    assert [await allotted(store, name) for name in "ab"] == [0, 1]
    await store.workers.retire("a", 1)
    assert await allotted(store, "b") == 1
    await store.workers.set_status("b", WorkerStatus.DRAINING)
    assert await allotted(store, "b") == 1
    assert await allotted(store, "c") == 0


async def test_a_new_incarnation_need_not_keep_it(open_store):
    store = await open_store(partitions=3)
    assert [await allotted(store, name) for name in "ab"] == [0, 1]
    await store.workers.retire("a", 1)
    assert await allotted(store, "b", 2) == 0
    assert await store.workers.partition_of("b", 1) is None
    assert await allotted(store, "b", 3) == 0  # what it had itself is free


@pytest.mark.parametrize("how", ["silent", "by hand"])
async def test_a_worker_that_is_offline_has_none(open_store, how):
    clock = ManualClock()
    store = await open_store(clock=clock, partitions=3)
    assert [await allotted(store, name) for name in "ab"] == [0, 1]
    if how == "silent":
        clock.advance(60.0)
        await store.workers.register(worker("b"))
        term = await store.leadership.lead(1, 60.0)
        assert await store.workers.retire_silent(30.0, term) == ["a"]
    else:
        await store.workers.set_status("a", WorkerStatus.OFFLINE)
    assert await store.workers.partition_of("a", 1) is None
    assert await allotted(store, "c") == 0
    assert await allotted(store, "a") == 2  # back again, and its place is taken


# -- what a worker is told -------------------------------------------------------------------


async def test_an_assignment_carries_the_route_of_its_worker(open_store):
    store = await open_store(partitions=3)
    largest = 2**63 - 1
    await allotted(store, "a")
    await allotted(store, "b", largest)
    await accept(store, 3)
    await store.jobs.claim([Claim(("q",), ["b", "a", "stranger"])])
    events = [item for item in await read(store) if isinstance(item, JobEvent)]
    routes = {item.event.worker_id: item.route for item in events if item.event.worker_id}
    assert routes == {"a": Route(0, 1), "b": Route(1, largest), "stranger": None}
    assert {item.route for item in events if item.event.to_state is State.PENDING} == {None}


async def test_what_stands_is_what_was_claimed(open_store):
    store = await open_store(clock=ManualClock())
    jobs = new(
        spec(b"one", ttl=60.0, timeout=5.0, labels={"a": "b"}, priority=9), spec(b"two"), spec()
    )
    await store.jobs.submit(jobs)
    first, second = await store.jobs.claim([Claim(("q",), ["w"] * 2)])
    (of_another,) = await store.jobs.claim([Claim(("q",), ["another"])])
    ids = [second.id, of_another.id, "no such job", first.id]
    assert await store.jobs.standing(ids, "w") == [second, first]
    assert await store.jobs.standing([], "w") == []
    await store.jobs.apply([Transition.started(first.seq, first.lease)])
    assert await store.jobs.standing(ids, "w") == [second]
    await store.jobs.apply([Transition.worker_lost(second.seq, second.lease, "gone")])
    assert await store.jobs.standing(ids, "w") == []


@pytest.mark.req("sch:IDEMP")
async def test_an_assignment_to_the_same_worker_again_has_its_new_lease(open_store):
    store = await open_store()
    (job_id,) = await accept(store)
    (first,) = await store.jobs.claim([Claim(("q",), ["w"])])
    await store.jobs.apply([Transition.handed_back(first.seq, first.lease)])
    (second,) = await store.jobs.claim([Claim(("q",), ["w"])])
    (standing,) = await store.jobs.standing([job_id], "w")
    assert standing == second
    assert standing.lease != first.lease


async def test_a_batch_of_any_size_stands(open_store):
    store = await open_store()
    ids = await accept(store, 1_100)
    held = await store.jobs.claim([Claim(("q",), ["w"] * 1_100)])
    assert {one.id for one in held} == set(ids)
    assert await store.jobs.standing([one.id for one in held], "w") == held


# -- who is there ---------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["left", "draining", "silent", "elsewhere"])
async def test_a_leader_assigns_nothing_to_a_worker_that_is_not_there(open_store, gone):
    """It hears of a worker's end later. What it claims until then would be lost with the worker:
    an attempt less for a job that nobody began."""
    store = await open_store(partitions=3)
    term = await store.leadership.lead(1, 60.0)
    for name in ("gone", "there"):
        await store.workers.register(worker(name))
    if gone == "left":
        assert await store.workers.retire("gone", 1)
    elif gone == "elsewhere":  # connected to a server, which alone assigns to it
        await (await open_store()).workers.register(worker("gone", 2))
    else:
        status = WorkerStatus.DRAINING if gone == "draining" else WorkerStatus.OFFLINE
        await store.workers.set_status("gone", status)
    await accept(store, 3)
    got = await store.jobs.claim([Claim(("q",), ["gone", "there", "gone"])], term=term)
    assert [one.worker_id for one in got] == ["there"]
    assert (await store.queues.stats("q"))[0].depth[State.PENDING] == 2


# -- assignments that are said once more -----------------------------------------------------


class Leading:
    """A store with a clock, a stream and a worker ``w`` that has a partition."""

    def __init__(self, store: RedisStore, clock: ManualClock, term: Term) -> None:
        self.store, self.clock, self.term = store, clock, term

    async def assigned(self, count: int = 1, to: str = "w"):
        await accept(self.store, count)
        return await self.store.jobs.claim([Claim(("q",), [to] * count)])

    async def repeated(self, limit: int = 100) -> int:
        return await self.store.jobs.repeat_assignments(5.0, limit, self.term)

    async def said(self) -> list[AssignmentRepeated]:
        return [item for item in await read(self.store) if isinstance(item, AssignmentRepeated)]


@pytest.fixture
async def leading(open_store) -> Leading:
    clock = ManualClock()
    store = await open_store(clock=clock, partitions=4)
    term = await store.leadership.lead(1, 3_600.0)
    await store.stream.begin(term)
    await store.workers.register(worker("w", 7))
    return Leading(store, clock, term)


async def test_what_was_not_started_is_said_again_once_in_that_time(leading: Leading):
    (got,) = await leading.assigned()
    leading.clock.advance(5.0)
    assert await leading.repeated() == 0  # not longer
    leading.clock.advance(0.5)
    assert await leading.repeated() == 1
    assert await leading.repeated() == 0
    now = leading.clock.now()
    one = AssignmentRepeated(got.id, "q", got.seq, got.attempt, "w", Route(0, 7), now)
    assert await leading.said() == [one]
    leading.clock.advance(4.0)
    assert await leading.repeated() == 0
    leading.clock.advance(1.5)
    assert await leading.repeated() == 1
    first, second = await leading.said()
    assert (first, second.at) == (one, leading.clock.now())
    assert first.event_id != second.event_id


async def test_what_moved_on_is_not_said_again(leading: Leading):
    started, done, lost, back, left = await leading.assigned(5)
    await leading.store.jobs.apply(
        [
            Transition.started(started.seq, started.lease),
            Transition.succeeded(done.seq, done.lease, None),
            Transition.worker_lost(lost.seq, lost.lease, "gone"),
            Transition.handed_back(back.seq, back.lease),
        ]
    )
    leading.clock.advance(6.0)
    assert await leading.repeated() == 1
    assert [item.job_id for item in await leading.said()] == [left.id]


async def test_a_job_that_is_assigned_again_waits_anew(leading: Leading):
    (got,) = await leading.assigned()
    leading.clock.advance(4.0)
    await leading.store.jobs.apply([Transition.handed_back(got.seq, got.lease)])
    await leading.store.jobs.claim([Claim(("q",), ["w"])])
    leading.clock.advance(4.0)
    assert await leading.repeated() == 0
    leading.clock.advance(2.0)
    assert await leading.repeated() == 1
    (said,) = await leading.said()
    assert said.attempt == got.attempt + 1


async def test_the_hint_goes_where_the_worker_reads_now(leading: Leading):
    await leading.store.workers.register(worker("other"))
    await leading.assigned(1, to="other")
    await leading.store.workers.set_status("w", WorkerStatus.OFFLINE)
    await leading.store.workers.set_status("other", WorkerStatus.OFFLINE)
    leading.clock.advance(6.0)
    assert await leading.repeated() == 0  # nowhere to say it
    await leading.store.workers.register(worker("other"))
    leading.clock.advance(6.0)
    assert await leading.repeated() == 1
    assert [item.route for item in await leading.said()] == [Route(0, 1)]


async def test_a_limit_leaves_the_rest_for_the_next_call(leading: Leading):
    held = await leading.assigned(1_200)
    leading.clock.advance(6.0)
    assert [await leading.repeated(700) for _ in range(3)] == [700, 500, 0]
    assert sorted(item.job_id for item in await leading.said()) == sorted(one.id for one in held)


async def test_without_a_stream_or_a_route_nothing_is_said(leading: Leading):
    await leading.assigned(1, to="stranger")
    leading.clock.advance(6.0)
    assert await leading.repeated() == 0
    await leading.assigned()
    await leading.store.stream.end(leading.term)
    leading.clock.advance(6.0)
    assert await leading.repeated() == 0
    await leading.store.stream.begin(leading.term)
    assert await leading.repeated() == 1


async def test_nothing_is_said_again_under_an_old_term(leading: Leading):
    await leading.assigned()
    leading.clock.advance(3_600.0)
    with pytest.raises(TermEnded):
        await leading.repeated()
    assert await leading.store.leadership.lead(2, 60.0) is not None
    with pytest.raises(TermEnded):
        await leading.repeated()
    assert await leading.said() == []
