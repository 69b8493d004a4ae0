"""A queue at work: the time from submit to start, and the memory of a server."""

from __future__ import annotations

import asyncio
import json
import time

from bench.local import submit_batches
from bench.processes import server, workers
from bench.replicated.fleet import fleet
from bench.replicated.ground import Ground
from bench.replicated.sizes import Sizes
from bench.report import Figure, percentile
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.machine import resident_bytes
from jobqueue.core.job import JobSpec

PACE = 50  # jobs a second
_BACKLOG = 20_000
_MIB = 1 << 20


async def latency(ground: Ground, sizes: Sizes) -> list[Figure]:
    """Submit to start when there is little to do: from before the call to the handler."""
    async with ground.database() as site, server(site.url, ground.environment()) as process:
        told = ground.environment() | process.environment
        async with workers(told, site.store.workers) as pids:
            backend = GrpcBackend(process.target)
            cpu = ground.cpu(server=process.pid, **pids)
            milliseconds = await starts(backend, sizes.latency_jobs)
            spent = cpu.spent().shares()
            await backend.stop()
    how = f"{sizes.latency_jobs} jobs, {PACE} a second, 1 server, 1 jq-worker, default settings"
    return [
        Figure(
            f"submit→start p{share}", percentile(milliseconds, share / 100), "ms", target,
            f"{how}; {spent}",
        )
        for share, target in ((50, 3.0), (99, 10.0))
    ]  # fmt: skip


async def starts(backend: GrpcBackend, jobs: int, pace: int = PACE) -> list[float]:
    """Milliseconds from submit to start, one job at each tick, after a second of warm-up.

    The job itself says how long it took.
    """
    for warm in (True, False):
        ids = []
        for _ in range(pace if warm else jobs):
            tick = asyncio.create_task(asyncio.sleep(1 / pace))
            payload = json.dumps({"at": time.perf_counter()}).encode()
            (result,) = await backend.submit([JobSpec(payload=payload, type="note")])
            ids.append(result.unwrap())
            await tick
        done = [await backend.wait(job_id, 30.0) for job_id in ids]
    return [json.loads(job.result or b"null") * 1e3 for job in done]


async def memory(ground: Ground, sizes: Sizes) -> list[Figure]:
    """A server's memory while jobs pass through it: submitted and executed over gRPC."""
    marks = [sizes.memory_jobs // 10, sizes.memory_jobs // 2, sizes.memory_jobs]
    seen = []
    submitted = 0
    async with ground.database() as site, fleet(site, sizes) as programs:
        backend = GrpcBackend(programs.target)
        for mark in marks:
            while submitted < mark:
                await submit_batches(backend, 10 * sizes.batch, batch=sizes.batch)
                submitted += 10 * sizes.batch
                await site.until_done(submitted - _BACKLOG)
            await site.until_done(submitted)
            seen.append(resident_bytes(programs.server))
        await backend.stop()
    how = "resident set; submitted and executed over gRPC, 1 server, 1 jq-worker"
    figures = [
        Figure(f"server memory after {mark:,} jobs", size / _MIB, "MiB", None, how)
        for mark, size in zip(marks, seen, strict=True)
    ]
    growth = seen[-1] / seen[0]
    name = f"server memory, {marks[-1]:,} jobs against {marks[0]:,}"
    return [*figures, Figure(name, growth, "×", 1.1, how)]
