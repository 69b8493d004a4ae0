"""One server or several that are replicas of each other, and how a call goes to the next one.

A call is repeated elsewhere only if it did not happen, or if it may happen twice. All calls of a
process go to one server until that one fails; which one it begins with is drawn, so that many
processes spread over the servers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import grpc.aio

from jobqueue.api.grpc.channel import Dialer
from jobqueue.api.grpc.remote.wiring import Wiring
from jobqueue.core.errors import (
    DeadlineExceeded,
    JobQueueError,
    OutcomeUnknown,
    Unavailable,
)
from jobqueue.pb.jq.v1 import worker_pb2

Request = TypeVar("Request")
Response = TypeVar("Response")
_SHORTEST_BEAT = 1.0


class Servers:
    """Opened on the loop that uses it."""

    def __init__(self, dialers: Sequence[Dialer], timeout: float) -> None:
        self.timeout = timeout
        self._wirings = [Wiring(dialer, timeout) for dialer in dialers]
        self._current = random.randrange(len(self._wirings))

    def __len__(self) -> int:
        return len(self._wirings)

    @property
    def met(self) -> bool:
        """A server was there once: what cannot be sent may wait for one."""
        return any(wiring.met for wiring in self._wirings)

    def pick(self, tried: Collection[Wiring] = ()) -> Wiring:
        """The one in use, or the next that was not tried."""
        count = len(self._wirings)
        for step in range(count):
            wiring = self._wirings[(self._current + step) % count]
            if wiring not in tried:
                return wiring
        return self._wirings[self._current]

    def leave(self, wiring: Wiring) -> None:
        """It failed: use the next one from now on, unless that was said already."""
        if self._wirings[self._current] is wiring:
            self._current = (self._current + 1) % len(self._wirings)

    async def call(
        self,
        method: Callable[[Wiring], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        *,
        changes: bool = False,
        again: bool = False,
        timeout: float | None = None,
        first: Wiring | None = None,
    ) -> Response:
        """Make a call, at each server once at most.

        ``changes``: a lost answer is an OutcomeUnknown. ``again``: it may happen twice, so that
        even then another server is asked.
        """
        tried: list[Wiring] = []
        unsure: OutcomeUnknown | None = None
        while True:
            wiring = first if first is not None and not tried else self.pick(tried)
            tried.append(wiring)
            last = len(tried) == len(self._wirings)
            try:
                return await wiring.call(method(wiring), request, changes=changes, timeout=timeout)
            except Unavailable:
                self.leave(wiring)
                if last and unsure is not None:  # it did not happen here, but may have elsewhere
                    raise unsure from None
                if last:
                    raise
            except OutcomeUnknown as error:
                self.leave(wiring)
                if last or not again:
                    raise
                unsure = error
            except DeadlineExceeded:  # the caller's time is up; the next call goes elsewhere
                self.leave(wiring)
                raise

    def heartbeat(
        self, request: worker_pb2.HeartbeatRequest, first: Wiring
    ) -> worker_pb2.HeartbeatResponse:
        """At whichever server answers, from any thread; ``first`` is the worker's own."""
        others = [wiring for wiring in self._wirings if wiring is not first]
        random.shuffle(others)
        timeout = max(self.timeout / len(self._wirings), _SHORTEST_BEAT)
        failure: JobQueueError | None = None
        for wiring in (first, *others):
            try:
                return wiring.heartbeat(request, min(timeout, self.timeout))
            except (Unavailable, DeadlineExceeded) as error:
                failure = failure or error
                # The same list a second time proves nothing about what is missing from it.
                request.incomplete = True
        assert failure is not None
        raise failure

    async def close(self) -> None:
        """Cut off what is still under way."""
        for wiring in self._wirings:
            await wiring.close()
