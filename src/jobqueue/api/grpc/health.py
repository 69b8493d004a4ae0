"""The standard health service (grpc.health.v1).

Not the one of grpcio-health-checking: there, watchers of a name share a lock that each holds while
it is told, so one that takes nothing keeps the news from the others, and so does one that leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Answer = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """Serves these services, and the server as a whole (""), until ``stop``."""

    def __init__(self, services: Iterable[str]) -> None:
        self._names = frozenset(("", *services))
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Tell everybody that nothing is served any more."""
        self._stopped.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> _Answer:
        """The status of now."""
        if request.service not in self._names:
            told = f"service: there is no {request.service!r} here"
            await context.abort(grpc.StatusCode.NOT_FOUND, told)
        return self._answer(request.service)

    async def List(self, request: Any, context: Any) -> Any:
        """The status of now, of all of them."""
        statuses = {name: self._answer(name) for name in self._names}
        # The stubs are older than it.
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """The status of now, and the one after ``stop``."""
        told = self._answer(request.service)
        await context.write(told)
        await self._stopped.wait()
        if self._answer(request.service) != told:
            await context.write(self._answer(request.service))

    def _answer(self, name: str) -> _Answer:
        if name not in self._names:
            return _Answer(status=_Answer.SERVICE_UNKNOWN)
        stopped = self._stopped.is_set()
        return _Answer(status=_Answer.NOT_SERVING if stopped else _Answer.SERVING)
