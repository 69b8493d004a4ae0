"""Two processes' stores on one Redis, at the same time."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import NotFound
from jobqueue.core.job import SubmitStatus, Transition, WorkerStatus
from jobqueue.core.lifecycle import Move, State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Change, Claim, Term, TermEnded
from jobqueue.stores.redis.store import RedisStore
from tests import patience
from tests.stores.driver import accept, new, spec, worker

CLAIM = [Claim(("*",), ["w"])]


class Ear:
    """Notes what a store heard of others."""

    def __init__(self, store: RedisStore) -> None:
        self.heard = Change(0)
        self.past = Change(0)  # what was heard when the last wait was over
        store.on_change(self._hear)

    def _hear(self, change: Change) -> None:
        self.heard |= change

    async def hears(self, change: Change) -> None:
        async with patience.timeout(15):
            while change not in self.heard:
                await asyncio.sleep(0.005)
        self.past, self.heard = self.heard, Change(0)


async def test_each_hears_what_the_other_changed(open_store):
    one, two = await open_store(), await open_store()
    ear = Ear(two)
    await two.close()
    await two.open()
    two.on_change(ear._hear)
    await ear.hears(~Change(0))  # it began to listen
    await accept(one)
    await ear.hears(Change.WORK)
    (got,) = await one.jobs.claim(CLAIM)
    await one.jobs.apply([Transition.started(got.seq, got.lease)])
    await one.jobs.request_cancel(got.seq)
    await ear.hears(Change.CONTROL)
    await one.jobs.apply([Transition.succeeded(got.seq, got.lease, None)])
    await ear.hears(Change.ENDED)
    await one.workers.register(worker())
    await ear.hears(Change.CONTROL)
    await one.workers.set_status("w", WorkerStatus.DRAINING)
    await ear.hears(Change.CONTROL)
    term = await one.leadership.lead(1, 60.0)
    await one.leadership.resign(term)
    await ear.hears(Change.CONTROL)
    await one.jobs.submit(new(spec(delay=0.05)))
    async with patience.timeout(15):
        while not (await one.upkeep.due(10)).promoted:
            await asyncio.sleep(0.01)
    await ear.hears(Change.WORK)
    (got,) = await one.jobs.claim(CLAIM)
    await one.jobs.apply([Transition.worker_lost(got.seq, got.lease, "gone")])
    await ear.hears(Change.CONTROL)


async def test_nobody_hears_itself(open_store):
    one, two = await open_store(), await open_store()
    await accept(one)
    (got,) = await two.jobs.claim(CLAIM)
    ear = Ear(one)
    async with patience.timeout(15):
        while Change.CONTROL not in ear.heard:  # until it listens
            await two.workers.register(worker())
            await asyncio.sleep(0.01)
    ear.heard = Change(0)
    await accept(one)
    await two.jobs.apply([Transition.succeeded(got.seq, got.lease, None)])
    await ear.hears(Change.ENDED)  # what is said later is heard later
    assert Change.WORK not in ear.past


async def test_claims_share_no_job(open_store):
    stores = [await open_store(), await open_store()]
    await accept(stores[0], 300)
    got = await asyncio.gather(
        *(store.jobs.claim([Claim(("q",), ["w"] * 7)]) for store in stores for _ in range(30))
    )
    ids = [one.id for part in got for one in part]
    assert len(ids) == len(set(ids)) == 300


async def test_equal_keys_at_once_are_one_job(open_store):
    stores = [await open_store(), await open_store()]
    answers = await asyncio.gather(
        *(
            store.jobs.submit(new(spec(key="k"), spec(key="l")))
            for store in stores
            for _ in range(10)
        )
    )
    statuses = [one.status for answer in answers for one in answer.results]
    assert statuses.count(SubmitStatus.ACCEPTED) == 2
    assert statuses.count(SubmitStatus.DUPLICATE) == 38


async def test_of_two_that_decide_at_once_one_wins(open_store):
    """Moves that are decided outside Redis: what the other wrote in between is seen."""
    one, two = await open_store(), await open_store()
    for _ in range(20):
        (job_id,) = await accept(one)
        (got,) = await one.jobs.claim(CLAIM)
        outcomes = [
            outcome
            for application in await asyncio.gather(
                one.jobs.apply([Transition.failed(got.seq, got.lease, "boom", retry_after=60.0)]),
                two.jobs.apply([Transition.failed(got.seq, got.lease, "bang", retry_after=60.0)]),
                one.jobs.apply([Transition.succeeded(got.seq, got.lease, b"r")]),
                two.jobs.apply([Transition.worker_lost(got.seq, got.lease, "gone")]),
            )
            for outcome in application.outcomes
        ]
        assert sum(outcome.applied for outcome in outcomes) == 1
        events = await one.reads.history(job_id)
        assert [event.version for event in events] == list(range(1, len(events) + 1))


async def test_a_cancel_between_reading_and_writing_is_not_overlooked(open_store, monkeypatch):
    one, two = await open_store(), await open_store()
    (job_id,) = await accept(one)
    (got,) = await one.jobs.claim(CLAIM)
    await one.jobs.apply([Transition.started(got.seq, got.lease)])
    write = one._runner.write
    asked = 0

    async def slow(name, what):
        nonlocal asked
        asked += 1
        if asked == 2:  # it has read and decided, and is about to write
            assert (await two.jobs.request_cancel(got.seq)) is not None
        return await write(name, what)

    monkeypatch.setattr(one._runner, "write", slow)
    (outcome,) = (await one.jobs.apply([Transition.failed(got.seq, got.lease, "boom")])).outcomes
    assert asked == 3  # read; refused, with the job as it is now; written
    assert outcome.state is State.DEAD_LETTERED
    assert (await two.reads.get(job_id)).cancel_requested


async def test_no_job_is_retried_into_a_queue_that_is_deleted(open_store):
    one, two = await open_store(), await open_store()
    for _ in range(15):
        await one.queues.create(Queue(name="brief"))
        (result,) = (await one.jobs.submit(new(spec(queue="brief")))).results
        seq = (await one.reads.get(result.unwrap())).seq
        await one.jobs.apply([Transition.cancelled(seq)])
        applied, left = await asyncio.gather(
            one.jobs.apply([Transition(seq, Move.RETRY_BY_HAND)]), two.queues.delete("brief")
        )
        assert applied.outcomes[0].applied == (left == 1)
        await one.jobs.apply([Transition.dropped_with_queue(seq)])
        await two.queues.delete("brief")
        (refused,) = (await two.jobs.submit(new(spec(queue="brief")))).results
        assert isinstance(refused.error, NotFound)


@pytest.mark.req("sch:LEADER")
async def test_an_old_leader_assigns_and_moves_nothing(open_store):
    """The term is checked in the script that writes: there is no moment in between."""
    old, new_leader = await open_store(partitions=1), await open_store(partitions=1)
    await old.workers.register(worker())
    (job_id,) = await accept(old)
    first = await old.leadership.lead(1, 60.0)
    await old.leadership.resign(first)
    second = await new_leader.leadership.lead(2, 60.0)
    for stale in (first, Term(1, second.epoch), Term(2, first.epoch)):
        with pytest.raises(TermEnded):
            await old.jobs.claim(CLAIM, term=stale)
        with pytest.raises(TermEnded):
            await old.jobs.apply([Transition.cancelled(1)], term=stale)
    assert (await old.reads.get(job_id)).version == 1
    (got,) = await new_leader.jobs.claim(CLAIM, term=second)
    assert got.id == job_id
    assert (
        (await new_leader.jobs.apply([Transition.cancelled(got.seq)], term=second))
        .outcomes[0]
        .applied
    )


@pytest.mark.req("sch:LEADER")
async def test_a_wiped_counter_revives_no_old_leader(open_store, client):
    store = await open_store()
    first = await store.leadership.lead(1, 60.0)
    await client.delete("{jq}:leader", "{jq}:term")
    second = await store.leadership.lead(2, 60.0)
    assert second.epoch == first.epoch
    with pytest.raises(TermEnded):
        await store.workers.retire_silent(1.0, first)
    assert await store.workers.retire_silent(1.0, second) == []


@pytest.mark.req("sch:LEADER")
async def test_who_leads_is_a_key_that_ends_by_itself(open_store, client):
    store = await open_store()
    first = await store.leadership.lead(7, 60.0)
    assert await client.get("{jq}:leader") == f"7:{first.epoch}"
    assert 0 < await client.pttl("{jq}:leader") <= 60_000
    assert await store.leadership.lead(7, 600.0) == first
    assert await client.pttl("{jq}:leader") > 60_000  # renewed
    await store.leadership.resign(first)
    assert await client.exists("{jq}:leader") == 0
    assert (await store.leadership.lead(8, 60.0)).epoch == first.epoch + 1


@pytest.mark.req("sch:LEADER")
async def test_a_lead_by_another_clock_is_not_ended_by_that_of_redis(open_store, client):
    store = await open_store(clock=ManualClock())
    await store.leadership.lead(7, 60.0)
    assert await client.pttl("{jq}:leader") == -1


@pytest.mark.req("sch:LEADER")
async def test_a_lead_whose_key_is_gone_does_not_stand(open_store, client):
    """Redis ends it, or a person does: whoever asks first has it then."""
    one, two = await open_store(), await open_store()
    first = await one.leadership.lead(1, 60.0)
    await client.delete("{jq}:leader")
    with pytest.raises(TermEnded):
        await one.workers.retire_silent(1.0, first)
    assert await one.leadership.lead(1, 60.0) == first  # late, and nobody else came
    await client.delete("{jq}:leader")
    second = await two.leadership.lead(2, 60.0)
    assert second.epoch == first.epoch + 1
    assert await one.leadership.lead(1, 60.0) is None


@pytest.mark.req("sch:LEADER")
async def test_a_lead_runs_out_by_the_clock_of_redis(open_store):
    one, two = await open_store(), await open_store()
    first = await one.leadership.lead(1, 0.3)
    assert first is not None
    assert await two.leadership.lead(2, 60.0) is None
    async with patience.timeout(15):
        while (second := await two.leadership.lead(2, 60.0)) is None:
            await asyncio.sleep(0.01)
    assert second.epoch == first.epoch + 1
    assert await one.leadership.lead(1, 60.0) is None


@pytest.mark.parametrize("hours", [-3, 3])
async def test_the_clock_of_a_server_does_not_matter(open_store, monkeypatch, hours):
    """Only Redis's counts; what a server sleeps by is its own."""
    store = await open_store()
    (done,) = await accept(store)
    (held,) = await store.jobs.claim(CLAIM)
    await store.jobs.apply([Transition.succeeded(held.seq, held.lease, None, 0.1)])
    true = time.time

    def wrong() -> float:
        return true() + 3_600.0 * hours

    monkeypatch.setattr(time, "time", wrong)
    await store.jobs.submit(new(spec(delay=60.0)))
    assert await store.jobs.claim(CLAIM) == []
    due = await store.upkeep.due(10)
    assert (due.transitions, due.promoted) == ([], 0)
    assert due.next_at == pytest.approx(wrong() + 60.0, abs=20.0)
    term = await store.leadership.lead(1, 60.0)
    assert await store.upkeep.prune_done(wrong() - 3_600.0, 10, term) == 0
    assert await store.upkeep.prune_done(wrong() + 3_600.0, 10, term) == 1
    assert await store.reads.get(done) is None


async def test_a_thousand_queues(open_store):
    store, other = await open_store(), await open_store()
    for n in range(1_000):
        await store.queues.create(Queue(name=f"queue-{n}"))
    jobs = new(*(spec(queue=f"queue-{n}") for n in range(1_000)))
    assert all(one.error is None for one in (await store.jobs.submit(jobs)).results)
    got = await asyncio.gather(
        *(each.jobs.claim([Claim(("*",), ["w"] * 500)]) for each in (store, other))
    )
    assert sorted(one.id for part in got for one in part) == sorted(job.id for job in jobs)
