"""Dead letters by reason, type, error and time: what is listed, and what a retry of many finds."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.core.job import MAX_ERROR_HEAD, Transition
from jobqueue.core.lifecycle import DEATHS, FAILURES, Reason, State
from jobqueue.core.store import JobFilter
from tests.stores.driver import Driver

X = State.DEAD_LETTERED


async def _failed(driver: Driver, error: str = "boom", **fields: Any) -> str:
    running = await driver.running(max_retries=0, **fields)
    await driver.fail(running, error)
    return running.id


async def _cancelled(driver: Driver, **fields: Any) -> str:
    job_id = await driver.submit(**fields)
    await driver.do(Transition.cancelled((await driver.job(job_id)).seq))
    return job_id


async def _expired(driver: Driver) -> str:
    job_id = await driver.submit(ttl=1.0)
    await driver.after(2.0)
    return job_id


async def _listed(driver: Driver, **wanted: Any) -> list[str]:
    jobs = await driver.store.reads.list_jobs(JobFilter(states=(X,), **wanted))
    return [job.id for job in jobs]


async def _found(driver: Driver, page: int = 100, **wanted: Any) -> list[str]:
    """The ids that looks in pages find; also what each look promises."""
    jobs = {job.seq: job for job in await driver.all_jobs()}
    found: list[str] = []
    before: int | None = None
    while True:
        look = await driver.store.reads.dead_letters(
            JobFilter(before_seq=before, limit=page, **wanted)
        )
        assert len(look.found) <= look.looked_at
        for seq, version in look.found:
            found.append(jobs[seq].id)
            assert version == jobs[seq].version
        if look.before_seq is None:
            return found
        assert look.looked_at > 0
        before = look.before_seq


async def test_dead_letters_are_found_by_reason(driver: Driver):
    failed = await _failed(driver)
    cancelled = await _cancelled(driver)
    expired = await _expired(driver)
    for find in (_listed, _found):
        assert await find(driver) == [expired, cancelled, failed]
        assert await find(driver, reasons=tuple(FAILURES)) == [failed]
        assert await find(driver, reasons=(Reason.CANCELLED,)) == [cancelled]
        assert await find(driver, reasons=(Reason.TTL_EXPIRED, Reason.CANCELLED)) == [
            expired,
            cancelled,
        ]
        assert await find(driver, reasons=(Reason.POISON,)) == []


async def test_dead_letters_are_found_by_type_queue_and_error(driver: Driver):
    await driver.queue("r")
    first = await _failed(driver, "connection to db:5432 refused", type="a")
    second = await _failed(driver, "100% of % and _ are letters, ü too", type="b")
    third = await _failed(driver, "connection reset", type="b", queue="r")
    await driver.brought_to(State.DONE, type="a")
    for find in (_listed, _found):
        assert await find(driver, type="b") == [third, second]
        assert await find(driver, queue="r") == [third]
        assert await find(driver, queue="nowhere") == []
        assert await find(driver, error="connection") == [third, first]
        assert await find(driver, error="Connection") == []
        assert await find(driver, error="0% of % and _") == [second]
        assert await find(driver, error="_") == [second]
        assert await find(driver, error="ü") == [second]
        assert await find(driver, error="a\0b") == []
        assert await find(driver, error="connection", type="b", queue="r") == [third]


async def test_dead_letters_are_found_by_the_time_of_their_death(driver: Driver):
    first = await _failed(driver)
    driver.clock.advance(10.0)
    between = driver.clock.now()
    driver.clock.advance(10.0)
    second = await _failed(driver)
    at = (await driver.job(second)).completed_at
    assert at is not None
    for find in (_listed, _found):
        assert await find(driver, since=between) == [second]
        assert await find(driver, until=between) == [first]
        assert await find(driver, since=at) == [second]  # from this time on
        assert await find(driver, until=at) == [first]  # before this time
        assert await find(driver, since=0.0, until=at + 1) == [second, first]
    assert await driver.store.reads.list_jobs(JobFilter(since=at + 1)) == []


async def test_a_look_is_bounded_by_what_it_looks_at(driver: Driver):
    await driver.queue("r")
    wanted: list[str] = []
    for n in range(12):
        queue = "r" if n % 2 else "q"
        one = await _failed(driver, "rare" if n % 5 == 0 else "often", queue=queue)
        wanted += [one] if n % 5 == 0 else []
    look = await driver.store.reads.dead_letters(JobFilter(error="rare", limit=2))
    assert look.looked_at == 2
    assert look.before_seq is not None
    for page in (1, 2, 3, 5, 12, 100):
        assert await _found(driver, page, error="rare") == wanted[::-1]
        assert len(await _found(driver, page, queue="q")) == 6
        assert len(await _found(driver, page)) == 12


async def test_many_queues_do_not_make_a_look_longer(driver: Driver):
    """Most of them have few dead letters, or none; one has many, the newest or the oldest."""
    names = [f"queue-{n}" for n in range(30)]
    for name in names:
        await driver.queue(name)
    order = [names[3]] * 25 + names[:20] * 2 + [names[7]] * 15
    letters = [await _cancelled(driver, queue=name) for name in order][::-1]
    of_one = [letters[n] for n, name in enumerate(reversed(order)) if name == names[3]]
    for page in (1, 7, 20, 79, 80, 200):
        look = await driver.store.reads.dead_letters(JobFilter(error="rare", limit=page))
        assert 0 < look.looked_at <= page
        assert await _found(driver, page) == letters
        assert await _found(driver, page, queue=names[3]) == of_one


async def test_what_came_back_to_life_is_no_dead_letter(driver: Driver):
    dead = await _failed(driver, "first")
    (found,) = (await driver.store.reads.dead_letters(JobFilter())).found
    await driver.do(Transition.retried_by_hand(*found))
    assert await _found(driver) == []
    assert await driver.store.reads.list_jobs(JobFilter(error="first")) == []
    assert await driver.store.reads.list_jobs(JobFilter(reasons=tuple(DEATHS))) == []
    (outcome,) = await driver.apply(Transition.retried_by_hand(*found))
    assert not outcome.applied  # it has moved on since
    again = await driver.claim_one()
    await driver.start(again)
    await driver.fail(again, "second")
    assert await _found(driver, error="second") == [dead]
    assert await _found(driver, error="first") == []


@pytest.mark.parametrize("state", State)
async def test_other_states_are_listed_by_reason_too(driver: Driver, state: State):
    job = await driver.brought_to(state)
    found = await driver.store.reads.list_jobs(JobFilter(states=(state,), reasons=(job.reason,)))
    assert [one.id for one in found] == [job.id]
    others = tuple(reason for reason in Reason if reason is not job.reason)
    assert await driver.store.reads.list_jobs(JobFilter(states=(state,), reasons=others)) == []


async def test_dead_letters_are_described_without_their_payloads(driver: Driver):
    await driver.queue("r")
    first = await _failed(driver, "no route ü\n" + "x" * 1_000, type="a", queue="r")
    second = await _cancelled(driver)
    done = (await driver.brought_to(State.DONE)).id
    alive = await driver.submit()
    jobs = {one: await driver.job(one) for one in (first, second, alive, done)}
    numbers = [job.seq for job in jobs.values()]
    found = await driver.store.reads.describe([*numbers, 10**9])
    assert [one.id for one in found] == [second, first]  # newest first
    newer, older = found
    assert (older.queue, older.type, older.reason) == ("r", "a", Reason.RETRIES_EXHAUSTED)
    assert older.error == ("no route ü\n" + "x" * 1_000)[:MAX_ERROR_HEAD]
    assert (newer.queue, newer.type, newer.reason) == ("q", jobs[second].type, Reason.CANCELLED)
    for one in found:
        job = jobs[one.id]
        assert (one.seq, one.version, one.at) == (job.seq, job.version, job.completed_at)
    assert await driver.store.reads.describe([]) == []
