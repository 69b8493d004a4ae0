"""How one service calls another: who it is, within which deadline, and what is tried again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from typing import Any, TypeVar

import grpc.aio

from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.channel import Metadata
from jobqueue.api.grpc.taskqueue.callers import CALLER, INCARNATION, PURPOSE, REQUEST_ID
from jobqueue.api.grpc.taskqueue.line import Line
from jobqueue.api.grpc.taskqueue.retrying import delays, is_retryable
from jobqueue.core.deadline import remaining
from jobqueue.core.errors import (
    Code,
    DeadlineExceeded,
    JobQueueError,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)
from jobqueue.services import journal
from jobqueue.services.model import Actor

Request = TypeVar("Request")
Response = TypeVar("Response")


class Peer:
    """One channel to one service. Made on the loop that uses it; connects at the first call."""

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
        self._line = _WatchedLine(target, service, credentials)
        self._metadata: Metadata = (*self._line.metadata, (CALLER, caller.value))
        self._rng = rng or random.Random()

    @property
    def channel(self) -> grpc.aio.Channel:
        """For a stub, whose methods ``call`` takes."""
        return self._line.channel

    async def call(
        self,
        stub_method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout: float,
        request_id: str = "",
        purpose: str = "",
        incarnation: str = "",
        repeatable: bool = False,
        retry_internal: bool = False,
    ) -> Response:
        """Within ``timeout`` seconds or what the caller has left, whichever is less.

        Tried again inside of that by the profile, if it carries an id or is ``repeatable`` (a
        read, or something that may happen twice): the receiver repeats its first answer.
        ``retry_internal``: INTERNAL is tried again as well.
        """
        allowed = remaining(timeout)
        ends = time.monotonic() + allowed
        metadata = self._metadata
        if request_id:
            metadata = (*metadata, (REQUEST_ID, request_id))
        if purpose:
            metadata = (*metadata, (PURPOSE, purpose))
        if incarnation:
            metadata = (*metadata, (INCARNATION, incarnation))
        pauses = delays(self._rng) if request_id or repeatable else iter(())
        sent = bool(request_id)
        failure: JobQueueError | None = None
        while (left := ends - time.monotonic()) > 0:
            try:
                return await self._line.call(
                    stub_method, request, timeout=left, metadata=metadata, sent=sent
                )
            except JobQueueError as error:
                # An attempt without an answer may have been carried out, also when a later one
                # finds nobody.
                if failure is None or not isinstance(error, Unreachable):
                    failure = error
                again = is_retryable(error.code) or (retry_internal and error.code is Code.INTERNAL)
                pause = next(pauses, None) if again else None
                if pause is None or pause >= ends - time.monotonic():
                    break
            await asyncio.sleep(pause)
        if failure is None:
            raise DeadlineExceeded(f"no time is left to ask the {self._service} service")
        if isinstance(failure, DeadlineExceeded) and allowed >= timeout:
            # Our caller has time left, and is told so by another code.
            unanswered = OutcomeUnknown if sent else Unavailable
            raise unanswered(f"the {self._service} service did not answer within {timeout:g} s")
        raise failure

    async def close(self) -> None:
        """Cut off what is still under way."""
        await self._line.close()


class _WatchedLine(Line):
    """Tells of a server that was started anew: what it had in memory is lost."""

    def __init__(self, target: str, service: str, credentials: Credentials | None) -> None:
        super().__init__(target, credentials)
        self._service = service
        self._current = ""
        self._former: set[str] = set()

    def answered(self, trailing: Iterable[tuple[str, Any]]) -> None:
        for name, value in trailing:
            if name == INCARNATION and value != self._current:
                self._changed(value)

    def _changed(self, incarnation: str) -> None:
        if incarnation in self._former:
            return  # an answer that comes late
        before, self._current = self._current, incarnation
        if before:
            self._former.add(before)
            journal.warn(
                journal.STATE_LOST,
                f"the {self._service} service was restarted: what it had in memory is lost",
                peer=self._service,
            )
