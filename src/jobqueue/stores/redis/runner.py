"""Runs scripts: measured, bounded in time, asked again when an answer was lost, never in doubt.

A write has a lane and a number (``scripts/lane.lua``). Asked again under the same number, Redis
gives the answer that it gave before, or makes the write if it never came: it happens once. Only
when Redis does not come back in time is the outcome unknown.

Once a call has waited in vain, others are refused at once, before anything is sent, until Redis
answers a PING again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import NoScriptError

from jobqueue.core.clock import Clock
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.stores.redis.deadline import within
from jobqueue.stores.redis.scripts import Script, script
from jobqueue.stores.redis.trouble import (
    LOST,
    TROUBLE,
    defect,
    passes,
    refused,
    replaced,
    unavailable,
    unknown,
)
from jobqueue.stores.redis.wire import Wire

LANES = 8
_PAUSE = 0.05  # before Redis is asked again
_PING_TIMEOUT = 0.5  # of a Redis that was away
_encode = msgspec.msgpack.Encoder().encode

Asked = Sequence[Any]


def opaque(data: bytes) -> msgspec.Raw:
    """Bytes as the scripts can read them: Redis's MessagePack has one kind of text, for both."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


class Lane:
    """A place in the line: one call at a time, each with a number."""

    __slots__ = ("call", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.call = 0


class _Attempt:
    """Whether anything was sent."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent = False

    def note(self) -> None:
        self.sent = True


class Runner:
    """Asks one Redis for one store."""

    def __init__(
        self,
        wire: Wire,
        prefix: str,
        clock: Clock | None,
        observer: Observer,
        patience: float,
    ) -> None:
        self.prefix = prefix
        self.node = secrets.token_hex(8)
        self.location = f"Redis at {wire.address}"
        self._wire = wire
        self._clock = clock
        self._observer = observer
        self._patience = patience
        self._lanes: asyncio.LifoQueue[Lane] = asyncio.LifoQueue()
        for n in range(LANES):
            self._lanes.put_nowait(Lane(f"{self.node}:{n}"))
        self.opened = False
        self._away: BaseException | None = None  # why Redis did not come back in time
        self._pinging: asyncio.Event | None = None

    @property
    def by_clock(self) -> bool:
        """Whether a test brought the clock; otherwise time is the server's."""
        return self._clock is not None

    def here(self) -> float:
        """What this machine's clock shows, or a test's, which is the store's, too."""
        return time.time() if self._clock is None else self._clock.now()

    async def read(self, name: str, asked: Asked = ()) -> Any:
        """Run a script that may be repeated."""
        return await self._measured(name, self.arguments(name, asked, "", 0), in_doubt=False)

    async def write(self, name: str, asked: Asked) -> Any:
        """Run a script that must happen once."""
        self._check_open()
        if self._away is not None:
            await self._check_back()
        lane = await self._lanes.get()
        try:
            lane.call += 1
            arguments = self.arguments(name, asked, lane.name, lane.call)
            return await self._measured(name, arguments, in_doubt=True)
        finally:
            self._lanes.put_nowait(lane)

    async def command(
        self, name: str, *command: str | int | bytes, patience: float | None = None
    ) -> Any:
        """Run a plain command that may be repeated."""
        return await self._measured(name, command, in_doubt=False, patience=patience)

    def arguments(self, name: str, asked: Asked, lane: str, call: int) -> tuple[Any, ...]:
        """What stands behind EVALSHA."""
        found = script(name)
        now = "" if self._clock is None else repr(self._clock.now())
        return (found, 1, self.prefix, now, self.node, lane, call, _encode(asked))

    def _check_open(self) -> None:
        if not self.opened:
            raise Unavailable(f"{self.location}: the store is not open")

    async def _measured(
        self,
        name: str,
        command: tuple[Any, ...],
        *,
        in_doubt: bool,
        patience: float | None = None,
    ) -> Any:
        self._check_open()
        if self._away is not None and patience is None:
            await self._check_back()
        began = time.perf_counter()
        try:
            return await self._run(
                command, in_doubt, self._patience if patience is None else patience
            )
        finally:
            self._observer.queried(name, time.perf_counter() - began)

    async def _check_back(self) -> None:
        """Return if Redis is back; StoreAway otherwise. One caller asks it for all of them."""
        if self._pinging is not None:
            await self._pinging.wait()
        else:
            self._pinging = asked = asyncio.Event()
            try:
                await within(_PING_TIMEOUT, self._wire.execute("PING"))
                self._away = None
            except TROUBLE as error:
                if isinstance(error, LOST):
                    self._away = error
                    await self._wire.drop()
                else:  # it answers, and the call hears what
                    self._away = None
            finally:
                self._pinging = None
                asked.set()
        if self._away is not None:
            raise unavailable(self._away, self.location)

    async def _run(self, command: tuple[Any, ...], in_doubt: bool, patience: float) -> Any:
        deadline = time.monotonic() + patience
        where = self.location
        doubt: BaseException | None = None
        while True:
            attempt = _Attempt()
            try:
                # Little patience is no reason to blame a server that is slow, not away.
                said = await within(self._patience / 2, self._ask(command, attempt))
                self._away = None
                return said
            except TROUBLE as error:
                if passes(error):
                    trouble: BaseException = error
                elif refused(error):
                    if replaced(error):
                        await self._wire.drop()
                    raise _verdict(doubt, error, where) from error
                elif not isinstance(error, LOST):
                    raise defect(error, where) from error
                else:
                    trouble = error
                    if in_doubt and attempt.sent:
                        doubt = error
                    await self._wire.drop()  # the name may lead to another server next time
                if time.monotonic() >= deadline:
                    self._away = trouble
                    raise _verdict(doubt, trouble, where) from trouble
            await asyncio.sleep(_PAUSE)

    async def _ask(self, command: tuple[Any, ...], attempt: _Attempt) -> Any:
        found, *rest = command
        if not isinstance(found, Script):
            return await self._wire.execute(*command, note=attempt.note)
        try:
            return await self._wire.execute("EVALSHA", found.sha, *rest, note=attempt.note)
        except NoScriptError:  # restarted, or its scripts were flushed; EVAL loads it for others
            return await self._wire.execute("EVAL", found.text, *rest, note=attempt.note)


def _verdict(doubt: BaseException | None, error: BaseException, where: str) -> JobQueueError:
    return unavailable(error, where) if doubt is None else unknown(doubt, where)
