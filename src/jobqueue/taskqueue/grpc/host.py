"""Run the gRPC server of one process, with its services and the standard health service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.api.grpc import aio_server
from jobqueue.api.grpc.authorizer import GrpcAuthorizer
from jobqueue.api.grpc.calls import LAST_WORDS, Calls, OnCall
from jobqueue.api.grpc.channel import MIN_RECEIVE_BYTES, bind, server_options
from jobqueue.api.grpc.health import HealthService
from jobqueue.api.listening import Endpoint
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.taskqueue.grpc.answering import Servicer, UnknownMethods, add_to_server, log_refused
from jobqueue.taskqueue.grpc.callers import INCARNATION

# Up to this many times the limit, this server itself refuses a message that is too large, with a
# code of the specification and a log line. gRPC aborts a larger one, which only its caller sees.
_GRPC_LIMIT = 4
_REFUSED = "refused calls"  # their origin for the limit of log lines: their addresses are not known


class ServiceHost:
    """Runs a gRPC server with the services that were added before ``start``.

    ``stop`` may be called at any time.
    """

    def __init__(
        self,
        service: str,
        *,
        tls: ServerTls | None = None,
        on_call: OnCall | None = None,
        max_message_bytes: int = MIN_RECEIVE_BYTES,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """Prepare the server. ``service`` is its name in error messages."""
        self._service = service
        self._tls = tls
        self._max_message_bytes = max(max_message_bytes, MIN_RECEIVE_BYTES)
        self._interceptors = interceptors
        # New at each start: a caller that receives another value knows that the state is lost.
        self.incarnation = uuid.uuid4().hex
        self._on_call = on_call
        self._calls = Calls(on_call, metadata=((INCARNATION, self.incarnation),))
        self._health = HealthService(())
        self._servicers: list[Servicer[Any]] = []
        self._server: grpc.aio.Server | None = None

    def add(self, servicer: Callable[[Calls], Servicer[Any]]) -> None:
        """Call ``servicer`` with the state that all calls share, and add the result."""
        self._servicers.append(servicer(self._calls))

    async def start(self, host: str, port: int) -> int:
        """Listen and return the bound port. Port 0 binds any free port.

        Unavailable means that the port cannot be bound, for example because it is in use.
        """
        largest = _GRPC_LIMIT * self._max_message_bytes
        server = aio_server.server(server_options(largest), self._interceptors)
        authorizer = GrpcAuthorizer(Access(), Calls(self._refused), max_message_bytes=largest)
        behind = authorizer.before(server)
        for servicer in self._servicers:
            add_to_server(servicer, behind, max_bytes=self._max_message_bytes)
        self._health = HealthService(servicer.DESCRIPTOR.full_name for servicer in self._servicers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, behind)
        server.add_generic_rpc_handlers((UnknownMethods(self._calls),))
        endpoint = Endpoint(host, port, "BIND_HOST", f"{self._service.upper()}_PORT")
        try:
            bound = await bind(server, endpoint, self._tls)
        except JobQueueError as error:
            raise Unavailable(
                f"cannot start the {self._service} service: {error.message}"
            ) from None
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait ``grace`` seconds for running calls, then cancel the others."""
        server, self._server = self._server, None
        if server is None:
            return
        self._health.stop()
        self._calls.begin_stop()
        cut = asyncio.get_running_loop().call_later(grace, self._calls.cut)
        await server.stop(grace + LAST_WORDS)
        cut.cancel()

    def _refused(self, method: str, status: str, seconds: float) -> None:
        if calls := self._calls.failure_lines.due(_REFUSED):
            log_refused(method, status, calls)
        if self._on_call is not None:
            self._on_call(method, status, seconds)
