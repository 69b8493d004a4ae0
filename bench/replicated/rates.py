"""Rates of submit and drain, the time of a scheduling cycle."""

from __future__ import annotations

from bench.cycles import Cycles, hand_out
from bench.local import submit_batches
from bench.processes import server, workers
from bench.remote import IN_FLIGHT, sdk, unary
from bench.replicated.fleet import fleet, load, set_for_throughput
from bench.replicated.ground import Ground
from bench.replicated.sizes import Sizes
from bench.report import Figure, percentile
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.engine.settings import EngineSettings

BACKLOG = 9_000  # "normal load": a queue depth below 10,000


async def batch(ground: Ground, sizes: Sizes) -> list[Figure]:
    """Batch submit: engine over the store in one process, and through a jq-server."""
    how = f"{sizes.jobs:,} jobs, batches of {sizes.batch}, {sizes.in_flight} in flight"
    async with ground.database() as site, site.engine() as engine:
        cpu = ground.cpu()
        direct = await submit_batches(
            engine, sizes.jobs, batch=sizes.batch, in_flight=sizes.in_flight
        )
        direct_cpu = cpu.spent().per_job(sizes.jobs)
    async with ground.database() as site, server(site.url, ground.environment()) as process:
        backend = GrpcBackend(process.target)
        cpu = ground.cpu(server=process.pid)
        remote = await submit_batches(
            backend, sizes.jobs, batch=sizes.batch, in_flight=sizes.in_flight
        )
        remote_cpu = cpu.spent().per_job(sizes.jobs)
        await backend.stop()
    return [
        Figure(
            "batch submit", direct, "jobs/s", 40_000,
            f"{how}, engine and store in one process; {direct_cpu}",
        ),
        Figure("batch submit over gRPC", remote, "jobs/s", None, f"{how}; {remote_cpu}"),
    ]  # fmt: skip


async def calls(ground: Ground, sizes: Sizes) -> list[Figure]:
    """Plain one-job calls to a jq-server: unary, and through the SDK."""
    async with ground.database() as site, server(site.url, ground.environment()) as process:
        cpu = ground.cpu(server=process.pid)
        plain = await unary(process.target, sizes.jobs // 5)
        plain_cpu, cpu = cpu.spent().per_job(sizes.jobs // 5), ground.cpu(server=process.pid)
        coalesced = await sdk(process.target, sizes.jobs)
        coalesced_cpu = cpu.spent().per_job(sizes.jobs)
    return [
        Figure(
            "unary gRPC submit", plain, "jobs/s", 2_000,
            f"{sizes.jobs // 5:,} jobs, {IN_FLIGHT} in flight; {plain_cpu}",
        ),
        Figure(
            "SDK submit", coalesced, "jobs/s", 10_000,
            f"{sizes.jobs:,} plain one-job calls, {IN_FLIGHT} in flight; {coalesced_cpu}",
        ),
    ]  # fmt: skip


async def drain(ground: Ground, sizes: Sizes) -> list[Figure]:
    """Drain through jq-workers over gRPC, and by a jq-worker on the store itself."""
    figures = []
    how = f"concurrency {sizes.concurrency} each, batch size {sizes.batch}"
    for count, target in ((1, 25_000), (2, None)):
        async with ground.database() as site:
            await load(site, sizes.jobs, sizes)
            async with fleet(site, sizes, count) as programs:
                cpu = ground.cpu(**programs.pids)
                rate = await site.drain_rate(sizes.jobs)
                spent = cpu.spent().per_job(sizes.jobs)
        figures.append(
            Figure(
                "drain over gRPC", rate, "jobs/s", target,
                f"{sizes.jobs:,} no-op jobs, 1 server, {count} jq-worker, {how}; {spent}",
            )
        )  # fmt: skip
    return figures


async def direct(ground: Ground, sizes: Sizes) -> list[Figure]:
    """Drain by a jq-worker on the store itself."""
    async with ground.database() as site:
        await load(site, sizes.jobs, sizes)
        told = {**set_for_throughput(site, sizes), "JQ_WORKER_SERVER": site.url}
        async with workers(told, site.store.workers) as pids:
            cpu = ground.cpu(**pids)
            rate = await site.drain_rate(sizes.jobs)
            spent = cpu.spent().per_job(sizes.jobs)
    return [
        Figure(
            "drain, jq-worker on the store", rate, "jobs/s", 30_000,
            f"{sizes.jobs:,} no-op jobs, 1 jq-worker --server postgresql://…, "
            f"concurrency {sizes.concurrency}, batch size {sizes.batch}; {spent}",
        )
    ]  # fmt: skip


async def cycle(ground: Ground, sizes: Sizes) -> list[Figure]:
    """The time of a scheduling cycle of 100."""
    cycles = Cycles()
    async with ground.database() as site, site.engine(EngineSettings(), cycles) as engine:
        cpu = ground.cpu()
        for _ in range(3):
            await hand_out(engine, BACKLOG)
        spent = cpu.spent().shares()
    milliseconds = [seconds * 1e3 for seconds in cycles.full]
    return [
        Figure(
            f"scheduler cycle of 100, p{share}", percentile(milliseconds, share / 100), "ms",
            target, f"{len(milliseconds)} cycles, {BACKLOG:,} jobs waiting; {spent}",
        )
        for share, target in ((50, None), (95, 20))
    ]  # fmt: skip
