"""Run the processes of the two designs: six services, or equal nodes that each have all parts.

Each program is an asynchronous context manager that starts and stops one process. The parts that
started last stop first.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from jobqueue.access.hosts import is_loopback
from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.calls import Calls
from jobqueue.core.address import Address
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.coordinator import Coordinator
from jobqueue.taskqueue.components.gateway import Gateway
from jobqueue.taskqueue.components.model import Actor
from jobqueue.taskqueue.components.ownership import owned_job_id
from jobqueue.taskqueue.components.protocols import Coordination, JobOwner, QueueOwner, ResultOwner
from jobqueue.taskqueue.components.reconciler import Reconciler
from jobqueue.taskqueue.components.state import JobLedger, ReadyQueue, ResultShelf
from jobqueue.taskqueue.components.worker_loop import WorkerLoop, simulate
from jobqueue.taskqueue.designs import catalogue
from jobqueue.taskqueue.designs.settings import (
    CoordinatorVariables,
    DispatchVariables,
    GatewayVariables,
    JobVariables,
    ListeningVariables,
    NodeVariables,
    OwnersVariables,
    QueueVariables,
    ResultVariables,
    SharedVariables,
    ShelfVariables,
    WorkerVariables,
    WorkVariables,
)
from jobqueue.taskqueue.grpc.answering import Servicer
from jobqueue.taskqueue.grpc.host import ServiceHost
from jobqueue.taskqueue.grpc.peer import UNARY, Peer
from jobqueue.taskqueue.grpc.remote import (
    RemoteCoordination,
    RemoteJobs,
    RemoteQueue,
    RemoteResults,
)
from jobqueue.taskqueue.grpc.servicers import (
    CoordinatorServicer,
    JobServicer,
    PublicServicer,
    QueueServicer,
    ResultServicer,
)

# Seconds of the shutdown time that are reserved for the work after the last call: protocols whose
# callers left, and jobs that are put back into the queue.
_CLOSING = 3.0
_NOT_DURABLE = "NOT DURABLE: its state is in memory and is lost when this process ends"


@dataclass(frozen=True, slots=True)
class Running:
    """Describes a service that is ready. ``address`` is empty if the service does not listen."""

    service: str
    address: str = ""


class Grace:
    """Measures the time left for the shutdown of a process, from the first call of ``left``."""

    def __init__(
        self, settings: SharedVariables, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = settings.shutdown_timeout_ms / 1000
        self._clock = clock
        self._began: float | None = None

    def left(self, *, keep: float = 0.0) -> float:
        """Return the seconds that the next step may take.

        Later steps keep ``keep`` seconds, but at most half of the time that is left.
        """
        now = self._clock()
        if self._began is None:
            self._began = now
        left = max(0.0, self._seconds - (now - self._began))
        return left - min(keep, left / 2)


@asynccontextmanager
async def listening(
    service: catalogue.Service[Any],
    settings: ListeningVariables,
    servicer: Callable[[Calls], Servicer[Any]],
    grace: Grace,
) -> AsyncIterator[Running]:
    """Serve the calls of a service. At the end, refuse new calls and wait for running calls."""
    bind = settings.bind_host
    tls = settings.server_tls()
    host = ServiceHost(service.name, tls=tls)
    host.add(servicer)
    port = await host.start(bind, getattr(settings, f"{service.name}_port"))
    journal.note(
        "ready",
        f"ready: {service.serves} on port {port}"
        + ("" if service.holds_nothing else f"; {_NOT_DURABLE}"),
        host=bind,
        port=port,
        tls=tls is not None,
    )
    if tls is None and not is_loopback(bind):
        journal.warn(
            "open_to_network",
            f"{bind}:{port} is open to the network without TLS: any program that can connect to it"
            " may make every call, and others can read the calls; set TLS_CERT, TLS_KEY and TLS_CA,"
            " or BIND_HOST=127.0.0.1",
            host=bind,
            port=port,
        )
    try:
        yield Running(service.name, str(Address(bind, port)))
    finally:
        began = time.monotonic()
        await host.stop(grace.left(keep=_CLOSING))
        journal.note(
            "stopped",
            f"stopped: {service.name} accepts no more calls on port {port}",
            seconds=round(time.monotonic() - began, 3),
        )


def worker_name(settings: WorkVariables) -> str:
    """Return the worker's id: the configured name, else the host name."""
    return settings.worker_id or socket.gethostname()


def tell_lost(**counts: int) -> None:
    """Log how much state is lost with this process, if any is."""
    if any(counts.values()):
        held = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items())
        journal.warn(
            journal.STATE_LOST,
            f"the state in the memory of this process is lost: {held}",
            **counts,
        )


class Links:
    """Returns each part as its callers see it: here unchanged, in tests with added faults."""

    def jobs(self, jobs: JobOwner) -> JobOwner:
        return jobs

    def queue(self, queue: QueueOwner) -> QueueOwner:
        return queue

    def results(self, results: ResultOwner) -> ResultOwner:
        return results

    def coordination(self, coordination: Coordination) -> Coordination:
        return coordination


DIRECT = Links()
Program = Callable[[Any, Links], AbstractAsyncContextManager[Running]]


# Design A: each part in its own process. The parts call each other over gRPC.


@asynccontextmanager
async def _owner(
    service: catalogue.Service[Any],
    settings: ListeningVariables,
    servicer: Callable[[Calls], Servicer[Any]],
    lost: Callable[[], Mapping[str, int]],
) -> AsyncIterator[Running]:
    try:
        async with listening(service, settings, servicer, Grace(settings)) as running:
            yield running
    finally:
        tell_lost(**lost())


def job(settings: JobVariables, links: Links = DIRECT) -> AbstractAsyncContextManager[Running]:
    """Run the job service, which keeps the jobs."""
    ledger = JobLedger(max_dedup_keys=settings.max_dedup_keys, max_jobs=settings.max_jobs)
    return _owner(
        catalogue.JOB,
        settings,
        partial(JobServicer, ledger),
        lambda: {"jobs": len(ledger), "unfinished_jobs": ledger.unfinished},
    )


def queue(settings: QueueVariables, links: Links = DIRECT) -> AbstractAsyncContextManager[Running]:
    """Run the queue service, which keeps the order of the waiting jobs."""
    ready = ReadyQueue(max_queued=settings.max_queued_jobs)
    return _owner(
        catalogue.QUEUE,
        settings,
        partial(QueueServicer, ready),
        lambda: {"queued_jobs": len(ready)},
    )


def result(
    settings: ResultVariables, links: Links = DIRECT
) -> AbstractAsyncContextManager[Running]:
    """Run the result service, which keeps the results of jobs."""
    shelf = _shelf(settings)
    return _owner(
        catalogue.RESULT, settings, partial(ResultServicer, shelf), lambda: {"results": len(shelf)}
    )


@asynccontextmanager
async def gateway(settings: GatewayVariables, links: Links = DIRECT) -> AsyncIterator[Running]:
    """Run the gateway, which serves the public API and keeps no state."""
    async with _owners(settings, Actor.GATEWAY, links) as owners:
        part, grace = Gateway(*owners), Grace(settings)
        jobs, waiting, _ = owners
        interval = settings.reconcile_interval_ms
        reconciler = Reconciler(jobs, waiting, part.settle, interval_ms=interval)
        try:
            async with listening(
                catalogue.GATEWAY, settings, partial(PublicServicer, part), grace
            ) as running:
                await reconciler.start()
                yield running
        finally:
            await reconciler.stop()
            await part.stop(grace.left())


@asynccontextmanager
async def coordinator(
    settings: CoordinatorVariables, links: Links = DIRECT
) -> AsyncIterator[Running]:
    """Run the coordinator, which tracks workers and hands out jobs."""
    async with _owners(settings, Actor.COORDINATOR, links) as owners:
        part, grace = _coordinator(settings, *owners), Grace(settings)
        await part.start()
        try:
            async with listening(
                catalogue.COORDINATOR, settings, partial(CoordinatorServicer, part), grace
            ) as running:
                yield running
        finally:
            await part.stop(grace.left(keep=UNARY))
            tell_lost(workers=part.workers, assigned_jobs=part.assigned)


@asynccontextmanager
async def worker(settings: WorkerVariables, links: Links = DIRECT) -> AsyncIterator[Running]:
    """Run a worker, which gets its jobs from the coordinator."""
    name, slots = worker_name(settings), settings.worker_slots
    async with _peers(settings, Actor.WORKER) as open_peer:
        coordination = RemoteCoordination(open_peer(settings.coordinator_addr, "coordinator"))
        loop = WorkerLoop(
            links.coordination(coordination),
            simulate,
            worker_id=name,
            slots=slots,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
        )
        try:
            await loop.start()
            journal.note(
                "ready",
                f"ready: worker {name} with {slots} slots fetches jobs from"
                f" {settings.coordinator_addr}",
                worker_id=name,
                slots=slots,
            )
            yield Running(catalogue.WORKER.name)
        finally:
            await loop.stop(Grace(settings).left())
            journal.note("stopped", f"stopped: worker {name} fetches no more jobs", worker_id=name)


@asynccontextmanager
async def _owners(
    settings: OwnersVariables, caller: Actor, links: Links
) -> AsyncIterator[tuple[JobOwner, QueueOwner, ResultOwner]]:
    """Open connections to the job, queue and result services; close them at the end."""
    async with _peers(settings, caller) as open_peer:
        yield (
            links.jobs(RemoteJobs(open_peer(settings.job_service_addr, "job"))),
            links.queue(RemoteQueue(open_peer(settings.queue_service_addr, "queue"))),
            links.results(RemoteResults(open_peer(settings.result_service_addr, "result"))),
        )


@asynccontextmanager
async def _peers(
    settings: SharedVariables, caller: Actor
) -> AsyncIterator[Callable[[str, str], Peer]]:
    """Yield a function that opens a channel to a service; close all channels at the end."""
    tls = settings.client_tls()
    credentials = Credentials(tls=tls) if tls else None
    async with AsyncExitStack() as stack:

        def open_peer(address: str, service: str) -> Peer:
            peer = Peer(address, service, caller, credentials=credentials)
            stack.push_async_callback(peer.close)
            return peer

        yield open_peer


# Design B: all parts in each node, one public port. No node calls another.


@asynccontextmanager
async def node(settings: NodeVariables, links: Links = DIRECT) -> AsyncIterator[Running]:
    """Run a node, which has all parts of the task queue.

    The node creates only job ids that it owns, so that clients find a job's node by the job's id.
    """
    index, nodes = settings.node_index, len(settings.nodes)
    ledger = JobLedger(
        max_dedup_keys=settings.max_dedup_keys,
        max_jobs=settings.max_jobs,
        new_id=lambda: owned_job_id(index, nodes),
    )
    ready, shelf = ReadyQueue(max_queued=settings.max_queued_jobs), _shelf(settings)
    owners = links.jobs(ledger), links.queue(ready), links.results(shelf)
    public = Gateway(*owners)
    coordination = _coordinator(settings, *owners)
    loop = WorkerLoop(
        links.coordination(coordination),
        simulate,
        worker_id=worker_name(settings),
        slots=settings.worker_slots,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        max_output_bytes=settings.max_output_bytes,
    )
    grace = Grace(settings)
    work_ends: asyncio.Task[None] | None = None
    try:
        await coordination.start()
        await loop.start()
        async with listening(
            catalogue.NODE, settings, partial(PublicServicer, public), grace
        ) as running:
            try:
                yield running
            finally:  # running jobs and running calls end in the same time
                work_ends = asyncio.create_task(loop.stop(grace.left()))
    finally:
        await public.stop(grace.left())
        await (loop.stop(0) if work_ends is None else work_ends)
        await coordination.stop(grace.left())
        tell_lost(
            jobs=len(ledger),
            unfinished_jobs=ledger.unfinished,
            queued_jobs=len(ready),
            results=len(shelf),
        )


# Parts of both designs.


def _shelf(settings: ShelfVariables) -> ResultShelf:
    return ResultShelf(
        max_output_bytes=settings.max_output_bytes,
        max_results=2 * settings.max_jobs,
        max_bytes=settings.max_result_bytes,
    )


def _coordinator(
    settings: DispatchVariables, jobs: JobOwner, waiting: QueueOwner, results: ResultOwner
) -> Coordinator:
    return Coordinator(
        jobs,
        waiting,
        results,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        worker_timeout_ms=settings.worker_timeout_ms,
        retry_after_ms=settings.retry_after_ms,
    )


PROGRAMS: Mapping[str, Program] = {
    "gateway": gateway,
    "job": job,
    "queue": queue,
    "coordinator": coordinator,
    "result": result,
    "worker": worker,
    "node": node,
}
