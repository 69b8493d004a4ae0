"""Measure how much a full table, and other work at the same database, slow the queue down.

Each run measures the queue without and with the disturbance, and compares the rates.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.filling import fill
from jobqueue.bench.intervals import percentile
from jobqueue.bench.machine import CpuTimes
from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios.fleet import fleet, load, noop_spec, submit_batches
from jobqueue.bench.scenarios.stand import Site, Stand
from jobqueue.core.job import JobQuery

_DAY = 86_400.0
_WARM_UP = 10  # a tenth of the jobs, not counted
_TABLES = (
    "job_record", "job_live", "job_ready", "job_held", "job_ended", "job_event", "job_steps",
    "job_done",
)  # fmt: skip
_SCANNERS = 4
_TICK = 0.02
_AS_BEFORE = 1.1
_RECOVERY = 300.0


@dataclass(slots=True)
class Rounds:
    """Collects the rates of several rounds, either without or with a disturbance."""

    submit: list[float] = field(default_factory=list)
    drain: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)  # CPU µs of PostgreSQL for a job drained

    async def measure(self, site: Site) -> None:
        """Start servers and workers, warm them up, and measure one round."""
        sizes = site.stand.sizes
        warm_up = max(1, sizes.jobs // _WARM_UP)
        async with fleet(site, for_drains=True):
            await load(site, warm_up)
            await site.drain_rate(warm_up)
            await self.measure_running(site)

    async def measure_running(self, site: Site) -> None:
        """Measure one round with running programs: submit batches from this process, then drain."""
        jobs = site.stand.sizes.jobs
        self.submit.append(await load(site, jobs))
        cpu = site.stand.cpu()
        self.drain.append(await site.drain_rate(jobs))
        self.cost.append(cpu.spent().seconds["PostgreSQL"] / jobs * 1e6)


def _slowdown(name: str, clean: Rounds, other: Rounds, target: float, how: str) -> list[Figure]:
    """Return how many times slower ``other`` is than ``clean``, by the medians of their rates."""
    figures = []
    for what, before, after in (
        ("batch submit", clean.submit, other.submit),
        ("drain", clean.drain, other.drain),
    ):
        rates = f"{_listed(before)} jobs/s without, {_listed(after)} with"
        if what == "drain":
            rates += (
                f"; PostgreSQL's CPU µs per job {_listed(clean.cost)} and {_listed(other.cost)}"
            )
        ratio = statistics.median(before) / statistics.median(after)
        figures.append(Figure(f"{what}, {name}", ratio, "× slower", target, f"{rates}; {how}"))
    return figures


def _listed(rates: list[float]) -> str:
    return " ".join(f"{rate:,.0f}" for rate in rates)


async def _against_empty(stand: Stand, full: Site) -> tuple[Rounds, Rounds, str]:
    """Measure the rates of a new, empty database, and then the rates of the full database."""
    clean, aged = Rounds(), Rounds()
    cpu = stand.cpu()
    stand.say("an empty table")
    async with stand.database() as empty:
        await clean.measure(empty)
    stand.say("the full table")
    await aged.measure(full)
    return clean, aged, cpu.spent().busy_elsewhere


@contextlib.asynccontextmanager
async def _filled(stand: Stand, jobs: int) -> AsyncIterator[tuple[Site, str]]:
    """Yield a database with ``jobs`` finished jobs, and its size as text.

    The next repetition uses the same database again.
    """
    async with stand.site(f"filled_{jobs}") as site:
        async with stand.connection(site.name) as db:
            if (await site.stats()).succeeded < jobs:
                await fill(db, jobs, stand.say)
                await site.settle()
            size = await db.fetchval("SELECT pg_size_pretty(pg_database_size(current_database()))")
        yield site, str(size)


async def finished(stand: Stand) -> list[Figure]:
    """Measure submit, drain and reads with many finished jobs in the table."""
    sizes = stand.sizes
    async with _filled(stand, sizes.finished) as (full, size):
        clean, aged, spent = await _against_empty(stand, full)
        reads = await _reads(full, sizes.finished)
    how = (
        f"{sizes.finished:,} finished jobs with results and all events ({size}), made by SQL and"
        f" vacuumed; {sizes.jobs:,} jobs, 1 server, 1 jq-worker; {spent}"
    )
    return [*_slowdown(f"{sizes.finished:,} finished jobs", clean, aged, 1.2, how), *reads]


async def _reads(site: Site, jobs: int) -> list[Figure]:
    """Measure the latency of single reads among many finished jobs."""
    taken: dict[str, list[float]] = {"get by id": [], "history": [], "list of 100": []}
    async with site.stand.connection(site.name) as db, site.engine() as engine:
        for _ in range(100):
            seq = random.randint(1, jobs)
            job_id = str(await db.fetchval("SELECT id FROM job_record WHERE seq = $1", seq))
            for name, call in (
                ("get by id", engine.get(job_id)),
                ("history", engine.history(job_id)),
                ("list of 100", engine.list_jobs(JobQuery(queue="default", limit=100))),
            ):
                began = time.perf_counter()
                await call
                taken[name].append((time.perf_counter() - began) * 1e3)
    return [
        Figure(f"{name}, p95", percentile(times, 0.95), "ms", None, f"among {jobs:,} finished jobs")
        for name, times in taken.items()
    ]


async def delayed(stand: Stand) -> list[Figure]:
    """Measure submit and drain with many delayed jobs in the table."""
    sizes = stand.sizes
    async with stand.database() as full:
        stand.say(f"submitting {sizes.delayed:,} delayed jobs")
        async with full.engine() as engine:
            await submit_batches(
                engine, sizes.delayed, sizes, lambda n: replace(noop_spec(n), delay=_DAY)
            )
        clean, aged, spent = await _against_empty(stand, full)
    how = f"{sizes.jobs:,} jobs, 1 server, 1 jq-worker; {spent}"
    return _slowdown(f"{sizes.delayed:,} delayed jobs", clean, aged, 1.2, how)


async def pinned(stand: Stand) -> list[Figure]:
    """Measure submit and drain while a transaction prevents the removal of dead rows."""
    sizes, say = stand.sizes, stand.say
    async with stand.database() as site, fleet(site, for_drains=True) as programs:
        clean, under, after = Rounds(), Rounds(), Rounds()
        await Rounds().measure_running(site)  # warm-up
        for number in range(1, sizes.rounds + 1):
            say(f"clean, round {number} of {sizes.rounds}")
            await clean.measure_running(site)
        cpu = stand.cpu(**programs.pids)
        async with (
            stand.connection(site.name) as pin,
            pin.transaction(isolation="repeatable_read"),
        ):
            await pin.fetchval("SELECT count(*) FROM queues")  # takes the snapshot
            behind = await _steady(site, programs.grpc[0])
            spent = cpu.spent().shares()
            async with stand.connection(site.name) as db:
                dead = await db.fetchval(
                    "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'job_live'"
                )
            for number in range(1, sizes.rounds + 1):
                say(f"pinned, round {number} of {sizes.rounds}")
                await under.measure_running(site)
        recovered = await _recovery(site, clean, after)
    how = (
        f"after {sizes.pin_seconds:g} s at {sizes.pin_rate:,} jobs/s ({behind:,} jobs behind at "
        f"the end, {dead:,} dead rows in job_live; then {spent}); "
        f"{sizes.jobs:,} jobs a round, 1 server, 1 jq-worker"
    )
    return [
        *_slowdown("xmin pinned", clean, under, 1.5, how),
        Figure(
            f"drain back within {_AS_BEFORE}× of clean", recovered, "s", _RECOVERY,
            f"after the transaction ended; {after.drain[-1]:,.0f} jobs/s then",
        ),
    ]  # fmt: skip


async def _steady(site: Site, target: str) -> int:
    """Submit jobs at a steady rate, and return how many jobs are unfinished at the end."""
    sizes = site.stand.sizes
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
            site.stand.say(f"pinned for {elapsed:.0f} of {sizes.pin_seconds:g} s")
            await asyncio.sleep(_TICK)
        await asyncio.gather(*sending)
        behind = submitted - ((await site.stats()).succeeded - before)
        await site.until_done(before + submitted)
        return behind
    finally:
        await backend.stop()


async def _recovery(site: Site, clean: Rounds, after: Rounds) -> float:
    """Return the seconds until a drain is about as fast as before the transaction."""
    released = time.monotonic()
    wanted = statistics.median(clean.drain) / _AS_BEFORE
    while True:
        began = time.monotonic()
        await after.measure_running(site)
        site.stand.say(f"released: {after.drain[-1]:,.0f} of {wanted:,.0f} jobs/s")
        if after.drain[-1] >= wanted or began - released > _RECOVERY:
            return began - released


async def scanned(stand: Stand) -> list[Figure]:
    """Measure submit and drain while four connections read whole tables.

    Each connection reads in a REPEATABLE READ transaction.
    """
    sizes = stand.sizes
    async with _filled(stand, sizes.scanned) as (site, size):
        clean, under = Rounds(), Rounds()
        stand.say("nobody scans")
        await clean.measure(site)
        stand.say("scanned")
        async with _scanners(site, sizes.scan_pause) as scanners:
            await under.measure(site)
            used = scanners.cpu.spent()
    busy = sum(used.seconds[name] for name in scanners.pids) / used.elapsed
    how = (
        f"{scanners.done} scans of {', '.join(_TABLES)} ({size}) in {used.elapsed:.0f} s by"
        f" {_SCANNERS} connections, each transaction open for {sizes.scan_pause:g} s more; the"
        f" scans took {busy:.0%} of a core; {sizes.jobs:,} jobs"
    )
    return _slowdown(f"{_SCANNERS} scanning connections", clean, under, 1.3, how)


@dataclass(slots=True)
class _Scanners:
    pids: dict[str, int]
    cpu: CpuTimes
    done: int = 0


@contextlib.asynccontextmanager
async def _scanners(site: Site, pause: float) -> AsyncIterator[_Scanners]:
    """Open connections that scan all tables again and again until the block ends.

    Each connection keeps its snapshot open for a while after a scan. The scans of different
    connections do not start together.
    """

    async def scan(db: Any, first_pause: float) -> None:
        length = first_pause
        while True:
            async with db.transaction(isolation="repeatable_read"):
                for table in _TABLES:
                    await db.fetchval(f"SELECT count(*) FROM {table} AS t WHERE t IS NOT NULL")
                scanners.done += 1
                await asyncio.sleep(length)
            length = pause

    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(site.stand.connection(site.name))
            for _ in range(_SCANNERS)
        ]
        pids = {f"scanner {n}": db.get_server_pid() for n, db in enumerate(connections, 1)}
        scanners = _Scanners(pids, site.stand.cpu(**pids))
        tasks = [
            asyncio.create_task(scan(db, pause * n / _SCANNERS))
            for n, db in enumerate(connections, 1)
        ]
        try:
            yield scanners
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
