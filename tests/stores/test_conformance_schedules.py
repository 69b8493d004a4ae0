"""Schedules: kept whole, changed by revision, advanced under a term."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from jobqueue.core.job import JobSpec
from jobqueue.core.schedule import Overlap, Schedule, ScheduleSpec, ScheduleState, Source
from jobqueue.core.store import TermEnded
from jobqueue.core.stream import ScheduleChange, ScheduleEvent
from tests.stores.driver import Driver

T = 1_800_000_000.0


def schedule(name: str = "s", due: float | None = T + 60, **fields: Any) -> Schedule:
    job = JobSpec(payload=b'{"a": 1}', queue="q", type="t")
    state = ScheduleState(next_at=due, paused=due is None)
    made = Schedule(
        spec=ScheduleSpec(name=name, job=job, cron="* * * * *"),
        source=Source.OPERATOR,
        created_at=T,
        updated_at=T,
        state=state,
    )
    return replace(made, **fields)


WHOLE = Schedule(
    spec=ScheduleSpec(
        name='the "ünü sual" one: 100%\n',
        job=JobSpec(
            payload=bytes(range(256)),
            queue="q",
            type="type",
            priority=9,
            max_retries=0,
            ttl=60.5,
            delay=1.5,
            timeout=30.0,
            labels={"a": "ö", "b": ""},
        ),
        every=90,
        overlap=Overlap.QUEUE,
        catch_up=0.0,
    ),
    source=Source.CODE,
    created_at=T,
    updated_at=T + 5,
    state=ScheduleState(
        next_at=T + 90,
        waiting_at=T,
        last_at=T - 90,
        last_job_id="00000000-0000-4000-8000-000000000000",
        skipped=7,
        skipped_at=T - 180,
        skipped_why="the last job is unfinished",
        problem="queue: \0 \ud800",
    ),
)


async def test_a_schedule_is_kept_whole(driver: Driver):
    store = driver.store.schedules
    assert await store.count() == 0
    assert await store.create(WHOLE)
    assert await store.get([WHOLE.name, "other"]) == [WHOLE]
    bare = replace(WHOLE.spec.job, payload=b"")
    assert await store.page("", 10) == [replace(WHOLE, spec=replace(WHOLE.spec, job=bare))]
    assert await store.count() == 1


async def test_a_name_is_taken_once_and_free_after_a_removal(driver: Driver):
    store = driver.store.schedules
    assert await store.create(schedule())
    assert not await store.create(schedule(due=T + 1))
    assert await store.get(["s"]) == [schedule()]
    assert await store.remove("s")
    assert not await store.remove("s")
    assert await store.get(["s"]) == []
    assert (await store.due(T + 100)).names == ()
    assert await store.create(schedule(due=T + 1))


async def test_one_of_many_concurrent_creations_succeeds(driver: Driver):
    made = await asyncio.gather(*(driver.store.schedules.create(schedule()) for _ in range(8)))
    assert made.count(True) == 1


async def test_names_are_listed_in_the_order_of_their_bytes(driver: Driver):
    store = driver.store.schedules
    names = ["B", "a", "a b", "a/b", "b", "ä", "€", "😀"]
    for name in reversed(names):
        assert await store.create(schedule(name))
    assert [one.name for one in await store.page("", 100)] == names
    assert [one.name for one in await store.page("a b", 2)] == ["a/b", "b"]
    assert await store.page("😀", 2) == []


async def test_a_change_needs_the_revision_before(driver: Driver):
    store = driver.store.schedules
    assert not await store.change(schedule(revision=2))
    assert await store.create(schedule())
    other = replace(schedule().spec, cron="@hourly")
    second = schedule(spec=other, revision=2, due=None)
    assert not await store.change(schedule(revision=1))
    assert not await store.change(schedule(revision=3))
    assert await store.change(second)
    assert not await store.change(replace(second, source=Source.CODE))  # too late
    assert await store.get(["s"]) == [second]


async def test_one_of_many_concurrent_changes_succeeds(driver: Driver):
    store = driver.store.schedules
    assert await store.create(schedule())
    done = await asyncio.gather(
        *(store.change(schedule(due=T + n, revision=2)) for n in range(1, 9))
    )
    assert done.count(True) == 1
    (found,) = await store.get(["s"])
    assert found == schedule(due=T + 1 + done.index(True), revision=2)


async def test_due_schedules_and_the_next_time_are_returned(driver: Driver):
    store = driver.store.schedules
    found = await store.due(T)
    assert (found.names, found.next_at) == ((), None)
    waits = ScheduleState(next_at=T + 50, waiting_at=T - 5)
    for one in (
        schedule("late", T - 1),
        schedule("now", T),
        schedule("soon", T + 0.25),
        schedule("paused", None),
        schedule("waits", state=waits),
    ):
        assert await store.create(one)
    found = await store.due(T)
    assert (found.names, found.next_at) == (("waits", "late", "now"), T + 0.25)
    found = await store.due(T + 60)
    assert (set(found.names), found.next_at) == ({"late", "now", "soon", "waits"}, None)


async def test_ticks_change_the_states_alone_each_by_itself(driver: Driver):
    store, term = driver.store.schedules, await driver.term()
    for name in ("a", "b", "c"):
        assert await store.create(schedule(name))
    (stale,) = await store.get(["b"])
    assert await store.change(replace(stale.after(stale.state), updated_at=T + 1))
    after = ScheduleState(next_at=T + 120, last_at=T + 60, last_job_id="j")
    asked = [
        schedule(name, spec=replace(schedule(name).spec, cron="@daily")).after(after)
        for name in "abcd"
    ]
    assert await store.advance(asked, term) == [True, False, True, False]
    found = await store.get(["a", "b", "c"])
    assert [one.state.last_job_id for one in found] == ["j", "", "j"]
    assert {one.spec.cron for one in found} == {"* * * * *"}
    assert (await store.due(T + 60)).names == ("b",)
    assert (await store.due(T + 60)).next_at == T + 120
    assert await store.advance([found[0].after(after)]) == [True]  # an operator needs no term


@pytest.mark.parametrize("how", ["ran out", "resigned"])
async def test_nothing_ticks_under_an_old_term(driver: Driver, how: str):
    store, leadership = driver.store.schedules, driver.store.leadership
    term = await leadership.lead(7, 10.0)
    assert term is not None
    assert await store.create(schedule())
    if how == "resigned":
        await leadership.resign(term)
    else:
        driver.clock.advance(10.0)
    with pytest.raises(TermEnded):
        await store.advance([schedule().after(ScheduleState(next_at=T + 120))], term)
    assert await store.get(["s"]) == [schedule()]


async def test_the_stream_tells_of_every_change(driver: Driver):
    store, term = driver.store.schedules, await driver.term()
    assert await store.create(schedule("before"))
    await driver.store.stream.begin(term)
    assert await store.create(schedule())
    second = schedule(revision=2, updated_at=T + 1)
    assert await store.change(second)
    state = ScheduleState(next_at=T + 120, last_at=T + 60, last_job_id="j")
    assert await store.advance([second.after(state)], term) == [True]
    assert await store.remove("s")
    told = [item for item in await driver.all_changes() if isinstance(item, ScheduleEvent)]
    assert [(item.name, item.change.name, item.revision) for item in told] == [
        ("before", "CREATED", 1),
        ("s", "CREATED", 1),
        ("s", "CHANGED", 2),
        ("s", "TICKED", 3),
        ("s", "REMOVED", 3),
    ]
    assert [item.schedule for item in told] == [schedule("before"), schedule(), second, None, None]
    assert told[3].state == state
    numbers = [item.number for item in told]
    assert numbers == sorted(set(numbers))
    assert {item.change for item in told} == set(ScheduleChange)
