"""Make calls to one server, and convert the errors of these calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from jobqueue.api.grpc import channel
from jobqueue.api.grpc.channel import STREAM_OPEN, Dialer
from jobqueue.api.grpc.errors import from_rpc_error, from_status
from jobqueue.api.grpc.work_codec import pulse_from_pb
from jobqueue.core.errors import OutcomeUnknown, Unavailable, Unreachable
from jobqueue.core.job import Pulse
from jobqueue.core.waiting import cancel_requested
from jobqueue.pb.jq.v1 import (
    client_pb2_grpc,
    operator_pb2_grpc,
    schedules_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

Request = TypeVar("Request")
Response = TypeVar("Response")
_Beat = Callable[..., worker_pb2.HeartbeatResponse]


class ServerConnection:
    """Holds the channel and the stubs of one connection to a server."""

    def __init__(self, opened: grpc.aio.Channel, most: int) -> None:
        """Use the channel ``opened`` for at most ``most`` long polls and streams at once."""
        self.channel = opened
        self.client = client_pb2_grpc.ClientServiceStub(opened)
        self.worker = worker_pb2_grpc.WorkerServiceStub(opened)
        self.most = most
        self.lasting = 0


class RemoteServer:
    """Makes calls to one server. Create it on the event loop that uses it."""

    def __init__(self, dialer: Dialer, timeout: float) -> None:
        self.timeout = timeout
        self.met = False  # the server has answered before, so a failed call may wait for the server
        self.metadata = dialer.metadata  # sent with every call
        self.target = dialer.target
        self._dialer = dialer
        # The first connection is mostly for short calls.
        first = ServerConnection(dialer.open(), channel.CALLS_PER_CONNECTION // 4)
        self._connections = [first]
        self._short = asyncio.Semaphore(channel.CALLS_PER_CONNECTION - first.most)
        self.client = first.client
        self.operator = operator_pb2_grpc.OperatorServiceStub(first.channel)
        self.schedules = schedules_pb2_grpc.ScheduleServiceStub(first.channel)
        self.worker = first.worker
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
        lasting: bool = False,
    ) -> Response:
        """Make a call and return its answer within ``timeout`` seconds.

        ``changes`` says that the call changes something, so that a lost answer is an
        OutcomeUnknown. A call waits for a place, because a server limits the calls of one
        connection. With ``lasting`` the caller has a place already, from the method ``lasting``.
        """
        if timeout is None:
            timeout = self.timeout
        if lasting:
            return await self._make(method, request, changes, timeout)
        if self._short.locked():
            began = time.monotonic()
            try:
                async with asyncio.timeout(timeout):
                    await self._short.acquire()
            except TimeoutError:
                raise Unreachable("the server did not answer earlier calls in time") from None
            timeout = max(0.0, timeout - (time.monotonic() - began))
        else:
            await self._short.acquire()  # succeeds at once
        try:
            return await self._make(method, request, changes, timeout)
        finally:
            self._short.release()

    async def _make(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        changes: bool,
        timeout: float,
    ) -> Response:
        try:
            response = await method(request, timeout=timeout, metadata=self.metadata)
            self.met = True
            return response
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, sent=changes) from None
        except grpc.aio.UsageError:
            raise Unavailable(f"the connection to {self.target} is closed") from None
        except asyncio.CancelledError:
            if not self.cut_off():
                raise
            text = "the connection was closed during the call"
            raise (OutcomeUnknown(text) if changes else Unavailable(text)) from None

    def cut_off(self) -> bool:
        """Return True if a CancelledError comes from ``close``, and not from the caller's task."""
        return self._closed and not cancel_requested()

    @contextlib.contextmanager
    def lasting(self) -> Iterator[ServerConnection]:
        """Take a place for a long poll or a stream, and yield the connection to use.

        These places are separate from those of short calls. A server limits the calls of one
        connection, so this method opens another connection when all places are taken.
        """
        connection = next((one for one in self._connections if one.lasting < one.most), None)
        if connection is None:
            if self._closed:
                raise Unavailable(f"the connection to {self.target} is closed")
            connection = ServerConnection(
                self._dialer.open(alone=True), channel.CALLS_PER_CONNECTION
            )
            self._connections.append(connection)
        connection.lasting += 1
        try:
            yield connection
        finally:
            connection.lasting -= 1

    async def opened(self, stream: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        """Wait until the server has accepted a stream. Raise the server's error if it refuses.

        Call this before the first write: a write to a stream that the server is refusing could hide
        the reason (https://github.com/grpc/grpc/issues/36066).
        """
        try:
            async with asyncio.timeout(self.timeout):
                if STREAM_OPEN not in tuple(await stream.initial_metadata()):
                    await stream.code()
                    await stream.wait_for_connection()  # raises the status
                    raise Unavailable("the server ended the stream when it began")
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except (TimeoutError, grpc.aio.UsageError):
            raise Unreachable(f"the server at {self.target} could not be reached in time") from None

    def heartbeat(self, request: worker_pb2.HeartbeatRequest, timeout: float) -> Pulse:
        """Send a heartbeat and return the answer. Blocks; may be called from any thread.

        The call uses a channel that does not need an event loop.
        """
        try:
            answer = self._beat_call()(request, timeout=timeout, metadata=self.metadata)
            return pulse_from_pb(answer.pulse)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)  # the errors of a channel are calls as well
            raise from_status(
                call.code(), call.details() or "", call.trailing_metadata(), sent=False
            ) from None
        except ValueError:  # "Cannot invoke RPC on closed channel!"
            raise Unavailable(f"the connection to {self.target} is closed") from None

    def _beat_call(self) -> _Beat:
        with self._lock:
            if self._closed:
                raise Unavailable(f"the connection to {self.target} is closed")
            if self._blocking is None:
                beating = self._dialer.open_blocking()
                beat = beating.unary_unary(
                    "/jq.v1.WorkerService/Heartbeat",
                    request_serializer=worker_pb2.HeartbeatRequest.SerializeToString,
                    response_deserializer=worker_pb2.HeartbeatResponse.FromString,
                )
                self._blocking = (beating, beat)
            return self._blocking[1]

    async def close(self) -> None:
        """Close all connections to the server. Calls under way end with an error."""
        with self._lock:
            self._closed = True
            blocking, self._blocking = self._blocking, None
        if blocking is not None:
            blocking[0].close()
        for connection in self._connections:
            await connection.channel.close()
