"""Keep each unit of a topology running: a unit is a process or a backing service."""

from __future__ import annotations

import asyncio
import enum
import json
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.fleet import folders, processes
from jobqueue.fleet.backing.server import KILL, Ending
from jobqueue.fleet.guard import SupervisorGuard
from jobqueue.fleet.layout import Probe, Process
from jobqueue.worker.executors.spawn import describe_exit

_STOP_TICK = 0.05
_LOOK_EVERY = 0.1  # seconds between two checks whether the process has ended
_ASK_EVERY = 1.0  # seconds between two checks of the health
_ANSWER_WITHIN = 2.0
_LARGEST_ANSWER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """Holds the result of a health check.

    ``detail`` is the reason for a failure, or a remark for the user.
    """

    ok: bool
    detail: str = ""


async def ask(probe: Probe) -> Finding:
    """Run a health check once. Every failure is returned as a Finding; no exception is raised."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            return await _ask(probe)
    except TimeoutError:
        return Finding(False, f"no answer within {_ANSWER_WITHIN:g} s")
    except (OSError, ValueError, IndexError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Finding(False, f"no answer: {why}")


async def _ask(probe: Probe) -> Finding:
    context = None
    if probe.tls:  # any certificate is accepted: the process belongs to this topology
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(probe.host, probe.port, ssl=context)
    try:
        if not probe.path:
            return Finding(True)
        writer.write(
            f"GET {probe.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.readexactly(_LARGEST_ANSWER)
    except asyncio.IncompleteReadError as complete:
        answer = complete.partial
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    return Finding(True) if status == 200 else Finding(False, _reason(body) or f"HTTP {status}")


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


class Unit:
    """Represents a process or backing service of a topology.

    ``stop`` and ``kill`` may be called at any time.
    """

    name: str
    role: str
    stage: int
    address = ""
    log: Path | None = None
    stop_signal = 0  # 0: the unit has no process that this topology started

    @property
    def pid(self) -> int | None:
        """Return the pid of the unit's running process, or None.

        A named service has no pid: the topology did not start it.
        """
        return None

    @property
    def probe(self) -> Probe | None:
        return None

    async def launch(self) -> None:
        """Start the unit without waiting until it is healthy.

        Raise Unavailable with the reason if the unit cannot start.
        """

    def ended(self) -> str | None:
        """Return how the unit's process ended, or None while it runs."""
        return None

    async def health(self) -> Finding:
        return await ask(self.probe) if self.probe else Finding(False, "not started")

    def last_words(self) -> str:
        """Return the end of the unit's log, for the error of a failed start."""
        return folders.last_line(self.log)

    async def stop(self) -> None:
        """Ask the unit's process to end, and kill it if it still runs when its time is up."""

    def kill(self) -> None:
        """End the unit's process at once."""


class ProcessUnit(Unit):
    """A unit whose process this topology starts and stops."""

    log: Path
    abrupt = signal.SIGKILL  # the signal that ends the process at once

    def __init__(self, name: str, role: str, stage: int, log: Path, ending: Ending) -> None:
        """Create the unit without starting its process.

        ``ending`` lists the signals of a stop, each with the seconds to wait after it.
        """
        self.name = name
        self.role = role
        self.stage = stage
        self.log = log
        self.stop_signal = int(ending[0][0])
        self._ending = ending
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def ended(self) -> str | None:
        if self._child is None:
            return "not started"
        status = self._child.poll()
        return None if status is None else describe_exit(status)

    async def stop(self) -> None:
        for number, patience in self._ending:
            deadline = time.monotonic() + patience
            self._send(number)
            self._send(signal.SIGCONT)  # a paused process reacts only to SIGCONT and SIGKILL
            while self.pid is not None and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(_STOP_TICK)

    def kill(self) -> None:
        self._send(self.abrupt)

    def _send(self, number: int) -> None:
        if self._child is not None:
            self._child.send_signal(number)  # has no effect on an ended process


class ProgramUnit(ProcessUnit):
    """A unit that runs a program of this package as a process of the layout."""

    def __init__(
        self,
        process: Process,
        log: Path,
        environ: Mapping[str, str],
        told_by: Callable[[str, str], Mapping[str, str]],
        guard: SupervisorGuard | None,
    ) -> None:
        """Create the unit without starting its process.

        ``told_by`` gets the names of a service and of a variable. It returns the environment by
        which the program finds the service.
        """
        ending = [(signal.SIGTERM, process.stop_timeout), *KILL]
        super().__init__(process.name, process.role, process.stage, log, ending)
        self.address = process.address
        self._process = process
        self._environ = environ
        self._told_by = told_by
        self._guard = guard
        folders.begin_log(log)

    @property
    def probe(self) -> Probe:
        return self._process.probe

    async def launch(self) -> None:
        environment = {**self._environ, **self._process.environment}
        for variable, service in self._process.needs.items():
            environment |= self._told_by(service, variable)
        # In another process group, only the supervisor gets the signal of Ctrl-C.
        group = self._guard.group() if self._guard else 0
        with folders.open_log(self.log) as log:
            try:
                self._child = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                    self._process.command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=group,
                )
            except OSError as error:
                raise Unavailable(f"cannot start the process of {self.name}: {error}") from error


class UnitHealth(enum.StrEnum):
    """Names the possible health of a unit. The table of `jq-ctl ps` shows these values."""

    WAITING = "waiting"  # until the earlier stage is ready
    STARTING = "starting"
    OK = "ok"
    FAILING = "failing"
    RESTARTING = "restarting"
    GIVEN_UP = "given up"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Restarts:
    """Defines how often and after which waits an ended unit is started again.

    Each wait is twice as long as the last wait. After ``in_a_row`` restarts, the unit is given up.
    When a unit has run for ``calm`` seconds, the waits and the count of restarts begin anew.
    """

    allowed: bool = True
    first_wait: float = 0.5
    longest_wait: float = 30.0
    in_a_row: int = 12
    calm: float = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """Describes a unit at one moment, for the state file and the table of `jq-ctl ps`."""

    name: str
    role: str
    stage: int
    pid: int | None
    began: str | None
    address: str
    health: UnitHealth
    detail: str
    restarts: int
    since: float | None  # the time of the last start, by the wall clock
    log: Path | None
    last_line: str
    probe: Probe | None
    stop_signal: int


class Keeper:
    """Starts a unit, checks its health, and starts it again when it ends."""

    def __init__(self, unit: Unit, restarts: Restarts, changed: Callable[[str], None]) -> None:
        """Create the keeper without starting the unit.

        ``changed`` is called with a line that describes each change, or "" if only the pid changed.
        """
        self.unit = unit
        self.health = UnitHealth.WAITING
        self._detail = ""
        self._restarts = restarts
        self._count = 0
        self._in_a_row = 0  # restarts without a calm run in between
        self._since: float | None = None
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start the task that keeps the unit running. ``ready`` waits until the unit is healthy."""
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(), name=f"keep-{self.unit.name}")

    async def ready(self, timeout: float) -> None:
        """Wait until the unit is healthy for the first time.

        Raise Unavailable with the reason if the unit ends before, or ``timeout`` seconds pass.
        """
        assert self._ready is not None
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            why = self._detail or self.health.value
            raise Unavailable(
                f"{self.unit.name} is not ready after {timeout:g} s: {why}{self._log_end()}"
            ) from None

    async def stop(self) -> None:
        """Stop the unit, and do not start it again."""
        if self._task is None:
            return  # never started, or stopped already
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if self._ready is not None and not self._ready.cancel() and not self._ready.cancelled():
            self._ready.exception()  # asyncio logs an exception that nobody retrieves
        self._set(UnitHealth.STOPPING)
        await self.unit.stop()
        self._set(UnitHealth.STOPPED)

    def kill(self) -> None:
        """Kill the unit's process, and do not start it again. A start under way is cancelled."""
        if self._task is not None:
            self._task.cancel()
        self.unit.kill()

    def row(self) -> Row:
        unit = self.unit
        pid = unit.pid
        return Row(
            name=unit.name,
            role=unit.role,
            stage=unit.stage,
            pid=pid,
            began=processes.began(pid) if pid is not None else None,
            address=unit.address,
            health=self.health,
            detail=self._detail,
            restarts=self._count,
            since=self._since if pid is not None else None,
            log=unit.log,
            last_line=folders.last_line(unit.log),
            probe=unit.probe,
            stop_signal=unit.stop_signal,
        )

    async def _keep(self) -> None:
        while True:
            self._set(UnitHealth.STARTING)
            self._since = time.time()
            try:
                await self.unit.launch()
                self._changed("")  # the unit has a pid now
                error: JobQueueError = Unavailable(await self._watch())
            except JobQueueError as refused:
                error = refused
            restarts = self._restarts
            may_restart = restarts.allowed and self._in_a_row < restarts.in_a_row
            if self._never_ready(error) or not may_restart:
                self._set(UnitHealth.GIVEN_UP, error.message)
                return
            wait = min(restarts.longest_wait, restarts.first_wait * 2**self._in_a_row)
            self._set(UnitHealth.RESTARTING, f"{error.message}; again in {wait:g} s")
            self._in_a_row += 1
            await asyncio.sleep(wait)
            self._count += 1

    async def _watch(self) -> str:
        """Check the unit's health until its process ends; return how the process ended."""
        began = time.monotonic()
        asked = -_ASK_EVERY
        while (ended := self.unit.ended()) is None:
            now = time.monotonic()
            if now - began > self._restarts.calm:
                self._in_a_row = 0
            if now - asked >= _ASK_EVERY or self.health is not UnitHealth.OK:
                asked = now
                await self._ask()
            await asyncio.sleep(_LOOK_EVERY)
        return ended

    async def _ask(self) -> None:
        found = await self.unit.health()
        if found.ok:
            self._set(UnitHealth.OK, found.detail)
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        elif self.health is UnitHealth.STARTING:
            self._detail = found.detail  # the process may not listen yet
        elif self.unit.ended() is None:
            self._set(UnitHealth.FAILING, found.detail)

    def _never_ready(self, error: JobQueueError) -> bool:
        """Return True if the unit ended before it was ever healthy; ``ready`` raises the error.

        Such a unit is not started again: the next start would end in the same way.
        """
        if self._ready is None or self._ready.done():
            return False
        if isinstance(error, Unavailable):
            error = Unavailable(f"{self.unit.name} did not start: {error.message}{self._log_end()}")
        self._ready.set_exception(error)
        return True

    def _log_end(self) -> str:
        words = self.unit.last_words()
        said = f"; it said: {words}" if words else ""
        return f"{said}\n(log: {self.unit.log})" if self.unit.log else said

    def _set(self, health: UnitHealth, detail: str = "") -> None:
        if (health, detail) != (self.health, self._detail):
            self.health, self._detail = health, detail
            self._changed(self._line())

    def _line(self) -> str:
        unit, pid = self.unit, self.unit.pid
        where = f" at {unit.address}" if self.health is UnitHealth.OK and unit.address else ""
        why = f": {self._detail}" if self._detail else ""
        return f"{unit.name} {self.health.value}{where}{f' (pid {pid})' if pid else ''}{why}"
