"""Does a full table slow the queue down? An empty one and a full one in turn, as a ratio."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.local import noop_spec, submit_batches
from bench.replicated.filling import filled
from bench.replicated.fleet import fleet, load
from bench.replicated.ground import Ground, Site
from bench.replicated.sizes import Sizes
from bench.report import Figure, percentile
from jobqueue.core.job import JobQuery, JobSpec

_DAY = 86_400.0
_WARM_UP = 10  # a tenth of the jobs, not counted


@dataclass(slots=True)
class Rounds:
    """The rates of one side of a comparison."""

    submit: list[float] = field(default_factory=list)
    drain: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)  # CPU µs of PostgreSQL for a job drained

    async def measure(self, site: Site, sizes: Sizes) -> None:
        """Programs of this round's own, and a warm-up that is not counted."""
        async with fleet(site, sizes):
            await load(site, sizes.jobs // _WARM_UP, sizes)
            await site.drain_rate(sizes.jobs // _WARM_UP)
            await self.measure_running(site, sizes)

    async def measure_running(self, site: Site, sizes: Sizes) -> None:
        """Batch submit by an engine in this process, drain by the programs that are there."""
        self.submit.append(await load(site, sizes.jobs, sizes))
        cpu = site.ground.cpu()
        self.drain.append(await site.drain_rate(sizes.jobs))
        self.cost.append(cpu.spent().seconds["PostgreSQL"] / sizes.jobs * 1e6)


def slowdown(name: str, clean: Rounds, other: Rounds, target: float, how: str) -> list[Figure]:
    """How many times slower, by the medians."""
    figures = []
    for what, before, after in (
        ("batch submit", clean.submit, other.submit),
        ("drain", clean.drain, other.drain),
    ):
        one, two = statistics.median(before), statistics.median(after)
        rates = f"{_listed(before)} jobs/s without, {_listed(after)} with"
        if what == "drain":
            rates += (
                f"; PostgreSQL's CPU µs per job {_listed(clean.cost)} and {_listed(other.cost)}"
            )
        figures.append(Figure(f"{what}, {name}", one / two, "× slower", target, f"{rates}; {how}"))
    return figures


def _listed(rates: list[float]) -> str:
    return " ".join(f"{rate:,.0f}" for rate in rates)


async def _compare(
    ground: Ground, sizes: Sizes, full: Site, say: Callable[[str], None]
) -> tuple[Rounds, Rounds, str]:
    """Empty, full, empty, full …; each empty one is new."""
    clean, aged = Rounds(), Rounds()
    cpu = ground.cpu()
    for number in range(1, sizes.rounds + 1):
        say(f"round {number} of {sizes.rounds}")
        async with ground.database() as empty:
            await clean.measure(empty, sizes)
        await aged.measure(full, sizes)
    return clean, aged, cpu.spent().busy_elsewhere


async def finished(ground: Ground, sizes: Sizes, say: Callable[[str], None]) -> list[Figure]:
    """With many finished jobs in the table."""
    async with filled(ground, sizes.finished, say) as (full, size):
        clean, aged, spent = await _compare(ground, sizes, full, say)
        reads = await _reads(full, sizes.finished)
    how = (
        f"{sizes.finished:,} finished jobs with results and all events ({size}), made by SQL and "
        f"vacuumed; {sizes.jobs:,} jobs a round, 1 server, 1 jq-worker; {spent}"
    )
    name = f"{sizes.finished:,} finished jobs"
    return [*slowdown(name, clean, aged, 1.2, how), *reads]


async def _reads(site: Site, jobs: int) -> list[Figure]:
    """Single reads stay quick, too."""
    taken: dict[str, list[float]] = {"get by id": [], "history": [], "list of 100": []}
    async with site.ground.connection(site.name) as db, site.engine() as engine:
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


async def delayed(ground: Ground, sizes: Sizes, say: Callable[[str], None]) -> list[Figure]:
    """With many jobs in the table whose time has not come."""
    async with ground.database() as full:
        say(f"submitting {sizes.delayed:,} delayed jobs")
        async with full.engine() as engine:
            await submit_batches(engine, sizes.delayed, batch=sizes.batch, spec=_tomorrow)
        clean, aged, spent = await _compare(ground, sizes, full, say)
    how = f"{sizes.jobs:,} jobs a round, 1 server, 1 jq-worker; {spent}"
    return slowdown(f"{sizes.delayed:,} delayed jobs", clean, aged, 1.2, how)


def _tomorrow(n: int) -> JobSpec:
    spec = noop_spec(n)
    return JobSpec(payload=spec.payload, type=spec.type, delay=_DAY)
