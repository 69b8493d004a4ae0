"""The documents' own bounds on speed, on the real parts. Run by ``make test-bounds``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from bench.remote import sdk, server, unary
from bench.report import percentile
from jobqueue.core.job import JobSpec, WorkerInfo
from jobqueue.core.observer import Deaf
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.sqlite.store import SqliteStore
from jobqueue.worker.registry import Registry, define
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings

pytestmark = [pytest.mark.bench, pytest.mark.timeout(120)]
BACKLOG = 9_000  # "normal load": a queue depth below 10,000


class Cycles(Deaf):
    """Notes how long scheduling cycles took that handed out a whole batch."""

    def __init__(self) -> None:
        self.full: list[float] = []

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        if sum(assigned.values()) == 100:
            self.full.append(seconds)


@pytest_asyncio.fixture
async def cycles() -> Cycles:
    return Cycles()


@pytest_asyncio.fixture
async def engine(tmp_path: Path, cycles: Cycles) -> AsyncIterator[Engine]:
    engine = Engine(SqliteStore(tmp_path / "jobs.db"), EngineSettings(), observer=cycles)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.mark.req("jq:NFR-001")
async def test_a_server_sustains_1000_submits_a_second(tmp_path: Path):
    async with server("sqlite", str(tmp_path)) as target:
        assert await unary(target, 5_000) >= 1_000
        assert await sdk(target, 20_000) >= 1_000


@pytest.mark.req("jq:NFR-002")
async def test_p99_from_submit_to_start_is_under_two_seconds(engine: Engine):
    started: dict[int, float] = {}
    everything = asyncio.Event()

    async def note(n: int) -> None:
        started[n] = time.perf_counter()
        if len(started) == BACKLOG:
            everything.set()

    registry = Registry()
    registry.add(define(note))
    worker = WorkerRuntime(engine, registry, WorkerSettings(id="w", concurrency=100))
    await worker.start()
    submitted: dict[int, float] = {}
    for n in range(BACKLOG):
        submitted[n] = time.perf_counter()
        spec = JobSpec(payload=b'{"n": %d}' % n, type="note")
        (await engine.submit([spec]))[0].unwrap()
    await everything.wait()
    await worker.stop()
    waits = [started[n] - submitted[n] for n in range(BACKLOG)]
    assert percentile(waits, 0.99) < 2.0


class Sink:
    """A worker that takes whatever it is given."""

    def __init__(self) -> None:
        self.taken = 0

    def assigned(self, assignments: Sequence[object]) -> None:
        self.taken += len(assignments)

    def cancel(self, leases: Sequence[int]) -> None:
        raise AssertionError("nobody cancels")

    def set_status(self, status: object) -> None:
        raise AssertionError("nobody drains")

    def holds(self) -> None:
        return

    def moved(self) -> None:
        raise AssertionError("there is one server")


@pytest.mark.req("jq:NFR-003")
async def test_a_cycle_of_100_takes_under_200_ms_at_p95(engine: Engine, cycles: Cycles):
    for _ in range(9):
        await engine.submit([JobSpec(payload=b"x")] * 1_000)
    sink = Sink()
    info = WorkerInfo(
        id="sink",
        incarnation=1,
        hostname="host",
        pid=1,
        concurrency=BACKLOG,
        queues=("default",),
    )
    link = await engine.connect(info, sink)
    link.grant(BACKLOG)
    async with asyncio.timeout(60):
        while sink.taken < BACKLOG:
            await asyncio.sleep(0.01)
    assert len(cycles.full) >= 50
    assert percentile(cycles.full, 0.95) < 0.2
