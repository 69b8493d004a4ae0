"""Measure the rates of submit and drain, scheduling cycles, and the time from submit to start."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import grpc.aio

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.intervals import percentile
from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios.fleet import fleet, load, noop_spec, submit_batches
from jobqueue.bench.scenarios.stand import Stand
from jobqueue.core.job import JobSpec, WorkerInfo
from jobqueue.core.observer import Observer
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc, types_pb2

CALLS = 50  # in flight
BACKLOG = 9_000  # "normal load": a queue depth below 10,000
WHOLE = 100  # jobs of a cycle with default settings
PACE = 50  # jobs a second


async def batch(stand: Stand) -> list[Figure]:
    """Measure batch submits to an engine in this process, and through a jq-server."""
    sizes = stand.sizes
    jobs = sizes.jobs
    how = f"{jobs:,} jobs, batches of {sizes.batch_size}, {sizes.in_flight} in flight"
    async with stand.database() as site, site.engine() as engine:
        cpu = stand.cpu()
        here = await submit_batches(engine, jobs, sizes)
        cost = f"engine and store in one process; {cpu.spent().per_job(jobs)}"
    async with stand.database() as site, fleet(site, workers=0) as programs:
        backend = GrpcBackend(programs.grpc[0])
        cpu = stand.cpu(**programs.pids)
        remote = await submit_batches(backend, jobs, sizes)
        remote_cost = cpu.spent().per_job(jobs)
        await backend.stop()
    return [
        Figure("batch submit", here, "jobs/s", 40_000, f"{how}, {cost}"),
        Figure("batch submit over gRPC", remote, "jobs/s", None, f"{how}; {remote_cost}"),
    ]


async def calls(stand: Stand) -> list[Figure]:
    """Measure one-job submits to a jq-server: plain unary calls, and calls of the SDK."""
    jobs = stand.sizes.jobs
    fewer = max(1, jobs // 5)
    async with stand.database() as site, fleet(site, workers=0) as programs:
        target = programs.grpc[0]
        cpu = stand.cpu(**programs.pids)
        plain = await unary(target, fewer)
        plain_cost, cpu = cpu.spent().per_job(fewer), stand.cpu(**programs.pids)
        coalesced = await sdk(target, jobs)
        cost = cpu.spent().per_job(jobs)
    how = f"{CALLS} in flight"
    return [
        Figure("unary gRPC submit", plain, "jobs/s", 2_000, f"{fewer:,} jobs, {how}; {plain_cost}"),
        Figure(
            "SDK submit", coalesced, "jobs/s", 10_000,
            f"{jobs:,} plain one-job calls, {how}; {cost}",
        ),
    ]  # fmt: skip


async def unary(target: str, jobs: int) -> float:
    """Return the rate of plain unary calls, which a client in any language can make."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = client_pb2_grpc.ClientServiceStub(channel)

        async def submit(n: int) -> None:
            spec = types_pb2.JobSpec(queue="default", type="noop", payload=b'{"n": %d}' % n)
            await stub.Submit(client_pb2.SubmitRequest(spec=spec), timeout=30)

        return await _rate(jobs, submit)


async def sdk(target: str, jobs: int) -> float:
    """Return the rate of one-job submits through the SDK's backend, which builds batches."""
    backend = GrpcBackend(target)

    async def submit(n: int) -> None:
        (await backend.submit([noop_spec(n)]))[0].unwrap()

    try:
        return await _rate(jobs, submit)
    finally:
        await backend.stop()


async def _rate(jobs: int, submit: Callable[[int], Awaitable[object]]) -> float:
    """Return the calls per second, after a warm-up with a tenth of the calls."""
    await together(jobs // 10, CALLS, submit)
    return await together(jobs, CALLS, submit)


async def together(count: int, callers: int, submit: Callable[[int], Awaitable[object]]) -> float:
    """Return the calls per second of several callers, which make ``count`` calls in all."""
    numbers = iter(range(count))

    async def caller() -> None:
        for n in numbers:
            await submit(n)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return count / (time.perf_counter() - began)


async def drain(stand: Stand) -> list[Figure]:
    """Measure the drain of a backlog by jq-workers over gRPC."""
    return [await _drained(stand, 1, 25_000), await _drained(stand, 2, None)]


async def direct(stand: Stand) -> list[Figure]:
    """Measure the drain of a backlog by a jq-worker that uses the store itself."""
    return [await _drained(stand, 1, 30_000, direct=True)]


async def _drained(
    stand: Stand, workers: int, target: float | None, *, direct: bool = False
) -> Figure:
    sizes = stand.sizes
    async with stand.database() as site:
        await load(site, sizes.jobs)
        async with fleet(site, workers=workers, for_drains=True, direct=direct) as programs:
            cpu = stand.cpu(**programs.pids)
            rate = await site.drain_rate(sizes.jobs)
            cost = cpu.spent().per_job(sizes.jobs)
    several = "s" if workers > 1 else ""
    name = "drain, jq-worker on the store" if direct else f"drain, {workers} jq-worker{several}"
    where = "--server postgresql://…" if direct else "over gRPC to 1 server"
    how = (
        f"{sizes.jobs:,} no-op jobs, {workers} jq-worker{several} {where},"
        f" concurrency {sizes.concurrency} each, batch size {sizes.batch_size}; {cost}"
    )
    return Figure(name, rate, "jobs/s", target, how)


async def latency(stand: Stand) -> list[Figure]:
    """Measure the time from before a submit to the handler's start, with few jobs per second."""
    jobs = stand.sizes.latency_jobs
    async with stand.database() as site, fleet(site) as programs:
        backend = GrpcBackend(programs.grpc[0])
        cpu = stand.cpu(**programs.pids)
        milliseconds = await starts(backend, jobs)
        spent = cpu.spent().shares()
        await backend.stop()
    how = f"{jobs} jobs, {PACE} a second, 1 server, 1 jq-worker, default settings; {spent}"
    return timings("submit→start", milliseconds, {50: 3.0, 99: 10.0}, how)


def timings(
    name: str, milliseconds: Sequence[float], targets: Mapping[int, float | None], how: str
) -> list[Figure]:
    """Return a figure for each percentile in ``targets``, with its target."""
    return [
        Figure(f"{name} p{share}", percentile(milliseconds, share / 100), "ms", target, how)
        for share, target in targets.items()
    ]


async def starts(backend: GrpcBackend, jobs: int, pace: int = PACE) -> list[float]:
    """Return the milliseconds from submit to start of each job, with ``pace`` jobs per second.

    The first second is a warm-up and does not count. The job itself measures the time.
    """
    taken: list[float] = []
    for count in (pace, jobs):
        ids = []
        for _ in range(count):
            tick = asyncio.create_task(asyncio.sleep(1 / pace))
            payload = json.dumps({"at": time.perf_counter()}).encode()
            (result,) = await backend.submit([JobSpec(payload=payload, type="note")])
            ids.append(result.unwrap())
            await tick
        done = [await backend.wait(job_id, 30.0) for job_id in ids]
        taken = [json.loads(job.result or b"null") * 1e3 for job in done]
    return taken


async def cycle(stand: Stand) -> list[Figure]:
    """Measure the time of scheduling cycles that assign 100 jobs."""
    cycles = Cycles()
    async with stand.database() as site, site.engine(EngineSettings(), cycles) as engine:
        cpu = stand.cpu()
        for _ in range(3):
            await hand_out(engine, BACKLOG)
        spent = cpu.spent().shares()
    milliseconds = [seconds * 1e3 for seconds in cycles.full]
    how = f"{len(milliseconds)} cycles, {BACKLOG:,} jobs waiting; {spent}"
    return timings("scheduler cycle of 100,", milliseconds, {50: None, 95: 20}, how)


class Cycles(Observer):
    """Records the duration of scheduling cycles that assigned a whole batch."""

    def __init__(self) -> None:
        self.full: list[float] = []

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        if sum(assigned.values()) == WHOLE:
            self.full.append(seconds)


class _Sink:
    """Accepts all assigned jobs in place of a worker, and never runs them."""

    def __init__(self, jobs: int) -> None:
        self._left = jobs
        self.full = asyncio.Event()

    def assigned(self, assignments: Sequence[object]) -> None:
        self._left -= len(assignments)
        if not self._left:
            self.full.set()

    def cancel(self, leases: Sequence[int]) -> None:
        raise AssertionError("this scenario cancels no job")

    def set_status(self, status: object) -> None:
        raise AssertionError("this scenario drains no worker")

    def holds(self) -> None:
        return

    def moved(self) -> None:
        raise AssertionError("this scenario has one server, so its worker cannot move")


async def hand_out(engine: Engine, jobs: int) -> None:
    """Submit ``jobs`` jobs (a multiple of 1,000), and wait until the scheduler has assigned all."""
    for _ in range(jobs // 1_000):
        for result in await engine.submit([JobSpec(payload=b"x")] * 1_000):
            result.unwrap()
    sink = _Sink(jobs)
    info = WorkerInfo(
        id=f"sink-{id(sink)}",  # a new id, so that jobs of an earlier worker do not count
        incarnation=1,
        hostname="host",
        pid=1,
        concurrency=jobs,
        queues=("default",),
    )
    link = await engine.connect(info, sink)
    link.grant(jobs)
    async with asyncio.timeout(60):
        await sink.full.wait()
