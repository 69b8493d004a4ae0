"""One server or several that are replicas of each other, and how a call goes to the next one.

A call is repeated elsewhere only if it did not happen, or if it may happen twice. All calls of a
process go to one server until that one fails, is slow, or has more than its share; which one it
begins with is drawn. Every few seconds the servers' answers are compared (``spreading.py``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeVar

import grpc.aio

from jobqueue.api.grpc.calls import end
from jobqueue.api.grpc.channel import Dialer
from jobqueue.api.grpc.remote.spreading import Seen, Spread
from jobqueue.api.grpc.remote.wiring import Wiring
from jobqueue.core.errors import (
    DeadlineExceeded,
    JobQueueError,
    OutcomeUnknown,
    Unavailable,
)
from jobqueue.pb.jq.v1 import client_pb2, worker_pb2

log = logging.getLogger("jobqueue.grpc")

Request = TypeVar("Request")
Response = TypeVar("Response")
_SHORTEST_BEAT = 1.0
_COMPARE_EVERY = 4.0  # seconds
_COMPARE_TIMEOUT = 2.0
CountedAs = Literal["workers", "clients"]
"""As what a process is counted where it is connected."""


class Servers:
    """Opened on the loop that uses it."""

    def __init__(self, dialers: Sequence[Dialer], timeout: float) -> None:
        self.timeout = timeout
        self._wirings = [Wiring(dialer, timeout) for dialer in dialers]
        self._current = random.randrange(len(self._wirings))
        self._comparing: asyncio.Task[None] | None = None

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

    def compare(
        self, counted_as: Callable[[], CountedAs | None], moved: Callable[[], None]
    ) -> None:
        """Begin to compare the servers.

        ``counted_as`` says as what this process is connected. ``moved`` is called after each look:
        what is connected to another server than the one in use should go there.
        """
        if len(self._wirings) > 1:
            self._comparing = asyncio.create_task(self._compare(counted_as, moved), name="servers")

    async def _compare(
        self, counted_as: Callable[[], CountedAs | None], moved: Callable[[], None]
    ) -> None:
        spread = Spread(len(self._wirings))
        while True:
            await asyncio.sleep(_COMPARE_EVERY * random.uniform(0.5, 1.5))
            role = counted_as()
            if role is None:  # its calls are few, and it may not be allowed to ask
                continue
            looks = (self._look(wiring, role) for wiring in self._wirings)
            seen = await asyncio.gather(*looks)
            before, self._current = self._current, spread.choose(self._current, seen)
            if self._current != before:
                log.info(
                    "using server %s instead of %s",
                    self._wirings[self._current].target,
                    self._wirings[before].target,
                )
            moved()

    async def _look(self, wiring: Wiring, counted_as: CountedAs) -> Seen | None:
        began = time.monotonic()
        try:
            load = await wiring.call(
                wiring.client.GetLoad, client_pb2.GetLoadRequest(), timeout=_COMPARE_TIMEOUT
            )
        except DeadlineExceeded:
            return Seen(math.inf, None)
        except Unavailable:
            return None
        except JobQueueError:  # it is older than this question
            return Seen(time.monotonic() - began, None)
        took = time.monotonic() - began + load.store_seconds if load.ready else math.inf
        users = {"workers": load.workers, "clients": load.clients}
        return Seen(took, users[counted_as])

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
        if self._comparing is not None:
            await end(self._comparing)
        for wiring in self._wirings:
            await wiring.close()
