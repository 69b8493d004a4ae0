"""The gRPC face: the services over a backend, health, and reflection on request."""

from __future__ import annotations

import asyncio
import logging

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection as reflection_service
from grpc_reflection.v1alpha import reflection_pb2_grpc

from jobqueue._version import __version__
from jobqueue.access.budgets import Budgets
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.api.grpc.calls import LAST_WORDS, Calls, OnCall
from jobqueue.api.grpc.channel import (
    MESSAGE_MARGIN,
    MIB,
    MIN_RECEIVE_BYTES,
    server_options,
)
from jobqueue.api.grpc.client_servicer import ClientServicer
from jobqueue.api.grpc.door import Door
from jobqueue.api.grpc.duplex import weight
from jobqueue.api.grpc.health import Health
from jobqueue.api.grpc.listening import bind
from jobqueue.api.grpc.load import Load
from jobqueue.api.grpc.operator_servicer import OperatorServicer
from jobqueue.api.grpc.taskqueue.public_servicer import PublicServicer
from jobqueue.api.grpc.taskqueue.registering import add_to_server
from jobqueue.api.grpc.worker_servicer import WorkerServicer
from jobqueue.api.listening import Endpoint
from jobqueue.core.api import Backend
from jobqueue.pb.jq.v1 import (
    client_pb2,
    client_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from jobqueue.services.protocols import TaskQueue

log = logging.getLogger("jobqueue.grpc")

SERVICES = tuple(
    file.DESCRIPTOR.services_by_name[name].full_name
    for file, name in (
        (client_pb2, "ClientService"),
        (operator_pb2, "OperatorService"),
        (worker_pb2, "WorkerService"),
    )
)
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
TASKQUEUE_SERVICE = PublicServicer.DESCRIPTOR.full_name


class GrpcFace:
    """Serves one backend. ``stop`` may be called twice, or before ``start``."""

    def __init__(
        self,
        backend: Backend,
        *,
        taskqueue: TaskQueue | None = None,
        max_message_bytes: int = MIB + MESSAGE_MARGIN,
        reflection: bool = False,
        on_call: OnCall | None = None,
        access: Access | None = None,
        limiter: Limiter | None = None,
        budgets: Budgets | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """``max_message_bytes`` should be the payload limit plus ``MESSAGE_MARGIN``.

        With a ``taskqueue``, taskqueue.v1 is served beside jq.v1.
        """
        self._backend = backend
        self._taskqueue = taskqueue
        self._services = SERVICES if taskqueue is None else (*SERVICES, TASKQUEUE_SERVICE)
        self._max_message_bytes = max(max_message_bytes, MIN_RECEIVE_BYTES)
        # No more than a message: a fetch that lacks room for a job waits for that of a message.
        self._job_room = min(weight(max_message_bytes), self._max_message_bytes)
        self._reflection = reflection
        self._calls = Calls(on_call)
        self._limiter = limiter
        self._tls = tls
        self._door = Door(
            access or Access(), self._calls, budgets, max_message_bytes=self._max_message_bytes
        )
        self._health = Health(self._services)
        self._workers: WorkerServicer | None = None
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port bound (0 asks for any free one)."""
        server = grpc.aio.server(options=server_options(self._max_message_bytes))
        calls, behind = self._calls, self._door.before(server)
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(
            OperatorServicer(self._backend, calls), behind
        )
        welcome = worker_pb2.Welcome(
            server_version=__version__, max_message_bytes=self._max_message_bytes
        )
        self._workers = WorkerServicer(self._backend, calls, welcome, self._job_room)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self._workers, behind)
        load = Load(self._backend, self._workers.count)
        client_pb2_grpc.add_ClientServiceServicer_to_server(
            ClientServicer(self._backend, calls, load, self._limiter), behind
        )
        if self._taskqueue is not None:
            add_to_server(PublicServicer(self._taskqueue, calls), behind)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, behind)
        if self._reflection:
            names = (*self._services, HEALTH_SERVICE, reflection_service.SERVICE_NAME)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
                reflection_service.aio.ReflectionServicer(names), behind
            )
        endpoint = Endpoint(host, port, "grpc.host", "grpc.port")
        bound = await bind(server, endpoint, self._tls)
        await server.start()
        self._server = server
        log.info(
            "gRPC face listens", extra={"host": host, "port": bound, "tls": self._tls is not None}
        )
        return bound

    def begin_stop(self) -> None:
        """Refuse calls, but for what connected workers report. ``stop`` ends the rest."""
        self._health.stop()
        self._calls.begin_stop()

    def connected(self, worker_id: str) -> bool:
        """Whether a worker is connected here, on a stream or by unary calls."""
        return self._workers is not None and self._workers.connected(worker_id)

    async def stop(self, grace: float = 5.0) -> None:
        """Refuse new calls, let those under way end within ``grace`` seconds, cut off the rest."""
        server, self._server = self._server, None
        if server is None:
            return
        self.begin_stop()
        self._calls.end_readers()
        last = max(0.0, grace - LAST_WORDS)
        cut = asyncio.get_running_loop().call_later(last, self._calls.cut)
        await server.stop(grace)
        cut.cancel()
        try:
            async with asyncio.timeout(max(grace, 1.0)):
                await self._calls.settle()
        except TimeoutError:
            log.warning("links of workers did not end in time")
