"""One server, or several replicas, and the choice of the server that a call goes to.

All calls of a process go to one server, first a random one, until it fails, is slow, or has more
than its share of workers or clients: every few seconds the servers are compared (``Balancer``). A
call is repeated at another server only if it had no effect, or if repeating it is safe.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import grpc.aio

from jobqueue.api.grpc.calls import end
from jobqueue.api.grpc.channel import Dialer
from jobqueue.api.grpc.remote.server import RemoteServer
from jobqueue.core.errors import (
    DeadlineExceeded,
    JobQueueError,
    OutcomeUnknown,
    Unavailable,
)
from jobqueue.core.job import Pulse
from jobqueue.core.waiting import GrowingPause
from jobqueue.pb.jq.v1 import client_pb2, worker_pb2

log = logging.getLogger("jobqueue.grpc")

Request = TypeVar("Request")
Response = TypeVar("Response")
_SHORTEST_BEAT = 1.0
_COMPARE_EVERY = 4.0  # seconds
_COMPARE_TIMEOUT = 2.0
CountedAs = Literal["workers", "clients"]
"""The group in which a server counts this process."""


class Effect(enum.Enum):
    """The effect of a call at a server, and so the meaning of a lost answer."""

    NONE = enum.auto()  # ask the next server
    ONCE = enum.auto()  # an OutcomeUnknown
    REPEATABLE = enum.auto()  # an OutcomeUnknown, but ask the next server first


class Servers:
    """The servers of one address list. Create it on the loop that uses it."""

    def __init__(self, dialers: Sequence[Dialer], timeout: float) -> None:
        self.timeout = timeout
        self._all = [RemoteServer(dialer, timeout) for dialer in dialers]
        self._current = random.randrange(len(self._all))
        self._comparing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def met(self) -> bool:
        """True once a server has answered: then a failed call may wait for one."""
        return any(server.met for server in self._all)

    def pick(self, tried: Collection[RemoteServer] = ()) -> RemoteServer:
        """Return the server in use, or the next one that was not tried."""
        count = len(self._all)
        for step in range(count):
            server = self._all[(self._current + step) % count]
            if server not in tried:
                return server
        return self._all[self._current]

    def leave(self, server: RemoteServer) -> None:
        """Use the next server from now on if this failed one is in use."""
        if self._all[self._current] is server:
            self._current = (self._current + 1) % len(self._all)

    def compare(
        self, counted_as: Callable[[], CountedAs | None], moved: Callable[[], None]
    ) -> None:
        """Begin to compare the servers.

        ``counted_as`` returns the group of this process, or None if it has no stream open.
        ``moved`` is called after each comparison: streams to other servers than the one in use
        should move to it.
        """
        if len(self._all) > 1:
            self._comparing = asyncio.create_task(self._compare(counted_as, moved), name="servers")

    async def _compare(
        self, counted_as: Callable[[], CountedAs | None], moved: Callable[[], None]
    ) -> None:
        balancer = Balancer(len(self._all))
        while True:
            await asyncio.sleep(_COMPARE_EVERY * random.uniform(0.5, 1.5))
            group = counted_as()
            if group is None:  # its calls are few, and it may lack the right to ask
                continue
            samples = await asyncio.gather(*(self._sample(server, group) for server in self._all))
            before, self._current = self._current, balancer.choose(self._current, samples)
            if self._current != before:
                log.info(
                    "moving to server %s from %s, which is unreachable, slow or overloaded",
                    self._all[self._current].target,
                    self._all[before].target,
                )
            moved()

    async def _sample(self, server: RemoteServer, group: CountedAs) -> LoadSample | None:
        began = time.monotonic()
        try:
            # In a place of its own: behind this process's calls it would measure their wait.
            with server.lasting() as connection:
                load = await server.call(
                    connection.client.GetLoad,
                    client_pb2.GetLoadRequest(),
                    timeout=_COMPARE_TIMEOUT,
                    lasting=True,
                )
        except DeadlineExceeded:
            return LoadSample(math.inf, None)
        except Unavailable:
            return None
        except JobQueueError:  # a server of an earlier version does not know this call
            return LoadSample(time.monotonic() - began, None)
        took = time.monotonic() - began + load.store_seconds if load.ready else math.inf
        users = {"workers": load.workers, "clients": load.clients}
        return LoadSample(took, users[group])

    async def call(
        self,
        method: Callable[[RemoteServer], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        effect: Effect = Effect.NONE,
        *,
        timeout: float | None = None,
        first: RemoteServer | None = None,
    ) -> Response:
        """Make a call, at each server once at most."""
        changes = effect is not Effect.NONE
        tried: list[RemoteServer] = []
        unsure: OutcomeUnknown | None = None
        while True:
            server = first if first is not None and not tried else self.pick(tried)
            tried.append(server)
            last = len(tried) == len(self._all)
            try:
                return await server.call(method(server), request, changes=changes, timeout=timeout)
            except Unavailable:
                self.leave(server)
                if last and unsure is not None:  # no effect here, but perhaps at another server
                    raise unsure from None
                if last:
                    raise
            except OutcomeUnknown as error:
                self.leave(server)
                if last or effect is not Effect.REPEATABLE:
                    raise
                unsure = error
            except DeadlineExceeded:  # the caller's time is up; the next call goes elsewhere
                self.leave(server)
                raise

    def heartbeat(self, request: worker_pb2.HeartbeatRequest, first: RemoteServer) -> Pulse:
        """Send a heartbeat to any server that answers, beginning with the worker's own.

        May be called from any thread.
        """
        others = [server for server in self._all if server is not first]
        random.shuffle(others)
        timeout = max(self.timeout / len(self._all), _SHORTEST_BEAT)
        failure: JobQueueError | None = None
        for server in (first, *others):
            try:
                return server.heartbeat(request, min(timeout, self.timeout))
            except (Unavailable, DeadlineExceeded) as error:
                failure = failure or error
                # The same list sent twice does not prove that unlisted leases have ended.
                request.incomplete = True
        assert failure is not None
        raise failure

    def search(self, first: float, longest: float) -> ServerSearch:
        """Begin a search whose pauses grow from ``first`` to ``longest`` seconds."""
        return ServerSearch(self, GrowingPause(first, longest))

    async def close(self) -> None:
        """Close all connections; calls under way end with an error."""
        if self._comparing is not None:
            await end(self._comparing)
        for server in self._all:
            await server.close()


class ServerSearch:
    """A search for a server that answers: each is tried once, and again after a pause."""

    def __init__(self, servers: Servers, pause: GrowingPause) -> None:
        self.pause = pause
        self._servers = servers
        self._tried: list[RemoteServer] = []  # those that failed in this round
        self._since: float | None = None

    def pick(self) -> RemoteServer:
        """Return the server to try next."""
        return self._servers.pick(self._tried)

    def answered(self) -> None:
        """End the search: a server has answered."""
        self._tried.clear()
        self._since = None
        self.pause.reset()

    def failed(self, server: RemoteServer) -> bool:
        """Note that a server failed; return True if another one can be tried at once."""
        if self._since is None:
            self._since = time.monotonic()
        self._servers.leave(server)
        self._tried.append(server)
        if len(self._tried) < len(self._servers):
            return True
        self._tried.clear()
        return False

    def lasted(self) -> float:
        """Return the seconds since the first failure."""
        return 0.0 if self._since is None else time.monotonic() - self._since


# A server becomes slow when its answers take several times as long as the best server's, and stops
# being slow when they come about as fast; both a few times in a row. Short times are never slow.
_SLOWER, _AS_FAST = 5.0, 2.0
_QUICK = 0.2
_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One measurement of a server. ``seconds`` is infinite if it is silent or not ready."""

    seconds: float
    users: int | None  # processes of this one's group connected there; None: it does not say


class Balancer:
    """Chooses a server that is not slow and has no more than its share of processes.

    Servers are named by their places in the list.
    """

    def __init__(self, servers: int) -> None:
        self._slow = [False] * servers
        self._row = [0] * servers  # samples in a row that contradict ``_slow``

    def choose(self, current: int, samples: Sequence[LoadSample | None]) -> int:
        """Return the place of the server to use. A sample of None: the server is gone."""
        self._judge(samples)
        good = {
            place: one
            for place, one in enumerate(samples)
            if one is not None and not self._slow[place] and one.seconds < math.inf
        }
        users = {place: one.users for place, one in good.items() if one.users is not None}
        if samples[current] is None or self._slow[current]:
            away = users or good
            return min(
                away, key=lambda place: (users.get(place, 0), random.random()), default=current
            )
        if current not in users:
            return current
        least = min(users, key=lambda place: (users[place], random.random()))
        if users[current] - users[least] < 2:
            return current
        # Only as many processes move as are too many, not every process that sees the excess.
        excess = users[current] - sum(users.values()) / len(users)
        return least if random.random() * users[current] < excess else current

    def _judge(self, samples: Sequence[LoadSample | None]) -> None:
        best = min((one.seconds for one in samples if one is not None), default=math.inf)
        for place, one in enumerate(samples):
            if one is None:
                self._slow[place], self._row[place] = False, 0  # it is judged anew when it returns
                continue
            if self._slow[place]:
                against = one.seconds <= max(_QUICK / 2, best * _AS_FAST)
            else:
                against = one.seconds > max(_QUICK, best * _SLOWER)
            self._row[place] = self._row[place] + 1 if against else 0
            if self._row[place] >= _IN_A_ROW:
                self._slow[place], self._row[place] = not self._slow[place], 0
