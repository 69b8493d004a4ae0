"""Queues: capacity, statistics, deletion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobqueue.core.errors import QueueFull
from jobqueue.core.job import Refusal, SubmitStatus, Transition
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import SETTINGS, Queue
from jobqueue.core.store import Claim
from tests.stores.driver import Driver, new, spec

P, A, R, D, F, X = State
ACCEPTED, DUPLICATE, REFUSED = (
    SubmitStatus.ACCEPTED,
    SubmitStatus.DUPLICATE,
    SubmitStatus.REFUSED,
)


@pytest.mark.req("jq:FR-025")
async def test_a_queue_keeps_what_it_was_created_with(driver: Driver):
    await driver.store.queues.create(
        Queue(
            name="mail",
            max_retries=7,
            ttl=60.0,
            timeout=5.0,
            capacity=10,
            retry_profile="producer",
            retry_base=0.25,
            retry_max=40.0,
            retry_jitter=0.5,
            priority_weights={9: 5, 5: 3, 0: 1},
            retention=0.0,
            dead_letter_retention=3_600.5,
            max_running=5,
            rate=100,
            rate_period=60.5,
            rate_burst=7,
            key_max_running=2,
            key_rate=3,
            key_rate_period=0.5,
            key_rate_burst=4,
            key_weights={"tenant:1": 5, "*": 1},
        )
    )
    queue = (await driver.stats("mail")).queue
    assert (queue.name, queue.max_retries, queue.ttl, queue.timeout) == ("mail", 7, 60.0, 5.0)
    assert (queue.capacity, queue.retry_profile, queue.paused) == (10, "producer", False)
    assert (queue.retry_base, queue.retry_max, queue.retry_jitter) == (0.25, 40.0, 0.5)
    assert dict(queue.priority_weights or {}) == {9: 5, 5: 3, 0: 1}
    assert (queue.retention, queue.dead_letter_retention) == (0.0, 3_600.5)
    assert (queue.max_running, queue.rate) == (5, 100)
    assert (queue.rate_period, queue.rate_burst) == (60.5, 7)
    assert (queue.key_max_running, queue.key_rate) == (2, 3)
    assert (queue.key_rate_period, queue.key_rate_burst) == (0.5, 4)
    assert dict(queue.key_weights or {}) == {"tenant:1": 5, "*": 1}
    assert queue.created_at == driver.clock.now()


async def test_a_name_can_be_taken_once(driver: Driver):
    assert not await driver.store.queues.create(Queue(name="q", max_retries=99))
    assert (await driver.stats()).queue.max_retries == 3


EVERYTHING: dict[str, Any] = {
    "max_retries": 9,
    "ttl": 60.0,
    "timeout": 5.0,
    "capacity": 10,
    "retry_profile": "producer",
    "retry_base": 0.25,
    "retry_max": 40.0,
    "retry_jitter": 0.5,
    "priority_weights": {9: 5, 0: 1},
    "retention": 90.0,
    "dead_letter_retention": 0.0,
    "max_running": 5,
    "rate": 100,
    "rate_period": 60.0,
    "rate_burst": 10,
    "key_max_running": 2,
    "key_rate": 3,
    "key_rate_period": 0.5,
    "key_rate_burst": 4,
    "key_weights": {"tenant:1": 5, "ß =,": 2, "*": 1},
}


async def test_an_update_changes_what_it_names_and_nothing_else(driver: Driver):
    assert set(EVERYTHING) == set(SETTINGS)
    await driver.store.queues.pause("q", True)
    before = (await driver.stats()).queue
    for name, value in EVERYTHING.items():
        before = replace(before, **{name: value})
        assert await driver.store.queues.update("q", {name: value}) == before
        assert (await driver.stats()).queue == before
    nothing: dict[str, Any] = dict.fromkeys(
        (
            *("ttl", "timeout", "retry_base", "retry_max", "retry_jitter"),
            *("retention", "dead_letter_retention"),
            *("max_running", "rate", "rate_period", "rate_burst"),
            *("key_max_running", "key_rate", "key_rate_period", "key_rate_burst", "key_weights"),
        )
    )
    plain = replace(before, **nothing, priority_weights=None)
    assert await driver.store.queues.update("q", {**nothing, "priority_weights": None}) == plain
    assert (await driver.stats()).queue == plain
    assert await driver.store.queues.update("q", {}) == plain


async def test_an_update_of_an_unknown_or_deleted_queue_changes_nothing(driver: Driver):
    assert await driver.store.queues.update("nowhere", {"max_retries": 9}) is None
    assert await driver.store.queues.stats("nowhere") == []
    await driver.queue("gone")
    assert await driver.store.queues.delete("gone") == 0
    assert await driver.store.queues.update("gone", {"max_retries": 9}) is None
    assert await driver.store.queues.create(Queue(name="gone"))
    assert (await driver.stats("gone")).queue.max_retries == 3


async def test_a_queue_that_comes_back_has_its_new_settings(driver: Driver):
    await driver.queue("gone", retry_base=2.0, retry_max=9.0, retry_jitter=0.0, retention=1.0)
    assert await driver.store.queues.delete("gone") == 0
    await driver.queue("gone")
    queue = (await driver.stats("gone")).queue
    assert (queue.retry_base, queue.retry_max, queue.retry_jitter) == (None, None, None)
    assert queue.retention is None


async def test_waiting_jobs_keep_what_they_got_and_new_ones_get_the_new_values(driver: Driver):
    old = await driver.submit()
    await driver.store.queues.update("q", {"max_retries": 9, "ttl": 60.0, "timeout": 5.0})
    new_one = await driver.submit()
    kept, got = await driver.job(old), await driver.job(new_one)
    assert (kept.max_retries, kept.ttl, kept.timeout, kept.expires_at) == (3, None, None, None)
    assert (got.max_retries, got.ttl, got.timeout) == (9, 60.0, 5.0)
    assert got.expires_at == driver.clock.now() + 60.0


async def test_capacity_and_weights_of_an_update_hold_at_once(driver: Driver):
    for _ in range(3):
        await driver.submit()
    await driver.store.queues.update("q", {"capacity": 3})
    (refused,) = await driver.results(spec())
    assert isinstance(refused.error, QueueFull)
    await driver.store.queues.update("q", {"capacity": 0, "priority_weights": {0: 1_000, 9: 1}})
    await driver.results(*(spec(priority=9) for _ in range(3)))
    first = [(await driver.claim_one()).priority for _ in range(4)]
    assert first.count(0) >= 2  # by strict priority the first three were of priority 9


async def test_pausing_is_shown_and_an_unknown_queue_is_told_apart(driver: Driver):
    assert await driver.store.queues.pause("q", True)
    assert (await driver.stats()).queue.paused
    assert await driver.store.queues.pause("q", False)
    assert not (await driver.stats()).queue.paused
    assert not await driver.store.queues.pause("nowhere", True)


async def test_a_paused_queue_still_accepts(driver: Driver):
    await driver.store.queues.pause("q", True)
    assert await driver.state(await driver.submit()) is P


# -- capacity ------------------------------------------------------------------------------


@pytest.fixture
async def small(driver: Driver) -> Driver:
    await driver.queue("small", capacity=3)
    return driver


async def test_a_full_queue_refuses_and_writes_nothing(small: Driver):
    for _ in range(3):
        await small.submit(queue="small")
    (job,) = new(spec(queue="small"))
    (result,) = (await small.store.jobs.submit([job])).results
    assert result.status is REFUSED
    assert isinstance(result.error, QueueFull)
    assert result.error.retry_after > 0
    assert "small" in result.error.message
    assert await small.store.reads.get(job.id) is None
    assert (await small.stats("small")).depth[P] == 3


async def test_one_batch_is_accepted_up_to_the_capacity(small: Driver):
    results = await small.results(*(spec(queue="small") for _ in range(5)))
    assert [r.status for r in results] == [ACCEPTED] * 3 + [REFUSED] * 2
    assert all(isinstance(r.error, QueueFull) for r in results[3:])


async def test_one_full_queue_does_not_refuse_for_another(small: Driver):
    results = await small.results(*(spec(queue=q) for q in ["small"] * 4 + ["q"]))
    assert [r.status for r in results] == [ACCEPTED] * 3 + [REFUSED, ACCEPTED]


async def test_capacity_counts_what_is_pending_delayed_included(small: Driver):
    await small.submit(queue="small", delay=100.0)
    await small.submit(queue="small")
    await small.submit(queue="small")
    assert (await small.results(spec(queue="small")))[0].status is REFUSED
    await small.claim(2, queues=["small"])
    results = await small.results(*(spec(queue="small") for _ in range(3)))
    assert [r.status for r in results] == [ACCEPTED, ACCEPTED, REFUSED]


async def test_a_duplicate_is_answered_although_the_queue_is_full(small: Driver):
    first = await small.submit(b"p", queue="small", key="k")
    await small.results(spec(queue="small"), spec(queue="small"))
    (again,) = await small.results(spec(b"p", queue="small", key="k"))
    assert (again.status, again.job_id) == (DUPLICATE, first)


async def test_duplicates_in_a_batch_take_no_capacity(small: Driver):
    results = await small.results(
        *(spec(b"p", queue="small", key="k") for _ in range(4)),
        spec(queue="small"),
        spec(queue="small"),
    )
    assert [r.status for r in results] == [ACCEPTED] + [DUPLICATE] * 3 + [ACCEPTED] * 2


async def test_retries_bypass_capacity(small: Driver):
    a = await small.running(queue="small")
    await small.results(*(spec(queue="small") for _ in range(3)))
    await small.fail(a)
    await small.after(1.0)
    assert await small.state(a.id) is P
    assert (await small.stats("small")).depth[P] == 4


async def test_cancelled_and_expired_jobs_give_their_room_back(small: Driver):
    cancelled = await small.brought_to(P, queue="small")
    await small.submit(queue="small", ttl=5.0)
    await small.submit(queue="small")
    await small.do(Transition.cancelled(cancelled.seq))
    await small.after(5.0)
    results = await small.results(*(spec(queue="small") for _ in range(3)))
    assert [r.status for r in results] == [ACCEPTED, ACCEPTED, REFUSED]


async def test_a_submit_with_a_claim_still_counts_against_capacity(small: Driver):
    """What is handed out in the same write was PENDING first: the batch is judged before."""
    jobs = new(*(spec(queue="small") for _ in range(4)))
    submission = await small.store.jobs.submit(jobs, [Claim(("small",), ["w"] * 2)])
    assert [r.status for r in submission.results] == [ACCEPTED] * 3 + [REFUSED]
    assert len(submission.assigned) == 2


# -- statistics ----------------------------------------------------------------------------


@pytest.mark.req("jq:FR-028")
async def test_depth_by_state_follows_every_job(driver: Driver):
    for count, state in enumerate(State, start=1):
        for n in range(count):
            queue = f"{state.name}-{n}"
            await driver.queue(queue)
            await driver.brought_to(state, queue=queue)
    total = dict.fromkeys(State, 0)
    for stats in await driver.store.queues.stats():
        for state in State:
            total[state] += stats.depth.get(state, 0)
    assert total == {state: count for count, state in enumerate(State, start=1)}


@pytest.mark.req("jq:FR-028", "jq:AC-5")
async def test_processed_counts_attempts_that_ran_to_their_end(driver: Driver):
    a = await driver.running()
    await driver.fail(a, ran_for=2.0)
    await driver.after(1.0)
    b = await driver.claim_one()
    await driver.start(b)
    await driver.do(Transition.succeeded(b.seq, b.lease, b"r", 4.0))
    stats = await driver.stats()
    assert (stats.processed, stats.succeeded, stats.failed) == (2, 1, 1)
    assert stats.run_seconds == pytest.approx(6.0)
    assert stats.average_seconds == pytest.approx(3.0)
    assert stats.error_rate == 0.5


async def test_what_never_ran_is_not_processed(driver: Driver):
    a = await driver.assigned()
    await driver.do(Transition.handed_back(a.seq, a.lease))
    a = await driver.claim_one()
    await driver.lose(a)
    await driver.after(1.0)
    await driver.do(Transition.cancelled(a.seq))
    await driver.submit(ttl=1.0)
    await driver.after(1.0)
    stats = await driver.stats()
    assert (stats.processed, stats.succeeded, stats.failed, stats.run_seconds) == (0, 0, 0, 0)


async def test_quick_jobs_are_processed_whether_or_not_they_say_how_long(driver: Driver):
    a = await driver.assigned(payload=b"a")
    await driver.do(Transition.succeeded(a.seq, a.lease, b"r"))
    b = await driver.assigned(payload=b"b", max_retries=0)
    await driver.do(Transition.failed(b.seq, b.lease, "boom"))
    stats = await driver.stats()
    assert (stats.processed, stats.succeeded, stats.failed) == (2, 1, 1)


async def test_without_a_workers_word_the_stores_clock_times_the_run(driver: Driver):
    a = await driver.running()
    driver.clock.advance(3.0)
    await driver.do(Transition.succeeded(a.seq, a.lease, b"r"))
    assert (await driver.stats()).run_seconds == pytest.approx(3.0)


async def test_a_lost_or_cancelled_run_counts_as_failed(driver: Driver):
    a = await driver.running(payload=b"a")
    await driver.lose(a)
    b = await driver.running(payload=b"b")
    await driver.store.jobs.request_cancel(b.seq)
    await driver.succeed(b)
    stats = await driver.stats()
    assert (stats.processed, stats.succeeded, stats.failed) == (2, 0, 2)


async def test_figures_are_by_queue_and_sorted_by_name(driver: Driver):
    for name in ("zebra", "ant"):
        await driver.queue(name)
    await driver.brought_to(D, queue="ant")
    everything = await driver.store.queues.stats()
    assert [s.queue.name for s in everything] == ["ant", "q", "zebra"]
    assert [s.processed for s in everything] == [1, 0, 0]
    assert await driver.store.queues.stats("nowhere") == []
    assert [s.queue.name for s in await driver.store.queues.stats("ant")] == ["ant"]


async def test_figures_survive_the_removal_of_records(driver: Driver):
    job = await driver.brought_to(D)
    await driver.delete(job.id)
    stats = await driver.stats()
    assert (stats.processed, stats.succeeded, stats.depth.get(D, 0)) == (1, 1, 0)


# -- deletion ------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-026")
async def test_an_empty_queue_can_be_deleted(driver: Driver):
    await driver.queue("gone")
    assert await driver.store.queues.delete("gone") == 0
    assert await driver.store.queues.stats("gone") == []
    assert [s.queue.name for s in await driver.store.queues.stats()] == ["q"]
    (result,) = await driver.results(spec(queue="gone"))
    assert result.status is REFUSED
    assert await driver.store.queues.delete("gone") is None


@pytest.mark.req("jq:FR-026")
@pytest.mark.parametrize("state", [P, A, R, F])
async def test_a_queue_with_an_unfinished_job_is_not_deleted(driver: Driver, state: State):
    job = await driver.brought_to(state)
    if state is not P:
        await driver.brought_to(D)
    assert await driver.store.queues.delete("q") == 1
    assert (await driver.stats()).unfinished == 1
    assert await driver.store.queues.unfinished("q", 10) == [job.seq]
    assert await driver.state(job.id) is state


@pytest.mark.req("jq:FR-026")
async def test_records_of_finished_jobs_outlive_their_queue(driver: Driver):
    done = await driver.brought_to(D)
    dead = await driver.brought_to(X)
    assert await driver.store.queues.delete("q") == 0
    assert await driver.job(done.id) == done
    assert await driver.job(dead.id) == dead
    assert len(await driver.store.reads.history(done.id)) == 4


async def test_a_queue_of_the_same_name_can_be_created_again(driver: Driver):
    await driver.brought_to(D)
    assert await driver.store.queues.delete("q") == 0
    await driver.queue("q", max_retries=9, capacity=2)
    assert (await driver.stats()).queue.max_retries == 9
    job_id = await driver.submit()
    assert (await driver.job(job_id)).max_retries == 9
    a = await driver.claim_one()
    assert a.id == job_id
    await driver.succeed(a)


async def test_dropping_a_queues_jobs_dead_letters_them(driver: Driver):
    jobs = {}
    for state in (A, R, F, P):
        jobs[state] = await driver.brought_to(state, payload=state.name.encode())
    seqs = await driver.store.queues.unfinished("q", 100)
    assert sorted(seqs) == sorted(job.seq for job in jobs.values())
    outcomes = await driver.apply(*(Transition.dropped_with_queue(seq) for seq in seqs))
    assert all(o.applied for o in outcomes)
    for job in jobs.values():
        after = await driver.job(job.id)
        assert (after.state, after.reason) == (X, Reason.QUEUE_DELETED)
    assert await driver.store.workers.held() == []
    assert await driver.store.queues.unfinished("q", 100) == []
    assert await driver.store.queues.delete("q") == 0


async def test_unfinished_reads_no_more_than_asked_for(driver: Driver):
    await driver.results(*(spec() for _ in range(5)))
    assert len(await driver.store.queues.unfinished("q", 2)) == 2


async def test_a_job_of_a_deleted_queue_is_not_retried(driver: Driver):
    job_id = await driver.submit()
    job = await driver.job(job_id)
    await driver.do(Transition.cancelled(job.seq))
    assert await driver.store.queues.delete(job.queue) == 0
    (outcome,) = (await driver.store.jobs.apply([Transition.retried_by_hand(job.seq)])).outcomes
    assert outcome.refusal is Refusal.NO_QUEUE
    assert (await driver.job(job_id)).state is State.DEAD_LETTERED
