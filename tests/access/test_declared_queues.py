"""Who creates the queues that tasks declare: callers with the role operator, and nobody else."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from jobqueue import JobQueue, QueueSpec, Task, Tls
from jobqueue.access.keyring import Keyring, parse_keys
from jobqueue.access.policy import Access, parse_certificate_roles
from jobqueue.access.tls import ServerTls
from jobqueue.client.sender import BatchRefused
from jobqueue.core.errors import NotFound, PermissionDenied
from tests import patience
from tests.access.certificates import Certificates
from tests.access.conftest import Serve, Served

pytestmark = pytest.mark.req("inp:PROD", "jq:FR-006")

KEY = "{}-key-of-some-length-0123456789"
ROLES = {"client": "client", "app": "client+worker", "owner": "client+worker+operator"}
TOLD = "'mail'.* jq-ctl queue create mail; this caller may not create queues"


@pytest.fixture
def access() -> Access:
    entries = [f"{name}:{roles}:{KEY.format(name)}" for name, roles in ROLES.items()]
    return Access(keys=Keyring(parse_keys(entries, "auth.api_keys")))


def app_of(served: Served, name: str, **more: Any) -> JobQueue:
    return JobQueue(f"grpc://127.0.0.1:{served.grpc}", api_key=KEY.format(name), **more)


def sending(app: JobQueue) -> Task[Any, Any]:
    @app.task(queue="mail")
    async def send() -> str:
        return "sent"

    return send


async def names(served: Served) -> set[str]:
    return {stats.queue.name for stats in await served.engine.list_queues()}


def created(served: Served) -> list[str]:
    return [status for method, status in served.calls if method.endswith("/CreateQueue")]


async def test_an_operator_creates_what_its_tasks_declare(serve: Serve, access: Access) -> None:
    served = await serve(access)
    spec = QueueSpec(name="mail", capacity=7)
    async with app_of(served, "owner", queues=[spec, "extra"]) as app:
        send = sending(app)
        await asyncio.gather(*(send.submit() for _ in range(7)))
    assert await names(served) == {"default", "extra", "mail"}
    assert (await served.engine.queue_stats("mail")).queue.capacity == 7
    assert created(served) == ["OK", "OK"]  # however many submits came first together


async def test_two_that_create_at_once_both_go_on(serve: Serve, access: Access) -> None:
    served = await serve(access)
    async with app_of(served, "owner") as one, app_of(served, "owner") as two:
        await asyncio.gather(sending(one).submit(), sending(two).submit())
    assert sorted(created(served)) == ["ALREADY_EXISTS", "OK"]


async def test_others_are_told_the_queue_and_the_command(serve: Serve, access: Access) -> None:
    served = await serve(access)
    async with app_of(served, "client") as app:
        send = sending(app)
        for _ in range(2):
            with pytest.raises(NotFound, match=TOLD):
                await send.submit()
        with pytest.raises(BatchRefused, match=TOLD):
            await send.submit_many([(), ()])
        assert created(served) == ["PERMISSION_DENIED"]  # it asked once
        with pytest.raises(NotFound, match=r"'far'.* create far; this caller may not create"):
            await send.options(queue="far").submit()  # to declare it would not help
        with pytest.raises(PermissionDenied):
            await app.operator.create_queue(QueueSpec(name="mail"))
        await served.engine.create_queue(QueueSpec(name="mail"))
        await send.submit()
    assert await names(served) == {"default", "mail"}


async def test_the_blocking_client_does_the_same(serve: Serve, access: Access) -> None:
    served = await serve(access)

    def submit(name: str) -> None:
        app = app_of(served, name)
        with app.sync() as q:
            q.submit(sending(app))

    with pytest.raises(NotFound, match=TOLD):
        await asyncio.to_thread(submit, "client")
    await asyncio.to_thread(submit, "owner")
    await asyncio.to_thread(submit, "client")


@pytest.mark.parametrize("name", ["app", "owner"])
async def test_a_worker_creates_them_or_waits_for_them(
    serve: Serve, access: Access, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobqueue.worker")
    served = await serve(access)
    async with app_of(served, name) as app:
        send = sending(app)
        async with app.worker():
            told = [line for line in caplog.messages if "jq-ctl queue create mail" in line]
            assert len(told) == (name == "app")
            assert ("mail" in await names(served)) == (name == "owner")
            if name == "app":
                await served.engine.create_queue(QueueSpec(name="mail"))
            job = await send.submit()
            assert await job.result(timeout=patience.longest(30)) == "sent"


async def test_a_certificate_has_the_role_or_not(serve: Serve, certs: Certificates) -> None:
    roles = parse_certificate_roles(["alice:client", "worker:client+operator"], "tls.client_roles")
    served = await serve(
        Access(certificates=True, certificate_roles=roles),
        tls=ServerTls(certs.server.cert, certs.server.key, certs.ca),
    )
    url = f"grpcs://127.0.0.1:{served.grpc}"

    def shown(pair: Any) -> Tls:
        return Tls(ca=certs.ca, cert=pair.cert, key=pair.key)

    async with JobQueue(url, tls=shown(certs.alice)) as app:
        with pytest.raises(NotFound, match=TOLD):
            await sending(app).submit()
    async with JobQueue(url, tls=shown(certs.worker)) as app:
        await sending(app).submit()
    assert await names(served) == {"default", "mail"}
