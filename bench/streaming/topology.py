"""The streaming topology end to end: HTTP, Redis, Kafka, schedulers, workers, on these cores."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import httpx

from bench.processes import running, server, workers
from bench.progress import Say
from bench.report import Figure, percentile
from bench.streaming.ground import Ground, durable_redis
from bench.streaming.sizes import Sizes
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.machine import CpuTimes
from jobqueue.core.job import JobQuery
from jobqueue.topology.backing.ports import free_port

_TARGET = 2_000
_WARM_UP = 10  # a tenth of the jobs, not counted
_BATCH = 500
_IN_FLIGHT = 2
_POLL = 0.05
_WORKERS = 2
_SINGLE = 100
_PACE = 0.05  # seconds between single jobs
_DISPATCH = ("requests", "assignments", "results", "workers")


@dataclass(frozen=True, slots=True)
class _Running:
    http: httpx.AsyncClient
    backend: GrpcBackend
    cpu: CpuTimes

    async def submit(self, jobs: int) -> None:
        """In batches, over HTTP."""
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


async def topology(ground: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    """Jobs a second from the first request to the last result, and one job's way at leisure."""
    rates, costs = [], ""
    async with _programs(ground, sizes, say) as system:
        done = sizes.stream_jobs // _WARM_UP
        await system.submit(done)
        await system.until(done)
        for number in range(1, sizes.rounds + 1):
            say(f"round {number} of {sizes.rounds}")
            began = time.perf_counter()
            await system.submit(sizes.stream_jobs)
            done += sizes.stream_jobs
            await system.until(done)
            rates.append(sizes.stream_jobs / (time.perf_counter() - began))
        costs = system.cpu.spent().per_job(done)
        say("one at a time")
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
        Figure("streaming, submit to start, p50", percentile(waits, 0.5), "ms", None, single),
        Figure("streaming, submit to start, p99", percentile(waits, 0.99), "ms", None, single),
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
async def _programs(ground: Ground, sizes: Sizes, say: Say) -> AsyncIterator[_Running]:
    say("starting")
    prefix = ground.prefix()
    async with durable_redis(ground.folder / f"{prefix}redis") as redis:
        told = _settings(ground, prefix)
        scheduling = {**told, "JQ_DB_URL": redis.url, "JQ_SERVER_ROLE": "scheduler"}
        working = {
            **told,
            "JQ_WORKER_SERVER": redis.url,
            "JQ_WORKER_CONCURRENCY": str(sizes.stream_slots),
        }
        async with server(redis.url, {**told, "JQ_SERVER_ROLE": "api"}) as api:
            backend = GrpcBackend(api.target)
            with contextlib.ExitStack() as stack:
                pids = {"API": api.pid}
                for number in (1, 2):
                    here = {**scheduling, "JQ_HTTP_PORT": str(free_port())}
                    started = stack.enter_context(running("jobqueue.cli.server", here))
                    pids[f"scheduler {number}"] = started.pid
                try:
                    async with (
                        workers(working, backend.list_workers, _WORKERS) as found,
                        httpx.AsyncClient(base_url=api.http, timeout=60, verify=False) as http,
                    ):
                        pids |= found
                        cpu = ground.cpu(**pids, **{"the jobs' Redis": redis.pid or 0})
                        yield _Running(http, backend, cpu)
                finally:
                    await backend.stop()


def _settings(ground: Ground, prefix: str) -> Mapping[str, str]:
    return {
        "JQ_PROFILE": "streaming",
        "JQ_KAFKA_BOOTSTRAP": ground.kafka.bootstrap,
        "JQ_KAFKA_REPLICATION": "1",
        "JQ_KAFKA_TOPIC_JOBS": f"{prefix}jobs",
        "JQ_KAFKA_TOPIC_DEAD_LETTERS": f"{prefix}dead",
        "JQ_KAFKA_TOPIC_QUEUES": f"{prefix}queues",
        **{f"JQ_KAFKA_TOPIC_{name.upper()}": f"{prefix}{name}" for name in _DISPATCH},
    }
