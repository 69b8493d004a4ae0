"""Measure the streaming topology end to end, and the faults of the event stream.

A fault scenario fails if an event is missing in Kafka or out of order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.cell import Cell
from jobqueue.bench.ground import brought_up
from jobqueue.bench.intervals import percentile
from jobqueue.bench.machine import CpuTimes
from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios import stream_faults
from jobqueue.bench.scenarios.fleet import telling
from jobqueue.bench.scenarios.rates import timings
from jobqueue.bench.scenarios.stand import Stand
from jobqueue.bench.scenarios.stream_faults import FaultStage, ScenarioResult
from jobqueue.core.job import JobQuery

_TARGET = 2_000
_WARM_UP = 10  # a tenth of the jobs, not counted
_BATCH = 500
_IN_FLIGHT = 2
_POLL = 0.05
_WORKERS = 2
_SINGLE = 100
_PACE = 0.05  # seconds between single jobs
_TOPICS = ("jobs", "dead_letters", "queues", "requests", "assignments", "results", "workers")
_SOON = 1_000.0  # ms
_RECORDS = "events, each in Kafka as in job_event and in its job's order"


@dataclass(frozen=True, slots=True)
class _Running:
    http: httpx.AsyncClient
    backend: GrpcBackend
    cpu: CpuTimes

    async def submit(self, jobs: int) -> None:
        """Submit jobs in batches over HTTP."""
        numbers = iter(range(0, jobs, _BATCH))

        async def caller() -> None:
            for start in numbers:
                count = min(_BATCH, jobs - start)
                body = json.dumps({"jobs": [_job(start + n) for n in range(count)]})
                answer = await self.http.post("/jobs/batch", content=body)
                answer.raise_for_status()

        await asyncio.gather(*(caller() for _ in range(_IN_FLIGHT)))

    async def succeeded(self) -> int:
        return (await self.backend.queue_stats("default")).succeeded

    async def until(self, succeeded: int) -> None:
        while True:
            if await self.succeeded() >= succeeded:
                return
            await asyncio.sleep(_POLL)


def _job(n: int) -> dict[str, object]:
    return {"queue": "default", "type": "noop", "payload": {"n": n}}


async def topology(stand: Stand) -> list[Figure]:
    """Measure jobs per second from first request to last result, and the latency of single jobs."""
    sizes, rates = stand.sizes, []
    async with _programs(stand) as system:
        done = max(1, sizes.stream_jobs // _WARM_UP)
        await system.submit(done)
        await system.until(done)
        for number in range(1, sizes.rounds + 1):
            stand.say(f"round {number} of {sizes.rounds}")
            began = time.perf_counter()
            await system.submit(sizes.stream_jobs)
            done += sizes.stream_jobs
            await system.until(done)
            rates.append(sizes.stream_jobs / (time.perf_counter() - began))
        costs = system.cpu.spent().per_job(done)
        stand.say("one at a time")
        waits = await _at_leisure(system)
    how = (
        f"{sizes.stream_jobs:,} no-op jobs, from the first HTTP request to the last end in Redis"
        f" ({' '.join(f'{rate:,.0f}' for rate in rates)} jobs/s); submitted in batches of {_BATCH};"
        f" 1 API, 2 schedulers, {_WORKERS} jq-workers with {sizes.stream_slots} slots,"
        f" Redis with appendfsync always; {costs}"
    )
    single = f"{_SINGLE} jobs, one each {_PACE * 1000:g} ms, to an idle system"
    return [
        Figure("streaming, end to end", statistics.median(rates), "jobs/s", _TARGET, how),
        *timings("streaming, submit to start,", waits, {50: None, 99: None}, single),
    ]


async def _at_leisure(system: _Running) -> list[float]:
    before = await system.succeeded()
    for n in range(_SINGLE):
        answer = await system.http.post("/jobs", content=json.dumps(_job(n)))
        answer.raise_for_status()
        await asyncio.sleep(_PACE)
    await system.until(before + _SINGLE)
    jobs = (await system.backend.list_jobs(JobQuery(queue="default", limit=_SINGLE))).jobs
    waits = [job.started_at - job.created_at for job in jobs if job.started_at is not None]
    return [wait * 1000 for wait in waits]


@contextlib.asynccontextmanager
async def _programs(stand: Stand) -> AsyncIterator[_Running]:
    stand.say("starting")
    prefix = stand.prefix()
    topics = {f"JQ_KAFKA_TOPIC_{name.upper()}": f"{prefix}{name}" for name in _TOPICS}
    told = {**topics, "JQ_KAFKA_REPLICATION": "1"}
    change = telling(told, told, {"kafka": stand.kafka.bootstrap}, schedulers=told)
    slots = _WORKERS * stand.sizes.stream_slots
    cell = Cell("streaming", servers=2, workers=_WORKERS, slots=slots)
    async with brought_up(cell, change, within=stand.folder) as ground:
        backend = GrpcBackend(ground.grpc[0])
        try:
            async with httpx.AsyncClient(base_url=ground.http[0], timeout=60) as http:
                yield _Running(http, backend, stand.cpu(**ground.pids))
        finally:
            await backend.stop()


@contextlib.asynccontextmanager
async def _stage(stand: Stand) -> AsyncIterator[FaultStage]:
    """Yield a description of a new database and new topics for a fault scenario."""
    async with stand.database() as site:
        bootstrap, slots = stand.kafka.bootstrap, stand.sizes.stream_fault_slots
        yield FaultStage(site.url, bootstrap, stand.prefix(), stand.folder, slots)


async def plain(stand: Stand) -> list[Figure]:
    async with _stage(stand) as stage:
        outcome = await stream_faults.plain(stage, stand.sizes.jobs, stand.say)
    return [
        Figure("nothing happens: missing or different events", 0, "events", 0, _how(outcome)),
        Figure(
            "nothing happens: until all is published", outcome.seconds, "s", None, _ends(outcome)
        ),
    ]


async def outage(stand: Stand) -> list[Figure]:
    async with _stage(stand) as stage:
        outcome = await stream_faults.outage(
            stage, stand.sizes.jobs, stand.say, stand.kafka, stand.sizes.outage
        )
    what = f"Kafka away for {stand.sizes.outage:g} s"
    return [
        Figure(f"{what}: missing or different events", 0, "events", 0, _how(outcome)),
        Figure(
            f"{what}: from its return until caught up", outcome.seconds, "s", None, _ends(outcome)
        ),
    ]


async def killed(stand: Stand) -> list[Figure]:
    async with _stage(stand) as stage:
        outcome = await stream_faults.killed(stage, stand.sizes.jobs, stand.say)
    what = "relay killed at each failpoint"
    how = "the longest of three; leadership expires 1 s after its last renewal"
    return [
        Figure(f"{what}: missing or different events", 0, "events", 0, _how(outcome)),
        Figure(f"{what}: until the next one had caught up", outcome.seconds, "s", None, how),
    ]


async def reverse(stand: Stand) -> list[Figure]:
    async with _stage(stand) as stage:
        outcome = await stream_faults.reverse(stage, stand.sizes.jobs, stand.say)
    what = "transactions that commit in reverse order: missing or different events"
    return [Figure(what, 0, "events", 0, _how(outcome))]


async def left_open(stand: Stand) -> list[Figure]:
    rate, seconds = stand.sizes.open_rate, stand.sizes.open_seconds
    async with _stage(stand) as stage:
        outcome = await stream_faults.left_open(stage, rate, stand.say, seconds)
    what = f"transaction open for {seconds:g} s"
    delays = [delay * 1e3 for delay in outcome.delays]
    how = (
        f"{len(delays):,} events of other jobs, {rate} jobs/s, from their own time until"
        " a consumer had them"
    )
    return [
        Figure(f"{what}: missing or different events", 0, "events", 0, _how(outcome)),
        Figure(f"{what}: others' events appear, median", percentile(delays, 0.5), "ms", None, how),
        Figure(f"{what}: others' events appear, p99", percentile(delays, 0.99), "ms", _SOON, how),
        Figure(f"{what}: others' events appear, the last", max(delays), "ms", _SOON, how),
    ]


def _how(outcome: ScenarioResult) -> str:
    found = outcome.comparison
    return f"{found.jobs:,} jobs, {found.events:,} {_RECORDS}; {found.repeated:,} came twice"


def _ends(outcome: ScenarioResult) -> str:
    ends = sorted(outcome.comparison.ends.items())
    return ", ".join(f"{count:,} {state.name}" for state, count in ends)
