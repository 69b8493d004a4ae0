"""A server whose gRPC server has ended by itself is not ready."""

from __future__ import annotations

import logging

import pytest

from jobqueue.api.grpc.server import GrpcFace
from jobqueue.engine.engine import Engine
from jobqueue.server.parts import Grpc
from tests import patience
from tests.hostile.known_callers import over_http, serving


async def test_a_grpc_server_that_has_ended_is_noticed(caplog: pytest.LogCaptureFixture):
    async with serving(known=False) as server, over_http(server, None) as http:
        assert (await http.get("/readyz")).status_code == 200
        (part,) = [part for part in server._parts if isinstance(part, Grpc)]
        assert part._face is not None
        inner = part._face._server
        assert inner is not None
        with caplog.at_level(logging.ERROR, "jobqueue.grpc"):
            await inner.stop(0)  # as when the loop that takes its calls has failed
            assert part._face._serving is not None
            await patience.wait_for(part._face._serving, 10)
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert "grpc" in answer.json()["error"]["message"]
        assert "restart this process" in caplog.text


async def test_a_grpc_server_that_is_stopped_has_not_ended_by_itself(
    engine: Engine, caplog: pytest.LogCaptureFixture
):
    face = GrpcFace(engine)
    await face.start("127.0.0.1", 0)
    with caplog.at_level(logging.ERROR, "jobqueue.grpc"):
        await face.stop(0.2)
    assert not face.has_ended
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []
