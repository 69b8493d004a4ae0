"""One of several servers judges workers and removes old jobs; the others stand by."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Transition, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.store import Term
from jobqueue.engine.leadership import Leadership
from jobqueue.stores.memory import MemoryStore
from tests import patience
from tests.engine.pair import OpenPair, until_true
from tests.engine.rig import Rig, Unreliable, until

# -- the task --------------------------------------------------------------------------------


async def test_the_lead_is_renewed_and_kept():
    memory = MemoryStore(clock=ManualClock())
    real, renewals = memory.leadership.lead, 0

    async def lead(holder: int, ttl: float, name: str = "") -> Term | None:
        nonlocal renewals
        renewals += 1
        return await real(holder, ttl, name)

    memory.leadership.lead = lead  # type: ignore[method-assign]
    leadership = Leadership(Unreliable(memory).leadership, 0.06, lambda: None)
    leadership.start()
    try:
        await until(lambda: leadership.term is not None)
        first = leadership.term
        await until(lambda: renewals > 10)  # for longer than its life
        await until(lambda: leadership.term == first)
    finally:
        await leadership.stop()


@pytest.mark.req("sch:LEADER")
async def test_a_lead_that_ran_out_is_taken_soon_however_long_it_was():
    """Who stands by does not wait for a third of a time to live."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    assert await store.leadership.lead(1, 60.0) is not None
    leadership = Leadership(Unreliable(store).leadership, 60.0, lambda: None)
    leadership.start()
    try:
        await asyncio.sleep(0.3)  # it has asked, in vain
        assert leadership.term is None
        clock.advance(60.1)
        async with patience.timeout(10):
            while leadership.term is None:
                await asyncio.sleep(0.01)
    finally:
        await leadership.stop()


async def test_any_error_steps_down_until_the_lead_is_renewed():
    store = Unreliable(MemoryStore(clock=ManualClock()))
    failures = 0

    def failed() -> None:
        nonlocal failures
        failures += 1

    leadership = Leadership(store.leadership, 0.3, failed)
    leadership.start()
    try:
        await until(lambda: leadership.term is not None)
        first = leadership.term
        store.fail["leadership.lead"] = [Unavailable("down")]
        await until(lambda: not store.fail["leadership.lead"])
        await until(lambda: failures == 1)
        assert leadership.term is None  # although it would stand for a while
        await until(lambda: leadership.term is not None)
        assert leadership.term == first
    finally:
        await leadership.stop()


async def test_a_term_is_not_believed_beyond_its_time_although_nothing_was_heard():
    store = Unreliable(MemoryStore(clock=ManualClock()))
    leadership = Leadership(store.leadership, 0.15, lambda: None)
    leadership.start()
    try:
        await until(lambda: leadership.term is not None)
        hang = asyncio.Event()

        async def lead(*_: object) -> None:
            await hang.wait()

        store._store.leadership.lead = lead  # type: ignore[method-assign,assignment]
        await until(lambda: leadership.term is None)
    finally:
        await leadership.stop()


async def test_a_lead_that_is_granted_during_the_stop_is_given_back():
    memory = MemoryStore(clock=ManualClock())
    store = Unreliable(memory)
    asked, answer = asyncio.Event(), asyncio.Event()
    real = memory.leadership.lead

    async def lead(holder: int, ttl: float, name: str = "") -> Term | None:
        term = await real(holder, ttl)
        asked.set()
        await answer.wait()
        return term

    memory.leadership.lead = lead  # type: ignore[method-assign]
    leadership = Leadership(store.leadership, 60.0, lambda: None)
    leadership.start()
    await patience.wait_for(asked.wait(), 5)
    stopping = asyncio.create_task(leadership.stop())
    await asyncio.sleep(0.02)
    answer.set()
    await stopping
    assert leadership.term is None
    assert await real(4711, 60.0) is not None


async def test_without_the_lead_nobody_is_judged_and_nothing_removed(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=0.1, retention=0.1)
    await until(lambda: rig.engine._sweeper._leadership.term is not None)
    worker, running = await rig.running()
    await worker.succeed(running)
    await rig.engine._sweeper._leadership.stop()
    rig.engine._sweeper._prune_at = 0.0
    assert await rig.memory.leadership.lead(4711, 3600.0) is not None  # somebody else has it
    rig.clock.advance(100.0)
    await asyncio.sleep(0.4)
    assert await rig.state(running.id) is State.DONE
    assert [one.status for one in await rig.engine.list_workers()] == [WorkerStatus.ONLINE]


# -- two servers -----------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-008")
async def test_one_of_two_leads_and_the_other_takes_over_at_once_when_it_stops(
    open_pair: OpenPair,
):
    one, two = await open_pair(leader_ttl=60.0)
    await asyncio.sleep(0.1)
    assert not two.leads
    await one.engine.stop()
    await until(lambda: two.leads)  # long before the sixty seconds


@pytest.mark.req("jq:NFR-008", "jq:FR-020")
async def test_when_the_leader_crashes_another_judges_in_its_place(open_pair: OpenPair):
    one, two = await open_pair(leader_ttl=0.5, heartbeat_timeout=1.0)
    worker = await one.worker(slots=1)
    job_id = await one.running(worker)
    one.crash()
    job = await two.reaches(job_id, State.FAILED)
    assert job.reason is Reason.WORKER_LOST
    assert two.leads
    assert [w.status for w in await two.engine.list_workers()] == [WorkerStatus.OFFLINE]


@pytest.mark.req("jq:FR-033")
async def test_what_is_due_is_done_by_whoever_is_there(open_pair: OpenPair):
    """The leader is gone and nobody has taken over yet: a retry is on time all the same."""
    one, two = await open_pair(leader_ttl=3600.0)
    one.crash()
    worker = await two.worker(slots=1)
    job_id = await two.submit()
    assignment = await worker.gets_one()
    worker.link.grant(1)
    failed = Transition.failed(assignment.seq, assignment.lease, "boom", retry_after=0.1)
    assert await worker.link.report([failed]) == [True]
    again = await worker.gets_one()
    assert (again.id, again.attempt) == (job_id, 2)
    assert not two.leads


async def test_a_server_that_lost_the_store_does_not_judge_when_it_takes_the_lead(
    open_pair: OpenPair,
):
    """It has not seen a full timeout pass, although the store says that the worker was silent."""
    timeout = patience.stretched(2.0)
    one, two = await open_pair(leader_ttl=timeout / 8, heartbeat_timeout=timeout)
    worker = await one.worker()
    await asyncio.sleep(timeout * 0.7)  # silent, but not for long enough
    two.engine._sweeper._suspend_judgement()  # as an outage does
    one.crash()
    await until(lambda: two.leads)
    await asyncio.sleep(timeout * 0.4)  # silent for more than the timeout
    assert [w.status for w in await two.engine.list_workers()] == [WorkerStatus.ONLINE]
    assert two.engine.pulse("w", 1, []).known
    assert worker.status is WorkerStatus.ONLINE


async def test_retention_is_the_leaders(open_pair: OpenPair):
    one, two = await open_pair(leader_ttl=0.5, retention=0.2)
    worker = await two.worker(slots=1)
    job_id = await two.submit()
    await worker.succeed(await worker.gets_one())
    one.crash()

    async def gone() -> bool:
        return await two.store.reads.get(job_id) is None

    two.engine._sweeper._prune_at = 0.0
    await until_true(gone)
    assert two.leads
