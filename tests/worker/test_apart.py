"""A job under which workers died: nothing runs beside it, and it does not wait for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from jobqueue.core.attempt import current_attempt
from jobqueue.core.lifecycle import Move
from jobqueue.tasks.task import TaskOptions, define
from jobqueue.worker import suspects
from jobqueue.worker.registry import Registry
from tests import patience
from tests.worker import handlers
from tests.worker.fakes import FakeServer, Worker

pytestmark = pytest.mark.req("jq:FR-020", "jq:FR-034")
SLOTS = 4


class Bench:
    """Tasks that note when they run, and end when they are told to."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.most = 0
        self._go: dict[str, threading.Event] = {}

    def let_go(self, name: str) -> None:
        self._go.setdefault(name, threading.Event()).set()

    def _enter(self, name: str) -> threading.Event:
        self.running.append(name)
        self.most = max(self.most, len(self.running))
        return self._go.setdefault(name, threading.Event())

    async def coroutine(self, name: str) -> None:
        go = self._enter(name)
        limit = patience.Limit(30)
        while not go.is_set() and not limit.over:
            await asyncio.sleep(0.002)
        self.running.remove(name)

    def thread(self, name: str) -> None:
        self._enter(name).wait(patience.longest(30))
        self.running.remove(name)

    async def until(self, *names: str) -> None:
        async with patience.timeout(20):
            while sorted(self.running) != sorted(names):
                await asyncio.sleep(0.002)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(suspects, "_STEP_ASIDE", 0.01)
    monkeypatch.setattr(suspects, "_PROBE", 0.05)
    bench = Bench()
    yield bench
    for name in list(bench.running):
        bench.let_go(name)


def payload(name: str) -> bytes:
    return b'{"name": "%s"}' % name.encode()


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_suspect_runs_alone_and_others_are_handed_back(
    server: FakeServer, bench: Bench, kind: str
) -> None:
    async with Worker(server, bench.coroutine, bench.thread, concurrency=SLOTS):
        neighbour = server.deliver(kind, payload("neighbour"))
        await bench.until("neighbour")
        first, second = (
            server.job(kind, payload(name), deaths=2, retry_count=2, attempt=3)
            for name in ("first", "second")
        )
        healthy = server.job(kind, payload("healthy"), deaths=1, retry_count=1, attempt=2)
        server.hand_out([first, second, healthy])
        for job in (second, healthy):
            assert (await server.end(job)).move is Move.HAND_BACK
        await server.until(lambda: server.drained)
        assert server.free == 0
        bench.let_go("neighbour")
        assert (await server.end(neighbour)).move is Move.SUCCEED
        await bench.until("first")
        assert server.moves(first) == [Move.START]
        assert server.free == 0
        bench.let_go("first")
        assert (await server.end(first)).move is Move.SUCCEED
        await server.until(lambda: server.free == SLOTS)
        assert server.moves(first) == [Move.START, Move.SUCCEED]  # the start was told once
        healthy = server.deliver(kind, payload("healthy"))
        await bench.until("healthy")
        bench.let_go("healthy")
        await server.end(healthy)
        await server.until(lambda: server.free == SLOTS)
    assert bench.most == 1


async def test_one_slot_is_offered_first_for_the_next_suspect(
    server: FakeServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "_PROBE", 60.0)
    async with Worker(server, bench.coroutine, concurrency=SLOTS):
        for name in ("first", "second"):
            job = server.deliver("coroutine", payload(name), deaths=2)
            await bench.until(name)
            bench.let_go(name)
            await server.end(job)
            await server.until(lambda: server.free == 1)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_suspect_begins_when_its_start_is_answered(
    server: FakeServer, bench: Bench, kind: str
) -> None:
    async with Worker(server, bench.coroutine, bench.thread, concurrency=SLOTS):
        server.gate.clear()
        job = server.deliver(kind, payload("suspect"), deaths=2, expires_in=1e9)
        await server.until(lambda: bool(server.calls))
        assert [one.move for one in server.calls[0]] == [Move.START]
        assert not bench.running
        server.gate.set()
        await bench.until("suspect")
        bench.let_go("suspect")
        await server.end(job)


async def test_a_suspect_that_was_given_up_does_not_begin(server: FakeServer, bench: Bench) -> None:
    async with Worker(server, bench.coroutine, concurrency=SLOTS) as worker:
        server.refuse = lambda report: report.move is Move.START
        server.deliver("coroutine", payload("suspect"), deaths=2)
        await server.until(lambda: server.drained and server.free == SLOTS)
        assert (worker.running, bench.most, server.ends()) == (0, 0, [])


async def test_a_cancel_reaches_a_suspect_before_its_turn_and_at_its_start(
    server: FakeServer, bench: Bench
) -> None:
    async with Worker(server, bench.coroutine, concurrency=SLOTS) as worker:
        server.deliver("coroutine", payload("neighbour"))
        await bench.until("neighbour")
        waiting = server.deliver("coroutine", payload("waiting"), deaths=2)
        worker.cancel([waiting.lease])
        assert (await server.end(waiting)).move is Move.HAND_BACK
        await server.until(lambda: server.free == SLOTS - 1)
        bench.let_go("neighbour")
        await server.until(lambda: server.free == SLOTS)
        server.gate.clear()
        starting = server.deliver("coroutine", payload("starting"), deaths=2)
        await server.until(lambda: server.calls[-1][0].lease == starting.lease)
        worker.cancel([starting.lease])
        server.gate.set()
        assert (await server.end(starting)).move is Move.ACKNOWLEDGE_CANCEL
    assert bench.most == 1


async def test_a_suspect_is_handed_back_if_others_take_too_long(
    server: FakeServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "_PATIENCE", 0.05)
    async with Worker(server, bench.coroutine, concurrency=SLOTS, stop_within=0.2):
        server.deliver("coroutine", payload("long"))
        await bench.until("long")
        suspect = server.deliver("coroutine", payload("suspect"), deaths=3)
        assert (await server.end(suspect)).move is Move.HAND_BACK
        await server.until(lambda: server.free == SLOTS - 1)
        server.deliver("coroutine", payload("another"))
        await bench.until("long", "another")


async def test_a_suspect_waits_longer_after_each_hand_back_and_is_listed_as_begun(
    server: FakeServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it has its turn at last, and its assignment does not time out meanwhile."""
    monkeypatch.setattr(suspects, "_PATIENCE", 0.001)
    async with Worker(
        server, bench.coroutine, concurrency=SLOTS, heartbeat_interval=0.02, stop_within=0.2
    ):
        server.deliver("coroutine", payload("long"))
        await bench.until("long")
        suspect = server.deliver(
            "coroutine", payload("suspect"), deaths=2, retry_count=2, attempt=30
        )
        await server.next_beat()
        await server.next_beat()
        assert suspect.lease in server.begun[-1]
        assert server.moves(suspect) == []
        bench.let_go("long")
        await bench.until("suspect")


async def test_a_worker_that_stops_hands_a_waiting_suspect_back(
    server: FakeServer, bench: Bench
) -> None:
    async with Worker(server, bench.coroutine, concurrency=SLOTS) as worker:
        server.deliver("coroutine", payload("neighbour"))
        await bench.until("neighbour")
        suspect = server.deliver("coroutine", payload("suspect"), deaths=2)
        stopping = asyncio.create_task(worker.stop(patience.longest(20)))
        assert (await server.end(suspect)).move is Move.HAND_BACK
        bench.let_go("neighbour")
        await stopping


async def test_a_worker_that_registers_again_offers_nothing_beside_a_suspect(
    server: FakeServer, bench: Bench
) -> None:
    async with Worker(server, bench.coroutine, concurrency=SLOTS) as worker:
        server.deliver("coroutine", payload("suspect"), deaths=2)
        await bench.until("suspect")
        worker.moved()
        await server.until(lambda: server.connects == 2)
        bench.let_go("suspect")
        await server.until(lambda: server.free == SLOTS)


async def test_a_suspect_that_does_not_end_at_its_timeout_keeps_its_own_slot_only(
    server: FakeServer, bench: Bench
) -> None:
    async with Worker(server, bench.thread, bench.coroutine, concurrency=SLOTS) as worker:
        suspect = server.deliver("thread", payload("suspect"), deaths=2, timeout=0.05)
        assert (await server.end(suspect)).move is Move.TIME_OUT
        await server.until(lambda: server.free == SLOTS - 1)
        assert (worker.overrun, worker.running) == (1, 1)
        another = server.deliver("coroutine", payload("another"), deaths=2)
        await bench.until("suspect", "another")
        bench.let_go("another")
        await server.end(another)
        bench.let_go("suspect")
        await server.until(lambda: server.free == SLOTS)


async def test_a_suspect_that_waits_for_another_job_leaves_it_a_slot(
    server: FakeServer, bench: Bench
) -> None:
    async def parent() -> None:
        attempt = current_attempt()
        assert attempt is not None
        with attempt.waiting_for("default"):
            await bench.until("child")
            bench.let_go("child")
            await bench.until()

    async with Worker(server, bench.coroutine, parent, concurrency=SLOTS):
        job = server.deliver("parent", deaths=2)
        await server.until(lambda: server.drained and server.free == SLOTS - 1)
        server.deliver("coroutine", payload("child"))
        assert (await server.end(job)).move is Move.SUCCEED
        await server.until(lambda: server.free == SLOTS)


async def test_a_process_needs_none_of_it(server: FakeServer, bench: Bench) -> None:
    tasks = Registry()
    tasks.add(define(bench.coroutine))
    tasks.add(define(handlers.add, options=TaskOptions(executor="process")))
    async with Worker(server, tasks=tasks, concurrency=SLOTS, stop_within=0.2):
        server.deliver("coroutine", payload("neighbour"))
        await bench.until("neighbour")
        job = server.deliver("add", b'{"a": 4, "b": 3}', deaths=7)
        assert (await server.end(job, 60)).move is Move.SUCCEED
        assert not server.drained
