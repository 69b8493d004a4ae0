"""Any one of the six services killed under load and started again; a worker that is frozen.

Every job that was accepted is followed to its end, through the fault and beyond it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator

import pytest

from jobqueue.core.errors import (
    Code,
    DeadlineExceeded,
    JobQueueError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from jobqueue.taskqueue.components.model import (
    READ_SECONDS,
    RETRY_AFTER_MS,
    SUBMIT_SECONDS,
    Actor,
    Listing,
    Spec,
    Status,
)
from jobqueue.taskqueue.components.protocols import new_request_id
from jobqueue.taskqueue.grpc.peer import Peer
from jobqueue.taskqueue.grpc.remote import RemoteCoordination, RemoteQueue, RemoteTaskQueue
from tests import patience
from tests.taskqueue.fleet import WORKER_ID, Fleet, event
from tests.taskqueue.startup.test_designs import client, result_of

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(180)]

PATIENCE = 30.0
CLIENTS = 4
DOWN = 12  # calls of each kind that are made while it is down
# What a call may end with beside OK, when something it needs is down.
TRANSIENT = {Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED}
# A client's own deadline ends a call; this is for a machine that has other things to do.
SLACK = 2.0
CALLS = ("submit", "status", "result", "list")

# While it is down: which calls of clients cannot be answered; and who sees that it came back empty.
NEEDED = {
    "gateway": {"submit", "status", "list", "result"},
    "job": {"submit", "status", "list", "result"},
    "queue": {"submit"},
    "result": {"result"},
    "coordinator": set[str](),
    "worker": set[str](),
}
WITNESS = {"job": "gateway", "queue": "coordinator", "result": "coordinator",
           "coordinator": "worker"}  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("six"), {"RECONCILE_INTERVAL_MS": "500"})
    try:
        made.launch()
        made.ready()
        yield made
    finally:
        made.end()


class Load:
    """Clients that submit and look, each call within the document's deadline."""

    def __init__(self, queue: RemoteTaskQueue, done: str) -> None:
        self._queue = queue
        self._done = done  # a job that has ended
        self.accepted = [done]
        self._tasks: list[asyncio.Task[None]] = []
        self.longest = dict.fromkeys(CALLS, 0.0)
        self.ended: dict[str, Counter[Code | None]] = {}
        self.begin_phase()

    def begin_phase(self) -> None:
        self.ended = {call: Counter() for call in self.longest}

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._work(n)) for n in range(CLIENTS)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended

    async def _work(self, number: int) -> None:
        while True:
            job = await self._timed("submit", self._queue.submit(Spec("short", 5), ""))
            if job is not None:
                self.accepted.append(job.job_id)
            await self._timed("status", self._queue.status(self.accepted[-1]))
            await self._timed("result", self._queue.result(self._done))
            await self._timed("list", self._queue.list(Listing(limit=5)))
            await asyncio.sleep(0.01)

    async def _timed(self, call: str, made: Awaitable):
        began = time.monotonic()
        code: Code | None = None
        found = None
        try:
            found = await made
        except JobQueueError as error:
            code = error.code
        self.longest[call] = max(self.longest[call], time.monotonic() - began)
        self.ended[call][code] += 1
        return found

    async def until(self, times: int) -> None:
        """Until each call was made so often in this phase."""
        async with patience.timeout(PATIENCE):
            while any(self.ended[call].total() < times for call in CALLS):
                await asyncio.sleep(0.02)


async def flows(queue: RemoteTaskQueue, count: int = 10) -> str:
    """New jobs are accepted and done, whatever happened before; returns one of them."""
    jobs: list[str] = []
    async with patience.timeout(PATIENCE):
        while len(jobs) < count:
            try:
                jobs.append((await queue.submit(Spec("short", 5), "")).job_id)
            except (Unavailable, OutcomeUnknown, DeadlineExceeded):
                await asyncio.sleep(0.05)
    for job_id in jobs:
        assert (await result_of(queue, job_id)).status is Status.DONE
    return jobs[0]


async def end(fleet: Fleet, queue: RemoteTaskQueue, accepted: Iterable[str], victim: str) -> None:
    """Every accepted job ends, if it was not lost with the memory of the victim.

    Of a job service all jobs are lost. A job that was handed out by a coordinator or to a worker
    that was killed may stay RUNNING: that is in the log, and a cancel ends the job.
    """
    left = list(accepted)
    async with patience.timeout(PATIENCE):
        while left:
            try:
                status = (await queue.status(left[-1], timeout=patience.longest(5))).summary.status
                if status.terminal:
                    left.pop()
                    continue
                if status is Status.RUNNING and in_no_hands(fleet, left[-1]):
                    assert victim in ("coordinator", "worker"), left[-1]
                    await queue.cancel(left[-1], "lost", timeout=patience.longest(5))
            except NotFound:
                assert victim == "job", left[-1]
                left.pop()
                continue
            except (Unavailable, OutcomeUnknown, DeadlineExceeded):
                pass
            await asyncio.sleep(0.05)


def in_no_hands(fleet: Fleet, job_id: str) -> bool:
    """Whether the coordinator says that no worker has this RUNNING job."""
    return any(
        line["event"] == "running_nowhere" and line["job_id"] == job_id
        for line in fleet.lines(["coordinator"])
    )


@pytest.mark.req("tq:CODES", "tq:DEADLINE", "tq:NFR-5")
@pytest.mark.parametrize("victim", NEEDED)
async def test_any_one_is_killed_under_load_and_started_again(fleet: Fleet, victim: str) -> None:
    others = [name for name in fleet.running if name != victim]
    pids = {name: fleet.running[name].process.pid for name in others}
    seen = {name: len(fleet.running[name].lines) for name in others}
    async with client(fleet.address["gateway"]) as queue:
        load = Load(queue, await flows(queue))
        load.start()
        await load.until(5)

        fleet.kill(victim)
        load.begin_phase()
        try:
            await load.until(DOWN)
            down = load.ended
        finally:
            load.begin_phase()
            fleet.launch(victim)
        await asyncio.to_thread(event, fleet.running[victim], "ready")
        await load.stop()
        await flows(queue)
        await end(fleet, queue, load.accepted, victim)

    for call, codes in down.items():
        assert set(codes) <= {None, *TRANSIENT}, (call, codes)
        if call in NEEDED[victim]:
            assert codes[Code.UNAVAILABLE] + codes[Code.OUTCOME_UNKNOWN], (call, codes)
            assert codes[None] <= CLIENTS, (call, codes)  # answered before it was killed
        else:
            assert codes[None], (call, codes)
    for call, seconds in load.longest.items():
        assert seconds < (SUBMIT_SECONDS if call == "submit" else READ_SECONDS) + SLACK, call

    for name in others:  # nobody crashed, and nobody met what it did not expect
        service = fleet.running[name]
        assert (service.process.poll(), service.process.pid) == (None, pids[name])
        assert service.noise == []
        for line in service.lines[seen[name] :]:
            # gRPC's own complaint that a caller left while it was answered is none of theirs.
            assert "exception" not in line or line["logger"].startswith("grpc."), line
            assert line.get("grpc_code") != "INTERNAL", line
    if witness := WITNESS.get(victim):
        found = await asyncio.to_thread(
            event, fleet.running[witness], "state_lost", after=seen[witness], peer=victim
        )
        assert found["level"] == "WARNING"


@pytest.mark.req("tq:LIVENESS", "tq:LOCK-9", "tq:LOCK-13", "tq:LOCK-32", "tq:NFR-5")
async def test_a_worker_that_is_frozen_gets_no_more_work_until_it_beats_again(fleet: Fleet) -> None:
    coordinator, worker = fleet.running["coordinator"], fleet.running["worker"]
    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(client(fleet.address["gateway"]))
        await flows(queue)
        seen = len(coordinator.lines)
        worker.signal(signal.SIGSTOP)
        try:
            silent = await asyncio.to_thread(
                event, coordinator, "worker_unavailable", after=seen, worker_id=WORKER_ID
            )
            assert silent["level"] == "WARNING"
            job = (await queue.submit(Spec("short"), "")).job_id
            # Were it to ask now, it would get nothing, though there is a job.
            peer = Peer(fleet.address["coordinator"], "coordinator", Actor.WORKER)
            stack.push_async_callback(peer.close)
            work = await RemoteCoordination(peer).fetch(WORKER_ID, request_id=new_request_id())
            assert (work.job_id, work.retry_after_ms) == ("", RETRY_AFTER_MS)
            assert (await queue.status(job)).summary.status is Status.QUEUED
        finally:
            seen = len(coordinator.lines)
            worker.signal(signal.SIGCONT)
        await asyncio.to_thread(
            event, coordinator, "worker_available", after=seen, worker_id=WORKER_ID
        )
        assert (await result_of(queue, job)).status is Status.DONE


@contextlib.contextmanager
def frozen(fleet: Fleet, name: str) -> Iterator[None]:
    """A process that stands still; what it is sent waits for it."""
    service = fleet.running[name]
    service.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.signal(signal.SIGCONT)


@pytest.mark.req("tq:NFR-5", "tq:DISPATCH")
async def test_jobs_that_a_killed_coordinator_had_taken_from_the_queue_are_done(
    fleet: Fleet,
) -> None:
    """The job service stands still, so that every job taken from the queue waits to be started."""
    async with client(fleet.address["gateway"]) as queue:
        await flows(queue)
        with contextlib.ExitStack() as still:
            with frozen(fleet, "worker"):
                jobs = [(await queue.submit(Spec("short", 5), "")).job_id for _ in range(10)]
                still.enter_context(frozen(fleet, "job"))
                worker, seen = fleet.running["worker"], len(fleet.running["worker"].lines)
            await asyncio.to_thread(event, worker, "fetch_failed", after=seen)
            fleet.kill("coordinator")
        fleet.launch("coordinator")
        await end(fleet, queue, jobs, "coordinator")
        assert all([(await queue.status(job)).summary.status is Status.DONE for job in jobs])


async def out_of_the_queue(fleet: Fleet, jobs: list[str]) -> None:
    peer = Peer(fleet.address["queue"], "queue", Actor.GATEWAY)
    try:
        async with patience.timeout(PATIENCE):
            for job_id in jobs:
                while await RemoteQueue(peer).contains(job_id):
                    await asyncio.sleep(0.01)
    finally:
        await peer.close()


@pytest.mark.req("tq:NFR-5", "tq:CANCEL")
async def test_a_cancel_that_a_killed_gateway_left_half_way_is_finished(fleet: Fleet) -> None:
    """The result service stands still, so that the job is out of the queue and QUEUED."""
    async with client(fleet.address["gateway"]) as queue:
        await flows(queue)
        with frozen(fleet, "worker"):
            jobs = [(await queue.submit(Spec("short", 5), "")).job_id for _ in range(10)]
            with frozen(fleet, "result"):
                cancels = [
                    asyncio.create_task(queue.cancel(job, "", timeout=patience.longest(20)))
                    for job in jobs
                ]
                await out_of_the_queue(fleet, jobs)
                fleet.kill("gateway")
                await asyncio.gather(*cancels, return_exceptions=True)
            fleet.launch("gateway")
        await end(fleet, queue, jobs, "gateway")
