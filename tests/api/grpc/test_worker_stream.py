"""The worker's stream, from the remote link to the engine: credits, drains, breaks."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from jobqueue.api.grpc.messages import Duplex
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import InvalidArgument, OutcomeUnknown, Unavailable
from jobqueue.core.job import Assignment, JobSpec, Transition, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.api.grpc.inbox import RecordingInbox
from tests.engine.rig import session_of


async def submit(engine, count=1, **fields):
    results = await engine.submit([JobSpec(**{"payload": b"x", **fields}) for _ in range(count)])
    return [result.unwrap() for result in results]


def succeed(job, result=b"ok"):
    return Transition.succeeded(job.seq, job.lease, result, 0.01)


async def eventually(condition, within=5.0):
    """For what only the network can bring; everything else is signalled."""
    async with patience.timeout(within):
        while not await condition():
            await asyncio.sleep(0.01)


async def states(engine, ids):
    return [(await engine.get(job_id)).state for job_id in ids]


@pytest.mark.req("jq:FR-029")
async def test_a_job_from_submit_to_done(engine, remote, worker_info):
    (job_id,) = await submit(engine, payload=b"\x00\xff", type="t", priority=3, timeout=9.0)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(), inbox)
    assert inbox.jobs == []  # no slots, no jobs
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    (job,) = inbox.jobs
    assert (job.id, job.payload, job.type, job.priority) == (job_id, b"\x00\xff", "t", 3)
    assert (job.attempt, job.timeout, job.worker_id) == (1, 9.0, "w1")
    assert await link.report([Transition.started(job.seq, job.lease)]) == [True]
    assert (await engine.get(job_id)).state is State.RUNNING
    assert await link.report([succeed(job, b"42")]) == [True]
    done = await engine.get(job_id)
    assert (done.state, done.result) == (State.DONE, b"42")
    assert await link.report([succeed(job, b"43")]) == [False]  # stale
    assert (await engine.get(job_id)).result == b"42"
    await link.close()


@pytest.mark.req("jq:FR-021")
async def test_credits_are_never_exceeded(engine, remote, worker_info):
    await submit(engine, 300)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(concurrency=7), inbox)
    link.grant(7)
    draw = random.Random(1)
    held: list[Assignment] = []
    done, most = 0, 0
    while done < 300:
        if not held:
            await inbox.until(lambda inbox: inbox.jobs)
        held += inbox.jobs
        inbox.jobs = []
        most = max(most, len(held))
        count = draw.randint(0, len(held))
        ending, held = held[:count], held[count:]
        if ending:
            assert all(await link.report([succeed(job) for job in ending], freed=count))
            done += count
        assert len(held) + len(inbox.jobs) <= 7
    assert most == 7
    await link.close()


async def test_failures_and_hand_backs_arrive(engine, remote, worker_info):
    ids = await submit(engine, 5, max_retries=3)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(concurrency=5), inbox)
    link.grant(5)
    await inbox.until(lambda inbox: len(inbox.jobs) == 5)
    a, b, c, d, e = (job for job_id in ids for job in inbox.jobs if job.id == job_id)
    accepted = await link.report(
        [
            Transition.failed(a.seq, a.lease, "boom", retryable=False),
            Transition.failed(b.seq, b.lease, "later", retry_after=500.0),
            Transition.timed_out(c.seq, c.lease),
            Transition.handed_back(d.seq, d.lease),
            Transition.cancel_acknowledged(e.seq, e.lease),
        ]
    )
    assert accepted == [True] * 5
    jobs = [await engine.get(job_id) for job_id in ids]
    assert [(job.state, job.reason) for job in jobs] == [
        (State.DEAD_LETTERED, Reason.NOT_RETRYABLE),
        (State.FAILED, Reason.HANDLER_FAILED),
        (State.FAILED, Reason.TIMED_OUT),
        (State.PENDING, Reason.HANDED_BACK),
        (State.DEAD_LETTERED, Reason.CANCELLED),
    ]
    assert jobs[0].error == "boom"
    assert jobs[1].next_retry_at > jobs[1].created_at + 400
    await link.close()


async def test_cancels_reach_the_worker(engine, remote, worker_info):
    (job_id,) = await submit(engine)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    (job,) = inbox.jobs
    await link.report([Transition.started(job.seq, job.lease)])
    assert (await remote.cancel(job_id)).requested
    await inbox.until(lambda inbox: inbox.cancelled == [job.lease])
    await link.close()


async def test_after_a_drain_nothing_is_delivered_and_a_grant_begins_anew(
    engine, remote, worker_info
):
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(), inbox)
    link.grant(4)
    await engine.until(lambda: engine.links[-1].granted == 4)
    feeding = asyncio.create_task(submit(engine, 2))
    await link.drain()
    got = len(inbox.jobs)
    await feeding
    await submit(engine, 10)
    assert await link.report([]) == []  # a round trip: whatever was on its way has come
    assert len(inbox.jobs) == got
    link.grant(1)
    await inbox.until(lambda inbox: len(inbox.jobs) == got + 1)
    await link.close()


async def test_a_drain_waits_for_reports_that_free_slots(engine, remote, worker_info):
    await submit(engine, 3)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(concurrency=1), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    reporting = asyncio.create_task(link.report([succeed(inbox.jobs[0])], freed=1))
    await asyncio.sleep(0)
    await link.drain()
    assert reporting.done()
    got = len(inbox.jobs)
    await submit(engine, 3)
    assert await link.report([]) == []
    assert len(inbox.jobs) == got
    await link.close()


async def test_slots_freed_during_a_drain_are_offered_after_it(engine, remote, worker_info):
    await submit(engine, 2)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(concurrency=1), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    draining = asyncio.create_task(link.drain())
    await asyncio.sleep(0)
    assert await link.report([succeed(inbox.jobs[0])], freed=1) == [True]
    await draining
    await inbox.until(lambda inbox: len(inbox.jobs) == 2)
    await link.close()


async def test_a_drain_ends_with_the_task_of_the_stream(engine, remote, worker_info):
    """`asyncio.run` cancels every task at its end, and a worker stops then: it waited for 10 s."""
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(), inbox)
    (task,) = (one for one in asyncio.all_tasks() if one.get_name() == "link-w1")
    link._server.timeout = patience.longest(60)  # of a call: nothing here may wait for it
    draining = asyncio.create_task(link.drain())
    await asyncio.sleep(0)
    task.cancel()
    async with patience.timeout(5):
        await draining
        await link.drain()
    await link.close()


async def test_a_report_is_sent_after_the_task_of_the_stream_was_cancelled(
    engine, remote, worker_info
):
    """``asyncio.run`` cancels every task at its end; reports of finished jobs must not be lost."""
    await submit(engine)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    (task,) = (one for one in asyncio.all_tasks() if one.get_name() == "link-w1")
    task.cancel()
    await asyncio.wait([task])
    await link.drain()
    async with patience.timeout(10):
        assert await link.report([succeed(inbox.jobs[0])], freed=1) == [True]
    await link.close()
    with pytest.raises(Unavailable):
        await link.report([succeed(inbox.jobs[0])])


async def test_heartbeats_work_while_the_loop_is_blocked(engine, remote, worker_info):
    await submit(engine)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    (job,) = inbox.jobs
    pulse = await asyncio.to_thread(link.pulse, [job.lease, 12345])
    assert (pulse.known, pulse.status, pulse.lost) == (True, WorkerStatus.ONLINE, [12345])
    answers = []
    thread = threading.Thread(target=lambda: answers.append(link.pulse([job.lease])))
    thread.start()
    await asyncio.to_thread(thread.join, 5)
    assert answers[0].known
    await link.close()
    with pytest.raises(Unavailable):
        await asyncio.to_thread(link.pulse, [])


async def test_reports_fail_as_the_engine_fails(engine, remote, worker_info):
    await submit(engine, 2)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(concurrency=1), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    for error in (Unavailable("disk full"), OutcomeUnknown("perhaps")):
        engine.report_error = error
        with pytest.raises(type(error), match=error.message):
            await link.report([succeed(inbox.jobs[0])], freed=1)
    assert len(inbox.jobs) == 1  # nothing was freed
    engine.report_error = None
    assert await link.report([succeed(inbox.jobs[0])], freed=1) == [True]
    await inbox.until(lambda inbox: len(inbox.jobs) == 2)
    await link.close()


async def test_a_report_without_lease_or_right_is_refused_here_already(remote, worker_info):
    link = await remote.connect(worker_info(), RecordingInbox())
    with pytest.raises(InvalidArgument):
        await link.report([Transition.retried_by_hand(1)])
    with pytest.raises(InvalidArgument):
        await link.report([Transition(1, Transition.started(1, 1).move)])
    with pytest.raises(InvalidArgument, match="too large"):
        await link.report([Transition.succeeded(1, 1, b"x" * 5_000_000)])
    await link.close()


async def test_registration_can_fail(remote, worker_info):
    with pytest.raises(InvalidArgument):
        await remote.connect(worker_info(concurrency=0), RecordingInbox())
    nobody = GrpcBackend("127.0.0.1:1", timeout=1.0)
    with pytest.raises(Unavailable):
        await nobody.connect(worker_info(), RecordingInbox())
    await nobody.stop()


async def test_a_break_keeps_leases_and_offers_free_slots_again(
    engine, proxy, through_proxy, worker_info
):
    ids = await submit(engine)
    inbox = RecordingInbox()
    link = await through_proxy.connect(worker_info(concurrency=3), inbox)
    link.grant(3)
    await inbox.until(lambda inbox: inbox.jobs)
    (job,) = inbox.jobs
    await link.report([Transition.started(job.seq, job.lease)])
    proxy.cut()
    await engine.until(lambda: len(engine.links) >= 2 and engine.links[-1].granted == 2)
    assert engine.links[0].drains >= 1
    assert not any(link.closed for link in engine.links)
    assert await states(engine, ids) == [State.RUNNING]
    assert await link.report([succeed(job)], freed=1) == [True]
    more = await submit(engine, 5)
    await inbox.until(lambda inbox: len(inbox.jobs) == 4)
    assert await link.report([]) == []
    assert len(inbox.jobs) == 4  # three slots, not more
    assert (await states(engine, ids + more)).count(State.ASSIGNED) == 3
    await link.close()


async def test_a_lost_answer_is_unknown_and_the_repeat_frees_the_slot_once(
    engine, proxy, through_proxy, worker_info
):
    await submit(engine, 10)
    inbox = RecordingInbox()
    link = await through_proxy.connect(worker_info(concurrency=1), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    first = inbox.jobs[0]
    engine.report_gate.clear()
    reporting = asyncio.create_task(link.report([succeed(first)], freed=1))
    await engine.until(lambda: len(engine.links[-1].reported) == 1)
    await inbox.until(lambda inbox: len(inbox.jobs) == 2)  # the slot was used at once
    proxy.cut()
    with pytest.raises(OutcomeUnknown):
        await reporting
    engine.report_gate.set()
    assert await link.report([succeed(first)], freed=1) == [False]
    assert await link.report([]) == []
    assert len(inbox.jobs) == 2  # the slot is taken: it must not be offered twice
    assert await link.report([succeed(inbox.jobs[1])], freed=1) == [True]
    await inbox.until(lambda inbox: len(inbox.jobs) == 3)
    await link.close()


async def test_reports_wait_for_a_connection_only_so_long(engine, proxy, worker_info):
    port = proxy._server.sockets[0].getsockname()[1]
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=0.4)
    await submit(engine)
    inbox = RecordingInbox()
    link = await backend.connect(worker_info(), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    proxy.refuse = True
    proxy.cut()
    await engine.until(lambda: engine.links[0].drains > 0)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await link.report([succeed(inbox.jobs[0])])
    with pytest.raises(Unavailable):
        await asyncio.to_thread(link.pulse, [])
    await patience.wait_for(link.drain(), 5)
    proxy.refuse = False

    async def delivered():
        try:
            return await link.report([succeed(inbox.jobs[0])]) in ([True], [False])
        except (Unavailable, OutcomeUnknown):
            return False

    await eventually(delivered, 10)
    await backend.stop()


async def test_undelivered_jobs_are_handed_back(engine, port, worker_info, monkeypatch):
    """The stream's writer is stuck; then the stream breaks."""
    stuck, entered = asyncio.Event(), asyncio.Event()
    write = Duplex.write

    async def slow(self, message):
        if getattr(message, "assignments", None):
            entered.set()
            await stuck.wait()
        await write(self, message)

    monkeypatch.setattr(Duplex, "write", slow)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    inbox = RecordingInbox()
    link = await backend.connect(worker_info(concurrency=4), inbox)
    link.grant(4)
    ids = await submit(engine, 2)
    await entered.wait()
    ids += await submit(engine, 1)  # waits behind what is being written
    assert await states(engine, ids) == [State.ASSIGNED] * 3
    await backend.stop()

    async def back():
        return await states(engine, ids) == [State.PENDING] * 3

    await eventually(back)
    assert inbox.jobs == []
    jobs = [await engine.get(job_id) for job_id in ids]
    assert {job.retry_count for job in jobs} == {0}
    assert [worker.status for worker in await engine.list_workers()] == [WorkerStatus.ONLINE]


async def test_a_new_stream_of_the_same_incarnation_takes_over(engine, port, worker_info):
    info = worker_info(concurrency=2)
    old_inbox, new_inbox = RecordingInbox(), RecordingInbox()
    old, new = (GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5)) for _ in range(2))
    old_link = await old.connect(info, old_inbox)
    old_link.grant(2)
    (job_id,) = await submit(engine)
    await old_inbox.until(lambda inbox: inbox.jobs)
    link = await new.connect(info, new_inbox)
    await old_inbox.until(lambda inbox: WorkerStatus.STOPPING in inbox.statuses)
    (job,) = old_inbox.jobs
    assert await link.report([succeed(job)]) == [True]  # the lease stands
    link.grant(1)
    await submit(engine, 3)
    await new_inbox.until(lambda inbox: inbox.jobs)
    assert len(old_inbox.jobs) == 1
    assert await states(engine, [job_id]) == [State.DONE]
    await link.close()
    await old.stop()
    await new.stop()


async def test_connecting_again_replaces_the_link(engine, remote, worker_info):
    info = worker_info()
    first = await remote.connect(info, RecordingInbox())
    inbox = RecordingInbox()
    second = await remote.connect(info, inbox)
    with pytest.raises(Unavailable):
        await first.report([Transition.started(1, 1)])
    second.grant(1)
    await submit(engine)
    await inbox.until(lambda inbox: inbox.jobs)
    await second.close()


async def test_close_deregisters_and_may_be_repeated(engine, remote, worker_info):
    link = await remote.connect(worker_info(), RecordingInbox())
    await link.close()
    await link.close()
    assert engine.links[0].closed
    assert await engine.list_workers() == []


async def test_large_jobs_travel_in_several_messages(engine, remote, worker_info):
    ids = await submit(engine, 6, payload=b"x" * 900_000)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(concurrency=6), inbox)
    link.grant(6)
    await inbox.until(lambda inbox: len(inbox.jobs) == 6)
    assert {job.id for job in inbox.jobs} == set(ids)
    await link.close()


async def test_the_server_goes_and_comes_back(engine, serve, worker_info, caplog):
    face, port = await serve(engine)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(10))
    inbox = RecordingInbox()
    link = await backend.connect(worker_info(concurrency=2), inbox)
    link.grant(2)
    (job_id,) = await submit(engine)
    await inbox.until(lambda inbox: inbox.jobs)
    await face.stop(2.0)
    async with patience.timeout(10):  # a report that is sent before has an unknown outcome
        while "; reconnecting" not in caplog.text:
            await asyncio.sleep(0.01)
    await serve(engine, port)
    assert await link.report([succeed(inbox.jobs[0])], freed=1) == [True]
    assert await states(engine, [job_id]) == [State.DONE]
    await submit(engine, 2)
    await inbox.until(lambda inbox: len(inbox.jobs) == 3)
    await link.close()
    await backend.stop()


async def test_a_worker_unknown_to_the_server_is_told(engine, remote, worker_info):
    link = await remote.connect(worker_info(), RecordingInbox())
    await engine.store.workers.set_status("w1", WorkerStatus.OFFLINE)
    assert not (await asyncio.to_thread(link.pulse, [])).known
    await link.close()


async def test_a_paused_type_stays_paused_on_the_next_stream(engine, remote, worker_info):
    """The worker's link sends its open breakers on each new stream."""
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(types=frozenset({"pay", "other"})), inbox)
    link.set_breakers([OpenBreaker("pay", 3, 1e9)])
    link.grant(3)
    await submit(engine, 2, type="pay")
    await submit(engine, type="other")
    await inbox.until(lambda inbox: inbox.jobs)
    assert [job.type for job in inbox.jobs] == ["other"]
    (worker,) = await remote.list_workers()
    assert worker.breakers == (OpenBreaker("pay", 3, 1e9),)
    link._cut()
    session = session_of(engine, "w1")
    await eventually(lambda: _replaced(engine, session))
    link.set_breakers([OpenBreaker("pay", 3, 1e9, 1)])
    await inbox.until(lambda inbox: len(inbox.jobs) == 2)
    assert inbox.jobs[1].type == "pay"
    link.set_breakers([])
    await inbox.until(lambda inbox: len(inbox.jobs) == 3)
    await link.close()


async def _replaced(engine, session):
    now = session_of(engine, "w1")
    return now is not session and now is not None and bool(now.breakers)
