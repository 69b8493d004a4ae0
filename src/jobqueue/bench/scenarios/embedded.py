"""Measure engine, worker and store in one process, and a jq-server on the same kind of store.

Each measurement in one process gets a new process, so that it does not inherit a used heap:
``python -m jobqueue.bench.scenarios.embedded NAME STORE FOLDER SIZES``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import uvloop

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.cell import Cell
from jobqueue.bench.ground import Ground, brought_up
from jobqueue.bench.machine import CpuTimes, resident_bytes
from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios.catalogue import Sizes
from jobqueue.bench.scenarios.fleet import noop_spec, submit_batches, telling
from jobqueue.bench.scenarios.rates import CALLS, sdk, timings, together, unary
from jobqueue.bench.scenarios.stand import Stand
from jobqueue.connect.backends import create_store
from jobqueue.core.api import Backend
from jobqueue.core.job import DEFAULT_QUEUE, JobSpec
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.tasks.task import define
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings

STORES = ("memory", "sqlite")
_HANDED_OFF = 5  # jobs of one submit
_TARGETS: Mapping[str, Mapping[str, float | None]] = {
    "memory": {"batch": 60_000, "drain": 30_000, "bytes": 2_048},
    "sqlite": {"batch": 40_000, "drain": 20_000, "bytes": None},
}


async def drain(stand: Stand) -> list[Figure]:
    """Measure the drain of a backlog by a worker in the process, and by a worker over gRPC."""
    figures = await _in_processes(stand, "drain")
    jobs, sizes = stand.sizes.jobs, stand.sizes
    for store in STORES:
        stand.say(f"{store}, over gRPC")
        async with _server(stand, store) as ground:
            backend = GrpcBackend(ground.grpc[0])
            await submit_batches(backend, jobs, sizes)
            rate = await _drained(backend, jobs, sizes.concurrency, ["noop"])
            await backend.stop()
        how = f"{jobs:,} no-op jobs, one worker process, {_load(sizes)}"
        figures.append(Figure(f"{store}: drain over gRPC", rate, "jobs/s", None, how))
    return figures


async def calls(stand: Stand) -> list[Figure]:
    """Measure one-job submits to a jq-server: plain unary calls, and calls of the SDK."""
    figures, jobs = [], stand.sizes.jobs
    fewer = max(1, jobs // 5)
    where = f"{CALLS} in flight, server and client share the cores"
    for store in STORES:
        stand.say(store)
        async with _server(stand, store) as ground:
            plain = await unary(ground.grpc[0], fewer)
            coalesced = await sdk(ground.grpc[0], jobs)
        figures += [
            Figure(
                f"{store}: unary gRPC submit", plain, "jobs/s", 2_000, f"{fewer:,} jobs, {where}"
            ),
            Figure(
                f"{store}: SDK submit over gRPC", coalesced, "jobs/s", 12_000,
                f"{jobs:,} plain one-job calls, {where}",
            ),
        ]  # fmt: skip
    return figures


@contextlib.asynccontextmanager
async def _server(stand: Stand, store: str) -> AsyncIterator[Ground]:
    """Start a jq-server without workers of its own."""
    url = "memory://" if store == "memory" else f"sqlite:///{stand.folder}/{stand.prefix()}.db"
    told = {
        "JQ_DB_URL": url,
        "JQ_WORKER_CONCURRENCY": "0",
        "JQ_SCHEDULER_BATCH_SIZE": str(stand.sizes.batch_size),
    }
    async with brought_up(Cell("embedded"), telling(told), within=stand.folder) as ground:
        yield ground


async def _in_processes(stand: Stand, name: str) -> list[Figure]:
    found: list[Figure] = []
    sizes = json.dumps(msgspec.structs.asdict(stand.sizes))
    for store in STORES:
        stand.say(store)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", __name__, name, store, str(stand.folder), sizes),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            raise RuntimeError(
                f"the measurement {name} with store {store} ended with status"
                f" {process.returncode}; its error is on stderr"
            )
        found += [Figure(**one) for one in json.loads(out)]
    return found


def _measured(name: str) -> Callable[[Stand], Awaitable[list[Figure]]]:
    async def measure(stand: Stand) -> list[Figure]:
        return await _in_processes(stand, name)

    return measure


batch = _measured("batch")
hand_off = _measured("hand-off")
single = _measured("single")
latency = _measured("latency")
memory = _measured("memory")


def _load(sizes: Sizes) -> str:
    return f"concurrency {sizes.concurrency}, batch size {sizes.batch_size}"


async def _drained(backend: Backend, jobs: int, slots: int, types: Sequence[str]) -> float:
    """Return the jobs per second from the worker's start until all jobs are done."""
    left, ran = jobs, asyncio.Event()

    async def noop(n: int) -> int:
        nonlocal left
        left -= 1
        if not left:
            ran.set()
        return n

    worker = _worker(backend, noop, slots, types)
    began = time.perf_counter()
    await worker.start()
    await ran.wait()
    while (await backend.queue_stats(DEFAULT_QUEUE)).succeeded < jobs:  # noqa: ASYNC110 - the truth
        await asyncio.sleep(0.001)
    rate = jobs / (time.perf_counter() - began)
    await worker.stop()
    return rate


def _worker(
    backend: Backend, handler: Callable[..., Any], slots: int, types: Sequence[str]
) -> WorkerRuntime:
    registry = Registry()
    for type in types:
        registry.add(define(handler, name=type))
    return WorkerRuntime(backend, registry, WorkerSettings(id="bench", concurrency=slots))


class _InProcess:
    """Runs engine, worker and store in this process, which makes one measurement and ends."""

    def __init__(self, store: str, folder: str, sizes: Sizes) -> None:
        self.store = store
        self.sizes = sizes
        self.jobs = sizes.jobs
        self.targets = _TARGETS[store]
        self._folder = folder

    @contextlib.asynccontextmanager
    async def engine(self, batch_size: int | None = None) -> AsyncIterator[Engine]:
        url = "memory://"
        if self.store == "sqlite":
            url = f"sqlite:///{self._folder}/{time.time_ns()}.db"
        size = batch_size or self.sizes.batch_size
        engine = Engine(create_store(url), EngineSettings(batch_size=size))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    async def batch(self) -> list[Figure]:
        """Measure batch submits."""
        async with self.engine() as engine:
            rate = await submit_batches(engine, self.jobs, self.sizes)
        how = (
            f"{self.jobs:,} jobs, full history, batches of {self.sizes.batch_size},"
            f" {self.sizes.in_flight} in flight"
        )
        return [Figure(f"{self.store}: batch submit", rate, "jobs/s", self.targets["batch"], how)]

    async def drain(self) -> list[Figure]:
        types = self._types()
        async with self.engine() as engine:
            await submit_batches(engine, self.jobs, self.sizes, lambda n: _typed(n, types))
            spent = CpuTimes({}, families={})
            rate = await _drained(engine, self.jobs, self.sizes.concurrency, types)
            costs = spent.spent().per_job(self.jobs)
        how = f"{self.jobs:,} jobs, {len(types)} types, full history, async no-op"
        how = f"{how}, {_load(self.sizes)}; {costs}"
        return [Figure(f"{self.store}: drain", rate, "jobs/s", self.targets["drain"], how)]

    async def hand_off(self) -> list[Figure]:
        """Measure submits of a few jobs to a waiting worker. Submits assign most of these jobs."""
        ended, types = asyncio.Event(), self._types()
        left = 0

        async def noop(n: int) -> int:
            nonlocal left
            left -= 1
            if not left:
                ended.set()
            return n

        async with self.engine(100) as engine:
            worker = _worker(engine, noop, 2 * _HANDED_OFF, types)
            await worker.start()
            spent = CpuTimes({}, families={})
            began = time.perf_counter()
            for start in range(0, self.jobs, _HANDED_OFF):
                left = _HANDED_OFF
                ended.clear()
                await engine.submit([_typed(start + n, types) for n in range(_HANDED_OFF)])
                await ended.wait()
            rate = self.jobs / (time.perf_counter() - began)
            costs = spent.spent().per_job(self.jobs)
            await worker.stop()
        how = f"{self.jobs:,} jobs, {len(types)} types, {_HANDED_OFF} at a time; {costs}"
        return [Figure(f"{self.store}: hand-off", rate, "jobs/s", None, how)]

    async def single(self) -> list[Figure]:
        """Measure submits of one job each."""
        figures = []
        async with self.engine() as engine:

            async def submit(n: int) -> None:
                (await engine.submit([noop_spec(n)]))[0].unwrap()

            for callers, how in ((1, "one at a time"), (CALLS, f"{CALLS} in flight")):
                count = max(callers, self.jobs // 50)
                rate = await together(count, callers, submit)
                name = f"{self.store}: single submit, {how}"
                figures.append(Figure(name, rate, "jobs/s", None, f"{count:,} jobs"))
        return figures

    async def latency(self) -> list[Figure]:
        """Measure the time from before a submit to the handler's first line, on an idle queue."""
        taken: list[float] = []
        began, jobs = 0.0, self.sizes.latency_jobs
        started = asyncio.Event()

        async def note() -> None:
            taken.append(time.perf_counter() - began)
            started.set()

        async with self.engine(100) as engine:
            worker = _worker(engine, note, 4, ["note"])
            await worker.start()
            for _ in range(jobs):
                await asyncio.sleep(0.02)
                started.clear()
                began = time.perf_counter()
                await engine.submit([JobSpec(payload=b"{}", type="note")])
                await started.wait()
            await worker.stop()
        milliseconds = [value * 1e3 for value in taken]
        how = f"idle, {jobs} jobs at 50/s, default settings"
        return timings(f"{self.store}: submit→start", milliseconds, {50: 1.5, 99: 5.0}, how)

    async def memory(self) -> list[Figure]:
        """Measure the memory of a pending job."""
        async with self.engine() as engine:
            await submit_batches(engine, self.sizes.batch_size, self.sizes)
            before = resident_bytes()
            await submit_batches(engine, self.jobs, self.sizes)
            each = (resident_bytes() - before) / self.jobs
        how = f"resident set, {self.jobs:,} jobs of 12 bytes"
        name = f"{self.store}: memory per pending job"
        return [Figure(name, each, "bytes", self.targets["bytes"], how)]

    def _types(self) -> list[str]:
        return [f"noop{n}" for n in range(self.sizes.types)] if self.sizes.types > 1 else ["noop"]


def _typed(n: int, types: Sequence[str]) -> JobSpec:
    return noop_spec(n, types[n % len(types)])


def main() -> None:
    """Make the measurement that the arguments name, and print its figures as JSON."""
    name, store, folder, sizes = sys.argv[1:]
    measurement = _InProcess(store, folder, msgspec.convert(json.loads(sizes), Sizes))
    figures = uvloop.run(getattr(measurement, name.replace("-", "_"))())
    sys.stdout.write(json.dumps([asdict(figure) for figure in figures]))


if __name__ == "__main__":
    main()
