"""The scenarios at full size, as figures: each one that ends has kept every event and its order."""

from __future__ import annotations

from bench.progress import Say
from bench.report import Figure, percentile
from bench.streaming import scenarios
from bench.streaming.ground import Ground
from bench.streaming.scenarios import Outcome
from bench.streaming.sizes import Sizes

_SOON = 1_000.0  # ms
_RECORDS = "events, each in Kafka as in job_event and in its job's order"


async def plain(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    async with ground.stage(sizes.scenario_slots) as stage:
        outcome = await scenarios.plain(stage, sizes.jobs, say)
    return [
        Figure("nothing happens: missing or different events", 0, "events", 0, _how(outcome)),
        Figure(
            "nothing happens: until all is published", outcome.seconds, "s", None, _ends(outcome)
        ),
    ]


async def outage(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    async with ground.stage(sizes.scenario_slots) as stage:
        outcome = await scenarios.outage(stage, sizes.jobs, say, ground.kafka, sizes.outage)
    what = f"Kafka away for {sizes.outage:g} s"
    return [
        Figure(f"{what}: missing or different events", 0, "events", 0, _how(outcome)),
        Figure(
            f"{what}: from its return until caught up", outcome.seconds, "s", None, _ends(outcome)
        ),
    ]


async def killed(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    async with ground.stage(sizes.scenario_slots) as stage:
        outcome = await scenarios.killed(stage, sizes.jobs, say)
    what = "relay killed at each failpoint"
    how = "the longest of three; a server leads for 1 s after its last word"
    return [
        Figure(f"{what}: missing or different events", 0, "events", 0, _how(outcome)),
        Figure(f"{what}: until the next one had caught up", outcome.seconds, "s", None, how),
    ]


async def reverse(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    async with ground.stage(sizes.scenario_slots) as stage:
        outcome = await scenarios.reverse(stage, sizes.jobs, say)
    what = "transactions that commit in reverse order: missing or different events"
    return [Figure(what, 0, "events", 0, _how(outcome))]


async def left_open(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    async with ground.stage(sizes.scenario_slots) as stage:
        outcome = await scenarios.left_open(stage, sizes.open_rate, say, sizes.left_open)
    what = f"transaction open for {sizes.left_open:g} s"
    delays = [delay * 1e3 for delay in outcome.delays]
    how = (
        f"{len(delays):,} events of other jobs, {sizes.open_rate} jobs/s, from their own time until"
        " a consumer had them"
    )
    return [
        Figure(f"{what}: missing or different events", 0, "events", 0, _how(outcome)),
        Figure(f"{what}: others' events appear, median", percentile(delays, 0.5), "ms", None, how),
        Figure(f"{what}: others' events appear, p99", percentile(delays, 0.99), "ms", _SOON, how),
        Figure(f"{what}: others' events appear, the last", max(delays), "ms", _SOON, how),
    ]


def _how(outcome: Outcome) -> str:
    found = outcome.comparison
    return f"{found.jobs:,} jobs, {found.events:,} {_RECORDS}; {found.repeated:,} came twice"


def _ends(outcome: Outcome) -> str:
    ends = sorted(outcome.comparison.ends.items())
    return ", ".join(f"{count:,} {state.name}" for state, count in ends)
