"""Choose the server of each call, and repeat failed calls at other servers.

A process sends all its calls to one server, which is random at first. It moves to another server if
the server fails, is slow, or has more than its share of workers or clients. ``Balancer`` compares
the servers every few seconds. A call is repeated at another server only if it had no effect, or if
a repetition is safe.
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
"""Names the group in which a server counts this process."""


class Effect(enum.Enum):
    """Says whether a call changes something on a server, and what to do if its answer is lost."""

    NONE = enum.auto()  # changes nothing: call the next server
    ONCE = enum.auto()  # must not be repeated: raise OutcomeUnknown
    REPEATABLE = enum.auto()  # call the next server; if that fails, raise OutcomeUnknown


class Servers:
    """Makes calls to the servers of one address list. Create it on the event loop that uses it."""

    def __init__(self, dialers: Sequence[Dialer], timeout: float) -> None:
        self.timeout = timeout
        self._all = [RemoteServer(dialer, timeout) for dialer in dialers]
        self._current = random.randrange(len(self._all))
        self._comparing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def met(self) -> bool:
        """Return True if a server has answered before. Then a failed call may wait for a server."""
        return any(server.met for server in self._all)

    def pick(self, tried: Collection[RemoteServer] = ()) -> RemoteServer:
        """Return the process's current server, or the next server that is not in ``tried``."""
        count = len(self._all)
        for step in range(count):
            server = self._all[(self._current + step) % count]
            if server not in tried:
                return server
        return self._all[self._current]

    def leave(self, server: RemoteServer) -> None:
        """Switch to the next server if ``server``, which failed, is the current server."""
        if self._all[self._current] is server:
            self._current = (self._current + 1) % len(self._all)

    def compare(
        self, counted_as: Callable[[], CountedAs | None], moved: Callable[[], None]
    ) -> None:
        """Start to compare the servers every few seconds.

        ``counted_as`` returns the group of this process, or None if the process has no open stream.
        ``moved`` is called after each comparison. It should move the process's streams to the
        current server.
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
            if group is None:  # the process makes few calls, and may lack the role for GetLoad
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
            # The call has its own place: behind other calls it would measure the wait for them.
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
        except JobQueueError:  # an older server does not know this call
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
        """Make a call, at most once at each server, and return the answer.

        ``first`` is the server to try first, in place of the current server.
        """
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
                if last and unsure is not None:  # no effect here, but perhaps at an earlier server
                    raise unsure from None
                if last:
                    raise
            except OutcomeUnknown as error:
                self.leave(server)
                if last or effect is not Effect.REPEATABLE:
                    raise
                unsure = error
            except DeadlineExceeded:  # the caller's time is over; the next call uses another server
                self.leave(server)
                raise

    def heartbeat(self, request: worker_pb2.HeartbeatRequest, first: RemoteServer) -> Pulse:
        """Send a heartbeat to ``first``, then to the other servers until a server answers.

        This method may be called from any thread.
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
        """Return a new search, whose pauses grow from ``first`` to ``longest`` seconds."""
        return ServerSearch(self, GrowingPause(first, longest))

    async def close(self) -> None:
        """Close the connections to all servers. Calls under way end with an error."""
        if self._comparing is not None:
            await end(self._comparing)
        for server in self._all:
            await server.close()


class ServerSearch:
    """Searches for a server that answers: tries each server once per round, with pauses between."""

    def __init__(self, servers: Servers, pause: GrowingPause) -> None:
        self.pause = pause
        self._servers = servers
        self._tried: list[RemoteServer] = []  # servers that failed in this round
        self._since: float | None = None

    def pick(self) -> RemoteServer:
        """Return the server to try next in this round."""
        return self._servers.pick(self._tried)

    def answered(self) -> None:
        """Reset the search, because a server has answered."""
        self._tried.clear()
        self._since = None
        self.pause.reset()

    def failed(self, server: RemoteServer) -> bool:
        """Record that a server failed. Return True if the round has a server that was not tried.

        Otherwise the round has ended, and the caller should pause.
        """
        if self._since is None:
            self._since = time.monotonic()
        self._servers.leave(server)
        self._tried.append(server)
        if len(self._tried) < len(self._servers):
            return True
        self._tried.clear()
        return False

    def lasted(self) -> float:
        """Return the seconds since the search's first failure."""
        return 0.0 if self._since is None else time.monotonic() - self._since


# A server counts as slow when its answers take several times as long as the best server's, and no
# longer when they are about as fast, both a few times in a row. Short times never count as slow.
_SLOWER, _AS_FAST = 5.0, 2.0
_QUICK = 0.2
_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Holds one measurement of a server.

    ``seconds`` is the server's response time, infinite if the server is silent or not ready.
    """

    seconds: float
    users: int | None  # connected processes of the same group; None: unknown


class Balancer:
    """Chooses a server that is not slow and has no more than its share of the processes.

    Servers are identified by their indexes in the list of servers.
    """

    def __init__(self, servers: int) -> None:
        self._slow = [False] * servers
        self._row = [0] * servers  # samples in a row that contradict ``_slow``

    def choose(self, current: int, samples: Sequence[LoadSample | None]) -> int:
        """Return the index of the server to use. A sample is None if its server is unreachable."""
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
        # Only the excess processes move, not every process that sees the excess.
        excess = users[current] - sum(users.values()) / len(users)
        return least if random.random() * users[current] < excess else current

    def _judge(self, samples: Sequence[LoadSample | None]) -> None:
        best = min((one.seconds for one in samples if one is not None), default=math.inf)
        for place, one in enumerate(samples):
            if one is None:
                self._slow[place], self._row[place] = False, 0  # a returning server starts anew
                continue
            if self._slow[place]:
                against = one.seconds <= max(_QUICK / 2, best * _AS_FAST)
            else:
                against = one.seconds > max(_QUICK, best * _SLOWER)
            self._row[place] = self._row[place] + 1 if against else 0
            if self._row[place] >= _IN_A_ROW:
                self._slow[place], self._row[place] = not self._slow[place], 0
