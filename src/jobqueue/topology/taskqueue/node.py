"""Design B: all parts in each of several equal nodes, one public port. Wiring only.

No node calls another. A node issues ids that it owns, so that clients find a job by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobqueue.services.coordinator import Coordinator
from jobqueue.services.gateway import Gateway
from jobqueue.services.job_ledger import JobLedger
from jobqueue.services.owners import owned_job_id
from jobqueue.services.ready_queue import ReadyQueue
from jobqueue.services.result_shelf import ResultShelf
from jobqueue.services.simulation import simulate
from jobqueue.services.worker_loop import WorkerLoop
from jobqueue.topology.taskqueue import catalogue
from jobqueue.topology.taskqueue.environment import Values
from jobqueue.topology.taskqueue.links import DIRECT, Links
from jobqueue.topology.taskqueue.running import (
    Grace,
    Running,
    listening,
    tell_lost,
    worker_name,
)


@asynccontextmanager
async def node(values: Values, links: Links = DIRECT) -> AsyncIterator[Running]:
    """One of several."""
    index, nodes = values[catalogue.NODE_INDEX], len(values[catalogue.NODES])
    ledger = JobLedger(
        max_dedup_keys=values[catalogue.MAX_DEDUP_KEYS],
        max_jobs=values[catalogue.MAX_JOBS],
        new_id=lambda: owned_job_id(index, nodes),
    )
    ready = ReadyQueue(max_queued=values[catalogue.MAX_QUEUED_JOBS])
    shelf = ResultShelf(
        max_output_bytes=values[catalogue.MAX_OUTPUT_BYTES],
        max_results=2 * values[catalogue.MAX_JOBS],
        max_bytes=values[catalogue.MAX_RESULT_BYTES],
    )
    jobs, queue, results = links.jobs(ledger), links.queue(ready), links.results(shelf)
    gateway = Gateway(jobs, queue, results)
    coordinator = Coordinator(
        jobs,
        queue,
        results,
        heartbeat_interval_ms=values[catalogue.HEARTBEAT_INTERVAL_MS],
        worker_timeout_ms=values[catalogue.WORKER_TIMEOUT_MS],
        retry_after_ms=values[catalogue.RETRY_AFTER_MS],
    )
    loop = WorkerLoop(
        links.coordination(coordinator),
        simulate,
        worker_id=worker_name(values),
        slots=values[catalogue.NODE_SLOTS],
        heartbeat_interval_ms=values[catalogue.HEARTBEAT_INTERVAL_MS],
        max_output_bytes=values[catalogue.MAX_OUTPUT_BYTES],
    )
    grace = Grace(values)
    work_ends: asyncio.Task[None] | None = None
    try:
        await coordinator.start()
        await loop.start()
        async with listening(
            catalogue.NODE, values, lambda host: host.add_public(gateway), grace, durable=False
        ) as running:
            try:
                yield running
            finally:  # jobs end while calls do, in the same time
                work_ends = asyncio.create_task(loop.stop(grace.left()))
    finally:
        await gateway.stop(grace.left())
        await (loop.stop(0) if work_ends is None else work_ends)
        await coordinator.stop(grace.left())
        tell_lost(
            jobs=len(ledger),
            unfinished_jobs=ledger.unfinished,
            queued_jobs=len(ready),
            results=len(shelf),
        )
