"""What the event stream costs the jobs: the replicated drain with it and without it, in turn."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping

from bench.progress import Say
from bench.replicated import sizes as replicated
from bench.replicated.fleet import fleet, load
from bench.replicated.ground import Site
from bench.report import Figure
from bench.streaming.ground import Ground
from bench.streaming.sizes import Sizes

_TARGET = 0.80
_POLL = 0.1


async def drain(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    """Interleaved rounds, each in a new database, compared by their medians."""
    told = replicated.Sizes(
        jobs=sizes.jobs,
        batch=sizes.batch,
        in_flight=sizes.in_flight,
        concurrency=sizes.concurrency,
    )
    without: list[float] = []
    streamed: list[float] = []
    costs = before = behind = ""
    cpu = ground.cpu()
    for number in range(1, sizes.rounds + 1):
        say(f"round {number} of {sizes.rounds}, without")
        async with ground.servers.database() as site:
            rate, before, _ = await _one(ground, site, told, {})
            without.append(rate)
        say(f"round {number} of {sizes.rounds}, with the stream")
        async with ground.servers.database() as site:
            more = ground.stage_on(site, sizes.concurrency).kafka
            rate, costs, behind = await _one(ground, site, told, more)
            streamed.append(rate)
    how = (
        f"{sizes.jobs:,} no-op jobs, 1 server, 1 jq-worker, concurrency {sizes.concurrency},"
        f" batch size {sizes.batch}; {_listed(without)} jobs/s without and {_listed(streamed)}"
        f" with the stream, by turns; {cpu.spent().busy_elsewhere}"
    )
    ratio = statistics.median(streamed) / statistics.median(without)
    return [
        Figure("drain with the event stream, against without", ratio, "of the rate", _TARGET, how),
        Figure(
            "drain with the event stream", statistics.median(streamed), "jobs/s", None,
            f"{behind}; {costs}; without: {before}",
        ),
    ]  # fmt: skip


async def _one(
    ground: Ground, site: Site, told: replicated.Sizes, more: Mapping[str, str]
) -> tuple[float, str, str]:
    """A rate, whose processor time it was, and how far the stream was behind then."""
    await load(site, told.jobs, told)
    async with fleet(site, told, more=more) as programs:
        if more:
            await _caught_up(site)
        cpu = ground.cpu(**programs.pids)
        rate = await site.drain_rate(told.jobs)
        spent = cpu.spent().per_job(told.jobs)
        behind = ""
        if more:
            lag = await site.store.stream_lag()
            assert lag is not None
            behind = f"{lag.events:,} events behind when the last job was done"
            await _caught_up(site)
    return rate, spent, behind


async def _caught_up(site: Site) -> None:
    while True:
        lag = await site.store.stream_lag()
        if lag is not None and not lag.events:
            return
        await asyncio.sleep(_POLL)


def _listed(rates: list[float]) -> str:
    return " ".join(f"{rate:,.0f}" for rate in rates)
