"""Design A: each part in a process of its own, the others behind gRPC. Wiring only.

Each function is one process from its start to its end; what was begun last ends first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.taskqueue.peer import Peer
from jobqueue.api.grpc.taskqueue.remote import (
    UNARY,
    RemoteCoordination,
    RemoteJobs,
    RemoteQueue,
    RemoteResults,
)
from jobqueue.services import journal
from jobqueue.services.coordinator import Coordinator
from jobqueue.services.gateway import Gateway
from jobqueue.services.job_ledger import JobLedger
from jobqueue.services.model import Actor
from jobqueue.services.protocols import Jobs, Queue, Results
from jobqueue.services.ready_queue import ReadyQueue
from jobqueue.services.reconciler import Reconciler
from jobqueue.services.result_shelf import ResultShelf
from jobqueue.services.simulation import simulate
from jobqueue.services.worker_loop import WorkerLoop
from jobqueue.topology.taskqueue import catalogue
from jobqueue.topology.taskqueue.environment import Values, Variable
from jobqueue.topology.taskqueue.links import DIRECT, Links
from jobqueue.topology.taskqueue.running import (
    Grace,
    Running,
    listening,
    tell_lost,
    worker_name,
)


@asynccontextmanager
async def gateway(values: Values, links: Links = DIRECT) -> AsyncIterator[Running]:
    """The public API; it holds nothing."""
    async with _owners(values, Actor.GATEWAY, links) as (jobs, queue, results):
        part, grace = Gateway(jobs, queue, results), Grace(values)
        interval = values[catalogue.RECONCILE_INTERVAL_MS]
        reconciler = Reconciler(jobs, queue, part.settle, interval_ms=interval)
        try:
            async with listening(
                catalogue.GATEWAY, values, lambda host: host.add_public(part), grace, durable=True
            ) as running:
                await reconciler.start()
                yield running
        finally:
            await reconciler.stop()
            await part.stop(grace.left())


@asynccontextmanager
async def job(values: Values, links: Links = DIRECT) -> AsyncIterator[Running]:
    """The jobs."""
    ledger = JobLedger(
        max_dedup_keys=values[catalogue.MAX_DEDUP_KEYS], max_jobs=values[catalogue.MAX_JOBS]
    )
    try:
        async with listening(
            catalogue.JOB,
            values,
            lambda host: host.add_jobs(ledger),
            Grace(values),
            durable=False,
        ) as running:
            yield running
    finally:
        tell_lost(jobs=len(ledger), unfinished_jobs=ledger.unfinished)


@asynccontextmanager
async def queue(values: Values, links: Links = DIRECT) -> AsyncIterator[Running]:
    """The order."""
    ready = ReadyQueue(max_queued=values[catalogue.MAX_QUEUED_JOBS])
    try:
        async with listening(
            catalogue.QUEUE,
            values,
            lambda host: host.add_queue(ready),
            Grace(values),
            durable=False,
        ) as running:
            yield running
    finally:
        tell_lost(queued_jobs=len(ready))


@asynccontextmanager
async def result(values: Values, links: Links = DIRECT) -> AsyncIterator[Running]:
    """The outputs."""
    shelf = ResultShelf(
        max_output_bytes=values[catalogue.MAX_OUTPUT_BYTES],
        max_results=2 * values[catalogue.MAX_JOBS],
        max_bytes=values[catalogue.MAX_RESULT_BYTES],
    )
    try:
        async with listening(
            catalogue.RESULT,
            values,
            lambda host: host.add_results(shelf),
            Grace(values),
            durable=False,
        ) as running:
            yield running
    finally:
        tell_lost(results=len(shelf))


@asynccontextmanager
async def coordinator(values: Values, links: Links = DIRECT) -> AsyncIterator[Running]:
    """Dispatch and liveness."""
    async with _owners(values, Actor.COORDINATOR, links) as (jobs, queue, results):
        part = Coordinator(
            jobs,
            queue,
            results,
            heartbeat_interval_ms=values[catalogue.HEARTBEAT_INTERVAL_MS],
            worker_timeout_ms=values[catalogue.WORKER_TIMEOUT_MS],
            retry_after_ms=values[catalogue.RETRY_AFTER_MS],
        )
        grace = Grace(values)
        await part.start()
        try:
            async with listening(
                catalogue.COORDINATOR,
                values,
                lambda host: host.add_coordination(part),
                grace,
                durable=False,
            ) as running:
                yield running
        finally:
            await part.stop(grace.left(keep=UNARY))
            tell_lost(workers=part.workers, assigned_jobs=part.assigned)


@asynccontextmanager
async def worker(values: Values, links: Links = DIRECT) -> AsyncIterator[Running]:
    """Heartbeats and slots."""
    name, slots = worker_name(values), values[catalogue.WORKER_SLOTS]
    async with _peers(values, Actor.WORKER) as open_peer:
        coordination = RemoteCoordination(open_peer(catalogue.COORDINATOR_ADDR, "coordinator"))
        loop = WorkerLoop(
            links.coordination(coordination),
            simulate,
            worker_id=name,
            slots=slots,
            heartbeat_interval_ms=values[catalogue.HEARTBEAT_INTERVAL_MS],
        )
        try:
            await loop.start()
            journal.note(
                "ready",
                f"ready: jobs come from {values[catalogue.COORDINATOR_ADDR]}",
                worker_id=name,
                slots=slots,
            )
            yield Running(catalogue.WORKER.name)
        finally:
            await loop.stop(Grace(values).left())
            journal.note("stopped", "takes no more jobs", worker_id=name)


@asynccontextmanager
async def _owners(
    values: Values, caller: Actor, links: Links
) -> AsyncIterator[tuple[Jobs, Queue, Results]]:
    """The three owners, as this process reaches them."""
    async with _peers(values, caller) as open_peer:
        yield (
            links.jobs(RemoteJobs(open_peer(catalogue.JOB_SERVICE_ADDR, "job"))),
            links.queue(RemoteQueue(open_peer(catalogue.QUEUE_SERVICE_ADDR, "queue"))),
            links.results(RemoteResults(open_peer(catalogue.RESULT_SERVICE_ADDR, "result"))),
        )


@asynccontextmanager
async def _peers(
    values: Values, caller: Actor
) -> AsyncIterator[Callable[[Variable[str], str], Peer]]:
    """Opens channels to other services, and closes them all."""
    tls = catalogue.client_tls(values)
    credentials = Credentials(tls=tls) if tls else None
    async with AsyncExitStack() as stack:

        def open_peer(address: Variable[str], service: str) -> Peer:
            peer = Peer(values[address], service, caller, credentials=credentials)
            stack.push_async_callback(peer.close)
            return peer

        yield open_peer
