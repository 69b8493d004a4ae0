"""What a caller names is not sent back at any length."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from jobqueue.api.grpc.errors import to_status
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.core.errors import NotFound
from jobqueue.engine.engine import Engine
from jobqueue.pb.jq.v1 import worker_pb2, worker_pb2_grpc
from tests import patience

METADATA = 8 * 1024  # bytes that clients of gRPC take
LONG = 1_000_000


@pytest.mark.parametrize("method", ["Fetch", "Report", "Heartbeat", "Deregister"])
@pytest.mark.parametrize("letter", ["w", "\x01", "\U00010ffff"])
async def test_an_unknown_worker_is_not_named_at_length(engine: Engine, method: str, letter: str):
    """Before, the answer to 4 MB was an error of 16 MB, which counted nowhere."""
    face = GrpcFace(engine)
    port = await face.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            kind = getattr(worker_pb2, f"{method}Request")
            asked = kind(worker_id=letter * (LONG // len(letter.encode())), incarnation=1)
            call = getattr(stub, method)(asked, timeout=patience.longest(20))
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "worker_id" in await call.details()
            assert len(await call.details()) < 200
    finally:
        await face.stop(0.2)


@pytest.mark.parametrize("letter", ["x", "%", "é", "\udcff"])
def test_no_error_is_longer_than_metadata_may_be(letter: str):
    _, text, _ = to_status(NotFound(letter * LONG))
    assert 0 < 3 * len(text.encode()) < METADATA
