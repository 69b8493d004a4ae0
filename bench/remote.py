"""A real ``jq-server`` process, and a client in another: ``python -m bench.remote STORE JOBS``."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import grpc.aio
import uvloop

from bench.processes import server
from bench.report import Figure
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import JobSpec
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc, types_pb2
from jobqueue.worker.registry import Registry, define
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings

IN_FLIGHT = 50
CONCURRENCY = 2_000
BATCH = 1_000


async def _rate(jobs: int, submit: Callable[[int], Awaitable[object]]) -> float:
    numbers = iter(range(jobs))

    async def caller() -> None:
        for n in numbers:
            await submit(n)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return jobs / (time.perf_counter() - began)


async def unary(target: str, jobs: int) -> float:
    """Plain unary calls of the public API, as any language's client makes them."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = client_pb2_grpc.ClientServiceStub(channel)

        async def submit(n: int) -> None:
            spec = types_pb2.JobSpec(queue="default", type="noop", payload=b'{"n": %d}' % n)
            await stub.Submit(client_pb2.SubmitRequest(spec=spec), timeout=30)

        await _rate(jobs // 10, submit)  # warm-up
        return await _rate(jobs, submit)


async def sdk(target: str, jobs: int) -> float:
    """One-job ``submit()`` calls through the SDK's backend, which coalesces them."""
    backend = GrpcBackend(target)

    async def submit(n: int) -> None:
        (await backend.submit([JobSpec(payload=b'{"n": %d}' % n, type="noop")]))[0].unwrap()

    try:
        await _rate(jobs // 10, submit)
        return await _rate(jobs, submit)
    finally:
        await backend.stop()


async def drain(target: str) -> tuple[float, int]:
    """What was submitted above, executed by a worker over the gRPC stream."""
    backend = GrpcBackend(target)
    before = await backend.queue_stats("default")
    jobs = before.unfinished
    done = 0

    async def noop(n: int) -> int:
        nonlocal done
        done += 1
        return n

    registry = Registry()
    registry.add(define(noop))
    worker = WorkerRuntime(backend, registry, WorkerSettings(id="bench", concurrency=CONCURRENCY))
    began = time.perf_counter()
    await worker.start()
    while (await backend.queue_stats("default")).succeeded < jobs:  # noqa: ASYNC110 - the truth
        await asyncio.sleep(0.02)
    rate = jobs / (time.perf_counter() - began)
    await worker.stop()
    await backend.stop()
    return rate, jobs


async def measure(store: str, jobs: int) -> list[Figure]:
    """All of it, against one server."""
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as folder:
        url = "memory://" if store == "memory" else f"sqlite:///{folder}/server.db"
        async with server(url, {"JQ_SCHEDULER_BATCH_SIZE": str(BATCH)}) as process:
            plain = await unary(process.target, jobs // 5)
            coalesced = await sdk(process.target, jobs)
            drained, count = await drain(process.target)
    where = f"{IN_FLIGHT} in flight, server and client share the cores"
    return [
        Figure(
            f"{store}: unary gRPC submit", plain, "jobs/s", 2_000, f"{jobs // 5:,} jobs, {where}"
        ),
        Figure(
            f"{store}: SDK submit over gRPC",
            coalesced,
            "jobs/s",
            12_000,
            f"{jobs:,} plain one-job calls, {where}",
        ),
        Figure(
            f"{store}: drain over gRPC",
            drained,
            "jobs/s",
            None,
            f"{count:,} no-op jobs, one worker process, concurrency {CONCURRENCY}, "
            f"batch size {BATCH}",
        ),
    ]


def main() -> None:
    """Print the figures as JSON."""
    figures = uvloop.run(measure(sys.argv[1], int(sys.argv[2])))
    print(json.dumps([asdict(figure) for figure in figures]))


if __name__ == "__main__":
    main()
