"""Engine, worker and store in one process: ``python -m bench.local STORE JOBS``."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import uvloop

from bench.processes import resident_bytes
from bench.report import Figure, percentile
from jobqueue.core.api import ClientApi
from jobqueue.core.job import JobSpec
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.topology.connect import create_store
from jobqueue.worker.registry import Registry, define
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings

BATCH = 1_000
IN_FLIGHT = 2
CONCURRENCY = 2_000
TARGETS: dict[str, dict[str, float | None]] = {
    "memory": {"batch": 60_000, "drain": 30_000, "bytes": 2_048},
    "sqlite": {"batch": 40_000, "drain": 20_000, "bytes": None},
}


class Bench:
    """A store of its own for each measurement, so that none stands in another's way."""

    def __init__(self, store: str, folder: Path, jobs: int) -> None:
        self.store = store
        self.jobs = jobs
        self._folder = folder
        self._files = 0

    @asynccontextmanager
    async def engine(self, batch_size: int = BATCH) -> AsyncIterator[Engine]:
        self._files += 1
        url = "memory://"
        if self.store == "sqlite":
            url = f"sqlite:///{self._folder}/bench{self._files}.db"
        engine = Engine(create_store(url), EngineSettings(batch_size=batch_size))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    async def run(self) -> list[Figure]:
        figures = []
        for measure in (self.memory, self.batch_and_drain, self.single, self.latency):
            figures += await measure()
        return figures

    async def batch_and_drain(self) -> list[Figure]:
        targets = TARGETS[self.store]
        async with self.engine() as engine:
            batch_rate = await submit_batches(engine, self.jobs)
            drain_rate = await _drain(engine, self.jobs)
            stats = await engine.queue_stats("default")
            if stats.succeeded != self.jobs:
                raise AssertionError(f"{stats.succeeded} of {self.jobs} jobs were done")
        conditions = f"{self.jobs:,} jobs, full history"
        return [
            Figure(
                f"{self.store}: batch submit", batch_rate, "jobs/s", targets["batch"],
                f"{conditions}, batches of {BATCH}, {IN_FLIGHT} in flight",
            ),
            Figure(
                f"{self.store}: drain", drain_rate, "jobs/s", targets["drain"],
                f"{conditions}, async no-op, concurrency {CONCURRENCY}, batch size {BATCH}",
            ),
        ]  # fmt: skip

    async def single(self) -> list[Figure]:
        async with self.engine() as engine:
            count = self.jobs // 10
            began = time.perf_counter()
            for n in range(count // 5):
                (await engine.submit([noop_spec(n)]))[0].unwrap()
            alone = (count // 5) / (time.perf_counter() - began)
            began = time.perf_counter()

            async def submit(share: int) -> None:
                for n in range(share):
                    (await engine.submit([noop_spec(n)]))[0].unwrap()

            await asyncio.gather(*(submit(count // 50) for _ in range(50)))
            together = count // 50 * 50 / (time.perf_counter() - began)
        return [
            Figure(f"{self.store}: single submit", alone, "jobs/s", None, "one at a time"),
            Figure(f"{self.store}: single submit", together, "jobs/s", None, "50 in flight"),
        ]

    async def latency(self) -> list[Figure]:
        """Submit to start on an idle queue: from before the call to the handler's first line."""
        taken: list[float] = []
        began = 0.0
        started = asyncio.Event()

        async def note() -> None:
            taken.append(time.perf_counter() - began)
            started.set()

        async with self.engine(100) as engine:
            worker = _worker(engine, note, 4)
            await worker.start()
            for _ in range(500):
                await asyncio.sleep(0.02)
                started.clear()
                began = time.perf_counter()
                await engine.submit([JobSpec(payload=b"{}", type="note")])
                await started.wait()
            await worker.stop()
        conditions = "idle, 500 jobs at 50/s, default settings"
        milliseconds = [value * 1e3 for value in taken]
        return [
            Figure(
                f"{self.store}: submit→start p{share}",
                percentile(milliseconds, share / 100),
                "ms",
                target,
                conditions,
            )
            for share, target in ((50, 1.5), (99, 5.0))
        ]

    async def memory(self) -> list[Figure]:
        async with self.engine() as engine:
            await submit_batches(engine, BATCH)
            before = resident_bytes()
            await submit_batches(engine, self.jobs)
            per_job = (resident_bytes() - before) / self.jobs
        return [
            Figure(
                f"{self.store}: memory per pending job", per_job, "bytes",
                TARGETS[self.store]["bytes"], f"resident set, {self.jobs:,} jobs of 12 bytes",
            )
        ]  # fmt: skip


def noop_spec(n: int) -> JobSpec:
    """A job that does nothing."""
    return JobSpec(payload=b'{"n": %d}' % n, type="noop")


def _worker(engine: Engine, handler: object, concurrency: int) -> WorkerRuntime:
    registry = Registry()
    registry.add(define(handler))  # type: ignore[arg-type]
    settings = WorkerSettings(id="bench", concurrency=concurrency)
    return WorkerRuntime(engine, registry, settings)


async def submit_batches(
    backend: ClientApi,
    jobs: int,
    *,
    batch: int = BATCH,
    in_flight: int = IN_FLIGHT,
    spec: Callable[[int], JobSpec] = noop_spec,
) -> float:
    """Submit in batches; jobs per second until the last one is durable."""
    starts = iter(range(0, jobs, batch))

    async def submit() -> None:
        for start in starts:
            numbers = range(start, min(jobs, start + batch))
            for result in await backend.submit([spec(n) for n in numbers]):
                result.unwrap()

    began = time.perf_counter()
    await asyncio.gather(*(submit() for _ in range(in_flight)))
    return jobs / (time.perf_counter() - began)


async def _drain(engine: Engine, jobs: int) -> float:
    left = jobs
    ran = asyncio.Event()

    async def noop(n: int) -> int:
        nonlocal left
        left -= 1
        if not left:
            ran.set()
        return n

    worker = _worker(engine, noop, CONCURRENCY)
    began = time.perf_counter()
    await worker.start()
    await ran.wait()
    while (await engine.queue_stats("default")).succeeded < jobs:  # noqa: ASYNC110 - the truth
        await asyncio.sleep(0.001)
    rate = jobs / (time.perf_counter() - began)
    await worker.stop()
    return rate


def main() -> None:
    store, jobs = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as folder:
        figures = uvloop.run(Bench(store, Path(folder), jobs).run())
    print(json.dumps([asdict(figure) for figure in figures]))


if __name__ == "__main__":
    main()
