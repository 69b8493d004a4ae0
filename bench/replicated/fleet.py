"""The programs of a measurement: a jq-server and jq-workers, and jobs for them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from bench.local import submit_batches
from bench.processes import server, workers
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
async def fleet(
    site: Site, sizes: Sizes, count: int = 1, more: Mapping[str, str] | None = None
) -> AsyncIterator[Fleet]:
    """Start a server and workers, set for throughput; ``more`` is for the server alone."""
    told = set_for_throughput(site, sizes)
    async with (
        server(site.url, {**told, "JQ_WORKER_CONCURRENCY": "0", **(more or {})}) as process,
        workers(process.environment | told, site.store.workers, count) as pids,
    ):
        yield Fleet(process.target, {"server": process.pid, **pids})


async def load(site: Site, jobs: int, sizes: Sizes) -> float:
    """Put jobs into the paused queue, by an engine that is gone afterwards; jobs per second."""
    await site.pause()
    async with site.engine() as engine:
        rate = await submit_batches(engine, jobs, batch=sizes.batch, in_flight=sizes.in_flight)
    await site.settle()
    return rate
