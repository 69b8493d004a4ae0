"""Two servers on one store: whatever is asked of one counts at the other."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobqueue.core.job import ComponentHealth, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.store import Rules
from tests import patience
from tests.engine.pair import OpenPair, until_true
from tests.engine.rig import Rig, until

# -- heartbeats ------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-019", "jq:NFR-008")
async def test_a_heartbeat_counts_at_any_server(open_pair: OpenPair):
    one, two = await open_pair(heartbeat_timeout=2.0)
    worker = await one.worker(slots=1)
    job_id = await one.submit()
    assignment = await worker.gets_one()
    await worker.start(assignment)
    for _ in range(14):  # for longer than the timeout, with room for a busy machine
        await asyncio.sleep(0.25)
        pulse = await asyncio.to_thread(two.engine.pulse, "w", 1, [assignment.lease])
        assert (pulse.known, pulse.lost) == (True, [])
    assert (await one.engine.get(job_id)).state is State.RUNNING
    assert not (await asyncio.to_thread(two.engine.pulse, "w", 2, [])).known
    assert not (await asyncio.to_thread(two.engine.pulse, "v", 1, [])).known


@pytest.mark.req("jq:FR-020")
async def test_a_lease_is_lost_after_two_complete_lists_without_it_at_one_server(
    open_pair: OpenPair,
):
    one, two = await open_pair()
    worker = await one.worker(slots=1)
    job_id = await one.submit()
    await worker.gets_one()

    async def beat(engine, complete=True) -> State:
        await asyncio.to_thread(engine.pulse, "w", 1, [], (), complete)
        await asyncio.sleep(0.05)
        return (await one.engine.get(job_id)).state

    assert await beat(two.engine) is State.ASSIGNED
    assert await beat(two.engine, complete=False) is State.ASSIGNED
    assert await beat(one.engine) is State.ASSIGNED  # its first
    assert await beat(one.engine, complete=False) is State.ASSIGNED
    await asyncio.to_thread(two.engine.pulse, "w", 1, [])
    job = await two.reaches(job_id, State.PENDING)
    assert job.reason is Reason.HANDED_BACK
    assert two.engine._pulses._missing
    await asyncio.to_thread(two.engine.pulse, "w", 1, [])
    assert not two.engine._pulses._missing  # nothing is kept for ever


# -- operators -------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-023")
async def test_a_drain_through_another_server_reaches_the_worker(open_pair: OpenPair):
    one, two = await open_pair()
    worker = await one.worker(slots=4)
    await two.engine.drain_worker("w")
    await until(lambda: worker.status is WorkerStatus.DRAINING)
    session = one.session()
    assert session is not None
    await session.settle()  # a claim that was under way; a real worker would hand its jobs back
    job_id = await two.submit()
    await asyncio.sleep(0.1)
    assert worker.got == []
    assert (await one.engine.get(job_id)).state is State.PENDING


@pytest.mark.req("jq:FR-023")
async def test_a_drain_is_taken_back_through_another_server(open_pair: OpenPair):
    one, two = await open_pair()
    worker = await one.worker(slots=4)
    await two.engine.drain_worker("w")
    await until(lambda: worker.status is WorkerStatus.DRAINING)
    await worker.link.drain()
    await two.engine.undrain_worker("w")
    await until(lambda: worker.status is WorkerStatus.ONLINE)
    worker.link.grant(4)
    job_id = await two.submit()
    await until(lambda: [job.id for job in worker.got] == [job_id])


@pytest.mark.req("jq:FR-024")
async def test_a_shutdown_through_another_server_reaches_the_worker_also_when_drained(
    open_pair: OpenPair,
):
    one, two = await open_pair()
    worker = await one.worker(slots=4)
    await two.engine.drain_worker("w")
    await until(lambda: worker.status is WorkerStatus.DRAINING)
    await two.engine.shutdown_worker("w")
    await until(lambda: worker.status is WorkerStatus.STOPPING)


@pytest.mark.req("jq:FR-012")
async def test_a_cancel_through_another_server_reaches_the_worker_once(open_pair: OpenPair):
    one, two = await open_pair()
    worker = await one.worker(slots=2)
    first, second = await one.submit(), await one.submit()
    assignments = {a.id: a for a in await worker.gets(2)}
    for assignment in assignments.values():
        await worker.start(assignment)
    assert (await two.engine.cancel(first)).requested
    await until(lambda: worker.cancelled == [assignments[first].lease])
    assert (await two.engine.cancel(second)).requested
    await until(lambda: worker.cancelled == [assignments[first].lease, assignments[second].lease])


async def test_a_lease_that_another_server_ended_is_taken_from_its_worker(open_pair: OpenPair):
    one, two = await open_pair()
    worker = await one.worker(slots=1)
    job_id = await one.submit()
    assignment = await worker.gets_one()
    assert not (await two.engine.cancel(job_id)).requested  # not started: at once
    await until(lambda: worker.cancelled == [assignment.lease])


async def test_a_worker_that_is_judged_by_another_server_gets_nothing_more(open_pair: OpenPair):
    one, two = await open_pair(heartbeat_timeout=0.5)
    worker = await two.worker(slots=4)  # connected to the one that does not lead
    await until(lambda: two.session() is None)
    assert one.leads
    await two.submit()
    await asyncio.sleep(0.1)
    assert worker.got == []
    assert not worker.link.pulse([]).known


# -- one worker, two servers -----------------------------------------------------------------


@pytest.mark.req("jq:FR-021", "jq:NFR-008")
async def test_a_worker_that_connects_elsewhere_gets_nothing_more_from_the_old_server(
    open_pair: OpenPair,
):
    """The old server has not noticed that the link is cut; together they would give it too much."""
    one, two = await open_pair()
    old = await one.worker(slots=4)
    new = await two.worker(slots=4)  # the same incarnation
    await until(lambda: old.moves == 1)
    for _ in range(12):
        await one.submit()
    await new.gets(4)
    await asyncio.sleep(0.2)
    assert (old.got, new.got) == ([], [])
    assert len(await one.store.workers.held("w")) == 4
    assert new.moves == 0


async def test_a_registration_that_arrives_late_does_not_starve_the_worker(open_pair: OpenPair):
    """It is told to connect again where it listens, and then gets its jobs there."""
    one, two = await open_pair()
    listening = await one.worker(slots=1)
    await two.worker(slots=0)  # nobody is at the other end any more
    await until(lambda: listening.moves == 1)
    again = await one.worker(slots=1)
    job_id = await two.submit()
    assert (await again.gets_one()).id == job_id
    assert again.moves == 0


@pytest.mark.req("jq:NFR-007")
async def test_a_worker_started_anew_elsewhere_takes_the_place_of_the_old_one(
    open_pair: OpenPair,
):
    one, two = await open_pair()
    old = await one.worker(slots=2)
    job_id = await one.running(old)
    await two.worker(incarnation=2, slots=0)
    job = await one.reaches(job_id, State.FAILED)
    assert job.reason is Reason.WORKER_LOST
    await until(lambda: old.status is WorkerStatus.STOPPING)
    assert one.session() is None


async def test_what_a_worker_brings_along_is_part_of_its_load(open_pair: OpenPair):
    one, two = await open_pair()
    worker = await one.worker(slots=2)
    await one.running(worker)
    await one.running(worker)
    await two.worker()
    session = two.session()
    assert session is not None
    assert len(session.held) == 2


async def test_a_worker_may_say_goodbye_at_any_server(open_pair: OpenPair):
    one, two = await open_pair()
    await one.worker(slots=1)
    await two.engine.leave("w", 1)
    assert await two.engine.list_workers() == []
    await until(lambda: one.session() is None)
    await two.engine.leave("w", 1)  # no error


@pytest.mark.req("jq:FR-021")
async def test_slots_that_jobs_were_sent_to_in_vain_are_not_given_out_a_second_time(
    open_pair: OpenPair,
):
    """The first server died with jobs on their way to the worker: in the store it has them."""
    one, two = await open_pair()
    old = await one.worker(slots=2, concurrency=2)
    first, second = await one.submit(), await one.submit()
    arrived, _ = await old.gets(2)  # the other one never got there
    one.crash()
    new = await two.worker(slots=1, concurrency=2)
    third = await two.submit()
    await asyncio.sleep(0.15)
    assert new.got == []
    # What it says on its new link settles it at once.
    await asyncio.to_thread(new.link.pulse, [arrived.lease], [], True, True)
    lost = first if arrived.id == second else second
    assert (await new.gets_one()).id == lost
    assert len(await two.store.workers.held("w")) == 2
    assert await new.succeed(arrived, freed=1)
    assert (await new.gets_one()).id == third


async def test_a_first_list_says_nothing_of_what_came_through_the_same_link(open_pair: OpenPair):
    one, _ = await open_pair()
    worker = await one.worker(slots=1)
    job_id = await one.submit()
    await worker.gets_one()
    await asyncio.to_thread(worker.link.pulse, [], [], True, True)
    # A heartbeat may follow at once, before the job has arrived: that is one list, not two.
    await asyncio.to_thread(worker.link.pulse, [])
    await asyncio.sleep(0.1)
    assert (await one.engine.get(job_id)).state is State.ASSIGNED
    await asyncio.to_thread(worker.link.pulse, [])
    assert (await one.reaches(job_id, State.PENDING)).reason is Reason.HANDED_BACK


async def test_leases_that_ended_through_another_server_free_their_slots(open_pair: OpenPair):
    one, two = await open_pair(Rules(assignment_timeout=0.2))
    one.engine._sweeper._task.cancel()  # type: ignore[union-attr]
    one.engine._control._task.cancel()  # type: ignore[union-attr]
    worker = await one.worker(slots=1, concurrency=1)
    first = await one.submit()
    assignment = await worker.gets_one()
    await two.reaches(first, State.FAILED)  # the other one found it overdue
    second = await two.submit()
    worker.link.grant(1)
    await asyncio.sleep(0.1)
    assert worker.got == []
    pulse = await asyncio.to_thread(worker.link.pulse, [assignment.lease])
    assert pulse.lost == [assignment.lease]
    assert (await worker.gets_one()).id == second


# -- waiting ---------------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-008")
async def test_a_wait_at_another_server_ends_when_the_job_does(open_pair: OpenPair):
    """Within the second that its safety net would take."""
    one, two = await open_pair()
    delays = []
    worker = await one.worker(slots=1)
    for _ in range(5):
        job_id = await one.submit()
        waiting = asyncio.create_task(two.engine.wait(job_id, patience.longest(10)))
        assignment = await worker.gets_one()
        await asyncio.sleep(0.15)
        await worker.succeed(assignment, freed=1)
        ended = time.monotonic()
        assert (await waiting).state is State.DONE
        delays.append(time.monotonic() - ended)
    assert sorted(delays)[2] < 0.3 * patience.slowness(), delays


# -- health ----------------------------------------------------------------------------------


async def test_a_part_that_only_slows_the_store_does_not_make_it_unhealthy(rig: Rig):
    rig.memory.components = lambda: [ComponentHealth("redis", False, "no answer")]  # type: ignore[method-assign]
    health = await rig.engine.health()
    assert (health.ok, health.status) == (True, "degraded")
    assert [(part.name, part.ok) for part in health.components] == [
        ("database", True),
        ("redis", False),
        ("leader", True),
    ]


async def test_jobs_given_back_by_an_old_session_reach_the_worker_elsewhere(open_pair: OpenPair):
    """What was on its way to a link that is cut is handed out again after two heartbeats."""
    one, two = await open_pair()
    old = await one.worker(slots=1)
    job_id = await one.submit()
    await old.gets_one()  # never arrives
    new = await two.worker(slots=1)

    async def beaten() -> bool:
        await asyncio.to_thread(new.link.pulse, [], [])
        return bool(new.got)

    await until_true(beaten)
    assert new.got[0].id == job_id
