"""Calls that fail do not fill the log, and the log still counts them all."""

from __future__ import annotations

import logging

import grpc
import grpc.aio
import pytest

from jobqueue.access.audit import LineLimit
from jobqueue.api.grpc import calls
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.core.clock import ManualClock
from jobqueue.engine.engine import Engine
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.taskqueue.grpc.host import ServiceHost
from jobqueue.taskqueue.grpc.servicers import taskqueue_service
from jobqueue.taskqueue.on_engine import EngineTaskQueue
from tests import patience

CALLS, AT_ONCE = 60, 10


@pytest.fixture(autouse=True)
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_LINES", 0.001)
    monkeypatch.setattr(calls, "_LINES_AT_ONCE", AT_ONCE)


async def fail(port: int, method: str, request: bytes = b"") -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        for _ in range(CALLS):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(request, timeout=patience.longest(10))


async def test_unknown_methods_do_not_fill_the_log(caplog: pytest.LogCaptureFixture):
    """Anybody may call a plaintext jq-service."""
    host = ServiceHost("gateway")
    port = await host.start("127.0.0.1", 0)
    try:
        with caplog.at_level(logging.INFO, "jobqueue"):
            await fail(port, "/none/Method")
    finally:
        await host.stop(0.2)
    assert 1 <= len(caplog.records) <= AT_ONCE


async def test_failed_calls_of_the_task_queue_do_not_fill_the_log_of_a_server(
    engine: Engine, caplog: pytest.LogCaptureFixture
):
    face = GrpcFace(engine, services=taskqueue_service(EngineTaskQueue(engine)))
    port = await face.start("127.0.0.1", 0)
    asked = public.GetJobStatusRequest(job_id="3f0c2a5e-8d1b-4f53-9a37-2b7d5f0c9e11")
    try:
        with caplog.at_level(logging.WARNING, "jobqueue"):
            method = "/taskqueue.v1.TaskQueuePublicService/GetJobStatus"
            await fail(port, method, asked.SerializeToString())
    finally:
        await face.stop(0.2)
    warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert 1 <= len(warnings) <= AT_ONCE


def test_a_line_stands_for_those_before_it():
    clock = ManualClock()
    lines = LineLimit(1.0, 3, clock)
    assert [lines.due("a") for _ in range(5)] == [1, 1, 1, 0, 0]
    assert lines.due("b") == 1  # each origin has its own
    clock.advance(1.0)
    assert [lines.due("a"), lines.due("a")] == [3, 0]
