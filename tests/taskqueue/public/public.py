"""A deployment as its callers see it: through the routing client, and call by call on the wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from jobqueue import TaskQueueClient
from jobqueue.api.grpc.channel import client_options
from jobqueue.pb import taskqueue_public_pb2 as pb
from jobqueue.pb.taskqueue_public_pb2_grpc import TaskQueuePublicServiceStub
from jobqueue.taskqueue import (
    Deadlines,
    JobResult,
    JobSort,
    JobState,
    JobStatus,
    JobSummary,
    owner_index,
)
from jobqueue.taskqueue.components.model import MAX_PAGE_SIZE, TOTAL_WORKER_SLOTS
from tests import patience
from tests.taskqueue.public.deployments import Running

PATIENCE = 30.0
# This machine may be busy: what is tested here is not how fast it is.
UNHURRIED = Deadlines(20, 20, 20, 20, 20)
UNKNOWN = "00000000-0000-4000-8000-000000000000"
VERY_LONG_MS = 3_600_000


class Public:
    """Send calls to each of the servers in turn, if they have the same jobs."""

    def __init__(self, name: str, running: Running) -> None:
        self.name = name
        self.running = running
        targets = running.targets
        self._clients = (
            [TaskQueueClient(nodes=targets, deadlines=UNHURRIED)]
            if running.routed
            else [TaskQueueClient(gateway=target, deadlines=UNHURRIED) for target in targets]
        )
        self.channels = [
            grpc.aio.insecure_channel(target, options=client_options()) for target in targets
        ]
        self._stubs = [TaskQueuePublicServiceStub(channel) for channel in self.channels]
        self._client_turns = itertools.cycle(self._clients)
        self._stub_turns = itertools.cycle(self._stubs)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for channel in self.channels:
            await channel.close()

    @property
    def client(self) -> TaskQueueClient:
        """The client; ask for it with every call."""
        return next(self._client_turns)

    def stub(self, routed_by: str = "") -> TaskQueuePublicServiceStub:
        """The wire, at the server that this key or job id belongs to."""
        if self.running.routed and routed_by:
            return self._stubs[owner_index(routed_by, len(self._stubs))]
        return next(self._stub_turns)

    @asynccontextmanager
    async def with_one_list(self) -> AsyncIterator[Public]:
        """The same, or a part of it whose jobs are all in one list: a single node."""
        if not self.running.routed:
            yield self
            return
        alone = Public(self.name, Running(self.running.targets[:1]))
        try:
            yield alone
        finally:
            await alone.close()

    # -- what scenarios do -----------------------------------------------------------------------

    async def hold(self) -> list[str]:
        """Give every slot a job that does not end: what comes after stays queued."""
        held = [
            (await self.client.submit_job(job_type="hold", work_duration_ms=VERY_LONG_MS)).job_id
            for _ in range(TOTAL_WORKER_SLOTS)
        ]
        for job_id in held:
            await self.until(job_id, JobStatus.RUNNING)
        return held

    async def until(self, job_id: str, wanted: JobStatus) -> JobState:
        """Wait for a status."""
        async with patience.timeout(PATIENCE):
            while (state := await self.client.get_job_status(job_id)).status is not wanted:
                assert not state.status.terminal, f"{state} will never be {wanted.name}"
                await asyncio.sleep(0.005)
        return state

    async def end(self, job_id: str) -> JobResult:
        """Wait for the result."""
        return await self.client.wait_result(job_id, patience.longest(PATIENCE))

    async def lists(
        self,
        statuses: Sequence[JobStatus] = (),
        sort: JobSort = JobSort.CREATED_AT_ASC,
        page_size: int = MAX_PAGE_SIZE,
    ) -> list[list[JobSummary]]:
        """Every list to its end: one, or one for each node."""
        nodes = len(self.running.targets) if self.running.routed else 1
        return [await self._list(statuses, sort, page_size, node) for node in range(nodes)]

    async def _list(
        self, statuses: Sequence[JobStatus], sort: JobSort, page_size: int, node: int
    ) -> list[JobSummary]:
        jobs: list[JobSummary] = []
        token = ""
        while True:
            page = await self.client.list_jobs(statuses, page_size, token, sort, node=node)
            jobs += page.jobs
            token = page.next_page_token
            if not token:
                return jobs

    async def jobs(self) -> list[JobSummary]:
        """All there are."""
        return [job for jobs in await self.lists() for job in jobs]


async def refused(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """The code and the text with which a call on the wire is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def job_of(job_type: str = "any", **fields: object) -> pb.SubmitJobRequest:
    """A submit without a key."""
    return pb.SubmitJobRequest(spec=pb.JobSpec(job_type=job_type, **fields))  # type: ignore[arg-type]
