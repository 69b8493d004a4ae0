"""The documents' own bounds on speed, on the real parts. Run by ``make test-bounds``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bench.cycles import Cycles, hand_out
from bench.processes import server
from bench.remote import sdk, unary
from bench.report import percentile
from jobqueue.core.job import JobSpec
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.sqlite.store import SqliteStore
from jobqueue.worker.registry import Registry, define
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings

pytestmark = [pytest.mark.bench, pytest.mark.timeout(120)]
BACKLOG = 9_000  # "normal load": a queue depth below 10,000


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
    async with server(f"sqlite:///{tmp_path}/jobs.db") as process:
        assert await unary(process.target, 5_000) >= 1_000
        assert await sdk(process.target, 20_000) >= 1_000


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


@pytest.mark.req("jq:NFR-003")
async def test_a_cycle_of_100_takes_under_200_ms_at_p95(engine: Engine, cycles: Cycles):
    await hand_out(engine, BACKLOG)
    assert len(cycles.full) >= 50
    assert percentile(cycles.full, 0.95) < 0.2
