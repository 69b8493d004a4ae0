"""Start, stop, drain, an operator's commands, heartbeats, registering again."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence

import pytest

from jobqueue.core.errors import Conflict, Internal, Unavailable
from jobqueue.core.job import Pulse, WorkerStatus
from jobqueue.core.lifecycle import Move
from jobqueue.tasks.task import define
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings
from tests import patience
from tests.worker.fakes import FakeServer, Worker, registry

SETTINGS = WorkerSettings(id="w1", queues=("a", "b"), concurrency=3)


@pytest.mark.req("jq:FR-018")
async def test_a_worker_registers_and_offers_its_slots(server: FakeServer) -> None:
    worker = WorkerRuntime(server, Registry(), SETTINGS)
    await worker.start()
    await worker.start()
    assert server.connects == 1
    assert server.info is not None
    assert (server.info.id, server.info.queues, server.info.concurrency) == ("w1", ("a", "b"), 3)
    assert server.info.hostname
    assert server.free == 3
    await worker.stop()
    await worker.stop()
    await worker.finished
    assert server.drained
    assert server.closed == 1


BUILT_IN = frozenset({"", "echo", "fail", "simulate", "sleep"})


async def test_a_worker_tells_the_types_that_it_knows(server: FakeServer) -> None:
    async def add() -> None: ...

    async with Worker(server, add):
        assert server.info is not None
        assert server.info.types == BUILT_IN | {"add"}


async def test_a_worker_that_runs_a_program_takes_every_type(server: FakeServer) -> None:
    async with Worker(server, exec_command="cat"):
        assert server.info is not None
        assert server.info.types is None


async def test_tasks_that_are_defined_while_the_worker_runs_are_told(server: FakeServer) -> None:
    """All of them, also those that come while it registers again; the jobs that run go on."""
    release = asyncio.Event()

    async def wait() -> str:
        await release.wait()
        return "done"

    tasks = registry(wait)
    async with Worker(server, tasks=tasks, concurrency=3) as runtime:
        running = server.deliver("wait")
        await server.start_of(running)
        for name in ("one", "two"):
            tasks.add(define(wait, name=name))
        await server.until(lambda: server.info is not None and "two" in (server.info.types or ()))
        tasks.add(define(wait, name="three"))
        await server.until(lambda: server.info is not None and "three" in (server.info.types or ()))
        await server.until(lambda: server.free == 2)
        assert server.info is not None
        assert server.info.types == BUILT_IN | {"wait", "one", "two", "three"}
        assert runtime.running == 1
        release.set()
        assert (await server.end(running)).move is Move.SUCCEED
    assert tasks.listeners == []


async def test_stop_before_start(server: FakeServer) -> None:
    worker = WorkerRuntime(server, Registry(), SETTINGS)
    await worker.stop()
    await worker.start()
    assert server.connects == 0


async def test_start_tries_again_until_its_time_is_up(server: FakeServer) -> None:
    server.errors = [Unavailable("not yet")]
    async with Worker(server):
        assert server.connects == 1
    server.errors = [Unavailable("never")] * 100
    worker = Worker(server, connect_timeout=0.15)
    with pytest.raises(Unavailable):
        await worker.runtime.start()
    await worker.runtime.stop()


@pytest.mark.req("jq:FR-023", "inp:POOL")
async def test_stop_finishes_what_runs_and_hands_back_what_does_not(server: FakeServer) -> None:
    release = asyncio.Event()
    leave = threading.Event()

    async def on_loop() -> str:
        await release.wait()
        return "done"

    def in_thread() -> None:
        leave.wait(patience.longest(20))

    async with Worker(server, on_loop, in_thread) as worker:
        running = [server.deliver("on_loop"), server.deliver("in_thread")]
        for job in running:
            await server.start_of(job)
        stopping = asyncio.create_task(worker.stop(20))
        unstarted = server.deliver("on_loop")  # on its way to its first step when stop is called
        assert (await server.end(unstarted)).move is Move.HAND_BACK
        assert server.drained
        late = server.job("on_loop")
        worker.assigned([late])
        assert (await server.end(late)).move is Move.HAND_BACK
        assert not stopping.done()
        release.set()
        leave.set()
        await stopping
        assert [(await server.end(job)).move for job in running] == [Move.SUCCEED] * 2
        assert server.closed == 1
        assert server.free == 0


async def test_stop_delivers_the_last_reports(server: FakeServer) -> None:
    async with Worker(server) as worker:
        server.errors = [Unavailable("down")] * 3
        job = server.deliver("echo")
        await server.until(lambda: len(server.calls) == 1)
        await worker.stop(20)
        assert (await server.end(job)).move is Move.SUCCEED


@pytest.mark.req("jq:NFR-015")
async def test_stop_delivers_the_reports_of_a_sender_that_was_cancelled(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """``asyncio.run`` cancels every task at its end; a worker that stops then must still report."""
    server.refuse = lambda report: len(server.calls) > 1  # the first answer was lost

    async def quick() -> None: ...

    async with Worker(server, quick) as worker:
        server.gate.clear()
        job = server.deliver("quick")
        await server.until(lambda: len(server.calls) == 1)
        (sender,) = (t for t in asyncio.all_tasks() if t.get_name() == "jobqueue-worker-outbox")
        sender.cancel()
        stopping = asyncio.create_task(worker.stop(patience.longest(60)))
        server.gate.set()
        async with patience.timeout(10):
            await stopping
    assert server.moves(job) == [Move.SUCCEED]
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_jobs_that_run_beyond_the_deadline_are_left(server: FakeServer) -> None:
    cancelled = asyncio.Event()
    release = threading.Event()

    async def on_loop() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    def in_thread() -> None:
        release.wait(patience.longest(20))

    async with Worker(server, on_loop, in_thread) as worker:
        for type in ("on_loop", "in_thread"):
            await server.start_of(server.deliver(type))
        limit = patience.Limit(2)
        await worker.stop(0.3)
        assert not limit.over
        assert cancelled.is_set()
        assert not server.ends()
        assert server.closed == 1
        assert worker.unended == 2
    release.set()


async def test_a_server_that_is_gone_does_not_hold_up_the_stop(server: FakeServer) -> None:
    async with Worker(server) as worker:
        server.gate.clear()
        server.deliver("echo")
        await server.until(lambda: len(server.calls) == 1)
        limit = patience.Limit(2)
        await worker.stop(0.3)
        assert not limit.over


# -- an operator's commands --------------------------------------------------------------------


@pytest.mark.req("jq:FR-023")
async def test_drain_by_an_operator(server: FakeServer) -> None:
    release = asyncio.Event()

    async def hold() -> None:
        await release.wait()

    async with Worker(server, hold) as worker:
        job = server.deliver("hold")
        await server.start_of(job)
        worker.set_status(WorkerStatus.DRAINING)
        release.set()
        assert (await server.end(job)).move is Move.SUCCEED
        await asyncio.sleep(0.01)
        assert server.free == 0
        assert server.closed == 0


@pytest.mark.req("jq:FR-023")
async def test_a_drain_that_is_taken_back(server: FakeServer) -> None:
    release = asyncio.Event()

    async def hold() -> None:
        await release.wait()

    async with Worker(server, hold) as worker:
        slots = worker.settings.concurrency
        job = server.deliver("hold")
        await server.start_of(job)
        for _ in range(2):
            worker.set_status(WorkerStatus.DRAINING)
            worker.set_status(WorkerStatus.ONLINE)
        await server.until(lambda: server.free == slots - 1)  # the drain came before the offer
        release.set()
        assert (await server.end(job)).move is Move.SUCCEED
        await server.until(lambda: server.free == slots)
        assert (await server.end(server.deliver("hold"))).move is Move.SUCCEED
        worker.set_status(WorkerStatus.STOPPING)
        worker.set_status(WorkerStatus.ONLINE)  # too late
        await worker.finished


async def test_a_drain_is_taken_back_by_an_offer_of_no_slots(server: FakeServer) -> None:
    """Every slot is taken: the next one that comes free is offered by a report."""
    go_on = asyncio.Event()

    async def hold() -> None:
        await go_on.wait()

    async with Worker(server, hold, concurrency=1):
        server.deliver("hold")
        await asyncio.sleep(0)
        assert server.inbox is not None
        server.inbox.set_status(WorkerStatus.DRAINING)
        await server.until(lambda: server.drained)
        grants = server.grants
        server.inbox.set_status(WorkerStatus.ONLINE)
        await server.until(lambda: server.grants > grants)
        assert server.free == 0
        go_on.set()
        await server.until(lambda: server.free == 1)


async def test_a_heartbeat_from_before_a_drain_is_not_heeded(server: FakeServer) -> None:
    async with Worker(server) as worker:
        worker._beat(True)
        worker.set_status(WorkerStatus.DRAINING)
        worker._on_pulse(Pulse(True, WorkerStatus.ONLINE))
        assert not worker._taking
        worker._beat(True)
        worker._on_pulse(Pulse(True, WorkerStatus.ONLINE))
        assert worker._taking


@pytest.mark.req("jq:FR-024")
async def test_shutdown_by_an_operator(server: FakeServer) -> None:
    release = asyncio.Event()

    async def hold() -> None:
        await release.wait()

    async with Worker(server, hold) as worker:
        job = server.deliver("hold")
        await server.start_of(job)
        finished = asyncio.ensure_future(worker.finished)
        worker.set_status(WorkerStatus.STOPPING)
        await asyncio.sleep(0.01)
        assert not finished.done()
        release.set()
        await patience.wait_for(finished, 10)
        assert (await server.end(job)).move is Move.SUCCEED
        assert server.closed == 1


# -- heartbeats --------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-019")
async def test_heartbeats_list_the_leases_held(server: FakeServer) -> None:
    release = asyncio.Event()

    async def hold() -> None:
        await release.wait()

    async with Worker(server, hold, heartbeat_interval=0.01):
        assert await server.next_beat() == []
        job = server.deliver("hold")
        await server.start_of(job)
        assert await server.next_beat() == [job.lease]
        server.gate.clear()
        release.set()
        await server.until(lambda: len(server.calls) == 2)
        assert await server.next_beat() == [job.lease]  # its end is not answered yet
        server.gate.set()
        await server.end(job)
        await asyncio.sleep(0)
        assert await server.next_beat() == []


@pytest.mark.req("jq:FR-019")
async def test_a_handler_that_blocks_the_loop_does_not_stop_heartbeats(
    server: FakeServer,
) -> None:
    beats: list[int] = []

    async def block() -> None:
        before = len(server.pulses)
        limit = patience.Limit(20)
        while len(server.pulses) < before + 5 and not limit.over:
            time.sleep(0.01)  # the loop stands still all the while
        beats.append(len(server.pulses) - before)

    async with Worker(server, block, heartbeat_interval=0.02):
        await server.end(server.deliver("block"))
        assert beats[0] >= 5


@pytest.mark.req("jq:FR-019")
async def test_a_blocking_thread_stops_neither_heartbeats_nor_the_loop(
    server: FakeServer,
) -> None:
    release = threading.Event()

    def block() -> None:
        release.wait(patience.longest(20))

    async with Worker(server, block, heartbeat_interval=0.01):
        job = server.deliver("block")
        await server.start_of(job)
        for _ in range(3):
            assert await server.next_beat() == [job.lease]
        await server.end(server.deliver("echo"))
        release.set()
        await server.end(job)


async def test_a_heartbeat_brings_cancels_and_lost_leases(server: FakeServer) -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    async with Worker(server, hang, heartbeat_interval=0.01) as worker:
        cancelled, lost = server.deliver("hang"), server.deliver("hang")
        await server.start_of(lost)
        server.answer = lambda leases: Pulse(True, cancelled=[cancelled.lease], lost=[lost.lease])
        assert (await server.end(cancelled)).move is Move.ACKNOWLEDGE_CANCEL
        await server.until(lambda: server.free == 4)
        assert server.moves(lost) == [Move.START]
        assert worker.running == 0


async def test_a_heartbeat_brings_an_operators_command(server: FakeServer) -> None:
    async with Worker(server, heartbeat_interval=0.01) as worker:
        server.answer = lambda leases: Pulse(True, WorkerStatus.STOPPING)
        await patience.wait_for(worker.finished, 10)


async def test_a_worker_that_is_not_known_registers_again(server: FakeServer) -> None:
    release = asyncio.Event()

    async def hold() -> None:
        await release.wait()

    async with Worker(server, hold, heartbeat_interval=0.01) as worker:
        job = server.deliver("hold")
        await server.start_of(job)
        first = server.info
        server.errors = [Unavailable("not yet")]
        server.answer = lambda leases: Pulse(server.connects > 1)
        await server.until(lambda: server.connects == 2 and server.free > 0)
        assert server.info == first  # the same incarnation: what it runs, it still runs
        assert server.free == 3
        assert server.closed == 1
        release.set()
        assert (await server.end(job)).move is Move.SUCCEED
        await server.until(lambda: server.free == 4)
        assert worker.running == 0


async def test_an_outage_of_heartbeats_is_logged_once(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(leases: object) -> Pulse:
        raise Unavailable("no route")

    caplog.set_level(logging.INFO, "jobqueue.worker")
    async with Worker(server, heartbeat_interval=0.005):
        server.answer = fail
        for _ in range(4):
            await server.next_beat()
        server.answer = lambda leases: Pulse(True)
        for _ in range(2):
            await server.next_beat()
    texts = [record.message for record in caplog.records]
    assert (
        texts.count("cannot send heartbeats of worker w1 to the server: no route; trying again")
        == 1
    )
    assert texts.count("the server answers heartbeats of worker w1 again") == 1


@pytest.mark.req("jq:FR-019")
async def test_a_heartbeat_says_what_has_begun_and_whether_the_loop_stands_still(
    server: FakeServer,
) -> None:
    async def block() -> None:
        before = len(server.pulses)
        limit = patience.Limit(20)
        while len(server.pulses) < before + 3 and not limit.over:
            time.sleep(0.01)

    async with Worker(server, block, heartbeat_interval=0.02):
        await server.next_beat()
        assert server.complete[-1] is True
        job = server.deliver("block")
        await server.end(job)
        blind = [begun for begun, ok in zip(server.begun, server.complete, strict=True) if not ok]
        assert blind, "a loop that stood still for three beats was not noticed"
        assert all(begun == [job.lease] for begun in blind)
        await server.next_beat()
        await server.next_beat()
        assert server.complete[-1] is True


async def test_a_registration_that_fails_once_does_not_make_a_zombie(server: FakeServer) -> None:
    async with Worker(server, heartbeat_interval=0.01) as worker:
        server.errors = [Internal("a passing defect")]

        def answer(leases: Sequence[int]) -> Pulse:
            if server.closed >= server.connects:  # as a closed link does
                raise Unavailable("about to register again")
            return Pulse(known=server.connects > 1)

        server.answer = answer
        await server.until(lambda: server.connects > 1)
        server.answer = lambda leases: Pulse(known=True)
        assert (await server.end(server.deliver("echo", b"{}"))).move is Move.SUCCEED
        assert worker.running == 0


async def test_a_worker_that_is_refused_for_good_stops(server: FakeServer) -> None:
    async with Worker(server, heartbeat_interval=0.01) as worker:
        server.errors = [Conflict("another worker has this id")]
        server.answer = lambda leases: Pulse(known=False)
        await patience.wait_for(worker.finished, 10)
