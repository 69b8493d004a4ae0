"""Others at the same database: a transaction that stays open, and connections that scan."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from bench.local import noop_spec
from bench.replicated.aged import Rounds, slowdown
from bench.replicated.filling import filled
from bench.replicated.fleet import fleet
from bench.replicated.ground import Ground, Site
from bench.replicated.sizes import Sizes
from bench.report import Figure
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.machine import CpuTimes

TABLES = ("job_record", "job_live", "job_ended", "job_event")
SCANNERS = 4
_TICK = 0.02
_AS_BEFORE = 1.1
_RECOVERY = 300.0


async def pinned(ground: Ground, sizes: Sizes, say: Callable[[str], None]) -> list[Figure]:
    """A transaction that keeps dead rows from being removed while the queue is busy."""
    async with ground.database() as site, fleet(site, sizes) as programs:
        clean, under, after = Rounds(), Rounds(), Rounds()
        await Rounds().measure_running(site, sizes)  # warm-up
        for number in range(1, sizes.rounds + 1):
            say(f"clean, round {number} of {sizes.rounds}")
            await clean.measure_running(site, sizes)
        cpu = ground.cpu(**programs.pids)
        async with _pin(site):
            behind = await _steady(site, programs.target, sizes, say)
            spent = cpu.spent().shares()
            async with ground.connection(site.name) as db:
                dead = await db.fetchval(
                    "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'job_live'"
                )
            for number in range(1, sizes.rounds + 1):
                say(f"pinned, round {number} of {sizes.rounds}")
                await under.measure_running(site, sizes)
        released = time.monotonic()
        recovered = await _recovery(site, sizes, clean, after, released, say)
    how = (
        f"after {sizes.pin_seconds:g} s at {sizes.pin_rate:,} jobs/s ({behind:,} jobs behind at "
        f"the end, {dead:,} dead rows in job_live; then {spent}); "
        f"{sizes.jobs:,} jobs a round, 1 server, 1 jq-worker"
    )
    return [
        *slowdown("xmin pinned", clean, under, 1.5, how),
        Figure(
            f"drain back within {_AS_BEFORE}× of clean", recovered, "s", _RECOVERY,
            f"after the transaction ended; {after.drain[-1]:,.0f} jobs/s then",
        ),
    ]  # fmt: skip


@contextlib.asynccontextmanager
async def _pin(site: Site) -> AsyncIterator[None]:
    async with site.ground.connection(site.name) as db, db.transaction(isolation="repeatable_read"):
        await db.fetchval("SELECT count(*) FROM queues")  # takes the snapshot
        yield


async def _steady(site: Site, target: str, sizes: Sizes, say: Callable[[str], None]) -> int:
    """Submit at a steady pace; how many jobs are unfinished when the time is up."""
    backend = GrpcBackend(target)
    before = (await site.stats()).succeeded
    began = time.monotonic()
    submitted = 0
    sending: set[asyncio.Task[Any]] = set()
    try:
        while (elapsed := time.monotonic() - began) < sizes.pin_seconds:
            wanted = int(elapsed * sizes.pin_rate) - submitted
            if wanted > 0 and len(sending) < 8:
                specs = [noop_spec(n) for n in range(submitted, submitted + wanted)]
                task = asyncio.create_task(backend.submit(specs))
                sending.add(task)
                task.add_done_callback(sending.discard)
                submitted += wanted
            say(f"pinned for {elapsed:.0f} of {sizes.pin_seconds:g} s, {submitted:,} jobs")
            await asyncio.sleep(_TICK)
        await asyncio.gather(*sending)
        behind = submitted - ((await site.stats()).succeeded - before)
        await site.until_done(before + submitted)
        return behind
    finally:
        await backend.stop()


async def _recovery(
    site: Site,
    sizes: Sizes,
    clean: Rounds,
    after: Rounds,
    released: float,
    say: Callable[[str], None],
) -> float:
    wanted = statistics.median(clean.drain) / _AS_BEFORE
    while True:
        began = time.monotonic()
        await after.measure_running(site, sizes)
        say(
            f"released for {began - released:.0f} s: {after.drain[-1]:,.0f} of {wanted:,.0f} jobs/s"
        )
        if after.drain[-1] >= wanted or began - released > _RECOVERY:
            return began - released


async def scanned(ground: Ground, sizes: Sizes, say: Callable[[str], None]) -> list[Figure]:
    """Four connections that read whole tables, each in a REPEATABLE READ transaction."""
    async with filled(ground, sizes.scanned, say) as (site, size):
        clean, under = Rounds(), Rounds()
        scans, elapsed, spent = 0, 0.0, 0.0
        for number in range(1, sizes.rounds + 1):
            say(f"clean, round {number} of {sizes.rounds}")
            await clean.measure(site, sizes)
            say(f"scanned, round {number} of {sizes.rounds}")
            async with _scanners(site, sizes.scan_pause) as scanners:
                await under.measure(site, sizes)
                used = scanners.cpu.spent()
            scans += scanners.done
            elapsed += used.elapsed
            spent += sum(used.seconds[name] for name in scanners.pids)
    how = (
        f"{scans} scans of {', '.join(TABLES)} ({size}) in {elapsed:.0f} s by {SCANNERS} "
        f"connections, each transaction open for {sizes.scan_pause:g} s more; the scans "
        f"took {spent / elapsed:.0%} of a core; {sizes.jobs:,} jobs a round"
    )
    return slowdown(f"{SCANNERS} scanning connections", clean, under, 1.3, how)


@dataclass(slots=True)
class _Scanners:
    pids: dict[str, int]
    cpu: CpuTimes
    done: int = 0


@contextlib.asynccontextmanager
async def _scanners(site: Site, pause: float) -> AsyncIterator[_Scanners]:
    """Connections that scan in turn with holding their snapshots, out of step with each other."""

    async def scan(db: Any, first_pause: float) -> None:
        length = first_pause
        while True:
            async with db.transaction(isolation="repeatable_read"):
                for table in TABLES:
                    await db.fetchval(f"SELECT count(*) FROM {table} AS t WHERE t IS NOT NULL")
                scanners.done += 1
                await asyncio.sleep(length)
            length = pause

    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(site.ground.connection(site.name))
            for _ in range(SCANNERS)
        ]
        pids = {f"scanner {n}": db.get_server_pid() for n, db in enumerate(connections, 1)}
        scanners = _Scanners(pids, site.ground.cpu(**pids))
        tasks = [
            asyncio.create_task(scan(db, pause * n / SCANNERS))
            for n, db in enumerate(connections, 1)
        ]
        try:
            yield scanners
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
