"""The channels and stubs of one server, and how their calls fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from jobqueue.api.grpc.channel import STREAM_OPEN, Dialer
from jobqueue.api.grpc.errors import from_rpc_error, from_status
from jobqueue.core.errors import OutcomeUnknown, Unavailable, Unreachable
from jobqueue.core.waiting import cancel_requested
from jobqueue.pb.jq.v1 import (
    client_pb2_grpc,
    operator_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

Request = TypeVar("Request")
Response = TypeVar("Response")
_Beat = Callable[..., worker_pb2.HeartbeatResponse]


class Wiring:
    """Opened on the loop that uses it."""

    def __init__(self, dialer: Dialer, timeout: float) -> None:
        self.timeout = timeout
        self.met = False  # the server was there once: what cannot be sent may wait for it
        self.metadata = dialer.metadata  # what every call carries
        self.target = dialer.target
        self._dialer = dialer
        self._channel = dialer.open()
        self.client = client_pb2_grpc.ClientServiceStub(self._channel)
        self.operator = operator_pb2_grpc.OperatorServiceStub(self._channel)
        self.worker = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self._blocking: tuple[grpc.Channel, _Beat] | None = None
        self._lock = threading.Lock()
        self._closed = False

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        changes: bool = False,
        timeout: float | None = None,
    ) -> Response:
        """Make a call within its deadline. ``changes``: a lost answer is an OutcomeUnknown."""
        try:
            response = await method(
                request,
                timeout=self.timeout if timeout is None else timeout,
                metadata=self.metadata,
            )
            self.met = True
            return response
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, sent=changes) from None
        except grpc.aio.UsageError:
            raise Unavailable("the connection is closed") from None
        except asyncio.CancelledError:
            if not self._closed or cancel_requested():
                raise
            text = "the connection was closed during the call"
            raise (OutcomeUnknown(text) if changes else Unavailable(text)) from None

    async def opened(self, stream: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        """Wait until the server has let a stream in; raises what it says if it does not.

        A message written to a stream that is being refused could hide why
        (https://github.com/grpc/grpc/issues/36066).
        """
        try:
            async with asyncio.timeout(self.timeout):
                if STREAM_OPEN not in tuple(await stream.initial_metadata()):
                    await stream.code()
                    await stream.wait_for_connection()  # raises the status
                    raise Unavailable("the server ended the stream at its beginning")
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except (TimeoutError, grpc.aio.UsageError):
            raise Unreachable("the server could not be reached in time") from None

    def heartbeat(
        self, request: worker_pb2.HeartbeatRequest, timeout: float
    ) -> worker_pb2.HeartbeatResponse:
        """Blocking, from any thread, on a channel that needs no loop."""
        try:
            return self._beat()(request, timeout=timeout, metadata=self.metadata)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)  # what a channel raises is both
            raise from_status(
                call.code(), call.details() or "", call.trailing_metadata(), sent=False
            ) from None
        except ValueError:  # "Cannot invoke RPC on closed channel!"
            raise Unavailable("the connection is closed") from None

    def _beat(self) -> _Beat:
        with self._lock:
            if self._closed:
                raise Unavailable("the connection is closed")
            if self._blocking is None:
                channel = self._dialer.open_blocking()
                beat = channel.unary_unary(
                    "/jq.v1.WorkerService/Heartbeat",
                    request_serializer=worker_pb2.HeartbeatRequest.SerializeToString,
                    response_deserializer=worker_pb2.HeartbeatResponse.FromString,
                )
                self._blocking = (channel, beat)
            return self._blocking[1]

    async def close(self) -> None:
        """Cut off what is still under way."""
        with self._lock:
            self._closed = True
            blocking, self._blocking = self._blocking, None
        if blocking is not None:
            blocking[0].close()
        await self._channel.close()
