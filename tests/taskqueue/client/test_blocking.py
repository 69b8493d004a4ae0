"""The blocking client, and clients that outlive an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobqueue import DeadlineExceeded, SyncTaskQueueClient, TaskQueueClient
from jobqueue.core.bridge import LoopThread
from jobqueue.core.errors import Conflict, NotFound
from jobqueue.taskqueue import Deadlines, JobSpec, JobStatus
from tests import patience
from tests.taskqueue.client.fakes import JOB_ID, NODES, Servers
from tests.taskqueue.together import design_b

PATIENCE = patience.longest(30.0)
UNHURRIED = Deadlines(20, 20, 20, 20, 20)


def bridge_threads() -> int:
    return sum(thread.name == "jobqueue-sync" for thread in threading.enumerate())


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Three nodes, on a loop of their own: the tests have none."""
    home = LoopThread()
    design = design_b(nodes=3)
    started = asyncio.run_coroutine_threadsafe(design.__aenter__(), home.loop)
    yield started.result(PATIENCE)
    ended = asyncio.run_coroutine_threadsafe(design.__aexit__(None, None, None), home.loop)
    ended.result(PATIENCE)
    home.stop()


def test_the_five_calls_and_a_wait(nodes: list[str]) -> None:
    before = bridge_threads()
    with SyncTaskQueueClient(nodes=nodes, deadlines=UNHURRIED) as client:
        job = client.submit_job(JobSpec("noop", payload_size_bytes=3), client_request_id="order-1")
        again = client.submit_job(
            job_type="noop", payload_size_bytes=3, client_request_id="order-1"
        )
        assert job.job_id == again.job_id
        assert client.wait_result(job.job_id, PATIENCE).output == b"xxx"
        result = client.get_job_result(job.job_id)
        assert result is not None
        assert result.status is JobStatus.DONE
        assert client.get_job_status(job.job_id).status is JobStatus.DONE
        assert client.cancel_job(job.job_id).already_terminal
        listed = [one.job_id for node in range(3) for one in client.list_jobs(node=node).jobs]
        assert listed == [job.job_id]
        with pytest.raises(NotFound):
            client.get_job_status(JOB_ID)
        slow = client.submit_job(job_type="noop", work_duration_ms=2_000)
        with pytest.raises(DeadlineExceeded):
            client.wait_result(slow.job_id, 0.01)
        assert bridge_threads() == before + 1
    assert bridge_threads() == before


def test_many_threads_share_one(nodes: list[str]) -> None:
    before = bridge_threads()
    client = SyncTaskQueueClient(nodes=nodes, deadlines=UNHURRIED)

    def one(number: int) -> str:
        job = client.submit_job(job_type="noop", labels={"n": str(number)})
        assert client.wait_result(job.job_id, PATIENCE).status is JobStatus.DONE
        return job.job_id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(one, range(60)))
    assert len(set(ids)) == 60
    assert sum(len(client.list_jobs(node=node).jobs) for node in range(3)) == 60
    assert [len(client.list_jobs(node=node).jobs) for node in range(3)] == [20, 20, 20]
    assert bridge_threads() == before + 1
    client.close()
    assert bridge_threads() == before
    assert client.get_job_status(ids[0]).status is JobStatus.DONE  # opened again
    client.close()


async def test_inside_an_event_loop_it_says_to_await() -> None:
    with (
        SyncTaskQueueClient(nodes=NODES) as client,
        pytest.raises(Conflict, match="use TaskQueueClient and `await` its calls here"),
    ):
        client.get_job_status(JOB_ID)


def test_it_has_every_call_of_the_other() -> None:
    for name, method in inspect.getmembers(TaskQueueClient, inspect.isfunction):
        if name.startswith("_"):
            continue
        own = getattr(SyncTaskQueueClient, name)
        assert inspect.signature(own) == inspect.signature(method), name
        assert not inspect.iscoroutinefunction(own)


def test_the_next_loop_opens_connections_of_its_own(servers: Servers) -> None:
    client = servers.client(gateway="127.0.0.1:1")
    for _ in range(2):
        asyncio.run(_ask(client))
    assert len(servers.opened) == 2
    assert len(servers.closed) == 2  # with their loops, though nobody closed the client


async def test_two_loops_at_once_are_one_too_many(servers: Servers) -> None:
    client = servers.client(gateway="127.0.0.1:1")
    await _ask(client)
    with pytest.raises(Conflict, match="one client for each loop"):
        await asyncio.to_thread(lambda: asyncio.run(_ask(client)))
    await client.close()
    await asyncio.to_thread(lambda: asyncio.run(_ask(client)))
    assert len(servers.opened) == 2


async def _ask(client: TaskQueueClient) -> None:
    await client.get_job_status(JOB_ID)
