"""The programs of a measurement: a jq-server and jq-workers, and jobs for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from bench.local import submit_batches
from bench.processes import server, worker
from bench.replicated.ground import Site
from bench.replicated.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Fleet:
    """A jq-server and its jq-workers."""

    target: str
    pids: dict[str, int]

    @property
    def server(self) -> int:
        return self.pids["server"]


def set_for_throughput(site: Site, sizes: Sizes) -> dict[str, str]:
    """What programs are told in drains; the figures say so."""
    return site.ground.environment(
        worker_concurrency=sizes.concurrency, scheduler_batch_size=sizes.batch
    )


@contextlib.asynccontextmanager
async def workers(
    site: Site, address: str, told: Mapping[str, str], count: int = 1
) -> AsyncIterator[dict[str, int]]:
    """jq-workers on a server or on the store; yields their pids by name."""
    told = {**told, "JQ_WORKER_SERVER": address}
    async with contextlib.AsyncExitStack() as stack:
        starting = [
            stack.enter_async_context(worker(f"bench-{n}", told, site.store.workers))
            for n in range(1, count + 1)
        ]
        pids = await asyncio.gather(*starting)
        yield {f"worker {n}": pid for n, pid in enumerate(pids, 1)}


@contextlib.asynccontextmanager
async def fleet(site: Site, sizes: Sizes, count: int = 1) -> AsyncIterator[Fleet]:
    """Start a server and workers, set for throughput."""
    told = set_for_throughput(site, sizes)
    async with (
        server(site.url, {**told, "JQ_WORKER_CONCURRENCY": "0"}) as process,
        workers(site, f"grpc://{process.target}", told, count) as pids,
    ):
        yield Fleet(process.target, {"server": process.pid, **pids})


async def load(site: Site, jobs: int, sizes: Sizes) -> float:
    """Put jobs into the paused queue, by an engine that is gone afterwards; jobs per second."""
    await site.pause()
    async with site.engine() as engine:
        rate = await submit_batches(engine, jobs, batch=sizes.batch, in_flight=sizes.in_flight)
    await site.settle()
    return rate
