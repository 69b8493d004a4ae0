"""Make a grpc.aio server that a call with a malformed method name cannot stop.

grpcio (1.85.1) accepts all calls in one loop, and decodes their method names there, before callers
are authenticated. A name that is not UTF-8 ends the loop, and with it the server. In the server
made here, each registered method has its own loop. gRPC's core compares the bytes of the names, and
names of other methods are never decoded.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Sequence
from typing import Any, cast

import grpc
import grpc.aio
from grpc._cython import cygrpc as _cygrpc
from grpc.aio import _server

cygrpc: Any = _cygrpc
log = logging.getLogger("jobqueue.grpc")

UNKNOWN = "unknown"
"""The method name that handlers get for each call of a method that is not registered."""

# The parts of grpcio that this module calls, with their parameters.
_PARTS = {
    "_handle_rpc": "method_name method_resolver interceptors rpc_state loop concurrency_exceeded",
    "_schedule_rpc_coro": "rpc_coro rpc_state loop method_name",
}


def server(
    options: Sequence[tuple[str, Any]], interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> grpc.aio.Server:
    """Make a server. Handlers get the names of registered methods, and UNKNOWN for all others."""
    if not fits():
        log.warning(
            "this version of jobqueue does not know grpcio %s: a call with a malformed method name"
            " may stop the gRPC server; install grpcio 1.85.1",
            grpc.__version__,
        )
        return grpc.aio.server(interceptors=interceptors, options=options)
    return cast(grpc.aio.Server, _GrpcServer(options, interceptors))


def fits() -> bool:
    """Return True if grpcio has the parts that this module calls."""
    found = {name: getattr(cygrpc, name, None) for name in _PARTS}
    return hasattr(cygrpc.AioServer, "_make_request_call_future") and all(
        part is not None and " ".join(inspect.signature(part).parameters) == _PARTS[name]
        for name, part in found.items()
    )


class _GrpcServer(_server.Server):
    def __init__(
        self,
        options: Sequence[tuple[str, Any]],
        interceptors: Sequence[grpc.aio.ServerInterceptor],
    ) -> None:
        # Do not call the base class's method: it would create grpcio's own server.
        self._loop = cygrpc.get_working_loop()
        self._server = _CallTaker(self._loop, tuple(options), tuple(interceptors))


class _CallTaker(cygrpc.AioServer):  # type: ignore[misc]
    """Accepts the calls of each registered method in one loop, and all other calls in one more."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: tuple[Any, ...],
        interceptors: tuple[Any, ...],
    ) -> None:
        self._running_on = loop
        self._intercepted_by = interceptors
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._resolver = cygrpc._MethodResolver(self._handlers, {})
        self._calls: set[asyncio.Task[None]] = set()  # a loop keeps weak references only
        super().__init__(loop, None, None, interceptors, options, None)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler] | None) -> None:
        self._handlers.extend(handlers or ())

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Task[None]:
        """Start to accept all calls of ``method``; None: of all methods that are not registered.

        grpcio awaits the returned task as if it accepted one call. The task ends only with an
        error, when the server stops.
        """
        return self._running_on.create_task(self._take_calls(method))

    async def _take_calls(self, method: bytes | None) -> None:
        loop, interceptors = self._running_on, self._intercepted_by
        name = UNKNOWN if method is None else method.decode()
        while True:
            if method is None:
                state = await self._request_call()
            else:
                state = await self._request_registered_call(method)
            handled = cygrpc._handle_rpc(name, self._resolver, interceptors, state, loop, False)
            call = loop.create_task(cygrpc._schedule_rpc_coro(handled, state, loop, name))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            del state, handled, call  # the call's memory is free at its end, not at the next call
