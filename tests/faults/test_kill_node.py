"""One of several nodes killed under load: its jobs are lost with it, and no others."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue import TaskQueueClient
from jobqueue.core.errors import DeadlineExceeded, NotFound, Unavailable
from jobqueue.taskqueue import JobStatus
from jobqueue.taskqueue.components.ownership import owner_index
from tests import patience, ports
from tests.cli.processes import Service
from tests.taskqueue.fleet import LOOPBACK, event

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(180)]

NODES, VICTIM = 3, 1
PATIENCE = 60.0


class Nodes:
    """Processes whose ports stay the same, so that one that was killed is found again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.targets = [f"{LOOPBACK}:{ports.take()}" for _ in range(NODES)]
        self.running = [self.launch(index) for index in range(NODES)]

    def launch(self, index: int) -> Service:
        environ = {
            "BIND_HOST": LOOPBACK,
            "NODE_PORT": self.targets[index].rpartition(":")[2],
            "NODES": ",".join(self.targets),
            "NODE_INDEX": str(index),
            "WORKER_ID": f"node-{index}",
        }
        return Service("service", "node", cwd=self._folder, **environ)


@pytest_asyncio.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        for node in made.running:
            await asyncio.to_thread(event, node, "ready")
        yield made
    finally:
        for node in made.running:
            node.__exit__()


async def end_of(client: TaskQueueClient, job_id: str) -> JobStatus:
    """NotFound: it was lost with its node."""
    async with patience.timeout(PATIENCE):
        while True:
            try:
                return (await client.wait_result(job_id, PATIENCE)).status
            except (Unavailable, DeadlineExceeded):
                await asyncio.sleep(0.05)  # the client has not connected again yet


@pytest.mark.req("tq:NFR-5", "tq:LOCK-27", "tq:LOCK-37")
async def test_the_jobs_of_the_other_nodes_end(nodes: Nodes) -> None:
    accepted: list[str] = []
    async with TaskQueueClient(nodes=nodes.targets) as client:

        async def submit(count: int) -> None:
            for _ in range(count):
                try:
                    accepted.append(
                        (await client.submit_job(job_type="t", work_duration_ms=5)).job_id
                    )
                except (Unavailable, DeadlineExceeded):
                    continue  # not accepted, so nobody waits for it

        await submit(60)
        load = asyncio.create_task(submit(120))
        nodes.running[VICTIM].signal(signal.SIGKILL)
        await asyncio.to_thread(nodes.running[VICTIM].wait)
        await load
        nodes.running[VICTIM].__exit__()
        nodes.running[VICTIM] = nodes.launch(VICTIM)
        await asyncio.to_thread(event, nodes.running[VICTIM], "ready")
        restarted = len(accepted)
        await submit(30)

        lost = 0
        for number, job_id in enumerate(accepted):
            try:
                assert await end_of(client, job_id) is JobStatus.DONE
            except NotFound:
                assert owner_index(job_id, NODES) == VICTIM, f"{job_id} was no job of the victim"
                assert number < restarted, f"{job_id} was accepted after the restart"
                lost += 1
        assert lost  # the victim had its share of the first
