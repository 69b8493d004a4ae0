"""Implement the standard gRPC health service (grpc.health.v1).

This module replaces grpcio-health-checking. There, the watchers of a service share a lock while a
message is sent to one of them, so a watcher that does not read blocks all other watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobqueue.api.grpc.errors import abort

_Answer = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):
    """Reports ``services`` and the whole server (the name "") as serving until ``stop``."""

    def __init__(self, services: Iterable[str]) -> None:
        self._names = frozenset(("", *services))
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Report every service as not serving from now on."""
        self._stopped.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> _Answer:
        if request.service not in self._names:
            text = f"service: this server has no service {request.service!r}"
            await abort(context, grpc.StatusCode.NOT_FOUND, text)
        return self._answer(request.service)

    async def List(self, request: Any, context: Any) -> Any:
        statuses = {name: self._answer(name) for name in self._names}
        # The type stubs do not have this message yet.
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
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
