"""Call other services: send the caller's name, keep the deadline, retry failed attempts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc.aio

from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.channel import Dialer, Metadata
from jobqueue.core.errors import (
    Code,
    DeadlineExceeded,
    JobQueueError,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)
from jobqueue.core.waiting import cancel_requested, remaining
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import Actor
from jobqueue.taskqueue.grpc.callers import CALLER, INCARNATION, PURPOSE, REQUEST_ID
from jobqueue.taskqueue.grpc.errors import delays, failure_of, is_retryable

UNARY = 1.0  # seconds: the deadline of most calls
Request = TypeVar("Request")
Response = TypeVar("Response")


class ServerChannel:
    """Owns a gRPC channel to one server, which connects at the first call.

    Create it on the event loop that uses it. ``answered`` is called with the trailing metadata of
    each answer.
    """

    def __init__(
        self,
        target: str,
        credentials: Credentials | None = None,
        answered: Callable[[Iterable[tuple[str, Any]]], None] = lambda trailing: None,
    ) -> None:
        self._target = target
        self._answered = answered
        dialer = Dialer(target, credentials)
        self.metadata: Metadata = dialer.metadata  # of every call
        self.channel = dialer.open()
        self._closed = False

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout: float,
        metadata: Metadata,
        sent: bool = False,
    ) -> Response:
        """Call the method once. Every failure is raised as a class of ``core.errors``.

        ``sent`` is True if the call changes something; a lost answer is then an OutcomeUnknown.
        """
        try:
            made = method(request, timeout=timeout, metadata=metadata)
            response: Response = await made
            self._answered(await made.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            self._answered(error.trailing_metadata() or ())
            raise failure_of(error, sent=sent) from None
        except grpc.aio.UsageError:
            raise Unavailable(f"the connection to {self._target} is closed") from None
        except asyncio.CancelledError:
            if self._closed and not cancel_requested():
                raise Unavailable(
                    f"the connection to {self._target} was closed during the call"
                ) from None
            raise
        return response

    async def close(self) -> None:
        """Close the channel. Running calls fail with Unavailable."""
        self._closed = True
        await self.channel.close()


class Peer:
    """Calls one service, with retries, under the name of the calling service."""

    def __init__(
        self,
        target: str,
        service: str,
        caller: Actor,
        *,
        credentials: Credentials | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._service = service
        self._server = ServerChannel(target, credentials, self._answered)
        self._current = ""  # the incarnation of the server
        self._former: set[str] = set()
        self._metadata: Metadata = (*self._server.metadata, (CALLER, caller.value))
        self._rng = rng or random.Random()

    @property
    def channel(self) -> grpc.aio.Channel:
        """Return the channel for a gRPC stub, whose methods are passed to ``call``."""
        return self._server.channel

    async def call(
        self,
        stub_method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout: float | None = None,
        request_id: str = "",
        purpose: str = "",
        incarnation: str = "",
        repeatable: bool = False,
        retry_internal: bool = False,
    ) -> Response:
        """Call the method within ``timeout`` seconds, or within the caller's own shorter deadline.

        ``timeout`` None means 1 second. A failed attempt is retried within that time if the call
        has a ``request_id``, because the receiver then repeats its first answer, or if it is
        ``repeatable``: a read, or a call that may happen twice. With ``retry_internal`` a call that
        failed with INTERNAL is retried as well.
        """
        timeout = UNARY if timeout is None else timeout
        allowed = remaining(timeout)
        ends = time.monotonic() + allowed
        said = ((REQUEST_ID, request_id), (PURPOSE, purpose), (INCARNATION, incarnation))
        metadata = (*self._metadata, *((name, value) for name, value in said if value))
        pauses = delays(self._rng) if request_id or repeatable else iter(())
        sent = bool(request_id)
        failure: JobQueueError | None = None
        while (left := ends - time.monotonic()) > 0:
            try:
                return await self._server.call(
                    stub_method, request, timeout=left, metadata=metadata, sent=sent
                )
            except JobQueueError as error:
                # Keep the error of an attempt that may have been carried out, even if a later
                # attempt cannot reach the server.
                if failure is None or not isinstance(error, Unreachable):
                    failure = error
                again = is_retryable(error.code) or (retry_internal and error.code is Code.INTERNAL)
                pause = next(pauses, None) if again else None
                if pause is None or pause >= ends - time.monotonic():
                    break
            await asyncio.sleep(pause)
        if failure is None:
            raise DeadlineExceeded(
                f"the deadline passed before the {self._service} service could be called"
            )
        if isinstance(failure, DeadlineExceeded) and allowed >= timeout:
            # The caller's own deadline has not passed, so it gets another code.
            unanswered = OutcomeUnknown if sent else Unavailable
            raise unanswered(f"the {self._service} service did not answer within {timeout:g} s")
        raise failure

    async def close(self) -> None:
        await self._server.close()

    def _answered(self, trailing: Iterable[tuple[str, Any]]) -> None:
        """Log a warning if the server was restarted, because it has then lost its state."""
        for name, value in trailing:
            # A value of ``_former`` comes with a late answer of an earlier process.
            if name != INCARNATION or value == self._current or value in self._former:
                continue
            before, self._current = self._current, value
            if before:
                self._former.add(before)
                journal.warn(
                    journal.STATE_LOST,
                    f"the {self._service} service was restarted: the state in its memory is lost",
                    peer=self._service,
                )
