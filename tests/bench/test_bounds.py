"""The documents' own bounds on speed, on the real parts. Run by ``make test-bounds``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.bench.cell import Cell
from jobqueue.bench.ground import brought_up
from jobqueue.bench.intervals import percentile
from jobqueue.bench.scenarios.fleet import telling
from jobqueue.bench.scenarios.rates import Cycles, hand_out, sdk, unary
from jobqueue.core.job import JobSpec
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.sqlite.store import SqliteStore
from jobqueue.tasks.task import define
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings
from tests.bench.bounds import kept

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]
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
    told = {"JQ_DB_URL": f"sqlite:///{tmp_path}/jobs.db", "JQ_WORKER_CONCURRENCY": "0"}
    async with brought_up(Cell("embedded"), telling(told)) as ground:
        (target,) = ground.grpc
        await kept(lambda: unary(target, 5_000), lambda rate: rate >= 1_000)
        await kept(lambda: sdk(target, 20_000), lambda rate: rate >= 1_000)


@pytest.mark.req("jq:NFR-002")
async def test_p99_from_submit_to_start_is_under_two_seconds(engine: Engine):
    await kept(lambda: _wait(engine), lambda p99: p99 < 2.0)


async def _wait(engine: Engine) -> float:
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
    return percentile([started[n] - submitted[n] for n in range(BACKLOG)], 0.99)


@pytest.mark.req("jq:NFR-003")
async def test_a_cycle_of_100_takes_under_200_ms_at_p95(engine: Engine, cycles: Cycles):
    async def p95() -> float:
        before = len(cycles.full)
        await hand_out(engine, BACKLOG)
        full = cycles.full[before:]
        assert len(full) >= 50
        return percentile(full, 0.95)

    await kept(p95, lambda seconds: seconds < 0.2)
