"""A server of grpc.aio that no call can end by its name.

grpcio (1.85.1) decodes the name of a call in the one loop that takes all calls. A name that is not
UTF-8 ends that loop, and with it the server and all its calls; it is decoded before anybody knows
who calls. Here gRPC's core finds a call by the bytes of its name among the registered methods, each
of which has a loop of its own. The names of other calls are never decoded.
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
"""The name under which handlers are asked for a method that is not registered."""

# The parts of grpcio that this module calls, with their parameters.
_PARTS = {
    "_handle_rpc": "method_name method_resolver interceptors rpc_state loop concurrency_exceeded",
    "_schedule_rpc_coro": "rpc_coro rpc_state loop method_name",
}


def server(
    options: Sequence[tuple[str, Any]], interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> grpc.aio.Server:
    """Make a server. Only methods that are registered with it are served by their names."""
    if not fits():
        log.warning(
            "grpcio %s is not known to this version of jobqueue: a call with a malformed name may"
            " end the gRPC server; install grpcio 1.85.1",
            grpc.__version__,
        )
        return grpc.aio.server(interceptors=interceptors, options=options)
    return cast(grpc.aio.Server, _Server(options, interceptors))


def fits() -> bool:
    """Return True if grpcio has the parts that this module calls."""
    found = {name: getattr(cygrpc, name, None) for name in _PARTS}
    return hasattr(cygrpc.AioServer, "_make_request_call_future") and all(
        part is not None and " ".join(inspect.signature(part).parameters) == _PARTS[name]
        for name, part in found.items()
    )


class _Server(_server.Server):
    def __init__(
        self,
        options: Sequence[tuple[str, Any]],
        interceptors: Sequence[grpc.aio.ServerInterceptor],
    ) -> None:
        # In place of the base's: it would make a server of grpcio's.
        self._loop = cygrpc.get_working_loop()
        self._server = _CallTaker(self._loop, tuple(options), tuple(interceptors))


class _CallTaker(cygrpc.AioServer):  # type: ignore[misc]
    """Takes the calls of each registered method, and all others without their names."""

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
        """Serve a method's calls, or (None) those of all that are not registered.

        grpcio's loop awaits this for one call. It ends with an error, when the server stops.
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
