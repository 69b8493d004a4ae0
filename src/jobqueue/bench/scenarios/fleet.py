"""Start the servers and workers of a scenario, and submit jobs to them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from jobqueue.bench.cell import Cell
from jobqueue.bench.ground import Change, Ground, brought_up
from jobqueue.bench.scenarios.catalogue import Sizes
from jobqueue.bench.scenarios.stand import Site, online
from jobqueue.core.api import ClientApi
from jobqueue.core.job import JobSpec
from jobqueue.core.store import Store
from jobqueue.fleet.keeper import Restarts
from jobqueue.fleet.layout import BackingService, Layout

_APP = "jobqueue.bench.scenarios.tasks:app"
_LOOK = 0.05
_SLOTS = 4  # the default of worker.concurrency
_PATIENCE = 60.0
_FOR_EACH = 5.0  # seconds more for each worker
_NO_RESTARTS = Restarts(allowed=False)


def noop_spec(n: int, type: str = "noop") -> JobSpec:
    """Return the spec of a job that does nothing."""
    return JobSpec(payload=b'{"n": %d}' % n, type=type)


def nap_spec(seconds: float) -> JobSpec:
    """Return the spec of a job that sleeps."""
    return JobSpec(payload=b'{"seconds": %g}' % seconds, type="sleep")


def telling(
    servers: Mapping[str, str] | None = None,
    workers: Mapping[str, str] | None = None,
    services: Mapping[str, str | None] | None = None,
    only: str = "",
    schedulers: Mapping[str, str] | None = None,
) -> Change:
    """Return a function that changes a layout before its start.

    ``servers``, ``workers`` and ``schedulers`` are additional environment variables of these roles.
    ``services`` maps a service to the address where it already runs; None leaves the service out.
    ``only`` keeps the processes of one role.
    """
    known = services or {}

    def change(layout: Layout) -> Layout:
        more = {
            "server": servers or {},
            "scheduler": schedulers or {},
            "worker": {"JQ_WORKER_APP": _APP, **(workers or {})},
        }
        processes = [
            replace(
                one,
                environment={**one.environment, **more.get(one.role, {})},
                needs={
                    variable: service
                    for variable, service in one.needs.items()
                    if variable not in more.get(one.role, {}) and known.get(service, "private")
                },
            )
            for one in layout.processes
            if one.role in (only or one.role)
        ]
        behind = [
            BackingService(one.name, known[one.name]) if one.name in known else one
            for one in layout.services
            if known.get(one.name, "private")
        ]
        return replace(layout, processes=tuple(processes), services=tuple(behind))

    return change


@contextlib.asynccontextmanager
async def fleet(
    site: Site,
    *,
    servers: int = 1,
    workers: int = 1,
    slots: int = _SLOTS,
    for_drains: bool = False,
    told: Mapping[str, str] | None = None,
    direct: bool = False,
    change: Change = lambda layout: layout,
    restarts: Restarts = _NO_RESTARTS,
) -> AsyncIterator[Ground]:
    """Start servers and workers, and yield when all workers are ONLINE.

    ``slots`` is the number of slots of each worker. ``for_drains`` takes slots and batch size from
    the stand's sizes. ``direct`` starts workers that use the store itself, without servers.
    ``told`` holds additional environment variables of the servers.
    """
    url, redis, sizes = site.url, site.stand.redis.url, site.stand.sizes
    setting = {"JQ_SCHEDULER_BATCH_SIZE": str(sizes.batch_size)} if for_drains else {}
    slots = sizes.concurrency if for_drains else slots
    on_store = {"JQ_WORKER_SERVER": url, "JQ_REDIS_URL": redis, **setting}
    wired = telling(
        {**setting, **(told or {})},
        on_store if direct else {},
        {"postgres": url, "redis": redis},
        "worker" if direct else "",
    )
    cell = Cell("replicated", servers=servers, workers=workers, slots=slots * workers)
    async with brought_up(
        cell, lambda layout: change(wired(layout)), restarts, site.stand.folder
    ) as ground:
        await until_online(site.store, workers, ground)
        yield ground


async def until_online(store: Store, workers: int, ground: Ground) -> None:
    """Wait until ``workers`` workers are ONLINE. Raises TimeoutError."""
    give_up = time.monotonic() + _PATIENCE + _FOR_EACH * workers
    while online(await store.workers.all()) < workers:
        ground.check()
        if time.monotonic() > give_up:
            raise TimeoutError(f"not all of {workers} workers became ONLINE in time")
        await asyncio.sleep(_LOOK)


async def submit_batches(
    backend: ClientApi,
    jobs: int,
    sizes: Sizes,
    spec: Callable[[int], JobSpec] = noop_spec,
) -> float:
    """Submit jobs in batches, and return the jobs per second until the last job is durable."""
    starts = iter(range(0, jobs, sizes.batch_size))

    async def submit() -> None:
        for start in starts:
            numbers = range(start, min(jobs, start + sizes.batch_size))
            for result in await backend.submit([spec(n) for n in numbers]):
                result.unwrap()

    began = time.perf_counter()
    await asyncio.gather(*(submit() for _ in range(sizes.in_flight)))
    return jobs / (time.perf_counter() - began)


async def load(site: Site, jobs: int, spec: Callable[[int], JobSpec] = noop_spec) -> float:
    """Submit jobs to the paused queue by a temporary engine, and return the jobs per second."""
    await site.pause()
    async with site.engine() as engine:
        rate = await submit_batches(engine, jobs, site.stand.sizes, spec)
    await site.settle()
    return rate
