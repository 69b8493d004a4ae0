"""Certificates, tokens, and both faces on real ports over one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from jobqueue.access.keyring import Keyring, parse_keys
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.access.tokens import TokenVerifier
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.clock import ManualClock
from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from tests.access import certificates
from tests.access.certificates import Certificates

KEYS = {
    "client": "client-key-0123456789",
    "worker": "worker-key-0123456789",
    "operator": "operator-key-0123456789",
    "monitor": "monitor-key-0123456789",
}
SECRET = b"a secret of thirty-two bytes or more"
AUDIENCE = "jobs.example"


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def access(clock: ManualClock) -> Access:
    """A key for each role, and tokens."""
    entries = [f"{role}-1:{role}:{key}" for role, key in KEYS.items()]
    return Access(
        keys=Keyring(parse_keys(entries, "auth.api_keys")),
        tokens=TokenVerifier(SECRET, clock, audience=AUDIENCE),
    )


@dataclass
class Served:
    """Both faces of one engine."""

    http: int
    grpc: int
    engine: Engine
    calls: list[tuple[str, str]]


Serve = Callable[..., Awaitable[Served]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    ends: list[Callable[[], Awaitable[None]]] = []

    async def start(
        access: Access | None = None,
        limiter: Limiter | None = None,
        tls: ServerTls | None = None,
        reflection: bool = False,
    ) -> Served:
        engine = Engine(MemoryStore())
        await engine.start()
        calls: list[tuple[str, str]] = []
        settings = HttpFaceSettings(access=access or Access(), limiter=limiter, tls=tls)
        http = HttpFace(engine, settings)
        grpc = GrpcFace(
            engine,
            access=access,
            limiter=limiter,
            tls=tls,
            reflection=reflection,
            on_call=lambda method, status, _: calls.append((method, status)),
        )
        ends.extend([engine.stop, lambda: grpc.stop(0.5), lambda: http.stop(0.5)])
        return Served(
            await http.start("127.0.0.1", 0), await grpc.start("127.0.0.1", 0), engine, calls
        )

    yield start
    for end in reversed(ends):
        await end()
