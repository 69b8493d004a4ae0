"""Measure a server's memory over a long time, and its throughput with many workers."""

from __future__ import annotations

import asyncio
import time

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.machine import resident_bytes
from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios.fleet import fleet, load, nap_spec, submit_batches
from jobqueue.bench.scenarios.stand import Site, Stand, online

_MIB = 1 << 20
_MAY_WAIT = 20_000  # jobs that may wait while others are submitted
_ALMOST = 0.9  # of twice the throughput
_LOOK = 1.0


async def memory(stand: Stand) -> list[Figure]:
    """Measure a server's memory while jobs are submitted and executed over gRPC."""
    sizes = stand.sizes
    marks = [sizes.memory_jobs // 10, sizes.memory_jobs // 2, sizes.memory_jobs]
    seen = []
    submitted = 0
    async with stand.database() as site, fleet(site, for_drains=True) as programs:
        backend = GrpcBackend(programs.grpc[0])
        for mark in marks:
            while submitted < mark:
                stand.say(f"{submitted:,} jobs")
                count = min(10 * sizes.batch_size, mark - submitted)
                await submit_batches(backend, count, sizes)
                submitted += count
                await site.until_done(submitted - _MAY_WAIT)
            await site.until_done(submitted)
            seen.append(resident_bytes(programs.pids["server-1"]))
        await backend.stop()
    how = "resident set; submitted and executed over gRPC, 1 server, 1 jq-worker"
    figures = [
        Figure(f"server memory after {mark:,} jobs", size / _MIB, "MiB", None, how)
        for mark, size in zip(marks, seen, strict=True)
    ]
    name = f"server memory, {marks[-1]:,} jobs against {marks[0]:,}"
    return [*figures, Figure(name, seen[-1] / seen[0], "×", 1.1, how)]


async def scaling(stand: Stand) -> list[Figure]:
    """Measure the throughput of sleeping jobs with 1, 2, 4 … workers."""
    figures: list[Figure] = []
    count = 1
    before: float | None = None
    while count <= stand.sizes.most_workers:
        stand.say(f"{count} workers")
        rate, how = await _napping(stand, count)
        target = None if before is None else 2 * _ALMOST * before
        figures.append(Figure(f"sleeping jobs, {count} jq-worker", rate, "jobs/s", target, how))
        count, before = 2 * count, rate
    return figures


async def _napping(stand: Stand, count: int) -> tuple[float, str]:
    sizes = stand.sizes
    slots, nap = sizes.nap_slots, sizes.nap
    jobs = max(1, int(count * slots * sizes.nap_seconds / nap))
    async with stand.database() as site:
        await load(site, jobs, lambda _: nap_spec(nap))
        async with fleet(site, workers=count, slots=slots) as programs:
            cpu = stand.cpu(**programs.pids)
            rate = await site.drain_rate(jobs)
            spent = cpu.spent().shares()
    ideal = count * slots / nap
    how = (
        f"{jobs:,} jobs of {nap * 1e3:g} ms, {slots} slots each, 1 server, default settings; "
        f"{rate / ideal:.0%} of the {ideal:,.0f} that the slots allow; {spent}"
    )
    return rate, how


async def crowd(stand: Stand) -> list[Figure]:
    """Count the workers on one server that are not ONLINE at some time, or that get no job."""
    sizes = stand.sizes
    stand.say(f"starting {sizes.crowd} workers")
    async with stand.database() as site, fleet(site, workers=sizes.crowd) as programs:
        pids = programs.pids
        server = pids.pop("server-1")
        weight = sum(map(resident_bytes, pids.values())) / (1 << 30)
        cpu = stand.cpu(server=server)
        fewest, jobs = await _hold(site, programs.grpc[0])
        spent = cpu.spent().shares()
        async with stand.connection(site.name) as db:
            busy = await db.fetchval(
                "SELECT count(*) FROM"
                " (SELECT worker FROM job_ended UNION SELECT worker FROM job_done)"
                " AS of_workers"
            )
    how = (
        f"1 server, {sizes.crowd} jq-worker processes ({weight:.1f} GiB), {sizes.crowd_seconds:g} s"
        f" with {jobs:,} jobs; {spent}"
    )
    who = f"of {sizes.crowd} workers"
    return [
        Figure(f"{who}, not ONLINE at some time", sizes.crowd - fewest, "workers", 0, how),
        Figure(f"{who}, got no job", sizes.crowd - busy, "workers", 0, how),
    ]


async def _hold(site: Site, target: str) -> tuple[int, int]:
    """Submit jobs for a while, and return the fewest ONLINE workers seen and the number of jobs."""
    sizes, say = site.stand.sizes, site.stand.say
    backend = GrpcBackend(target)
    fewest, jobs, began = sizes.crowd, 0, time.monotonic()
    while (elapsed := time.monotonic() - began) < sizes.crowd_seconds:
        say(f"{fewest} workers held for {elapsed:.0f} of {sizes.crowd_seconds:g} s")
        for result in await backend.submit([nap_spec(sizes.nap)] * sizes.crowd):
            result.unwrap()
        jobs += sizes.crowd
        fewest = min(fewest, online(await site.store.workers.all()))
        await asyncio.sleep(_LOOK)
    await site.until_done(jobs)
    await backend.stop()
    return fewest, jobs
