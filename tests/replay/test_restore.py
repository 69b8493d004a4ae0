"""Rebuilt state in an empty store: each store for itself, without Kafka."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import Conflict
from jobqueue.core.job import JobSpec, SubmitStatus, Transition
from jobqueue.core.lifecycle import HELD, TERMINAL, Move, Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.rebuild import Restored, World, gather
from jobqueue.core.schedule import (
    Overlap,
    ScheduleSpec,
    Source,
    create,
    pause,
    ran_by_hand,
)
from jobqueue.core.store import Claim, Rules, Store
from jobqueue.core.stream import StreamItem
from jobqueue.core.unique import UniqueKey
from tests.replay.conftest import OpenEmpty
from tests.replay.same import all_jobs, assert_same, content_of
from tests.stores.driver import Driver, spec, worker
from tests.stores.every import STORES, Places

pytestmark = pytest.mark.req("sch:REPLAY")


class Follower:
    """Reads a store's stream, as a relay does, into a world."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.items: list[StreamItem] = []

    async def catch_up(self) -> None:
        term = await self.driver.term()
        position = await self.driver.store.stream.begin(term)
        while True:
            found = await self.driver.store.stream.changes_after(position, 500, 1 << 20)
            if not found.items:
                return
            self.items += found.items
            position = found.position
            await self.driver.store.stream.move_mark(position, term)

    def state(self, *, published: bool = True) -> Restored:
        world = World()
        for item in self.items:
            assert world.add(item)
        return gather(world, published=published)


async def restored(driver: Driver, target: Store, *, published: bool = True) -> Follower:
    follower = Follower(driver)
    await follower.catch_up()
    await target.restore(follower.state(published=published), lambda count: None)
    return follower


async def some(open_empty: OpenEmpty) -> Driver:
    """A store with a job in every state; two of them were sent back by hand."""
    driver = await open_empty("memory")
    await driver.queue("q", timeout=50.0)
    for state in set(State) - {State.PENDING}:
        await driver.brought_to(state)
        driver.clock.advance(0.25)
    await driver.queue("other")
    dead = await driver.brought_to(State.DEAD_LETTERED, queue="other")
    await driver.do(Transition.retried_by_hand(dead.seq))
    await driver.submit(queue="other", delay=60.0, ttl=600.0, key="k", labels={"a": "b"})
    await scheduled(driver)
    return driver


async def scheduled(driver: Driver) -> None:
    """Make four schedules: one has ticked, one is paused, one is new, and one was removed."""
    schedules, now = driver.store.schedules, driver.clock.now()
    job = JobSpec(payload=b"\x00{}", queue="q", labels={"a": "b"})
    for name in ("ticked", "paused", "new", "gone"):
        spec = ScheduleSpec(name=name, job=job, every=90, overlap=Overlap.QUEUE)
        made = create(spec, Source.OPERATOR, now, 0.0)
        assert await schedules.create(made)
        if name == "ticked":
            ran = ran_by_hand(made, "00000000-0000-4000-8000-000000000000", now)
            assert await schedules.advance([ran]) == [True]
        elif name == "paused":
            stopped = pause(made, now)
            assert stopped is not None
            assert await schedules.change(stopped)
        elif name == "gone":
            assert await schedules.remove(name)


async def test_jobs_are_claimed_by_type(open_empty: OpenEmpty, store_name: str):
    source = await open_empty("memory")
    await source.queue("q")
    first = [await source.submit(type=kind) for kind in ("b", "a", "", "a")]
    target = await open_empty(store_name)
    await restored(source, target.store)
    assert [one.id for one in await target.claim(9, types={"a"})] == [first[1], first[3]]
    assert [one.id for one in await target.claim(9, types={"", "b"})] == [first[0], first[2]]


async def test_it_goes_on_with_the_next_numbers(open_empty: OpenEmpty, store_name: str):
    source = await some(open_empty)
    last = await source.submit(queue="other", max_retries=0)
    (one,) = await source.claim(1, queues=("other",))
    await source.fail(one)
    highest = (await source.job(last)).seq
    target = await open_empty(store_name)
    follower = Follower(source)
    await follower.catch_up()
    await source.delete(one.id)
    await source.delete(last)  # the highest number has no job any more
    await follower.catch_up()
    await target.store.restore(follower.state(), lambda count: None)
    await assert_same(await content_of(source.store), target.store)
    assert (await target.job(await target.submit())).seq == highest + 1
    before = await target.all_events()
    await target.submit()
    assert (await target.all_events())[: len(before)] == before


async def test_schedules_go_on_in_the_new_store(open_empty: OpenEmpty, store_name: str):
    source = await some(open_empty)
    target = await open_empty(store_name)
    await restored(source, target.store)
    names = ["gone", "new", "paused", "ticked"]
    found = await target.store.schedules.get(names)
    assert found == await source.store.schedules.get(names)
    assert [(one.name, one.revision, one.state.paused) for one in found] == [
        ("new", 1, False),
        ("paused", 2, True),
        ("ticked", 2, False),
    ]
    due = await target.store.schedules.due(source.clock.now() + 90)
    assert set(due.names) == {"new", "ticked"}


async def test_unique_keys_belong_to_the_same_jobs(open_empty: OpenEmpty, store_name: str):
    source = await open_empty("memory")
    await source.queue("q")

    def debounced(payload: bytes) -> JobSpec:
        said = UniqueKey(key="d", scope="waiting", on_conflict="replace", owner="ann")
        return spec(payload, unique=said)

    for n in range(3):
        await source.results(debounced(b"%d" % n))
    done = await source.submit(unique=UniqueKey(key="done"), priority=9)
    one = await source.claim_one()
    await source.start(one)
    await source.succeed(one)
    runs = await source.submit(unique=UniqueKey(key="runs"), priority=9)
    await source.start(await source.claim_one())
    target = await open_empty(store_name)
    await restored(source, target.store)
    await assert_same(await content_of(source.store), target.store)
    (later,) = await target.results(spec(unique=UniqueKey(key="done")))
    assert later.status is SubmitStatus.ACCEPTED
    (again,) = await target.results(spec(unique=UniqueKey(key="runs")))
    assert (again.status, again.job_id) == (SubmitStatus.EXISTING, runs)
    await target.results(debounced(b"3"))
    waiting = [job for job in await target.all_jobs() if job.state is State.PENDING]
    assert sorted(job.payload for job in waiting) == [b"3", b"x"]
    assert (await target.job(done)).state is State.DONE


async def test_a_ttl_counts_from_the_submit_although_the_clock_went_back(
    open_empty: OpenEmpty, store_name: str
):
    """Times of creation never go back, those of events may."""
    source = await open_empty("memory")
    await source.queue("q")
    await source.submit()
    source.clock.advance(-5.0)
    late = await source.submit(ttl=60.0)
    target = await open_empty(store_name)
    await restored(source, target.store, published=False)
    assert await target.job(late) == await source.job(late)
    again = Follower(target)
    await again.catch_up()
    world = World()
    for item in again.items:
        world.add(item)
    assert world.jobs[late].job == await target.job(late)


async def test_deaths_that_nobody_counts_make_no_suspect(
    open_empty: OpenEmpty, store_name: str, clock: ManualClock, tmp_path: Path,
    request: pytest.FixtureRequest,
):  # fmt: skip
    source = await open_empty("memory")
    await source.queue("q")
    lost = await source.running(max_retries=9)
    await source.lose(lost)
    await source.do(Transition(lost.seq, Move.RETRY_WHEN_DUE))
    places = Places(request, store_name, tmp_path)
    store = STORES[store_name](places.new, Rules(poison_after=0), clock)
    await store.open()
    try:
        await restored(source, store)
        (again,) = await store.jobs.claim([Claim(("q",), ["w"])])
        assert (again.id, again.deaths) == (lost.id, 0)
    finally:
        await store.close()
        places.close()


async def test_what_was_held_is_tried_again(open_empty: OpenEmpty, store_name: str):
    source = await some(open_empty)
    no_limit = await source.submit(queue="other", timeout=None, priority=9)
    await source.start((await source.claim(1, queues=("other",), worker_id="lost"))[0])
    target = await open_empty(store_name)
    await restored(source, target.store)
    held = await target.store.workers.held()
    assert {(await target.job(no_limit)).seq} <= {one.seq for one in held}
    # Nobody knows the new leases: reports under the old ones are stale, and so are pulses.
    old = {one.lease for one in await source.store.workers.held()}
    assert not old & {one.lease for one in held}
    await target.store.workers.register(worker("w"))
    pulse = target.store.workers.pulse("w", 1, sorted(old))
    assert sorted(pulse.lost) == sorted(old)
    # What has a limit is found by it; what has none by the leader, because its worker is gone.
    due = await target.store.upkeep.due(100)
    assert not [one for one in due.transitions if one.lease is not None]
    target.clock.advance(120.0)
    late = {
        one.seq for one in (await target.store.upkeep.due(100)).transitions if one.lease is not None
    }
    assert late == {one.seq for one in held} - {(await target.job(no_limit)).seq}
    for one in held:
        await target.do(Transition.worker_lost(one.seq, one.lease, "gone"))
    assert not await target.store.workers.held()
    assert {job.state for job in await all_jobs(target.store)} & HELD == set()


async def test_every_unfinished_job_can_be_executed(open_empty: OpenEmpty, store_name: str):
    source = await some(open_empty)
    target = await open_empty(store_name)
    await restored(source, target.store)
    await run_all(target)
    states = {job.state for job in await all_jobs(target.store)}
    assert states == TERMINAL
    delayed = [job for job in await all_jobs(target.store) if job.key == "k"]
    assert [job.reason for job in delayed] == [Reason.SUCCEEDED]
    target.accepted = source.accepted
    await target.check()


async def test_what_is_claimed_comes_in_the_same_order(open_empty: OpenEmpty, store_name: str):
    source = await some(open_empty)
    for priority in (0, 5, 9, 5):
        await source.submit(queue="other", priority=priority)
    expires = await source.submit(queue="other", ttl=30.0)
    delayed = await source.submit(queue="other", delay=60.0, priority=9)
    target = await open_empty(store_name)
    await restored(source, target.store)
    expected = await source.claim(4, queues=("other",))
    taken = await target.claim(4, queues=("other",))
    assert [one.id for one in taken] == [one.id for one in expected]
    assert [(one.attempt, one.labels) for one in taken] == [
        (one.attempt, one.labels) for one in expected
    ]
    await target.after(31.0)
    assert (await target.job(expires)).reason is Reason.TTL_EXPIRED
    rest = [one.id for one in await target.claim(9, queues=("other",))]
    assert delayed not in rest
    assert len(rest) == 1
    await target.after(30.0)
    assert delayed in [one.id for one in await target.claim(9, queues=("other",))]


async def run_all(target: Driver) -> None:
    """What a leader, a sweeper and a worker do, until there is nothing left to do."""
    await target.apply(
        *(
            Transition.worker_lost(one.seq, one.lease, "gone")
            for one in await target.store.workers.held()
        )
    )
    for stats in await target.store.queues.stats():
        await target.store.queues.pause(stats.queue.name, False)
    for _ in range(100):
        if all(job.state in TERMINAL for job in await all_jobs(target.store)):
            return
        await target.after(100.0)
        taken = await target.claim(500, queues=("*",))
        await target.apply(*(Transition.started(one.seq, one.lease) for one in taken))
        ended = [Transition.succeeded(one.seq, one.lease, b"done") for one in taken]
        assert all(outcome.applied for outcome in await target.apply(*ended))
    pytest.fail("there are jobs that nobody can end")


@pytest.mark.parametrize("published", [True, False])
async def test_the_stream_goes_on_after_it_or_begins_anew(
    open_empty: OpenEmpty, store_name: str, published: bool
):
    source = await some(open_empty)
    target = await open_empty(store_name)
    first = await restored(source, target.store, published=published)
    added = await target.submit(b"new")
    assert await target.store.queues.pause("other", True)
    second = Follower(target)
    await second.catch_up()
    if published:
        ids = {item.event_id for item in second.items}
        assert not ids & {item.event_id for item in first.items}
        assert ids == {f"{added}:1", *(one for one in ids if one.startswith("queue:other:"))}
        items = [*first.items, *second.items]
    else:
        items = [*first.items, *second.items, *second.items]  # what was there, comes again
    world = World()
    for item in items:
        world.add(item)
    assert {name: one.job for name, one in world.jobs.items()} == {
        job.id: job for job in await all_jobs(target.store)
    }
    assert world.queues["other"].paused
    # Either way it can be removed once its events are out, and not before.
    (done, *_) = [job for job in await all_jobs(target.store) if job.state is State.DONE]
    assert await target.delete(done.id) is State.DONE


async def test_only_an_empty_store_is_written(open_empty: OpenEmpty, store_name: str):
    source = await some(open_empty)
    follower = Follower(source)
    await follower.catch_up()
    state = follower.state()

    async def refused(target: Driver, why: str) -> None:
        jobs, stats = await all_jobs(target.store), await target.store.queues.stats()
        with pytest.raises(Conflict, match=why):
            await target.store.restore(state, lambda count: None)
        assert await all_jobs(target.store) == jobs
        assert await target.store.queues.stats() == stats

    used = await open_empty(store_name)
    await used.queue("q")
    await refused(used, "queues")
    await used.submit()
    await refused(used, "jobs")
    scheduling = await open_empty(store_name)
    assert await scheduling.store.schedules.create(state.schedules[0])
    await refused(scheduling, "schedules")
    unused = await open_empty(store_name)
    await unused.store.queues.create(Queue(name="default"))
    term = await unused.store.leadership.lead(7, 5.0)
    assert term is not None
    await refused(unused, "server uses this store")
    await unused.store.leadership.resign(term)
    await unused.store.restore(state, lambda count: None)
    await assert_same(await content_of(source.store), unused.store)
    await refused(unused, "jobs")


@pytest.mark.integration
@pytest.mark.parametrize("store_name", ["postgres", "redis"])
async def test_large_jobs_are_written_a_few_at_a_time(open_empty: OpenEmpty, store_name: str):
    """The arguments of one statement have to be smaller than a gigabyte."""
    source = await open_empty("memory")
    await source.queue("q")
    for _ in range(40):
        await source.submit()
    follower = Follower(source)
    await follower.catch_up()
    state = follower.state()
    payload = b"x" * (1 << 20)
    for rebuilt in state.jobs:
        rebuilt.spec = replace(rebuilt.spec, payload=payload)
    target = await open_empty(store_name)
    told: list[int] = []
    await target.store.restore(state, told.append)
    assert (told[0], told[-1]) == (0, 40)
    assert max(later - earlier for earlier, later in pairwise(told)) <= 16
    assert {len(job.payload) for job in await all_jobs(target.store)} == {len(payload)}
