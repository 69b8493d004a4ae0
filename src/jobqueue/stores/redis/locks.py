"""Take advisory locks on jobs in Redis (jq:FR-015), a whole batch in one round trip.

A lock covers the time between reading candidates and writing the assignment. Locks are never
released but expire: the lock's name contains the attempt, so each attempt has a new lock. If Redis
does not answer within the deadline, ``take`` returns None at once until a probe in the background
succeeds. So an outage delays only the first claim. The same task probes a Redis that was not used
for some time, so that its health is also correct while there are no claims.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Sequence
from importlib import resources
from typing import TypeVar

from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as SocketTimeout

from jobqueue.core.job import ComponentHealth
from jobqueue.core.observer import Observer
from jobqueue.core.waiting import GrowingPause, is_set_within
from jobqueue.stores.redis.connections import RedisConnections, within

log = logging.getLogger("jobqueue.redis")
T = TypeVar("T")

TIMEOUT = 0.05
PREFIX = "{jq}:lock:"
# Enough for the write that follows, even if it waits for a busy disk or is repeated. Short, because
# after a crash between lock and write no server assigns these jobs for this time.
LIFE = 5.0

_CHUNK = 1000  # names in one call, which blocks Redis for 2.5 ms
_CONNECT_TIMEOUT = 1.0  # in the background: TLS over a slow link may take its time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_STEADY = 10.0  # seconds without an outage, after which the next one begins with short pauses
_QUIET = 5.0  # seconds without a call, after which Redis is probed
_MAX_REASON = 200
_MEANING = "dispatch goes on under PostgreSQL's row locks"


class RedisLocks:
    """Implements ``core.store.Locks``. The value of a lock is the server process's random token."""

    def __init__(
        self,
        url: str,
        *,
        observer: Observer | None = None,
        timeout: float = TIMEOUT,
        life: float = LIFE,
        prefix: str = PREFIX,
    ) -> None:
        self._connections = RedisConnections(url)
        self._observer = observer or Observer()
        self._timeout = timeout
        self._life = max(1, round(life * 1000))
        self._prefix = prefix
        self._token = secrets.token_hex(8)
        self._script = resources.files(__package__).joinpath("take.lua").read_bytes()
        self._sha = hashlib.sha1(self._script, usedforsecurity=False).hexdigest()
        self._up = False
        self._why = "not open"
        self._changed = 0.0  # when Redis was last lost or found again
        self._answered = 0.0
        self._pause = GrowingPause(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._gone = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._watching is not None:
            return
        try:
            await self._probe(_CONNECT_TIMEOUT)  # no claim waits yet, so a slow answer is enough
        except Exception as error:  # dispatch must go on after any error
            self._go_away(error)
            await self._connections.drop()
        else:
            self._come_back()
        self._watching = asyncio.create_task(self._watch(), name="jobqueue-redis-watch")

    async def close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._up, self._why = False, "closed"
        self._gone.clear()
        await self._connections.close()

    async def take(self, names: Sequence[str], wanted: int) -> list[int] | None:
        if not names or wanted < 1:
            return []
        if not self._up:
            return None
        won: list[int] = []
        try:
            for start in range(0, len(names), _CHUNK):
                began = time.perf_counter()
                part = names[start : start + _CHUNK]
                found = await _answer(self._timeout, self._ask(part, wanted - len(won)))
                self._answered = time.perf_counter()
                self._observer.locked("take", self._answered - began)
                won += [start + position for position in found] if start else found
                if len(won) == wanted:
                    break
        except Exception as error:  # dispatch must go on after any error
            await self._failed(error)
            return None
        return won

    def health(self) -> ComponentHealth:
        where = self._connections.address
        if self._up:
            return ComponentHealth("redis", True, where)
        return ComponentHealth("redis", False, f"{where}: {self._why}; {_MEANING}")

    # -- calls -----------------------------------------------------------------------------

    async def _ask(self, names: Sequence[str], wanted: int) -> list[int]:
        tail = (1, self._prefix, self._token, wanted, self._life, "\n".join(names))
        try:
            won: list[int] = await self._connections.execute("EVALSHA", self._sha, *tail)
        except NoScriptError:  # Redis was restarted, or its scripts were flushed; EVAL loads it
            won = await self._connections.execute("EVAL", self._script, *tail)
        return won

    async def _probe(self, timeout: float) -> None:
        """Connect and take an unused lock, to find out whether Redis accepts writes."""
        await _answer(_CONNECT_TIMEOUT, self._connections.connect())
        await _answer(timeout, self._ask([f"probe:{self._token}"], 1))

    # -- going away and coming back --------------------------------------------------------

    async def _failed(self, error: Exception) -> None:
        if self._up:
            self._go_away(error)
        else:
            self._note(error)
        await self._connections.drop()  # the name may lead to another server next time

    def _note(self, error: Exception) -> None:
        self._why = (str(error) or type(error).__name__)[:_MAX_REASON]
        self._observer.lock_failed(_kind(error))

    def _go_away(self, error: Exception) -> None:
        """Record that Redis is unavailable: ``take`` returns None from now on."""
        self._note(error)
        now = time.monotonic()
        if now - self._changed > _STEADY:
            self._pause.reset()
        self._up, self._changed = False, now
        self._gone.set()
        self._observer.locks_up(False)
        log.warning(
            "Redis at %s is unavailable: %s; %s", self._connections.address, self._why, _MEANING
        )

    def _come_back(self) -> None:
        now = time.monotonic()
        if self._gone.is_set():
            away = now - self._changed
            log.info(
                "Redis at %s is back after %.1f s; claims take locks in it again",
                self._connections.address,
                away,
            )
            self._gone.clear()
        self._up, self._changed, self._answered = True, now, time.perf_counter()
        self._observer.locks_up(True)

    async def _watch(self) -> None:
        while True:
            if self._up:
                if await is_set_within(self._gone, _QUIET) or self._asked_within(_QUIET):
                    continue
            else:
                # Servers that lost Redis together must not come back together.
                await self._pause.wait()
            try:
                await self._probe(self._timeout)
            except Exception as error:  # the task must go on after any error
                await self._failed(error)
            else:
                if not self._up:
                    self._come_back()

    def _asked_within(self, seconds: float) -> bool:
        return time.perf_counter() - self._answered < seconds


async def _answer(seconds: float, asked: Awaitable[T]) -> T:
    """Do the same as ``within``, but name the limit in the text of the TimeoutError."""
    try:
        return await within(seconds, asked)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds * 1000:g} ms") from None


def _kind(error: Exception) -> str:
    """Return the label under which a metric counts an error."""
    if isinstance(error, TimeoutError | SocketTimeout):
        return "timeout"
    if isinstance(error, ResponseError | AuthenticationError):
        return "refused"
    if isinstance(error, Disconnected | OSError):
        return "connection"
    return "protocol" if isinstance(error, RedisError) else "other"
