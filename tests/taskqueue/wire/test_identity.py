"""With certificates on both sides, the caller is who its certificate says."""

from __future__ import annotations

import pytest

from jobqueue.access.tls import Credentials, ServerTls, Tls
from jobqueue.core.errors import PermissionDenied, Unavailable
from jobqueue.taskqueue.components.model import Actor
from jobqueue.taskqueue.grpc.host import ServiceHost
from jobqueue.taskqueue.grpc.remote import RemoteJobs
from tests.taskqueue.wire.parts import JOB, RECORD

pytestmark = [pytest.mark.req("tq:MATRIX"), pytest.mark.usefixtures("patient")]


@pytest.fixture
def mutual(serve, authority):
    server = authority.issue("server", "IP:127.0.0.1")

    async def start():
        tls = ServerTls(server.cert, server.key, client_ca=authority.ca)
        return await serve(host=ServiceHost("job", tls=tls))

    return start


def holding(authority, name, **more):
    pair = authority.issue(name, **more)
    return Credentials(tls=Tls(authority.ca, pair.cert, pair.key))


async def test_a_certificate_of_the_gateway(mutual, peer, authority):
    services = await mutual()
    credentials = holding(authority, "gateway")
    assert await RemoteJobs(peer(services.target, credentials=credentials)).get(JOB) == RECORD


async def test_it_decides_without_metadata(mutual, client, authority, lines):
    services = await mutual()
    with pytest.raises(PermissionDenied, match="the gateway may not call GetJobStatus"):
        await client(services.target, holding(authority, "gateway")).status(JOB)
    assert await client(services.target, holding(authority, "alice")).status(JOB)
    (line,) = lines.of("caller_refused")
    assert line["caller"] == "gateway"
    assert len(services.calls()) == 1


async def test_the_first_alternative_name_will_do(mutual, peer, authority):
    services = await mutual()
    credentials = holding(authority, "nameless", alternative="DNS:gateway", subject="/O=nobody")
    assert await RemoteJobs(peer(services.target, credentials=credentials)).get(JOB) == RECORD


@pytest.mark.parametrize("name", ["alice", "worker", "coordinator"])
async def test_metadata_that_says_otherwise_is_refused(mutual, peer, authority, lines, name):
    services = await mutual()
    jobs = RemoteJobs(peer(services.target, Actor.GATEWAY, credentials=holding(authority, name)))
    with pytest.raises(PermissionDenied, match=f"'gateway', the certificate says '{name}'"):
        await jobs.get(JOB)
    assert services.calls() == []
    (line,) = lines.of("caller_refused")
    assert line["caller"] == name


async def test_without_a_certificate_nothing_is_heard(mutual, peer, authority):
    services = await mutual()
    credentials = Credentials(tls=Tls(authority.ca))
    with pytest.raises(Unavailable):
        await RemoteJobs(peer(services.target, credentials=credentials)).get(JOB)
    assert services.calls() == []


async def test_tls_alone_leaves_it_to_the_metadata(serve, peer, authority):
    server = authority.issue("plain", "IP:127.0.0.1")
    services = await serve(host=ServiceHost("job", tls=ServerTls(server.cert, server.key)))
    credentials = Credentials(tls=Tls(authority.ca))
    assert await RemoteJobs(peer(services.target, credentials=credentials)).get(JOB) == RECORD
    worker = peer(services.target, Actor.WORKER, credentials=credentials)
    with pytest.raises(PermissionDenied):
        await RemoteJobs(worker).get(JOB)
