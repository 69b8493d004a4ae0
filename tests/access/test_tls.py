"""TLS and client certificates on both faces, and everything that connects to them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jobqueue import JobQueue, Tls
from jobqueue.access.keyring import Keyring, parse_keys
from jobqueue.access.policy import Access, parse_certificate_roles
from jobqueue.access.tls import Credentials, ServerTls
from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.connect.backends import create_backend
from jobqueue.core.errors import InvalidArgument, PermissionDenied, Unavailable
from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from tests import patience
from tests.access.callers import FACES, OK, UNREACHABLE, bearer, calling
from tests.access.conftest import KEYS

pytestmark = pytest.mark.req("inp:PROD", "jq:FR-047")


@pytest.fixture
def tls(certs):
    return ServerTls(certs.server.cert, certs.server.key)


@pytest.fixture
def mtls(certs):
    return ServerTls(certs.server.cert, certs.server.key, certs.ca)


@pytest.fixture
def by_certificate():
    roles = parse_certificate_roles(
        ["alice:client", "worker:worker", "spare.example:operator"], "tls.client_roles"
    )
    return Access(certificates=True, certificate_roles=roles)


@pytest.mark.parametrize("face", FACES)
async def test_tls_alone_asks_for_no_certificate(face, serve, certs, tls):
    served = await serve(tls=tls)
    async with calling(face, served, certs) as caller:
        assert await caller.submit([]) == OK
    async with calling(face, served) as plain:
        assert await plain.submit([]) == UNREACHABLE


async def test_a_server_that_stops_ends_handshakes(certs, tls):
    engine = Engine(MemoryStore())
    http = HttpFace(engine, HttpFaceSettings(tls=tls))
    port = await http.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    served: Any = SimpleNamespace(http=port)
    async with calling("http", served, certs) as caller:
        assert await caller.probe() == OK  # the silent one was accepted before
    async with patience.timeout(10):
        await http.stop(grace=0)
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize("face", FACES)
async def test_a_client_certificate_is_a_name(face, serve, certs, mtls, by_certificate):
    served = await serve(by_certificate, tls=mtls)
    async with calling(face, served, certs, certs.alice) as alice:
        assert await alice.submit([]) == OK
        assert await alice.operate([]) == "PERMISSION_DENIED"
    async with calling(face, served, certs, certs.nameless) as nameless:
        assert await nameless.submit([]) == "PERMISSION_DENIED"
        assert await nameless.operate([]) == OK


@pytest.mark.parametrize("face", FACES)
async def test_without_a_certificate_nothing_is_done(face, serve, certs, mtls, by_certificate):
    served = await serve(by_certificate, tls=mtls)
    async with calling(face, served, certs) as nobody:
        refused = {"grpc": UNREACHABLE, "http": "UNAUTHENTICATED"}[face]
        assert await nobody.submit([]) == refused
        # HTTP is what orchestrators look at, and they have no certificate.
        assert await nobody.probe() == (OK if face == "http" else UNREACHABLE)
    async with calling(face, served, certs, certs.stranger) as stranger:
        assert await stranger.submit([]) == UNREACHABLE


@pytest.mark.parametrize("face", FACES)
async def test_a_star_gives_roles_to_certificates_that_are_not_named(face, serve, certs, mtls):
    roles = parse_certificate_roles(["*:client", "worker:worker+operator"], "tls.client_roles")
    served = await serve(Access(certificates=True, certificate_roles=roles), tls=mtls)
    async with calling(face, served, certs, certs.alice) as alice:
        assert await alice.submit([]) == OK
        assert await alice.operate([]) == "PERMISSION_DENIED"
    async with calling(face, served, certs, certs.worker) as worker:
        assert await worker.submit([]) == "PERMISSION_DENIED"
        assert await worker.operate([]) == OK


@pytest.mark.parametrize("face", FACES)
async def test_a_key_that_is_shown_counts_before_the_certificate(face, serve, certs, mtls):
    keys = Keyring(parse_keys([f"ops:operator:{KEYS['operator']}"], "auth.api_keys"))
    roles = parse_certificate_roles(["alice:client"], "tls.client_roles")
    access = Access(keys=keys, certificates=True, certificate_roles=roles)
    served = await serve(access, tls=mtls)
    async with calling(face, served, certs, certs.alice) as alice:
        assert await alice.operate(bearer(KEYS["operator"])) == OK
        assert await alice.submit(bearer("no-such-key-0123456789")) == "UNAUTHENTICATED"
        assert await alice.submit([]) == OK


@pytest.mark.parametrize("scheme", ["grpc", "grpcs"])
async def test_the_sdk_submits_and_a_worker_runs_it(scheme, serve, certs, mtls, by_certificate):
    served = await serve(by_certificate, tls=mtls)
    url = f"{scheme}://127.0.0.1:{served.grpc}"

    def app_of(pair) -> JobQueue:
        app = JobQueue(url, tls=Tls(ca=certs.ca, cert=pair.cert, key=pair.key))

        @app.task(name="double")
        async def double(n: int) -> int:
            return 2 * n

        return app

    alice, worker = app_of(certs.alice), app_of(certs.worker)
    async with alice, worker, worker.worker(concurrency=1) as runtime:
        job = await alice.submit("double", {"n": 21})
        assert await job.result(timeout=patience.longest(10)) == 42
        # The heartbeat's own channel is known, too.
        assert (await runtime_pulse(worker)).known
        assert runtime.settings.concurrency == 1
        with pytest.raises(PermissionDenied):
            await worker.submit("double", {"n": 1})


async def runtime_pulse(worker: JobQueue):
    async def pulse(backend):
        (link,) = backend._links.values()
        return await asyncio.to_thread(link.pulse, [])

    return await worker.shared.call(pulse)


async def test_a_client_does_not_trust_everybody(serve, certs, tls):
    served = await serve(tls=tls)
    for shown in (Tls(), Tls(ca=certs.server.cert.parents[1] / "theirs" / "ca.pem")):
        backend = create_backend(
            f"grpcs://127.0.0.1:{served.grpc}", credentials=Credentials(tls=shown), call_timeout=3
        )
        with pytest.raises(Unavailable):
            await backend.health()
        await backend.stop()


def test_what_cannot_be_used_is_named(certs, tmp_path):
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    cases: list[tuple[ServerTls | Credentials, str]] = [
        (ServerTls(tmp_path / "none", certs.server.key), "tls.cert: .*No such file"),
        (ServerTls(certs.server.cert, tmp_path), "tls.key: .*Is a directory"),
        (
            ServerTls(certs.server.cert, certs.alice.key),
            "tls: .* are not a certificate and its key",
        ),
        (
            ServerTls(certs.server.cert, certs.server.key, rubbish),
            "tls.client_ca: .*no certificate",
        ),
        (Credentials(tls=Tls(cert=certs.alice.cert)), "tls: a client certificate needs both"),
        (Credentials(tls=Tls(ca=rubbish)), "tls.ca: .*contains no certificate"),
        (Credentials("a\nb"), "api_key: must have one or more printable"),
        (Credentials(""), "api_key: must have one or more printable"),
    ]
    for wrong, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            wrong.check()


def test_credentials_are_for_servers_only():
    with pytest.raises(InvalidArgument, match="api_key: is only for the URL of a server"):
        JobQueue("memory://", api_key="0123456789abcdef")
    with pytest.raises(InvalidArgument, match="tls: is only for the URL of a server"):
        JobQueue("sqlite:///x.db", tls=True)
