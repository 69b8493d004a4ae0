"""Failures: backoff, exhausted retries, poison, hand-back, manual retry."""

from __future__ import annotations

import pytest

from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import Move, Reason, State
from jobqueue.core.store import JobFilter, Rules
from tests.stores.driver import Driver

P, A, R, D, F, X = State


@pytest.mark.req("jq:FR-033")
async def test_a_failed_job_waits_out_its_backoff_in_failed(driver: Driver):
    a = await driver.running()
    failed_at = driver.clock.now()
    await driver.fail(a)
    job = await driver.job(a.id)
    assert (job.state, job.retry_count) == (F, 0)
    assert job.next_retry_at == pytest.approx(failed_at + 1.0)
    await driver.after(0.9)
    assert await driver.state(a.id) is F
    assert await driver.claim(1) == []
    await driver.after(0.2)
    job = await driver.job(a.id)
    assert (job.state, job.retry_count, job.reason) == (P, 1, Reason.RETRY_DUE)
    assert job.next_retry_at is None
    again = await driver.claim_one()
    assert (again.id, again.attempt, again.retry_count) == (a.id, 2, 1)


@pytest.mark.req("jq:FR-033")
async def test_the_exponent_is_the_retries_already_made(driver: Driver):
    a = await driver.running(max_retries=10)
    waits = []
    for _ in range(5):
        await driver.fail(a)
        due = (await driver.job(a.id)).next_retry_at
        assert due is not None
        waits.append(round(due - driver.clock.now(), 6))
        await driver.after(waits[-1])
        a = await driver.claim_one()
    assert waits == [1, 2, 4, 8, 8]


@pytest.mark.req("jq:FR-033")
async def test_the_default_profile_adds_jitter_to_five_ten_twenty(driver: Driver):
    await driver.queue("default", retry_profile="default")
    a = await driver.running(queue="default")
    for base in (5.0, 10.0, 20.0):
        await driver.fail(a)
        due = (await driver.job(a.id)).next_retry_at
        assert due is not None
        wait = due - driver.clock.now()
        assert base <= wait <= base * 1.25
        await driver.after(wait + 0.001)
        a = await driver.claim_one(queues=["default"])


@pytest.mark.req("jq:FR-033")
async def test_a_queues_own_base_maximum_and_jitter_hold(driver: Driver):
    await driver.queue("own", retry_base=3.0, retry_max=10.0, retry_jitter=0.0)
    a = await driver.running(queue="own", max_retries=10)
    for expected in (3.0, 6.0, 10.0, 10.0):
        await driver.fail(a)
        due = (await driver.job(a.id)).next_retry_at
        assert due == pytest.approx(driver.clock.now() + expected)
        await driver.after(expected)
        a = await driver.claim_one(queues=["own"])
    await driver.store.queues.update("own", {"retry_jitter": 1.0})
    await driver.fail(a)
    due = (await driver.job(a.id)).next_retry_at
    assert due is not None
    assert 5.0 - 1e-6 <= due - driver.clock.now() <= 10.0 + 1e-6


@pytest.mark.req("jq:FR-033")
async def test_new_retry_settings_hold_for_the_next_failure_of_jobs_that_wait(driver: Driver):
    failed, running = await driver.running(), await driver.running()
    await driver.fail(failed)
    await driver.store.queues.update("q", {"retry_base": 20.0, "retry_max": 30.0})
    await driver.fail(running)
    waits = [(await driver.job(one.id)).next_retry_at for one in (failed, running)]
    assert waits == [pytest.approx(driver.clock.now() + wait) for wait in (1.0, 20.0)]


async def test_retry_after_overrides_the_backoff(driver: Driver):
    a = await driver.running()
    await driver.fail(a, retry_after=33.0)
    due = (await driver.job(a.id)).next_retry_at
    assert due == pytest.approx(driver.clock.now() + 33.0)
    await driver.after(32.0)
    assert await driver.state(a.id) is F
    await driver.after(1.5)
    assert await driver.state(a.id) is P


@pytest.mark.req("jq:AC-3")
async def test_a_failure_with_no_retry_left_is_dead_lettered_in_the_same_write(driver: Driver):
    a = await driver.running(max_retries=1)
    await driver.fail(a, "first")
    await driver.after(1.0)
    b = await driver.claim_one()
    await driver.start(b)
    outcome = await driver.fail(b, "second")
    assert (outcome.state, outcome.reason) == (X, Reason.RETRIES_EXHAUSTED)
    assert (await driver.edges(a.id))[-2:] == [
        (F, Reason.HANDLER_FAILED),
        (X, Reason.RETRIES_EXHAUSTED),
    ]
    job = await driver.job(a.id)
    assert (job.state, job.retry_count, job.error) == (X, 1, "second")
    assert job.completed_at == driver.clock.now()
    assert job.next_retry_at is None


async def test_a_job_without_retries_fails_once(driver: Driver):
    job = await driver.brought_to(X, max_retries=0)
    assert (job.attempt, job.reason) == (1, Reason.RETRIES_EXHAUSTED)


async def test_a_failure_that_says_do_not_retry_is_final(driver: Driver):
    a = await driver.running()
    outcome = await driver.fail(a, retryable=False)
    assert (outcome.state, outcome.reason) == (X, Reason.NOT_RETRYABLE)


async def test_a_timeout_and_a_lost_worker_are_retried_too(driver: Driver):
    a = await driver.running()
    await driver.do(Transition.timed_out(a.seq, a.lease, "too slow"))
    assert await driver.state(a.id) is F
    await driver.after(1.0)
    b = await driver.claim_one()
    await driver.start(b)
    await driver.lose(b)
    assert await driver.state(a.id) is F
    await driver.after(2.0)
    assert await driver.state(a.id) is P
    assert (await driver.job(a.id)).retry_count == 2


# -- poison --------------------------------------------------------------------------------


async def die_under(driver: Driver, deaths: int, *, started: bool) -> State:
    """Lose the worker that often; returns the state at the end."""
    assignment = None
    for _ in range(deaths):
        await driver.after(10.0)
        assignment = await driver.claim_one()
        if started:
            await driver.start(assignment)
        await driver.lose(assignment)
    assert assignment is not None
    return await driver.state(assignment.id)


async def test_a_job_under_which_workers_keep_dying_is_poison(open_driver):
    driver: Driver = await open_driver(Rules(poison_after=3), max_retries=50)
    job_id = await driver.submit()
    assert await die_under(driver, 2, started=True) is F
    assert await die_under(driver, 1, started=True) is X
    job = await driver.job(job_id)
    assert (job.reason, job.error) == (Reason.POISON, "gone")
    assert (await driver.edges(job_id))[-2:] == [(F, Reason.WORKER_LOST), (X, Reason.POISON)]


async def test_a_worker_that_dies_before_the_start_makes_no_poison(open_driver):
    driver: Driver = await open_driver(Rules(poison_after=2), max_retries=50)
    await driver.submit()
    assert await die_under(driver, 5, started=False) is F
    assert await die_under(driver, 1, started=True) is X


@pytest.mark.req("jq:FR-020")
async def test_an_assignment_carries_how_many_workers_died_while_they_held_the_job(open_driver):
    driver: Driver = await open_driver(Rules(poison_after=9), max_retries=50)
    await driver.submit()
    for deaths in range(5):
        await driver.after(10.0)
        assignment = await driver.claim_one()
        assert assignment.deaths == deaths
        if deaths % 2:
            await driver.start(assignment)
        await driver.lose(assignment)
    await driver.after(10.0)
    handed_back = await driver.claim_one()
    await driver.do(Transition.handed_back(handed_back.seq, handed_back.lease))
    failing = await driver.claim_one()
    await driver.start(failing)
    await driver.fail(failing)
    await driver.after(10.0)
    assert (await driver.claim_one()).deaths == 5  # neither is a death
    assert (await driver.assigned()).deaths == 0  # a job that was just submitted


async def test_without_a_limit_nothing_is_poison(open_driver):
    driver: Driver = await open_driver(Rules(poison_after=0), max_retries=50)
    await driver.submit()
    assert await die_under(driver, 12, started=True) is F
    await driver.after(10.0)
    assert (await driver.claim_one()).deaths == 0


async def test_a_manual_retry_forgets_the_deaths(open_driver):
    driver: Driver = await open_driver(Rules(poison_after=2), max_retries=50)
    job_id = await driver.submit()
    assert await die_under(driver, 2, started=True) is X
    await driver.do(Transition.retried_by_hand((await driver.job(job_id)).seq))
    assert await die_under(driver, 1, started=True) is F
    assert await die_under(driver, 1, started=True) is X


# -- hand-back -----------------------------------------------------------------------------


async def test_a_job_handed_back_can_be_claimed_at_once_and_costs_no_retry(driver: Driver):
    a = await driver.assigned(max_retries=0)
    outcome = await driver.do(Transition.handed_back(a.seq, a.lease))
    assert outcome.state is P
    job = await driver.job(a.id)
    assert (job.state, job.version, job.retry_count, job.worker_id) == (P, 4, 0, None)
    assert (await driver.edges(a.id))[-2:] == [(F, Reason.HANDED_BACK), (P, Reason.HANDED_BACK)]
    again = await driver.claim_one()
    assert (again.id, again.attempt, again.retry_count) == (a.id, 2, 0)


async def test_a_hand_back_has_no_error(driver: Driver):
    a = await driver.running()
    await driver.fail(a, "boom")
    await driver.after(10.0)
    again = await driver.claim_one()
    await driver.do(Transition(again.seq, Move.HAND_BACK, again.lease, error="x" * 2_000_000))
    assert (await driver.job(a.id)).error == "boom"  # of the attempt before
    assert [event.detail for event in (await driver.store.reads.history(a.id))[-2:]] == ["", ""]


async def test_a_job_that_goes_back_and_forth_comes_to_an_end(open_driver):
    driver: Driver = await open_driver(Rules(hand_backs=2))
    job_id = await driver.submit(max_retries=1)
    for _ in range(2):
        a = await driver.claim_one()
        assert (await driver.do(Transition.handed_back(a.seq, a.lease))).state is P
    for state in (F, X):  # from now on each one is a failed attempt
        a = await driver.claim_one()
        assert (await driver.do(Transition.handed_back(a.seq, a.lease))).state is state
        await driver.after(10.0)
    job = await driver.job(job_id)
    assert (job.reason, job.retry_count) == (Reason.RETRIES_EXHAUSTED, 1)
    assert "handed back" in job.error
    assert (await driver.edges(job_id))[-2:] == [(F, Reason.HANDED_BACK), (X, job.reason)]
    await driver.do(Transition.retried_by_hand(job.seq))
    a = await driver.claim_one()
    await driver.start(a)
    assert (await driver.succeed(a)).state is D


async def test_a_job_handed_back_still_expires(driver: Driver):
    a = await driver.assigned(ttl=10.0)
    await driver.do(Transition.handed_back(a.seq, a.lease))
    await driver.after(10.0)
    assert (await driver.job(a.id)).reason is Reason.TTL_EXPIRED


# -- manual retry --------------------------------------------------------------------------


@pytest.mark.req("jq:FR-013")
@pytest.mark.parametrize("state", [F, X])
async def test_a_manual_retry_starts_over_but_keeps_the_attempt(driver: Driver, state: State):
    a = await driver.running(max_retries=3 if state is F else 1)
    await driver.fail(a)
    await driver.after(1.0)
    b = await driver.claim_one()
    await driver.start(b)
    await driver.fail(b)
    job = await driver.job(a.id)
    assert (job.state, job.retry_count) == (state, 1)
    outcome = await driver.do(Transition.retried_by_hand(job.seq))
    assert (outcome.state, outcome.reason) == (P, Reason.MANUAL_RETRY)
    job = await driver.job(a.id)
    assert (job.retry_count, job.attempt, job.error) == (0, 2, "")
    assert (job.completed_at, job.next_retry_at, job.worker_id) == (None, None, None)
    c = await driver.claim_one()
    assert (c.id, c.attempt, c.retry_count) == (a.id, 3, 0)
    await driver.succeed(c)


@pytest.mark.req("jq:FR-013", "jq:FR-004")
async def test_a_manual_retry_clears_the_expiry(driver: Driver):
    job_id = await driver.submit(ttl=10.0)
    await driver.after(11.0)
    job = await driver.job(job_id)
    assert job.reason is Reason.TTL_EXPIRED
    await driver.do(Transition.retried_by_hand(job.seq))
    assert (await driver.job(job_id)).expires_at is None
    await driver.after(1_000.0)
    assert (await driver.claim_one()).id == job_id


async def test_a_manual_retry_of_a_failed_job_is_not_retried_twice(driver: Driver):
    job = await driver.brought_to(F)
    await driver.do(Transition.retried_by_hand(job.seq))
    await driver.after(60.0)
    assert (await driver.job(job.id)).retry_count == 0
    assert len(await driver.claim(5)) == 1


@pytest.mark.req("jq:FR-013")
async def test_a_cancelled_job_can_be_retried_and_is_not_cancelled_again(driver: Driver):
    a = await driver.running()
    await driver.store.jobs.request_cancel(a.seq)
    await driver.do(Transition.cancel_acknowledged(a.seq, a.lease))
    await driver.do(Transition.retried_by_hand(a.seq))
    job = await driver.job(a.id)
    assert (job.state, job.cancel_requested) == (P, False)
    b = await driver.claim_one()
    await driver.start(b)
    await driver.succeed(b)
    assert await driver.state(a.id) is D


# -- dead letters --------------------------------------------------------------------------


@pytest.mark.req("jq:FR-035")
async def test_dead_letters_can_be_listed_and_stay(driver: Driver):
    dead = [(await driver.brought_to(X, payload=b"%d" % n)).id for n in range(3)]
    await driver.brought_to(D)
    await driver.submit()
    await driver.after(100 * 86_400.0)
    assert await driver.prune(driver.clock.now()) == 1
    listed = await driver.store.reads.list_jobs(JobFilter(states=(X,)))
    assert [job.id for job in listed] == dead[::-1]


async def test_a_retry_that_was_cancelled_is_not_made(driver: Driver):
    job = await driver.brought_to(F)
    found = await driver.store.upkeep.due(10)
    assert found.transitions == []
    driver.clock.advance(5.0)
    found = await driver.store.upkeep.due(10)
    assert [t.move for t in found.transitions] == [Move.RETRY_WHEN_DUE]
    await driver.do(Transition.cancelled(job.seq))
    (outcome,) = await driver.apply(*found.transitions)
    assert not outcome.applied
    assert await driver.state(job.id) is X
