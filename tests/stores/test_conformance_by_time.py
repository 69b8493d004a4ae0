"""Lists by the time of creation: order, ties, pages, states."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jobqueue.core.clock import milliseconds
from jobqueue.core.job import Job, TimeQuery, Transition
from jobqueue.core.lifecycle import Reason, State
from jobqueue.taskqueue.engine_job import TYPE
from tests.stores.driver import Driver, spec

P, A, R, D, F, X = State
# The type that stores have an index for, and one that they have none for.
TYPES = pytest.mark.parametrize("kind", [TYPE, "other"])


async def listed(driver: Driver, kind: str = TYPE, **wanted) -> list[Job]:
    return await driver.store.reads.list_by_time(TimeQuery(queue="q", type=kind, **wanted))


async def ids(driver: Driver, kind: str = TYPE, **wanted) -> list[str]:
    return [job.id for job in await listed(driver, kind, **wanted)]


async def several_batches(driver: Driver, kind: str) -> list[list[str]]:
    """Batches, each of one millisecond, later ones later."""
    batches = []
    for size in (5, 1, 7, 3):
        results = await driver.results(*(spec(type=kind) for _ in range(size)))
        batches.append([result.job_id for result in results])
        driver.clock.advance(0.0015)
    return batches


@pytest.mark.req("tq:LIST", "tq:LOCK-16")
@TYPES
async def test_by_the_millisecond_either_way_and_ties_by_id(driver: Driver, kind: str):
    batches = await several_batches(driver, kind)
    forward = [job_id for batch in batches for job_id in sorted(batch)]
    backward = [job_id for batch in reversed(batches) for job_id in sorted(batch)]
    assert await ids(driver, kind, ascending=True, limit=100) == forward
    assert await ids(driver, kind, limit=100) == backward


@pytest.mark.req("tq:LIST", "tq:LOCK-16")
async def test_times_within_one_millisecond_are_equal(driver: Driver):
    """What is sorted by is what is shown: no finer, and rounded in the same way."""
    for _ in range(20):
        await driver.submit(type=TYPE)
        driver.clock.advance(0.00037)
    jobs = await listed(driver, ascending=True, limit=100)
    shown = [(milliseconds(job.created_at), job.id) for job in jobs]
    assert len({at for at, _ in shown}) < len(shown)
    assert shown == sorted(shown)
    backward = await listed(driver, limit=100)
    assert [(milliseconds(job.created_at), job.id) for job in backward] == sorted(
        shown, key=lambda one: (-one[0], one[1])
    )


@pytest.mark.req("tq:LIST")
@TYPES
@pytest.mark.parametrize("ascending", [True, False])
async def test_pages_by_offset_make_the_whole(driver: Driver, kind: str, ascending: bool):
    await several_batches(driver, kind)
    whole = await ids(driver, kind, ascending=ascending, limit=100)
    for size in (1, 3, 16):
        pages = [
            await ids(driver, kind, ascending=ascending, offset=offset, limit=size)
            for offset in range(0, 20, size)
        ]
        assert [job_id for page in pages for job_id in page] == whole
    assert await ids(driver, kind, ascending=ascending, offset=16) == []
    assert await ids(driver, kind, ascending=ascending, offset=10**18) == []


async def in_every_state(driver: Driver) -> dict[str, str]:
    """One job of each kind, by a word for it."""
    made: dict[str, str] = {}
    for state in (D, X, F, A, R):
        made[state.name] = (await driver.brought_to(state, type=TYPE)).id
        driver.clock.advance(0.002)
    made["PENDING"] = await driver.submit(type=TYPE)
    driver.clock.advance(0.002)
    cancelled = await driver.brought_to(P, type=TYPE)
    await driver.do(Transition.cancelled(cancelled.seq))
    made["CANCELLED"] = cancelled.id
    await driver.submit(type="other")
    return made


@pytest.mark.req("tq:LIST")
@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize(
    ("states", "cancelled", "found"),
    [
        ((), None, "DONE DEAD_LETTERED FAILED ASSIGNED RUNNING PENDING CANCELLED"),
        ((), True, "DONE FAILED ASSIGNED RUNNING PENDING CANCELLED"),
        ((), False, "DONE DEAD_LETTERED FAILED ASSIGNED RUNNING PENDING"),
        ((P, A, F), None, "FAILED ASSIGNED PENDING"),
        ((R,), None, "RUNNING"),
        ((A, R), None, "ASSIGNED RUNNING"),
        ((D,), None, "DONE"),
        ((X,), None, "DEAD_LETTERED CANCELLED"),
        ((X,), True, "CANCELLED"),
        ((X,), False, "DEAD_LETTERED"),
        ((R, D, X), False, "DONE DEAD_LETTERED RUNNING"),
        ((P, D), True, "DONE PENDING"),
    ],
)
async def test_states_and_which_dead_letters(
    driver: Driver,
    states: tuple[State, ...],
    cancelled: bool | None,
    found: str,
    ascending: bool,
):
    made = await in_every_state(driver)
    wanted: dict[str, Any] = {"states": states, "cancelled": cancelled, "ascending": ascending}
    names = found.split() if ascending else found.split()[::-1]
    assert await ids(driver, **wanted) == [made[name] for name in names]
    pages = [await ids(driver, **wanted, offset=n, limit=1) for n in range(len(names) + 1)]
    assert pages == [*([made[name]] for name in names), []]


async def test_a_cancelled_job_that_was_retried_is_what_it_is_now(driver: Driver):
    job = await driver.brought_to(P, type=TYPE)
    await driver.do(Transition.cancelled(job.seq))
    await driver.do(Transition.retried_by_hand(job.seq))
    assert await ids(driver, states=(X,)) == []
    assert await ids(driver, states=(P,)) == [job.id]


async def test_only_the_queue_and_type_that_were_asked_for(driver: Driver):
    await driver.queue("r")
    mine = await driver.submit(type=TYPE)
    await driver.submit(type=TYPE, queue="r")
    await driver.submit(type="other")
    assert await ids(driver) == [mine]
    query = TimeQuery(queue="nowhere", type=TYPE)
    assert await driver.store.reads.list_by_time(query) == []


async def test_a_listed_job_is_the_job_without_its_result(driver: Driver):
    job = await driver.brought_to(D, type=TYPE, labels={"a": "b"}, key="k", timeout=4.0)
    assert job.result == b"r"
    job.result = None
    assert await listed(driver) == [job]
    assert job.reason is Reason.SUCCEEDED


async def test_against_a_plain_sort_of_everything(driver: Driver):
    """Many jobs in many states, any page of any query: what sorting all of them gives."""
    draw = random.Random(4)
    for _ in range(12):
        size = draw.randint(1, 6)
        await driver.results(*(spec(type=TYPE, max_retries=0) for _ in range(size)))
        driver.clock.advance(draw.choice([0.0, 0.0004, 0.001, 0.5]))
        for one in await driver.claim(draw.randint(0, 4)):
            await driver.start(one)
            end = draw.choice(["none", "done", "dead"])
            if end == "done":
                await driver.succeed(one)
            elif end == "dead":
                await driver.fail(one)
        waiting = await listed(driver, states=(P,), limit=100)
        if waiting:
            await driver.do(Transition.cancelled(draw.choice(waiting).seq))
    everything = await driver.all_jobs()
    for _ in range(60):
        states = tuple(draw.sample([P, A, R, D, F, X], draw.randint(0, 3)))
        cancelled = draw.choice([None, True, False])
        ascending = draw.random() < 0.5
        offset, limit = draw.randint(0, 20), draw.randint(1, 20)
        expected = [
            job
            for job in everything
            if (not states or job.state in states)
            and (
                cancelled is None
                or job.state is not X
                or (job.reason is Reason.CANCELLED) is cancelled
            )
        ]
        sign = 1 if ascending else -1
        expected.sort(key=lambda job: (sign * milliseconds(job.created_at), job.id))
        got = await ids(
            driver,
            states=states,
            cancelled=cancelled,
            ascending=ascending,
            offset=offset,
            limit=limit,
        )
        assert got == [job.id for job in expected[offset : offset + limit]]


@pytest.mark.req("tq:LIST")
async def test_a_clock_that_is_set_back_does_not_spoil_the_order(driver: Driver):
    for seconds in (5.0, -7.0, 1.0, 3.0, -1.0):
        await driver.submit(type=TYPE)
        driver.clock.advance(seconds)
    for ascending in (True, False):
        jobs = await listed(driver, ascending=ascending)
        sign = 1 if ascending else -1
        assert len(jobs) == 5
        assert jobs == sorted(jobs, key=lambda job: (sign * milliseconds(job.created_at), job.id))
