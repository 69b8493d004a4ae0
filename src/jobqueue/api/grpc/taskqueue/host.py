"""One process's server: the services that were added to it, and the standard health service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.api.grpc.calls import LAST_WORDS, Calls, OnCall
from jobqueue.api.grpc.channel import MIN_RECEIVE_BYTES, server_options
from jobqueue.api.grpc.door import Door
from jobqueue.api.grpc.health import Health
from jobqueue.api.grpc.listening import bind
from jobqueue.api.grpc.taskqueue.answering import UnknownMethods, log_refused
from jobqueue.api.grpc.taskqueue.callers import INCARNATION
from jobqueue.api.grpc.taskqueue.coordinator_servicer import CoordinatorServicer
from jobqueue.api.grpc.taskqueue.job_servicer import JobServicer
from jobqueue.api.grpc.taskqueue.public_servicer import PublicServicer
from jobqueue.api.grpc.taskqueue.queue_servicer import QueueServicer
from jobqueue.api.grpc.taskqueue.registering import Servicer, add_to_server
from jobqueue.api.grpc.taskqueue.result_servicer import ResultServicer
from jobqueue.api.listening import Endpoint
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.services.protocols import Coordination, Jobs, Queue, Results, TaskQueue

# What is too large is refused by us, with a code of the document's table and a line in the log, up
# to so many times the limit. gRPC cuts off what is larger still, and tells nobody but the caller.
_GRPC_LIMIT = 4


class ServiceHost:
    """Serves what was added before ``start``. ``stop`` may be called twice, or before it."""

    def __init__(
        self,
        service: str,
        *,
        tls: ServerTls | None = None,
        on_call: OnCall | None = None,
        max_message_bytes: int = MIN_RECEIVE_BYTES,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """``service`` is its name in messages to people."""
        self._service = service
        self._tls = tls
        self._max_message_bytes = max(max_message_bytes, MIN_RECEIVE_BYTES)
        self._interceptors = interceptors
        # Of this start: whoever sees another one knows that what was in memory is gone.
        self.incarnation = uuid.uuid4().hex
        self._on_call = on_call
        self._calls = Calls(on_call, metadata=((INCARNATION, self.incarnation),))
        self._health = Health(())
        self._servicers: list[Servicer] = []
        self._server: grpc.aio.Server | None = None

    def add_public(self, backend: TaskQueue) -> None:
        """What clients call."""
        self._servicers.append(PublicServicer(backend, self._calls))

    def add_jobs(self, jobs: Jobs) -> None:
        """The owner of the status."""
        self._servicers.append(JobServicer(jobs, self._calls))

    def add_queue(self, queue: Queue) -> None:
        """The owner of the order."""
        self._servicers.append(QueueServicer(queue, self._calls))

    def add_results(self, results: Results) -> None:
        """The owner of the outputs."""
        self._servicers.append(ResultServicer(results, self._calls))

    def add_coordination(self, coordination: Coordination) -> None:
        """What workers call."""
        self._servicers.append(CoordinatorServicer(coordination, self._calls))

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port bound (0 asks for any free one). Unavailable: it is taken."""
        largest = _GRPC_LIMIT * self._max_message_bytes
        server = grpc.aio.server(interceptors=self._interceptors, options=server_options(largest))
        door = Door(Access(), Calls(self._refused), max_message_bytes=largest)
        behind = door.before(server)
        for servicer in self._servicers:
            add_to_server(servicer, behind, max_bytes=self._max_message_bytes)
        self._health = Health(servicer.DESCRIPTOR.full_name for servicer in self._servicers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, behind)
        server.add_generic_rpc_handlers((UnknownMethods(self._calls),))
        endpoint = Endpoint(host, port, "BIND_HOST", f"{self._service.upper()}_PORT")
        try:
            bound = await bind(server, endpoint, self._tls)
        except JobQueueError as error:
            raise Unavailable(f"the {self._service} service: {error.message}") from None
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let those under way end within ``grace`` seconds, cut off the rest."""
        server, self._server = self._server, None
        if server is None:
            return
        self._health.stop()
        self._calls.begin_stop()
        cut = asyncio.get_running_loop().call_later(grace, self._calls.cut)
        await server.stop(grace + LAST_WORDS)
        cut.cancel()

    def _refused(self, method: str, status: str, seconds: float) -> None:
        """Told by the door."""
        log_refused(method, status, seconds)
        if self._on_call is not None:
            self._on_call(method, status, seconds)
