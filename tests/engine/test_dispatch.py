"""Dispatch: slots, order, drains, lost leases."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from jobqueue.core.errors import Conflict, InvalidArgument, NotFound
from jobqueue.core.job import JobSpec, Transition, WorkerStatus
from jobqueue.core.lifecycle import Move, Reason, State
from jobqueue.core.queue import QueueSpec
from tests import patience
from tests.engine.rig import Rig, until

P, A, R, D, F, X = State


async def test_a_waiting_worker_gets_a_job_at_once(rig: Rig):
    worker = await rig.worker(slots=1)
    job_id = await rig.submit(b"p")
    assignment = await worker.gets_one()
    assert (assignment.id, assignment.payload, assignment.worker_id) == (job_id, b"p", "w")
    await worker.start(assignment)
    assert await rig.state(job_id) is R
    assert await worker.succeed(assignment)
    job = await rig.engine.get(job_id)
    assert (job.state, job.result, job.worker_id) == (D, b"r", "w")


async def test_a_waiting_job_is_handed_to_a_worker_that_comes_later(rig: Rig):
    job_id = await rig.submit()
    worker = await rig.worker(slots=1)
    assert (await worker.gets_one()).id == job_id


@pytest.mark.req("jq:FR-021")
async def test_a_worker_never_gets_more_than_the_slots_it_granted(rig: Rig):
    worker = await rig.worker(slots=2)
    ids = [await rig.submit(b"%d" % n) for n in range(5)]
    first, second = await worker.gets(2)
    await asyncio.sleep(0.1)
    assert worker.got == []
    assert [await rig.state(job_id) for job_id in ids] == [A, A, P, P, P]
    await worker.succeed(first, freed=1)
    (third,) = await worker.gets(1)
    assert third.id == ids[2]
    await asyncio.sleep(0.1)
    assert worker.got == []
    worker.link.grant(9)
    assert [a.id for a in await worker.gets(2)] == ids[3:]
    del second


async def test_a_freed_slot_is_filled_by_the_very_write_that_frees_it(rig: Rig):
    worker = await rig.worker(slots=1)
    await rig.submit(b"1")
    await rig.submit(b"2")
    first = await worker.gets_one()
    rig.store.calls.clear()
    await worker.succeed(first, freed=1)
    assert [a.payload for a in worker.got] == [b"2"], "it was there when the report returned"
    assert "jobs.claim" not in rig.store.calls


@pytest.mark.req("jq:FR-014")
async def test_jobs_are_handed_out_by_priority_then_age(rig: Rig):
    for n, priority in enumerate([0, 5, 9, 5]):
        await rig.submit(b"%d" % n, priority=priority)
    worker = await rig.worker(slots=4)
    assert [a.payload for a in await worker.gets(4)] == [b"2", b"1", b"3", b"0"]


@pytest.mark.req("jq:FR-022")
async def test_a_worker_gets_jobs_of_its_queues_only(rig: Rig):
    await rig.engine.create_queue(QueueSpec(name="other"))
    await rig.submit(queue="other", priority=9)
    mine = await rig.submit()
    worker = await rig.worker(slots=5)
    assert (await worker.gets_one()).id == mine
    everything = await rig.worker("all", slots=5, queues=("*",))
    assert (await everything.gets_one()).queue == "other"
    assert worker.got == []


async def test_the_least_loaded_worker_is_served_first(rig: Rig):
    busy = await rig.worker("busy", slots=3)
    for n in range(3):
        await rig.submit(b"%d" % n)
    await busy.gets(3)
    idle = await rig.worker("idle", slots=3)
    busy.link.grant(3)
    await rig.submit(b"next")
    assert (await idle.gets_one()).payload == b"next"
    assert busy.got == []


@pytest.mark.req("jq:FR-017")
async def test_one_cycle_hands_out_no_more_than_its_batch(open_rig):
    rig: Rig = await open_rig(batch_size=4)
    await rig.engine.submit([JobSpec(payload=b"x")] * 10)
    claimed: list[int] = []
    real = rig.memory.jobs.claim

    async def claim(claims):
        found = await real(claims)
        claimed.append(len(found))
        return found

    rig.memory.jobs.claim = claim  # type: ignore[method-assign]
    worker = await rig.worker(slots=10)
    await worker.gets(10)
    assert max(claimed) == 4
    assert sum(claimed) == 10


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(rig: Rig):
    worker = await rig.worker(slots=1)
    await rig.engine.pause_queue("default")
    job_id = await rig.submit()
    await asyncio.sleep(0.1)
    assert worker.got == []
    await rig.engine.resume_queue("default")
    assert (await worker.gets_one()).id == job_id
    with pytest.raises(NotFound):
        await rig.engine.pause_queue("nowhere")
    with pytest.raises(NotFound):
        await rig.engine.resume_queue("nowhere")


# -- reports -------------------------------------------------------------------------------


async def test_a_repeated_report_is_answered_with_not_accepted(rig: Rig):
    worker, assignment = await rig.running()
    assert await worker.succeed(assignment) is True
    assert await worker.succeed(assignment) is False


async def test_reports_of_one_call_are_judged_one_by_one(rig: Rig):
    worker = await rig.worker(slots=2)
    await rig.submit(b"1")
    await rig.submit(b"2")
    one, two = await worker.gets(2)
    accepted = await worker.link.report(
        [
            Transition.started(one.seq, one.lease),
            Transition.succeeded(one.seq, one.lease, b"r"),
            Transition.succeeded(two.seq, one.lease, b"wrong lease"),
            Transition.failed(two.seq, two.lease, "boom"),
        ]
    )
    assert accepted == [True, True, False, True]


@pytest.mark.parametrize(
    "report",
    [
        Transition.cancelled(1),
        Transition.retried_by_hand(1),
        Transition.dropped_with_queue(1),
        Transition.worker_lost(1, 2, "mine"),
        Transition(1, Move.EXPIRE),
        Transition(1, Move.TIME_OUT_ASSIGNMENT, 2),
        Transition(1, Move.SUCCEED),
    ],
    ids=lambda report: report.move.value,
)
async def test_a_worker_cannot_report_what_is_not_its_to_say(rig: Rig, report: Transition):
    worker = await rig.worker()
    with pytest.raises(InvalidArgument):
        await worker.link.report([report])


async def test_an_empty_report_only_frees_slots(rig: Rig):
    worker = await rig.worker()
    await rig.submit()
    assert await worker.link.report([], freed=1) == []
    await worker.gets_one()


# -- drain and close -----------------------------------------------------------------------


async def test_after_a_drain_nothing_is_delivered_until_a_grant(rig: Rig):
    worker = await rig.worker(slots=5)
    await worker.link.drain()
    job_id = await rig.submit()
    await asyncio.sleep(0.1)
    assert worker.got == []
    worker.link.grant(3)
    assert (await worker.gets_one()).id == job_id


@pytest.mark.req("jq:FR-023")
async def test_an_operators_drain_stops_new_jobs_and_lets_running_ones_end(rig: Rig):
    worker, assignment = await rig.running()
    worker.link.grant(5)
    await rig.engine.drain_worker("w")
    await until(lambda: worker.status is WorkerStatus.DRAINING)
    waiting = await rig.submit(b"next")
    await asyncio.sleep(0.1)
    assert await rig.state(waiting) is P
    assert [w.status for w in await rig.engine.list_workers()] == [WorkerStatus.DRAINING]
    assert await worker.succeed(assignment, freed=1)
    await asyncio.sleep(0.1)
    assert await rig.state(waiting) is P


@pytest.mark.req("jq:FR-024")
async def test_an_operators_shutdown_reaches_the_worker(rig: Rig):
    worker = await rig.worker(slots=1)
    await rig.engine.shutdown_worker("w")
    await until(lambda: worker.status is WorkerStatus.STOPPING)
    assert worker.link.pulse([]).status is WorkerStatus.STOPPING
    for call in (rig.engine.drain_worker, rig.engine.shutdown_worker):
        with pytest.raises(NotFound):
            await call("nobody")


async def test_an_offline_worker_cannot_be_drained(rig: Rig):
    await rig.worker()
    await rig.memory.workers.set_status("w", WorkerStatus.OFFLINE)
    with pytest.raises(Conflict):
        await rig.engine.drain_worker("w")


async def test_a_drain_through_another_process_arrives_with_the_heartbeat(rig: Rig):
    worker = await rig.worker(slots=1)
    await rig.memory.workers.set_status("w", WorkerStatus.DRAINING)
    assert worker.link.pulse([]).status is WorkerStatus.DRAINING
    job_id = await rig.submit()
    await asyncio.sleep(0.1)
    assert await rig.state(job_id) is P


async def test_a_drained_worker_that_is_taken_back_gets_jobs_again(rig: Rig):
    worker = await rig.worker(slots=1)
    await rig.engine.drain_worker("w")
    await worker.link.drain()
    job_id = await rig.submit()
    await rig.engine.undrain_worker("w")
    await until(lambda: worker.status is WorkerStatus.ONLINE)
    assert worker.got == []  # it has offered nothing since
    worker.link.grant(1)
    await until(lambda: [one.id for one in worker.got] == [job_id])


async def test_slots_that_are_offered_before_the_server_hears_of_it_are_not_lost(rig: Rig):
    """The worker may hear from another server that its drain was taken back."""
    worker = await rig.worker()
    await rig.engine.drain_worker("w")
    worker.link.grant(1)
    job_id = await rig.submit()
    await asyncio.sleep(0.1)
    assert worker.got == []
    await rig.memory.workers.set_status("w", WorkerStatus.ONLINE)
    assert worker.link.pulse([]).status is WorkerStatus.ONLINE
    await until(lambda: [one.id for one in worker.got] == [job_id])


async def test_a_heartbeat_from_before_a_drain_does_not_undo_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    worker = await rig.worker(slots=1)
    real = rig.memory.workers.pulse

    def late(*args: Any, **more: Any) -> Any:
        answer = real(*args, **more)
        session = rig.session()
        assert session is not None
        session.tell(WorkerStatus.DRAINING)  # while the answer is on its way
        return answer

    monkeypatch.setattr(rig.memory.workers, "pulse", late)
    assert worker.link.pulse([]).status is WorkerStatus.DRAINING
    job_id = await rig.submit()
    await asyncio.sleep(0.1)
    assert (worker.got, await rig.state(job_id)) == ([], P)


async def test_a_look_from_before_a_drain_does_not_undo_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    worker = await rig.worker(slots=1)
    real = rig.memory.workers.all

    async def late(*, names: bool) -> Any:
        known = [dataclasses.replace(one) for one in await real(names=names)]
        monkeypatch.setattr(rig.memory.workers, "all", real)
        await rig.engine.drain_worker("w")
        return known

    monkeypatch.setattr(rig.memory.workers, "all", late)
    await rig.engine._control.look()
    assert worker.status is WorkerStatus.DRAINING
    await rig.engine._control.look()
    assert worker.status is WorkerStatus.DRAINING
    await rig.memory.workers.set_status("w", WorkerStatus.ONLINE)
    await rig.engine._control.look()
    await until(lambda: worker.status is WorkerStatus.ONLINE)


@pytest.mark.parametrize("status", [WorkerStatus.STOPPING, WorkerStatus.OFFLINE])
async def test_a_worker_that_ends_is_not_taken_back(rig: Rig, status: WorkerStatus):
    await rig.worker()
    await rig.memory.workers.set_status("w", status)
    with pytest.raises(Conflict, match=f"'w' is {status}"):
        await rig.engine.undrain_worker("w")
    assert [w.status for w in await rig.engine.list_workers()] == [status]


async def test_missing_queues_are_named_in_order(rig: Rig):
    await rig.engine.create_queue(QueueSpec(name="mail"))
    assert await rig.engine.missing_queues(["z", "mail", "a", "default"]) == ["z", "a"]
    with pytest.raises(InvalidArgument, match="queues: 'no name' is not a queue name"):
        await rig.engine.missing_queues(["no name"])


async def test_a_worker_that_says_goodbye_is_gone(rig: Rig):
    worker = await rig.worker(slots=3)
    await worker.link.close()
    assert await rig.engine.list_workers() == []
    job_id = await rig.submit()
    await asyncio.sleep(0.1)
    assert (worker.got, await rig.state(job_id)) == ([], P)


# -- lost leases ---------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-007")
async def test_a_new_incarnation_fails_over_the_old_ones_jobs_at_once(rig: Rig):
    old, assignment = await rig.running()
    await rig.worker("w", incarnation=2)
    job = await rig.engine.get(assignment.id)
    assert (job.state, job.reason) == (F, Reason.WORKER_LOST)
    assert await old.succeed(assignment) is False


async def test_a_reconnect_of_the_same_incarnation_loses_nothing(rig: Rig):
    _, assignment = await rig.running()
    again = await rig.worker("w", incarnation=1)
    assert await rig.state(assignment.id) is R
    assert await again.succeed(assignment)


async def test_a_reconnect_does_not_undo_an_operators_drain(rig: Rig):
    await rig.worker(slots=1)
    await rig.engine.drain_worker("w")
    again = await rig.worker(slots=1)
    job_id = await rig.submit()
    assert (again.got, await rig.state(job_id)) == ([], State.PENDING)


@pytest.mark.req("jq:FR-021")
async def test_a_worker_cannot_be_granted_more_slots_than_it_said_it_has(rig: Rig):
    worker = await rig.worker(slots=3, concurrency=2)
    worker.link.grant(5)
    ids = [await rig.submit(b"%d" % n) for n in range(4)]
    assert [a.id for a in await worker.gets(2)] == ids[:2]
    assert worker.got == []


async def test_the_replaced_session_gets_nothing_more(rig: Rig):
    old = await rig.worker(slots=5)
    new = await rig.worker("w", incarnation=2, slots=1)
    old.link.grant(5)
    job_id = await rig.submit()
    assert (await new.gets_one()).id == job_id
    assert old.got == []


async def test_a_lease_not_listed_for_two_beats_is_failed(rig: Rig):
    worker, assignment = await rig.running()
    worker.link.pulse([])
    await asyncio.sleep(0.05)
    assert await rig.state(assignment.id) is R
    worker.link.pulse([])
    job = await rig.reaches(assignment.id, F)
    assert job.reason is Reason.WORKER_LOST


async def test_one_beat_that_lists_the_lease_is_enough(rig: Rig):
    worker, assignment = await rig.running()
    for leases in ([], [assignment.lease], [], [assignment.lease], []):
        worker.link.pulse(leases)
    await asyncio.sleep(0.05)
    assert await rig.state(assignment.id) is R


async def test_a_heartbeat_from_a_thread_finds_lost_leases_too(rig: Rig):
    worker, assignment = await rig.running()
    await asyncio.to_thread(worker.link.pulse, [])
    await asyncio.to_thread(worker.link.pulse, [])
    await rig.reaches(assignment.id, F)


async def test_what_was_claimed_for_a_worker_that_left_meanwhile_is_handed_back(rig: Rig):
    """The worker's session is replaced while the claim is under way."""
    claiming, proceed = asyncio.Event(), asyncio.Event()
    real = rig.memory.jobs.claim

    async def slow_claim(claims):
        found = await real(claims)
        if found:
            claiming.set()
            await proceed.wait()
        return found

    job_id = await rig.submit()
    rig.memory.jobs.claim = slow_claim  # type: ignore[method-assign]
    old = await rig.worker(slots=1)
    await patience.wait_for(claiming.wait(), 5)
    assert await rig.state(job_id) is A
    rig.memory.jobs.claim = real  # type: ignore[method-assign]
    again = await rig.worker("w", incarnation=1)
    proceed.set()
    job = await rig.reaches(job_id, P)
    assert old.got == []
    assert job.retry_count == 0
    again.link.grant(1)
    assert (await again.gets_one()).attempt == 2
