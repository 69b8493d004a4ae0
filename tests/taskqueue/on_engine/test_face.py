"""taskqueue.v1 of a jq-server, over a real connection, with what the server does as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from jobqueue import config
from jobqueue.access.callers import Role
from jobqueue.access.rules import grpc_rule
from jobqueue.access.tls import Credentials, Tls
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.cli.worker import _queues
from jobqueue.client.app import JobQueue
from jobqueue.core.errors import (
    KeyConflict,
    NotFound,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
)
from jobqueue.core.job import JobSpec
from jobqueue.pb import taskqueue_public_pb2
from jobqueue.server import options
from jobqueue.server.process import ServerProcess
from jobqueue.server.worker import WorkerProcess
from jobqueue.taskqueue.components.model import Listing, Spec, Status
from jobqueue.taskqueue.components.protocols import TaskQueue
from jobqueue.taskqueue.engine_job import QUEUE
from jobqueue.taskqueue.grpc.remote import RemoteTaskQueue
from jobqueue.taskqueue.grpc.servicers import taskqueue_service
from tests import patience
from tests.access.certificates import Authority
from tests.taskqueue.on_engine.conftest import PATIENCE, until_result, until_status
from tests.taskqueue.wire import parts
from tests.taskqueue.wire.requests import ask

KEYS = {
    "client": "client-key-0123456789",
    "operator": "operator-key-0123456789",
    "worker": "worker-key-0123456789",
}
SERVICE = "taskqueue.v1.TaskQueuePublicService"
METHODS = [method.name for method in taskqueue_public_pb2.DESCRIPTOR.services_by_name[
    "TaskQueuePublicService"].methods]  # fmt: skip
Serve = Callable[..., Awaitable[ServerProcess]]
Connect = Callable[..., RemoteTaskQueue]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[ServerProcess] = []

    async def start(**flags: str) -> ServerProcess:
        told = {
            "db.url": "memory://",
            "http.enabled": "false",
            "grpc.port": "0",
            "server.shutdown_timeout": "4",
            **{name.replace("__", "."): value for name, value in flags.items()},
        }
        servers.append(ServerProcess(config.load(flags=told, environ={}).settings))
        await servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        await server.stop()


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    clients: list[RemoteTaskQueue] = []

    def to(server: ServerProcess, api_key: str | None = None) -> RemoteTaskQueue:
        clients.append(RemoteTaskQueue(server.grpc_target, Credentials(api_key=api_key)))
        return clients[-1]

    yield to
    for client in clients:
        await client.close()


async def life(tasks: TaskQueue) -> None:
    """Every call, to the end of a job."""
    submitted = await tasks.submit(Spec("any", 5, 3, {"a": "b"}), "k")
    envelope = await until_result(tasks, submitted.job_id)
    assert (envelope.status, envelope.output) == (Status.DONE, b"xxx")
    assert (await tasks.submit(Spec("any", 5, 3, {"a": "b"}), "k")).job_id == submitted.job_id
    with pytest.raises(KeyConflict):
        await tasks.submit(Spec("any"), "k")
    record = await until_status(tasks, submitted.job_id, Status.DONE)
    assert (await tasks.list(Listing())).jobs == (replace(record.summary, job_type="any"),)
    answer = await tasks.cancel(submitted.job_id, "too late")
    assert (answer.current, answer.already_terminal) == (Status.DONE, True)
    with pytest.raises(NotFound):
        await tasks.status("0b4ee0a2-0000-4000-8000-000000000000")


@pytest.mark.req("tq:NFR-1", "tq:FR-1", "tq:FR-2", "tq:FR-3", "tq:FR-4", "tq:FR-5")
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_server_as_it_comes_runs_the_jobs_itself(
    serve: Serve, connect: Connect, tmp_path: Path, store: str
):
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    await life(connect(await serve(db__url=url)))


@pytest.mark.req("tq:NFR-1")
async def test_servers_and_workers_on_postgresql_as_they_come(
    postgres_dsn: str, serve: Serve, connect: Connect
):
    """A worker of one server runs a job that the other accepted, and either shows it."""
    first, second = await serve(db__url=postgres_dsn), await serve(db__url=postgres_dsn)
    loaded = config.load(flags={"worker.metrics_port": "0"}, environ={})
    worker = WorkerProcess(
        loaded.settings, f"grpc://{second.grpc_target}", queues=_queues(loaded, None, None)
    )
    await worker.start()
    try:
        await life(connect(first))
        (job,) = (await connect(second).list(Listing())).jobs
        assert job.status is Status.DONE
    finally:
        await worker.stop()


async def test_a_server_whose_queues_were_named_leaves_the_jobs_alone(
    serve: Serve, connect: Connect
):
    server = await serve(worker__queues="default")
    tasks = connect(server)
    waits = (await tasks.submit(Spec("any"), "")).job_id
    (other,) = await server.backend.submit([JobSpec(payload=b"x", type="echo")])
    await server.backend.wait(other.unwrap(), patience.longest(20.0))  # the pool has had its chance
    assert (await tasks.status(waits)).summary.status is Status.QUEUED


def test_who_takes_the_jobs():
    def chosen(app: JobQueue | None, command: list[str] | None, **flags: str) -> list[str]:
        told = {f"worker.{name}": value for name, value in flags.items()}
        loaded = config.load(flags=told, environ={})
        assert set(options.queues(loaded.settings)) >= set(loaded.settings.worker.queues)
        return list(_queues(loaded, app, command))

    app = JobQueue("memory://")
    app.task(queue="mail")(send)
    assert chosen(None, None) == ["default", QUEUE]
    assert chosen(app, None) == ["mail", QUEUE]
    assert chosen(None, ["prog"]) == ["default"]  # it knows nothing of these jobs
    for queues in ("default", "a,b", "*"):
        assert chosen(None, None, queues=queues) == queues.split(",")
        assert chosen(app, None, queues=queues) == queues.split(",")


def send() -> None:
    """A task of the user's."""


# -- the door, the limit, the figures ----------------------------------------------------------


def test_every_method_has_its_roles():
    for name in METHODS:
        roles = grpc_rule(f"/{SERVICE}/{name}").roles or frozenset()
        assert Role.CLIENT in roles
        assert Role.WORKER not in roles
    assert grpc_rule(f"/{SERVICE}/SubmitJob").roles == frozenset({Role.CLIENT})


async def test_only_clients_submit_and_nobody_without_a_key_does_anything(
    serve: Serve, connect: Connect
):
    server = await serve(
        auth__api_keys=",".join(f"{role}:{role}:{key}" for role, key in KEYS.items())
    )
    client, operator, worker = (connect(server, key) for key in KEYS.values())
    job_id = (await client.submit(Spec("any", 60_000), "")).job_id
    for stranger, refusal in ((connect(server), Unauthenticated), (worker, PermissionDenied)):
        for call in (
            stranger.submit(Spec("any"), ""),
            stranger.status(job_id),
            stranger.result(job_id),
            stranger.cancel(job_id, ""),
            stranger.list(Listing()),
        ):
            with pytest.raises(refusal):
                await call
    with pytest.raises(PermissionDenied):
        await operator.submit(Spec("any"), "")
    for allowed in (client, operator):
        assert [job.job_id for job in (await allowed.list(Listing())).jobs] == [job_id]
        assert not (await allowed.status(job_id)).summary.cancel_requested


async def test_a_submit_over_the_rate_is_refused_with_the_others(serve: Serve, connect: Connect):
    server = await serve(limits__submit_rate="0.001", limits__submit_burst="2")
    tasks = connect(server)
    for _ in range(2):
        await tasks.submit(Spec("any"), "")
    with pytest.raises(RateLimited):
        await tasks.submit(Spec("any"), "")
    assert len((await tasks.list(Listing())).jobs) == 2


async def test_the_calls_are_counted_by_their_names(serve: Serve, connect: Connect):
    server = await serve()
    await life(connect(server))
    text = (await server.metrics.render(None))[0].decode()
    for name, code in (
        ("SubmitJob", "OK"),
        ("SubmitJob", "FAILED_PRECONDITION"),
        ("GetJobStatus", "OK"),
        ("GetJobStatus", "NOT_FOUND"),
        ("GetJobResult", "OK"),
        ("CancelJob", "OK"),
        ("ListJobs", "OK"),
    ):
        lines = [line for line in text.splitlines() if f'"/{SERVICE}/{name}"' in line]
        assert any(f'"{code}"' in line for line in lines), (name, code)


async def test_health_and_reflection_know_the_service(serve: Serve):
    server = await serve(grpc__reflection="true")
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        (listed,) = [one async for one in reflection.ServerReflectionInfo(iter(asked))]
        assert SERVICE in {one.name for one in listed.list_services_response.service}


@pytest.mark.req("tq:MATRIX")
@pytest.mark.parametrize("name", ["gateway", "worker", "alice"])
async def test_a_certificate_has_the_role_that_the_server_gives_it_whatever_its_name(
    serve: Serve, tmp_path: Path, name: str
):
    authority = Authority(tmp_path)
    ours = authority.issue("server", "IP:127.0.0.1")
    server = await serve(
        tls__cert=str(ours.cert),
        tls__key=str(ours.key),
        tls__client_ca=str(authority.ca),
        tls__client_roles=["*:client"],
    )
    theirs = authority.issue(name)
    shown = Tls(str(authority.ca), str(theirs.cert), str(theirs.key))
    client = RemoteTaskQueue(server.grpc_target, Credentials(tls=shown))
    try:
        assert (await client.submit(Spec("any"), "")).job_id
    finally:
        await client.close()


@pytest.mark.req("tq:CODES")
async def test_a_call_that_the_stop_cuts_off_is_unavailable():
    hung = parts.task_queue(submit=parts.FOREVER)
    face = GrpcFace(cast(Any, hung), services=taskqueue_service(hung))
    port = await face.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        waiting = asyncio.create_task(ask(channel, "SubmitJob"))
        async with patience.timeout(PATIENCE):
            while not hung.calls:
                await asyncio.sleep(0.01)
        await face.stop(1.0)
        code, text = await waiting
    assert code == "UNAVAILABLE"
    assert text.startswith("the service stops")
