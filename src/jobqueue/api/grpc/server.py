"""Serve the gRPC API of a backend, with health checks and optional reflection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection as reflection_service
from grpc_reflection.v1alpha import reflection_pb2_grpc

from jobqueue._version import __version__
from jobqueue.access.budgets import Budgets
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.api.grpc import aio_server
from jobqueue.api.grpc.authorizer import GrpcAuthorizer
from jobqueue.api.grpc.calls import LAST_WORDS, Calls, OnCall, end
from jobqueue.api.grpc.channel import (
    MESSAGE_MARGIN,
    MIB,
    MIN_RECEIVE_BYTES,
    bind,
    server_options,
)
from jobqueue.api.grpc.client_servicer import ClientServicer, Load
from jobqueue.api.grpc.health import HealthService
from jobqueue.api.grpc.messages import weight
from jobqueue.api.grpc.operator_servicer import OperatorServicer
from jobqueue.api.grpc.registrations import Registrations
from jobqueue.api.grpc.schedule_servicer import ScheduleServicer
from jobqueue.api.grpc.worker_servicer import WorkerServicer
from jobqueue.api.listening import Endpoint
from jobqueue.core.api import Backend
from jobqueue.pb.jq.v1 import (
    client_pb2_grpc,
    operator_pb2_grpc,
    schedules_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

log = logging.getLogger("jobqueue.grpc")

SERVICES = (
    "jq.v1.ClientService",
    "jq.v1.OperatorService",
    "jq.v1.ScheduleService",
    "jq.v1.WorkerService",
)
HEALTH_SERVICE = "grpc.health.v1.Health"

AddService = Callable[[grpc.aio.Server, Calls], None]
"""Adds a servicer to a server; the servicer counts its calls with the given ``Calls``."""


class GrpcFace:
    """Serves one backend over gRPC. ``stop`` may be called twice, or before ``start``."""

    def __init__(
        self,
        backend: Backend,
        *,
        services: Mapping[str, AddService] | None = None,
        max_message_bytes: int = MIB + MESSAGE_MARGIN,
        reflection: bool = False,
        on_call: OnCall | None = None,
        access: Access | None = None,
        limiter: Limiter | None = None,
        budgets: Budgets | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Prepare a server for ``backend``.

        ``max_message_bytes`` should be the payload limit plus ``MESSAGE_MARGIN``. ``services`` maps
        the full names of further services, beside those of jq.v1, to functions that add them.
        """
        self._backend = backend
        self._added = dict(services or {})
        self._services = (*SERVICES, *self._added)
        self._max_message_bytes = max(max_message_bytes, MIN_RECEIVE_BYTES)
        # At most the size of a message: a fetch without memory for a job waits for one message.
        self._job_room = min(weight(max_message_bytes), self._max_message_bytes)
        self._reflection = reflection
        self._calls = Calls(on_call)
        self._limiter = limiter
        self._tls = tls
        self._authorizer = GrpcAuthorizer(
            access or Access(), self._calls, budgets, max_message_bytes=self._max_message_bytes
        )
        self._health = HealthService(self._services)
        self._registrations = Registrations()
        self._server: grpc.aio.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Start to listen, and return the port. Port 0 chooses any free port."""
        server = aio_server.server(server_options(self._max_message_bytes))
        calls, authorized = self._calls, self._authorizer.before(server)
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(
            OperatorServicer(self._backend, calls), authorized
        )
        schedules_pb2_grpc.add_ScheduleServiceServicer_to_server(
            ScheduleServicer(self._backend, calls), authorized
        )
        welcome = worker_pb2.Welcome(
            server_version=__version__, max_message_bytes=self._max_message_bytes
        )
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(
            WorkerServicer(self._backend, calls, self._registrations, welcome, self._job_room),
            authorized,
        )
        load = Load(self._backend, self._registrations.count)
        client_pb2_grpc.add_ClientServiceServicer_to_server(
            ClientServicer(self._backend, calls, load, self._limiter), authorized
        )
        for add in self._added.values():
            add(authorized, calls)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, authorized)
        if self._reflection:
            names = (*self._services, HEALTH_SERVICE, reflection_service.SERVICE_NAME)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
                reflection_service.aio.ReflectionServicer(names), authorized
            )
        endpoint = Endpoint(host, port, "grpc.host", "grpc.port")
        bound = await bind(server, endpoint, self._tls)
        await server.start()
        self._server = server
        self._serving = asyncio.create_task(self._serve(server), name="grpc-face")
        log.info(
            "the gRPC API is listening on %s",
            Endpoint(host, bound, "grpc.host", "grpc.port"),
            extra={"host": host, "port": bound, "tls": self._tls is not None},
        )
        return bound

    async def _serve(self, server: grpc.aio.Server) -> None:
        """Wait until the server ends. Log an error unless ``stop`` has ended it."""
        try:
            await server.wait_for_termination()
        except Exception as error:
            log.debug("gRPC says why its server ended: %s", error)
        if self._server is server:
            log.error(
                "the gRPC server has ended by itself and takes no more calls; /readyz answers 503;"
                " restart this process"
            )

    @property
    def has_ended(self) -> bool:
        """Return True if the server has ended although ``stop`` was not called."""
        return self._server is not None and self._serving is not None and self._serving.done()

    def begin_stop(self) -> None:
        """Refuse new calls, except reports of connected workers. ``stop`` ends calls under way."""
        self._health.stop()
        self._calls.begin_stop()

    def connected(self, worker_id: str) -> bool:
        """Return True if a worker is connected to this server, by a stream or unary calls."""
        return self._registrations.connected(worker_id)

    async def stop(self, grace: float = 5.0) -> None:
        """Refuse new calls. Cancel calls that are still under way after ``grace`` seconds."""
        server, self._server = self._server, None
        if server is None:
            return
        self.begin_stop()
        self._calls.end_readers()
        last = max(0.0, grace - LAST_WORDS)
        cut = asyncio.get_running_loop().call_later(last, self._calls.cut)
        await server.stop(grace)
        cut.cancel()
        if self._serving is not None:
            await end(self._serving)
        try:
            async with asyncio.timeout(max(grace, 1.0)):
                await self._calls.settle()
        except TimeoutError:
            log.warning(
                "the cleanup of workers' streams did not end within %g s; the server stops anyway",
                max(grace, 1.0),
            )
