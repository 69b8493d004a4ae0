"""Keeps one unit running: starts it, asks for its health, starts it again when it ends."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.topology.layouts.layout import Probe
from jobqueue.topology.supervisor import identity
from jobqueue.topology.supervisor.logfile import Tail
from jobqueue.topology.supervisor.unit import Unit

_TICK = 0.1  # how soon an end is seen
_ASK_EVERY = 1.0


class Health(enum.StrEnum):
    """How a unit is doing, in the words of the table."""

    WAITING = "waiting"  # for the stage before it
    STARTING = "starting"
    OK = "ok"
    FAILING = "failing"
    RESTARTING = "restarting"
    GIVEN_UP = "given up"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Restarts:
    """When to start again what ended: soon, then ever later, then no more."""

    allowed: bool = True
    first_wait: float = 0.5
    longest_wait: float = 30.0
    in_a_row: int = 12
    calm: float = 60.0  # a run of this length ends the row


@dataclass(frozen=True, slots=True)
class Row:
    """One unit at one moment."""

    name: str
    role: str
    stage: int
    pid: int | None
    began: str | None
    address: str
    health: Health
    detail: str
    restarts: int
    since: float | None  # when it was started, by the wall clock
    log: Path | None
    last_line: str
    probe: Probe | None
    stop_signal: int


class Keeper:
    """One unit and the task that keeps it."""

    def __init__(self, unit: Unit, restarts: Restarts, changed: Callable[[], None]) -> None:
        self.unit = unit
        self.health = Health.WAITING
        self._detail = ""
        self._restarts = restarts
        self._count = 0
        self._row = 0  # restarts without a calm run in between
        self._since: float | None = None
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._tail = Tail(unit.log) if unit.log else None

    def start(self) -> None:
        """Begin; ``ready`` tells when it is up."""
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(), name=f"keep-{self.unit.name}")

    async def ready(self, timeout: float) -> None:
        """Wait until it is up for the first time; Unavailable says why it does not come up."""
        assert self._ready is not None
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            why = self._detail or self.health.value
            raise Unavailable(
                f"{self.unit.name} is not ready after {timeout:g} s: {why}{self._where()}"
            ) from None

    async def stop(self) -> None:
        """End it, and stop keeping it."""
        if self._task is None:
            return  # never begun, or stopped already
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if self._ready is not None and not self._ready.cancel() and not self._ready.cancelled():
            self._ready.exception()  # seen: asyncio would complain otherwise
        self._set(Health.STOPPING)
        await self.unit.stop()
        self._set(Health.STOPPED)

    def row(self) -> Row:
        """Now."""
        unit = self.unit
        pid = unit.pid
        return Row(
            name=unit.name,
            role=unit.role,
            stage=unit.stage,
            pid=pid,
            began=identity.began(pid) if pid is not None else None,
            address=unit.address,
            health=self.health,
            detail=self._detail,
            restarts=self._count,
            since=self._since if pid is not None else None,
            log=unit.log,
            last_line=self._tail.line() if self._tail else "",
            probe=unit.probe,
            stop_signal=unit.stop_signal,
        )

    async def _keep(self) -> None:
        while True:
            self._set(Health.STARTING)
            self._since = time.time()
            try:
                await self.unit.launch()
                self._changed()  # there is a pid now
                error: JobQueueError = Unavailable(await self._watch())
            except JobQueueError as refused:
                error = refused
            if self._never_ready(error) or not self._may_restart():
                self._set(Health.GIVEN_UP, error.message)
                return
            wait = min(self._restarts.longest_wait, self._restarts.first_wait * 2**self._row)
            self._set(Health.RESTARTING, f"{error.message}; again in {wait:g} s")
            self._row += 1
            await asyncio.sleep(wait)
            self._count += 1

    def _may_restart(self) -> bool:
        return self._restarts.allowed and self._row < self._restarts.in_a_row

    async def _watch(self) -> str:
        """Until it ends; says how."""
        began = time.monotonic()
        asked = -_ASK_EVERY
        while (ended := self.unit.ended()) is None:
            now = time.monotonic()
            if now - began > self._restarts.calm:
                self._row = 0
            if now - asked >= _ASK_EVERY or self.health is not Health.OK:
                asked = now
                await self._ask()
            await asyncio.sleep(_TICK)
        return ended

    async def _ask(self) -> None:
        found = await self.unit.health()
        if found.ok:
            self._set(Health.OK, found.detail)
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        elif self.health is Health.STARTING:
            self._detail = found.detail  # it may well not listen yet
        elif self.unit.ended() is None:
            self._set(Health.FAILING, found.detail)

    def _never_ready(self, error: JobQueueError) -> bool:
        """What ends before it was ever up would do so again: that is told, not repeated."""
        if self._ready is None or self._ready.done():
            return False
        if isinstance(error, Unavailable):
            error = Unavailable(f"{self.unit.name} did not start: {error.message}{self._where()}")
        self._ready.set_exception(error)
        return True

    def _where(self) -> str:
        line = self._tail.line() if self._tail else ""
        said = f"; it said: {line}" if line else ""
        return f"{said}\n(log: {self.unit.log})" if self.unit.log else said

    def _set(self, health: Health, detail: str = "") -> None:
        if (health, detail) != (self.health, self._detail):
            self.health, self._detail = health, detail
            self._changed()
