"""Two servers' stores on one database, at the same time."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobqueue.core.errors import NotFound, QueueFull
from jobqueue.core.job import Assignment, SubmitStatus, Transition
from jobqueue.core.lifecycle import Move, State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim, Term
from jobqueue.stores.postgres import upkeep
from tests import patience
from tests.stores.driver import accept, new, spec

CLAIM = [Claim(("*",), ["w"])]


async def test_equal_keys_at_once_are_one_job(open_store, db):
    """In batches whose keys come in opposite orders."""
    stores = [await open_store(), await open_store()]
    keys = [f"k{n}" for n in range(30)]

    async def submit(store, order) -> dict[str, str]:
        results = (await store.jobs.submit(new(*(spec(key=key) for key in order)))).results
        return {key: result.job_id for key, result in zip(order, results, strict=True)}

    answers = await asyncio.gather(
        *(submit(store, keys[::step]) for store in stores for step in (1, -1) for _ in range(3))
    )
    assert all(answer == answers[0] for answer in answers)
    assert await db.fetchval("SELECT count(*) FROM job_record") == len(keys)


async def test_an_expired_key_is_taken_over_by_one(open_store, db):
    stores = [await open_store(), await open_store()]
    await stores[0].jobs.submit(new(spec(key="k")))
    await db.execute("UPDATE job_key SET expires_at = 0")
    both = await asyncio.gather(
        *(store.jobs.submit(new(spec(key="k"))) for store in stores for _ in range(3))
    )
    statuses = [one.results[0].status for one in both]
    assert sorted(status.value for status in statuses) == ["accepted"] + ["duplicate"] * 5
    assert len({one.results[0].job_id for one in both}) == 1


async def test_a_bounded_queue_is_never_overfilled(open_store):
    stores = [await open_store(), await open_store()]
    await stores[0].queues.create(Queue(name="bounded", capacity=50))
    answers = await asyncio.gather(
        *(
            store.jobs.submit(new(*(spec(queue="bounded") for _ in range(7))))
            for store in stores
            for _ in range(10)
        )
    )
    results = [result for answer in answers for result in answer.results]
    accepted = [one for one in results if one.status is SubmitStatus.ACCEPTED]
    assert len(accepted) == 50
    assert all(isinstance(one.error, QueueFull) for one in results if one not in accepted)
    # One leaves, one may come.
    assert len(await stores[1].jobs.claim(CLAIM)) == 1
    results = (await stores[0].jobs.submit(new(*(spec(queue="bounded") for _ in range(2))))).results
    assert [one.status for one in results] == [SubmitStatus.ACCEPTED, SubmitStatus.REFUSED]


async def test_no_job_is_left_in_a_queue_that_is_deleted(open_store, db):
    stores = [await open_store(), await open_store()]
    for _ in range(15):
        await stores[0].queues.create(Queue(name="brief"))
        submits = [
            store.jobs.submit(new(spec(queue="brief"))) for store in stores for _ in range(3)
        ]
        left, *answers = await asyncio.gather(stores[1].queues.delete("brief"), *submits)
        accepted = 0
        for answer in answers:
            (result,) = answer.results
            accepted += result.status is SubmitStatus.ACCEPTED
            assert result.error is None or isinstance(result.error, NotFound)
        if left == 0:
            assert accepted == 0
        for seq in await stores[0].queues.unfinished("brief", 100):
            await stores[0].jobs.apply([Transition(seq, Move.DROP_WITH_QUEUE)])
        await stores[0].queues.delete("brief")


async def test_a_queue_that_is_created_again_works_at_both(open_store):
    one, two = await open_store(), await open_store()
    for turn in range(3):
        assert await one.queues.create(Queue(name="again", capacity=turn))
        job_id = (await two.jobs.submit(new(spec(queue="again")))).results[0].unwrap()
        async with patience.timeout(5):
            while not (held := await one.jobs.claim(CLAIM)):
                await asyncio.sleep(0.01)
        assert (held[0].id, held[0].queue) == (job_id, "again")
        await two.jobs.apply([Transition.succeeded(held[0].seq, held[0].lease, None, 0.1)])
        assert await two.queues.delete("again") == 0
        (refused,) = (await one.jobs.submit(new(spec(queue="again")))).results
        assert isinstance(refused.error, NotFound)


async def test_an_update_holds_at_the_other_server_as_well(open_store):
    """One that only hears of the ends of jobs, and does not claim meanwhile."""
    one, two = await open_store(), await open_store()
    await two.jobs.submit(new(*(spec() for _ in range(400))))
    held = await two.jobs.claim([Claim(("q",), ["w"] * 400)])
    assert len(held) == 400

    async def wait_of(job: Assignment) -> float:
        failed = Transition.failed(job.seq, job.lease, "boom")
        (outcome,) = (await two.jobs.apply([failed])).outcomes
        assert outcome.due is not None
        return outcome.due - time.time()

    assert await wait_of(held.pop()) < 60  # from here on it knows the queue
    assert await one.queues.update("q", {"retry_base": 3_600.0, "retry_max": 3_600.0})
    while await wait_of(held.pop()) < 60:
        assert held, "the other server has not heard of the update"
        await asyncio.sleep(0.02)


async def test_a_thousand_queues(open_store, db):
    store = await open_store()
    await db.execute(
        "INSERT INTO queues (name, max_retries, retry_profile, created_at)"
        " SELECT 'queue-' || n, 3, 'scheduler', now() FROM generate_series(1, 1000) n"
    )
    jobs = new(*(spec(queue=f"queue-{n}") for n in range(1, 1_001)))
    assert all(one.error is None for one in (await store.jobs.submit(jobs)).results)
    other = await open_store()
    got = await asyncio.gather(
        *(each.jobs.claim([Claim(("*",), ["w"] * 500)]) for each in (store, other))
    )
    async with patience.timeout(20):
        while sum(map(len, got)) < len(jobs):
            got.append(await store.jobs.claim([Claim(("*",), ["w"] * 500)]))
    assert sorted(one.id for part in got for one in part) == sorted(job.id for job in jobs)


async def test_of_many_that_want_the_lead_one_has_it(open_store):
    stores = [await open_store() for _ in range(3)]
    for turn in range(5):
        wanted = [
            (holder, stores[holder % 3].leadership.lead(holder, 60.0)) for holder in range(1, 10)
        ]
        terms = await asyncio.gather(*(call for _, call in wanted))
        (term,) = [term for term in terms if term is not None]
        assert term.epoch == turn + 1
        await stores[0].leadership.resign(term)
        await stores[0].leadership.resign(Term(term.holder, term.epoch))


async def test_a_retry_and_a_removal_of_one_job_do_not_both_happen(open_store):
    one, two = await open_store(), await open_store()
    for _ in range(15):
        (job_id,) = await accept(one)
        (held,) = await one.jobs.claim(CLAIM)
        await one.jobs.apply([Transition.failed(held.seq, held.lease, "boom", retryable=False)])
        applied, removed = await asyncio.gather(
            one.jobs.apply([Transition(held.seq, Move.RETRY_BY_HAND)]),
            two.upkeep.delete_job(job_id),
        )
        (outcome,) = applied.outcomes
        job = await one.reads.get(job_id)
        if outcome.applied:
            assert removed is not State.DEAD_LETTERED
            assert job.state is State.PENDING
            (held,) = await one.jobs.claim(CLAIM)
            await one.jobs.apply([Transition.succeeded(held.seq, held.lease, None, 0.1)])
        else:
            assert removed is State.DEAD_LETTERED
            assert job is None
            assert await one.reads.history(job_id) == []


async def test_figures_stay_right_while_they_are_folded(open_store, db, monkeypatch):
    monkeypatch.setattr(upkeep, "_FOLD_EVERY", 1)
    monkeypatch.setattr(upkeep, "_EVERY", 0.0)
    stores = [await open_store(), await open_store()]
    wrong: list[int] = []

    async def write(store) -> None:
        for _ in range(25):
            await accept(store, 2)
            await store.upkeep.due(10)

    async def look() -> None:
        shown = 0
        while not writing.done():
            (stats,) = await stores[0].queues.stats("q")
            if stats.depth[State.PENDING] < shown:
                wrong.append(stats.depth[State.PENDING])
            shown = stats.depth[State.PENDING]

    writing = asyncio.gather(*(write(store) for store in stores))
    await asyncio.gather(writing, look())
    assert wrong == []
    (stats,) = await stores[0].queues.stats("q")
    assert stats.depth[State.PENDING] == 100
    for store in stores:
        store.upkeep._chores._writes_since_fold = 1
        await store.upkeep.due(10)
    assert await db.fetchval("SELECT count(*) FROM queue_tally") == 1


@pytest.mark.parametrize("hours", [-3, 3])
async def test_the_clock_of_a_server_does_not_matter(open_store, db, monkeypatch, hours):
    """Only the database's counts; what a server sleeps by is its own."""
    store = await open_store()
    (done,) = await accept(store)
    (held,) = await store.jobs.claim(CLAIM)
    await store.jobs.apply([Transition.succeeded(held.seq, held.lease, None, 0.1)])
    true = time.time

    def wrong() -> float:
        return true() + 3_600.0 * hours

    monkeypatch.setattr(time, "time", wrong)
    # Due by the clock of the server whose clock is wrong: in a minute, neither now nor never.
    await store.jobs.submit(new(spec(delay=60.0)))
    assert await store.jobs.claim(CLAIM) == []
    due = await store.upkeep.due(10)
    assert (due.transitions, due.promoted) == ([], 0)
    assert due.next_at == pytest.approx(wrong() + 60.0, abs=20.0)
    # Kept for an hour, whatever the server thinks the time is.
    term = await store.leadership.lead(1, 60.0)
    assert await store.upkeep.prune_done(wrong() - 3_600.0, 10, term) == 0
    async with db.transaction():
        await db.execute("SET LOCAL jobqueue.retention = 'on'")
        await db.execute("UPDATE job_done SET at = at - 3700")
    assert await store.upkeep.prune_done(wrong() - 3_600.0, 10, term) == 1
    assert await store.reads.get(done) is None
