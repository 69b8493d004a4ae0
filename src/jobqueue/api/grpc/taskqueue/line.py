"""A channel to one server, and a single call on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

import grpc.aio

from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.channel import Dialer, Metadata
from jobqueue.api.grpc.taskqueue.statuses import failure_of
from jobqueue.core.errors import Unavailable
from jobqueue.core.waiting import cancel_requested

Request = TypeVar("Request")
Response = TypeVar("Response")


class Line:
    """Opened on the loop that uses it; connects at the first call."""

    def __init__(self, target: str, credentials: Credentials | None = None) -> None:
        dialer = Dialer(target, credentials)
        self.metadata: Metadata = dialer.metadata  # what every call carries
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
        """One attempt; its failure is one of ``core.errors``.

        ``sent``: the call changes something, so a lost answer is an OutcomeUnknown.
        """
        try:
            made = method(request, timeout=timeout, metadata=metadata)
            response: Response = await made
            self.answered(await made.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            self.answered(error.trailing_metadata() or ())
            raise failure_of(error, sent=sent) from None
        except grpc.aio.UsageError:
            raise Unavailable("the connection is closed") from None
        except asyncio.CancelledError:
            if self._closed and not cancel_requested():
                raise Unavailable("the connection was closed during the call") from None
            raise
        return response

    def answered(self, trailing: Iterable[tuple[str, Any]]) -> None:
        """What came with an answer."""

    async def close(self) -> None:
        """Cut off what is still under way."""
        self._closed = True
        await self.channel.close()
