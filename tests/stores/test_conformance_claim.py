"""Claim: who gets what, in which order."""

from __future__ import annotations

import pytest

from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.store import ALL_QUEUES, Claim
from tests.stores.driver import Driver, new, spec


@pytest.mark.req("jq:FR-009")
async def test_a_claim_begins_an_attempt(driver: Driver):
    job_id = await driver.submit(b"p", type="t", timeout=9.0, labels={"a": "b"}, max_retries=2)
    assignment = await driver.claim_one(worker_id="w7")
    assert (assignment.id, assignment.queue, assignment.type) == (job_id, "q", "t")
    assert (assignment.payload, assignment.attempt, assignment.worker_id) == (b"p", 1, "w7")
    assert (assignment.timeout, dict(assignment.labels)) == (9.0, {"a": "b"})
    assert (assignment.retry_count, assignment.max_retries) == (0, 2)
    assert assignment.created_at == pytest.approx(driver.clock.now())
    assert 0 < assignment.lease < 2**63
    job = await driver.job(job_id)
    assert (job.state, job.version, job.attempt, job.worker_id) == (State.ASSIGNED, 2, 1, "w7")
    assert assignment.seq == job.seq
    event = (await driver.store.reads.history(job_id))[-1]
    assert (event.reason, event.attempt, event.worker_id) == (Reason.ASSIGNED, 1, "w7")


async def test_each_attempt_has_a_lease_of_its_own(driver: Driver):
    first = await driver.assigned()
    await driver.do(Transition.handed_back(first.seq, first.lease))
    second = await driver.claim_one()
    assert second.id == first.id
    assert second.attempt == 2
    assert second.lease != first.lease


@pytest.mark.req("jq:FR-002", "jq:FR-014", "inp:QUEUE")
async def test_highest_priority_first_then_first_in_first_out(driver: Driver):
    order = [3, 0, 9, 3, 9, 0, 5]
    await driver.results(*(spec(b"%d" % n, priority=p) for n, p in enumerate(order)))
    expected = sorted(range(len(order)), key=lambda n: (-order[n], n))
    claimed = await driver.claim(len(order))
    assert [int(a.payload) for a in claimed] == expected


@pytest.mark.req("jq:FR-014")
async def test_order_holds_over_separate_submits_and_claims(driver: Driver):
    for n in range(10):
        await driver.submit(b"%d" % n, priority=n % 3)
        driver.clock.advance(0.5)
    taken = [int((await driver.claim_one()).payload) for _ in range(10)]
    assert taken == [2, 5, 8, 1, 4, 7, 0, 3, 6, 9]


@pytest.mark.req("jq:FR-014")
async def test_order_holds_across_the_queues_of_one_claim(driver: Driver):
    await driver.queue("r")
    for n, (queue, priority) in enumerate([("r", 1), ("q", 1), ("r", 5), ("q", 0), ("r", 1)]):
        await driver.submit(b"%d" % n, queue=queue, priority=priority)
    claimed = await driver.claim(9, queues=["q", "r"])
    assert [int(a.payload) for a in claimed] == [2, 0, 1, 4, 3]


@pytest.mark.req("jq:FR-014")
async def test_a_job_that_comes_back_has_its_old_place(driver: Driver):
    first = await driver.assigned(payload=b"first")
    await driver.submit(b"second")
    await driver.do(Transition.handed_back(first.seq, first.lease))
    assert [a.payload for a in await driver.claim(2)] == [b"first", b"second"]


async def test_a_claim_takes_no_more_than_there_are_slots(driver: Driver):
    await driver.results(*(spec() for _ in range(5)))
    assert len(await driver.claim(3)) == 3
    assert len(await driver.claim(3)) == 2
    assert await driver.claim(3) == []


async def test_the_ith_job_goes_to_the_ith_slot(driver: Driver):
    await driver.results(*(spec(b"%d" % n) for n in range(4)))
    claimed = await driver.store.jobs.claim([Claim(("q",), ["a", "b", "a", "c", "d"])])
    assert [(a.payload, a.worker_id) for a in claimed] == [
        (b"0", "a"),
        (b"1", "b"),
        (b"2", "a"),
        (b"3", "c"),
    ]


@pytest.mark.req("jq:FR-022")
async def test_a_claim_gets_jobs_of_its_own_queues_only(driver: Driver):
    await driver.queue("other")
    await driver.submit(queue="other", priority=9)
    assert await driver.claim(5) == []
    assert await driver.claim(5, queues=["nowhere"]) == []
    assert await driver.claim(5, queues=[]) == []
    mine = await driver.submit()
    assert [a.id for a in await driver.claim(5)] == [mine]


async def test_a_star_claims_from_every_queue(driver: Driver):
    await driver.queue("other")
    low = await driver.submit(queue="other", priority=1)
    high = await driver.submit(priority=2)
    assert [a.id for a in await driver.claim(5, queues=[ALL_QUEUES])] == [high, low]


async def test_a_queue_that_is_not_meant_is_left_alone(driver: Driver):
    await driver.queue("other")
    await driver.submit(queue="other", priority=9)
    mine = await driver.submit()
    spared = Claim((ALL_QUEUES,), ["w"] * 5, frozenset({"other"}))
    assert [a.id for a in await driver.store.jobs.claim([spared])] == [mine]
    named = Claim(("q", "other"), ["w"] * 5, frozenset({"other"}))
    assert await driver.store.jobs.claim([named]) == []
    again = await driver.store.jobs.submit(new(spec(queue="other")), [spared])
    assert again.assigned == []


async def test_several_claims_in_one_call_share_no_job(driver: Driver):
    await driver.queue("r")
    await driver.results(*(spec(queue=q) for q in "qrqrqr"))
    claimed = await driver.store.jobs.claim(
        [
            Claim(("q",), ["only-q"] * 2),
            Claim(("q", "r"), ["both"] * 3),
            Claim(("r",), ["only-r"] * 9),
        ]
    )
    assert len({a.id for a in claimed}) == len(claimed) == 6
    assert {a.queue for a in claimed if a.worker_id == "only-q"} == {"q"}
    assert {a.queue for a in claimed if a.worker_id == "only-r"} == {"r"}
    assert sum(a.worker_id == "both" for a in claimed) == 3


async def test_paused_queues_are_skipped_and_others_are_not(driver: Driver):
    await driver.queue("r")
    waiting = await driver.submit(priority=9)
    other = await driver.submit(queue="r")
    assert await driver.store.queues.pause("q", True)
    assert [a.id for a in await driver.claim(5, queues=["q", "r"])] == [other]
    assert await driver.claim(5, queues=[ALL_QUEUES]) == []
    assert await driver.store.queues.pause("q", False)
    assert [a.id for a in await driver.claim(5)] == [waiting]


async def test_delayed_jobs_are_skipped_until_they_are_due(driver: Driver):
    delayed = await driver.submit(delay=30.0, priority=9)
    plain = await driver.submit()
    assert [a.id for a in await driver.claim(5)] == [plain]
    await driver.after(29.0)
    assert await driver.claim(5) == []
    await driver.after(1.5)
    assert [a.id for a in await driver.claim(5)] == [delayed]


@pytest.mark.req("jq:FR-004")
async def test_expired_jobs_are_skipped_even_before_the_sweep(driver: Driver):
    await driver.submit(ttl=10.0, priority=9)
    driver.clock.advance(10.0)
    plain = await driver.submit()
    assert [a.id for a in await driver.claim(5)] == [plain]


async def test_an_assignment_carries_what_is_left_of_its_ttl(driver: Driver):
    await driver.submit(ttl=10.0)
    driver.clock.advance(4.0)
    assert (await driver.claim_one()).expires_in == pytest.approx(6.0)
    await driver.submit()
    assert (await driver.claim_one()).expires_in is None


async def test_a_submit_can_hand_out_in_the_same_write(driver: Driver):
    jobs = new(spec(b"low"), spec(b"high", priority=9), spec(b"late", delay=5.0))
    submission = await driver.store.jobs.submit(jobs, [Claim(("q",), ["w", "v", "u"])])
    assert [(a.payload, a.worker_id) for a in submission.assigned] == [
        (b"high", "w"),
        (b"low", "v"),
    ]
    assert await driver.state(jobs[0].id) is State.ASSIGNED
    assert await driver.edges(jobs[0].id) == [
        (State.PENDING, Reason.SUBMITTED),
        (State.ASSIGNED, Reason.ASSIGNED),
    ]


@pytest.mark.req("jq:FR-014")
async def test_what_waits_already_goes_before_what_is_submitted_with_a_claim(driver: Driver):
    older = await driver.submit()
    submission = await driver.store.jobs.submit(new(spec(b"newer")), [Claim(("q",), ["w"])])
    assert [a.id for a in submission.assigned] == [older]


async def test_a_submit_hands_out_nothing_of_a_paused_queue(driver: Driver):
    await driver.store.queues.pause("q", True)
    submission = await driver.store.jobs.submit(new(spec()), [Claim(("q",), ["w"])])
    assert submission.assigned == []
    assert await driver.state(submission.results[0].job_id) is State.PENDING


async def test_a_report_can_take_the_next_job_in_the_same_write(driver: Driver):
    first = await driver.running()
    following = await driver.submit(b"next")
    application = await driver.store.jobs.apply(
        [Transition.succeeded(first.seq, first.lease, b"r")], [Claim(("q",), ["w"])]
    )
    assert application.outcomes[0].applied
    assert [a.id for a in application.assigned] == [following]


async def test_a_job_handed_back_can_be_claimed_in_the_same_write(driver: Driver):
    first = await driver.assigned()
    application = await driver.store.jobs.apply(
        [Transition.handed_back(first.seq, first.lease)], [Claim(("q",), ["v"])]
    )
    assert [(a.id, a.attempt, a.worker_id) for a in application.assigned] == [(first.id, 2, "v")]
