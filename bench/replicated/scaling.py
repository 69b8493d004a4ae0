"""More workers: twice as many do twice as much, and a hundred stay connected."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from bench.local import submit_batches
from bench.processes import online, server, workers
from bench.replicated.ground import Ground, Site
from bench.replicated.sizes import Sizes
from bench.report import Figure
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.machine import resident_bytes
from jobqueue.core.job import JobSpec

_ALMOST = 0.9  # of twice as much
_LOOK = 1.0


async def scaling(ground: Ground, sizes: Sizes, say: Callable[[str], None]) -> list[Figure]:
    """Throughput of sleeping jobs with 1, 2, 4 … workers."""
    figures: list[Figure] = []
    count = 1
    before: float | None = None
    while count <= sizes.most_workers:
        say(f"{count} workers")
        rate, how = await _napping(ground, sizes, count)
        target = None if before is None else 2 * _ALMOST * before
        figures.append(Figure(f"sleeping jobs, {count} jq-worker", rate, "jobs/s", target, how))
        count, before = 2 * count, rate
    return figures


async def _napping(ground: Ground, sizes: Sizes, count: int) -> tuple[float, str]:
    slots = sizes.nap_slots
    told = ground.environment(worker_concurrency=slots)
    jobs = int(count * slots * sizes.nap_seconds / sizes.nap)
    payload = json.dumps({"seconds": sizes.nap}).encode()
    async with ground.database() as site:
        await site.pause()
        async with site.engine() as engine:
            await submit_batches(engine, jobs, spec=lambda n: JobSpec(payload=payload, type="nap"))
        await site.settle()
        async with (
            server(site.url, ground.environment()) as process,
            workers(told | process.environment, site.store.workers, count) as pids,
        ):
            cpu = ground.cpu(server=process.pid, **pids)
            rate = await site.drain_rate(jobs)
            spent = cpu.spent().shares()
    ideal = count * slots / sizes.nap
    how = (
        f"{jobs:,} jobs of {sizes.nap * 1e3:g} ms, {slots} slots each, 1 server, default settings; "
        f"{rate / ideal:.0%} of the {ideal:,.0f} that the slots allow; {spent}"
    )
    return rate, how


async def crowd(ground: Ground, sizes: Sizes, say: Callable[[str], None]) -> list[Figure]:
    """Many workers on one server: all stay ONLINE, all get jobs."""
    async with ground.database() as site, server(site.url, ground.environment()) as process:
        say(f"starting {sizes.crowd} workers")
        told = ground.environment() | process.environment
        async with workers(told, site.store.workers, sizes.crowd) as pids:
            memory = sum(resident_bytes(pid) for pid in pids.values()) / (1 << 30)
            cpu = ground.cpu(server=process.pid)
            fewest, jobs = await _hold(site, process.target, sizes, say)
            spent = cpu.spent().shares()
        async with ground.connection(site.name) as db:
            busy = await db.fetchval("SELECT count(DISTINCT worker) FROM job_ended")
    how = (
        f"1 server, {sizes.crowd} jq-worker processes ({memory:.1f} GiB), {sizes.crowd_seconds:g} s"
        f" with {jobs:,} jobs; {spent}"
    )
    return [
        Figure(
            f"of {sizes.crowd} workers, not ONLINE at some time", sizes.crowd - fewest, "", 0, how
        ),
        Figure(f"of {sizes.crowd} workers, got no job", sizes.crowd - busy, "", 0, how),
    ]


async def _hold(
    site: Site, target: str, sizes: Sizes, say: Callable[[str], None]
) -> tuple[int, int]:
    """The fewest that were ONLINE at any look; jobs are submitted all the time."""
    backend = GrpcBackend(target)
    fewest, jobs, began = sizes.crowd, 0, time.monotonic()
    payload = json.dumps({"seconds": sizes.nap}).encode()
    while (elapsed := time.monotonic() - began) < sizes.crowd_seconds:
        say(f"{fewest} workers held for {elapsed:.0f} of {sizes.crowd_seconds:g} s")
        for result in await backend.submit([JobSpec(payload=payload, type="nap")] * sizes.crowd):
            result.unwrap()
        jobs += sizes.crowd
        known = await backend.list_workers()
        fewest = min(fewest, len(online(known)))
        await asyncio.sleep(_LOOK)
    await site.until_done(jobs)
    await backend.stop()
    return fewest, jobs
