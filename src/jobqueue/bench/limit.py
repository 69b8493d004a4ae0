"""Measure the load generator's own limit: its rate on a target that answers at once.

The first rate is measured inside this process, so it covers only the generator's loop and
accounting. The second rate is measured over gRPC, to a process that answers without any work. The
second rate is the highest that a topology can reach on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc

from jobqueue import TaskQueueClient
from jobqueue.bench.cell import Cell, Method
from jobqueue.bench.load import LoadGenerator
from jobqueue.bench.profile import Profile
from jobqueue.bench.records import RunRecord
from jobqueue.bench.targets import InstantTarget, Target, TaskQueueTarget
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.fleet.ports import free_port
from jobqueue.pb import taskqueue_public_pb2 as messages
from jobqueue.pb import taskqueue_public_pb2_grpc as stubs

_LOOPBACK = "127.0.0.1"
_PATIENCE = 60.0
_CELL = Cell(
    "instant",
    callers=32,
    mix={Method.SUBMIT: 2, Method.STATUS: 1, Method.RESULT: 1, Method.CANCEL: 1},
)


async def generator_limit(seconds: float) -> dict[str, float]:
    """Return the generator's highest rates, inside this process and over gRPC.

    The result also has the share of a core that the generator used over gRPC.
    """
    alone, _ = await _rate(InstantTarget(), seconds)
    async with _answering() as address:
        client = TaskQueueClient(gateway=address)
        try:
            over_grpc, share = await _rate(TaskQueueTarget(client), seconds)
        finally:
            await client.close()
    return {
        "requests_a_second": round(alone),
        "over_grpc_requests_a_second": round(over_grpc),
        "over_grpc_generator_share": round(share, 2),
        "callers": _CELL.callers,
        "seconds": seconds,
    }


async def _rate(target: Target, seconds: float) -> tuple[float, float]:
    profile = Profile(about="", topologies=[], warm_up=seconds / 4, seconds=seconds)
    with LoadGenerator(target, _CELL, profile, seed=profile.seed, tag="limit") as load:
        await load.warm_up()
        began, used = time.perf_counter(), time.process_time()
        await load.requests()
        took = time.perf_counter() - began
        share = (time.process_time() - used) / took
        record = RunRecord("limit", _CELL, 1, 1, profile.seed, "", profile.warm_up, took)
        load.fill(record)
    return record.requests_a_second, share


@contextlib.asynccontextmanager
async def _answering() -> AsyncIterator[str]:
    port = free_port()
    process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
        [sys.executable, "-P", "-m", __name__, str(port)], stdin=subprocess.PIPE
    )
    try:
        await _until_it_answers(process, f"{_LOOPBACK}:{port}")
        yield f"{_LOOPBACK}:{port}"
    finally:
        process.kill()
        process.wait()


async def _until_it_answers(process: subprocess.Popen[bytes], address: str) -> None:
    give_up = time.monotonic() + _PATIENCE
    async with TaskQueueClient(gateway=address) as client:
        while True:
            try:
                await client.list_jobs()
            except JobQueueError as error:
                if process.poll() is not None or time.monotonic() > give_up:
                    raise Unavailable(
                        "cannot measure the generator's limit: its server at"
                        f" {address} does not start: {error.message}"
                    ) from error
                await asyncio.sleep(0.05)
            else:
                return


class _Instant(stubs.TaskQueuePublicServiceServicer):
    """Answers every call of taskqueue.v1 at once, and stores no job."""

    async def SubmitJob(self, request: Any, context: Any) -> Any:
        return messages.SubmitJobResponse(job_id=str(uuid.uuid4()))

    async def GetJobStatus(self, request: Any, context: Any) -> Any:
        return messages.GetJobStatusResponse(job_id=request.job_id, status=messages.DONE)

    async def GetJobResult(self, request: Any, context: Any) -> Any:
        return messages.GetJobResultResponse(job_id=request.job_id)

    async def CancelJob(self, request: Any, context: Any) -> Any:
        return messages.CancelJobResponse(job_id=request.job_id, current_status=messages.DONE)

    async def ListJobs(self, request: Any, context: Any) -> Any:
        return messages.ListJobsResponse()


async def _serve(port: int) -> None:
    server = grpc.aio.server()
    stubs.add_TaskQueuePublicServiceServicer_to_server(_Instant(), server)
    server.add_insecure_port(f"{_LOOPBACK}:{port}")
    await server.start()
    # When the parent process ends, its pipe is closed, and this process ends as well.
    await asyncio.to_thread(os.read, 0, 1)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
