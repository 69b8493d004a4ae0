"""Engine, worker and store in one process: ``python -m bench.local STORE JOBS``.

``--only drain`` or ``--only hand-off`` measures that alone, also on a private Redis or PostgreSQL.
The processor time of a job, which it tells, is what to compare two versions by, run by turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from bench.report import Figure, percentile
from jobqueue.bench.machine import CpuTimes, resident_bytes
from jobqueue.core.api import ClientApi
from jobqueue.core.job import JobSpec
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.topology.backing import PrivatePostgres, PrivateRedis
from jobqueue.topology.connect import create_store
from jobqueue.worker.registry import Registry, define
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings

BATCH = 1_000
IN_FLIGHT = 2
CONCURRENCY = 2_000
HANDED_OFF = 5  # jobs of one submit
TARGETS: dict[str, dict[str, float | None]] = {
    "memory": {"batch": 60_000, "drain": 30_000, "bytes": 2_048},
    "sqlite": {"batch": 40_000, "drain": 20_000, "bytes": None},
}
NO_TARGETS: Mapping[str, float | None] = {"batch": None, "drain": None, "bytes": None}


class Bench:
    """A store of its own for each measurement, so that none stands in another's way."""

    def __init__(
        self,
        store: str,
        folder: Path,
        jobs: int,
        *,
        types: int = 1,
        url: str | None = None,
        services: Mapping[str, int] | None = None,
    ) -> None:
        self.store = store
        self.jobs = jobs
        self.types = [f"noop{n}" for n in range(types)] if types > 1 else ["noop"]
        self.targets = TARGETS.get(store, NO_TARGETS)
        self._url = url
        self._services = services or {}
        self._folder = folder
        self._files = 0

    @asynccontextmanager
    async def engine(self, batch_size: int = BATCH) -> AsyncIterator[Engine]:
        self._files += 1
        url = self._url or "memory://"
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
        async with self.engine() as engine:
            batch_rate = await submit_batches(engine, self.jobs, spec=self._spec)
            spent = CpuTimes({}, families=self._services)
            drain_rate = await _drain(engine, self.jobs, self.types)
            costs = spent.spent().per_job(self.jobs)
            stats = await engine.queue_stats("default")
            if stats.succeeded != self.jobs:
                raise AssertionError(f"{stats.succeeded} of {self.jobs} jobs were done")
        conditions = f"{self.jobs:,} jobs, {len(self.types)} types, full history"
        load = f"async no-op, concurrency {CONCURRENCY}, batch size {BATCH}"
        return [
            Figure(
                f"{self.store}: batch submit", batch_rate, "jobs/s", self.targets["batch"],
                f"{conditions}, batches of {BATCH}, {IN_FLIGHT} in flight",
            ),
            Figure(
                f"{self.store}: drain", drain_rate, "jobs/s", self.targets["drain"],
                f"{conditions}, {load}; {costs}",
            ),
        ]  # fmt: skip

    async def hand_off(self) -> list[Figure]:
        """A few jobs at a time for a worker that waits: most are assigned in the submit itself."""
        ended = asyncio.Event()
        left = 0

        async def noop(n: int) -> int:
            nonlocal left
            left -= 1
            if not left:
                ended.set()
            return n

        async with self.engine(100) as engine:
            worker = _worker(engine, noop, 2 * HANDED_OFF, self.types)
            await worker.start()
            spent = CpuTimes({}, families=self._services)
            began = time.perf_counter()
            for start in range(0, self.jobs, HANDED_OFF):
                left = HANDED_OFF
                ended.clear()
                await engine.submit([self._spec(start + n) for n in range(HANDED_OFF)])
                await ended.wait()
            rate = self.jobs / (time.perf_counter() - began)
            costs = spent.spent().per_job(self.jobs)
            await worker.stop()
        conditions = f"{self.jobs:,} jobs, {len(self.types)} types, {HANDED_OFF} at a time"
        return [Figure(f"{self.store}: hand-off", rate, "jobs/s", None, f"{conditions}; {costs}")]

    def _spec(self, n: int) -> JobSpec:
        return noop_spec(n, self.types[n % len(self.types)])

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
            worker = _worker(engine, note, 4, ["note"])
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
                self.targets["bytes"], f"resident set, {self.jobs:,} jobs of 12 bytes",
            )
        ]  # fmt: skip


def noop_spec(n: int, type: str = "noop") -> JobSpec:
    """A job that does nothing."""
    return JobSpec(payload=b'{"n": %d}' % n, type=type)


def _worker(
    engine: Engine, handler: Callable[..., Any], concurrency: int, types: Sequence[str]
) -> WorkerRuntime:
    registry = Registry()
    for type in types:
        registry.add(define(handler, name=type))
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


async def _drain(engine: Engine, jobs: int, types: Sequence[str]) -> float:
    left = jobs
    ran = asyncio.Event()

    async def noop(n: int) -> int:
        nonlocal left
        left -= 1
        if not left:
            ran.set()
        return n

    worker = _worker(engine, noop, CONCURRENCY, types)
    began = time.perf_counter()
    await worker.start()
    await ran.wait()
    while (await engine.queue_stats("default")).succeeded < jobs:  # noqa: ASYNC110 - the truth
        await asyncio.sleep(0.001)
    rate = jobs / (time.perf_counter() - began)
    await worker.stop()
    return rate


@contextmanager
def _private(store: str, folder: Path) -> Iterator[tuple[str | None, dict[str, int]]]:
    """A server for a store that needs one: its URL, and its process by name."""
    if store not in SERVERS:
        yield None, {}
        return
    server = SERVERS[store](folder / store)
    server.start()
    try:
        url = server.url if isinstance(server, PrivateRedis) else server.dsn()
        yield url, {server.name: server.pid or 0}
    finally:
        server.stop()


SERVERS: dict[str, type[PrivateRedis] | type[PrivatePostgres]] = {
    "redis": PrivateRedis,
    "postgres": PrivatePostgres,
}
PARTS = {"drain": Bench.batch_and_drain, "hand-off": Bench.hand_off}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.local", description=__doc__)
    parser.add_argument("store", choices=(*TARGETS, *SERVERS))
    parser.add_argument("jobs", type=int)
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument("--types", type=int, default=1, help="task types in turn (%(default)s)")
    told = parser.parse_args()
    if told.store in SERVERS and told.only is None:
        parser.error(f"{told.store} needs --only: every measurement has a store of its own")
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as made:
        folder = Path(made)
        folder.chmod(0o755)  # a server runs as another user when we are root
        with _private(told.store, folder) as (url, services):
            bench = Bench(
                told.store, folder, told.jobs, types=told.types, url=url, services=services
            )
            figures = uvloop.run(PARTS[told.only](bench) if told.only else bench.run())
    print(json.dumps([asdict(figure) for figure in figures]))


if __name__ == "__main__":
    main()
