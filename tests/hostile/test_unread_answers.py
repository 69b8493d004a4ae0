"""Answers that nobody reads take bounded memory, however many calls ask for them at a time."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from jobqueue.pb.jq.v1 import client_pb2
from tests.cli import processes
from tests.hostile.frames import Frames
from tests.hostile.target import API_KEYS, KEYS, Target, headers
from tests.hostile.test_messages import WAIT_JOB, settled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MIB = 1024 * 1024
# One caller has room for 64 MiB of answers, and what is read from the store takes some beside.
ROOM_MIB = 110


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server that reads each job anew from its store: a memory store has every payload once."""
    folder = tmp_path_factory.mktemp("durable")
    with processes.server(
        folder,
        *("--db-url", f"sqlite:///{folder}/jobs.db", "--worker-concurrency", "0"),
        JQ_AUTH_API_KEYS=API_KEYS,
    ) as service:
        yield Target(service)


def submitted(target: Target) -> str:
    """A job of 1 MiB."""
    body = json.dumps({"payload": "x" * (MIB - 1000)})
    code, text = target.ask("POST", "/jobs", headers("client"), body)
    assert code == 202, text
    job_id: str = json.loads(text)["job_id"]
    return job_id


@asynccontextmanager
async def asked(target: Target, count: int, path: str) -> AsyncIterator[list[socket.socket]]:
    """So many connections that ask for something and do not read it."""
    lines: list[socket.socket] = []
    said = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEYS['client']}\r\n\r\n"
    loop = asyncio.get_running_loop()
    try:
        for _ in range(count):
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            line.setblocking(False)
            lines.append(line)
            await loop.sock_connect(line, ("127.0.0.1", target.http_port))
            await loop.sock_sendall(line, said.encode())
        yield lines
    finally:
        for line in lines:
            line.close()


async def cancel(target: Target, job_id: str) -> None:
    path = f"/jobs/{job_id}/cancel"
    code, text = await asyncio.to_thread(target.ask, "POST", path, headers("client"))
    assert code == 200, text


async def test_long_polls_that_are_not_read_are_bounded_over_grpc(durable: Target):
    """Before, all of them read the job at once when it ended."""
    job_id = submitted(durable)
    poll = client_pb2.WaitJobRequest(job_id=job_id, wait_seconds=60).SerializeToString()
    async with Frames(durable.grpc_target, "client") as frames:
        with durable.watched() as seen:
            for _ in range(300):
                await frames.call(WAIT_JOB, poll)
            await settled(durable)
            await cancel(durable, job_id)
            await settled(durable)
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


async def test_long_polls_that_are_not_read_are_bounded_over_http(durable: Target):
    job_id = submitted(durable)
    async with asked(durable, 250, f"/jobs/{job_id}/wait?timeout=30"):
        with durable.watched() as seen:
            await settled(durable)
            await cancel(durable, job_id)
            await settled(durable)
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


@pytest.mark.parametrize("path", ["/jobs/{}", "/jobs?limit=1000"])
async def test_answers_that_are_not_read_are_bounded_over_http(durable: Target, path: str):
    job_id = submitted(durable)
    body = json.dumps({"jobs": [{"payload": "x" * 15_000}] * 130})
    code, text = await asyncio.to_thread(
        durable.ask, "POST", "/jobs/batch", headers("client"), body
    )
    assert code == 202, text
    with durable.watched() as seen:
        async with asked(durable, 400, path.format(job_id)):
            await settled(durable)
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()
