"""What time does to a job: TTL, assignment timeout, watchdog, delays."""

from __future__ import annotations

import pytest

from jobqueue.core.job import Refusal, Transition
from jobqueue.core.lifecycle import Move, Reason, State
from jobqueue.core.store import Rules
from tests.stores.driver import Driver, spec

P, A, R, D, F, X = State


async def moves_due(driver: Driver) -> list[Move]:
    return [transition.move for transition in (await driver.store.upkeep.due(100)).transitions]


async def test_nothing_is_due_in_an_empty_store(driver: Driver):
    found = await driver.store.upkeep.due(10)
    assert (found.transitions, found.promoted, found.next_at) == ([], 0, None)


async def test_a_plain_pending_job_is_never_due(driver: Driver):
    await driver.submit()
    found = await driver.after(1e6)
    assert (found.transitions, found.promoted, found.next_at) == ([], 0, None)


# -- TTL -----------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-004")
async def test_a_job_not_started_within_its_ttl_is_dead_lettered(driver: Driver):
    job_id = await driver.submit(ttl=10.0)
    await driver.after(9.9)
    assert await driver.state(job_id) is P
    await driver.after(0.2)
    job = await driver.job(job_id)
    assert (job.state, job.reason, job.version) == (X, Reason.TTL_EXPIRED, 2)
    assert job.completed_at == driver.clock.now()
    assert await driver.edges(job_id) == [(P, Reason.SUBMITTED), (X, Reason.TTL_EXPIRED)]


@pytest.mark.req("jq:FR-004")
async def test_the_ttl_ends_at_the_first_start(driver: Driver):
    a = await driver.running(ttl=10.0)
    await driver.after(20.0)
    assert await driver.state(a.id) is R
    await driver.fail(a)
    await driver.after(1.0)
    assert await driver.state(a.id) is P
    assert (await driver.job(a.id)).expires_at is None
    await driver.after(1_000.0)
    assert (await driver.claim_one()).expires_in is None


async def test_a_claimed_job_does_not_expire_while_it_is_assigned(driver: Driver):
    a = await driver.assigned(ttl=10.0)
    await driver.after(15.0)
    assert await driver.state(a.id) is A
    await driver.start(a)
    await driver.succeed(a)


@pytest.mark.req("jq:FR-004")
async def test_a_delayed_job_expires_too(driver: Driver):
    job_id = await driver.submit(ttl=10.0, delay=60.0)
    await driver.after(10.0)
    assert (await driver.job(job_id)).reason is Reason.TTL_EXPIRED
    await driver.after(60.0)
    assert await driver.claim(1) == []


async def test_a_delayed_job_can_still_expire_after_it_became_claimable(driver: Driver):
    job_id = await driver.submit(ttl=10.0, delay=5.0)
    assert (await driver.after(6.0)).promoted == 1
    await driver.after(5.0)
    assert (await driver.job(job_id)).reason is Reason.TTL_EXPIRED


async def test_an_expiry_that_a_claim_overtook_is_refused(open_driver):
    driver: Driver = await open_driver()
    job_id = await driver.submit(ttl=10.0)
    seq = (await driver.job(job_id)).seq
    a = await driver.claim_one()
    driver.clock.advance(10.0)
    (outcome,) = await driver.apply(Transition(seq, Move.EXPIRE, version=1))
    assert outcome.refusal in (Refusal.STALE_VERSION, Refusal.WRONG_STATE)
    await driver.succeed(a)


# -- assignment timeout --------------------------------------------------------------------


@pytest.mark.req("jq:FR-016")
async def test_an_assignment_not_started_in_time_fails_and_is_retried(open_driver):
    driver: Driver = await open_driver(Rules(assignment_timeout=20.0))
    a = await driver.assigned()
    await driver.after(19.0)
    assert await driver.state(a.id) is A
    await driver.after(1.5)
    job = await driver.job(a.id)
    assert (job.state, job.reason) == (F, Reason.ASSIGNMENT_TIMEOUT)
    (late,) = await driver.apply(Transition.succeeded(a.seq, a.lease, b"late"))
    assert late.refusal is Refusal.STALE_LEASE
    await driver.after(1.0)
    job = await driver.job(a.id)
    assert (job.state, job.retry_count) == (P, 1)


@pytest.mark.req("jq:FR-016")
async def test_the_assignment_timeout_uses_up_retries(open_driver):
    driver: Driver = await open_driver(Rules(assignment_timeout=20.0))
    a = await driver.assigned(max_retries=0)
    await driver.after(20.5)
    assert (await driver.edges(a.id))[-2:] == [
        (F, Reason.ASSIGNMENT_TIMEOUT),
        (X, Reason.RETRIES_EXHAUSTED),
    ]


@pytest.mark.req("jq:FR-016")
async def test_a_started_job_has_no_assignment_timeout(open_driver):
    driver: Driver = await open_driver(Rules(assignment_timeout=20.0))
    a = await driver.running()
    await driver.after(1_000.0)
    assert await driver.state(a.id) is R


# -- watchdog ------------------------------------------------------------------------------


async def test_the_watchdog_fails_what_runs_beyond_timeout_and_grace(open_driver):
    driver: Driver = await open_driver(Rules(watchdog_grace=5.0))
    a = await driver.running(timeout=30.0)
    await driver.after(34.0)
    assert await driver.state(a.id) is R
    await driver.after(1.5)
    job = await driver.job(a.id)
    assert (job.state, job.reason) == (F, Reason.TIMED_OUT)
    (late,) = await driver.apply(Transition.succeeded(a.seq, a.lease, b"late"))
    assert late.refusal is Refusal.STALE_LEASE


async def test_a_job_without_a_timeout_may_run_for_ever(driver: Driver):
    a = await driver.running()
    await driver.after(1e7)
    assert await driver.state(a.id) is R


# -- delays --------------------------------------------------------------------------------


async def test_promotion_is_no_transition(driver: Driver):
    job_id = await driver.submit(delay=10.0)
    found = await driver.after(10.0)
    assert (found.promoted, found.transitions) == (1, [])
    job = await driver.job(job_id)
    assert (job.state, job.version) == (P, 1)
    assert (await driver.after(10.0)).promoted == 0
    assert len(await driver.claim(5)) == 1


async def test_a_run_at_in_the_past_is_no_delay(driver: Driver):
    job_id = await driver.submit(run_at=driver.clock.now() - 5.0)
    assert (await driver.claim_one()).id == job_id


async def test_a_promoted_job_takes_its_place_by_priority_and_age(driver: Driver):
    delayed = await driver.submit(delay=10.0, priority=1)
    same = await driver.submit(priority=1)
    higher = await driver.submit(priority=2)
    await driver.after(11.0)
    assert [a.id for a in await driver.claim(3)] == [higher, delayed, same]


async def test_a_delayed_job_that_was_cancelled_is_not_promoted(driver: Driver):
    job = await driver.brought_to(P, delay=10.0)
    await driver.do(Transition.cancelled(job.seq))
    assert (await driver.after(20.0)).promoted == 0
    assert await driver.claim(5) == []


# -- the timetable -------------------------------------------------------------------------


async def test_next_at_is_never_later_than_what_comes_next(open_driver):
    driver: Driver = await open_driver(Rules(assignment_timeout=50.0, watchdog_grace=5.0))
    await driver.queue("r")
    start = driver.clock.now()
    await driver.submit(delay=40.0)
    assert (await driver.store.upkeep.due(10)).next_at == pytest.approx(start + 40.0)
    await driver.submit(ttl=30.0)
    assert (await driver.store.upkeep.due(10)).next_at == pytest.approx(start + 30.0)
    a = await driver.running(queue="r", timeout=15.0)
    assert (await driver.store.upkeep.due(10)).next_at == pytest.approx(start + 20.0)
    await driver.fail(a)
    assert (await driver.store.upkeep.due(10)).next_at == pytest.approx(start + 1.0)


async def test_next_at_names_the_assignment_timeout(driver: Driver):
    await driver.assigned()
    expected = driver.clock.now() + driver.rules.assignment_timeout
    assert (await driver.store.upkeep.due(10)).next_at == pytest.approx(expected)


async def test_what_is_found_is_found_again_until_it_is_applied(driver: Driver):
    await driver.brought_to(F)
    await driver.submit(ttl=10.0)
    driver.clock.advance(10.0)
    expected = sorted([Move.EXPIRE, Move.RETRY_WHEN_DUE], key=str)
    for _ in range(3):
        assert sorted(await moves_due(driver), key=str) == expected
    await driver.sweep()
    assert await moves_due(driver) == []


async def test_due_finds_no_more_than_asked_for_and_says_to_come_back(driver: Driver):
    results = await driver.results(*(spec(ttl=10.0) for _ in range(25)))
    driver.clock.advance(10.0)
    seen = 0
    while transitions := (found := await driver.store.upkeep.due(10)).transitions:
        assert len(transitions) <= 10
        seen += len(transitions)
        if seen < 25:
            assert found.next_at is not None
            assert found.next_at <= driver.clock.now()
        await driver.apply(*transitions)
    assert seen == 25
    assert {await driver.state(r.job_id) for r in results} == {X}


async def test_the_sweepers_moves_are_fenced_by_version(driver: Driver):
    """Two sweepers may find the same job: only one of them moves it."""
    job = await driver.brought_to(F)
    driver.clock.advance(5.0)
    first = (await driver.store.upkeep.due(10)).transitions
    second = (await driver.store.upkeep.due(10)).transitions
    assert [o.applied for o in await driver.apply(*first)] == [True]
    assert [o.applied for o in await driver.apply(*second)] == [False]
    assert (await driver.job(job.id)).retry_count == 1
