"""The units of a topology, processes and services, and what keeps each of them running."""

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
_LOOK_EVERY = 0.1  # for an end
_ASK_EVERY = 1.0
_ANSWER_WITHIN = 2.0
_LARGEST_ANSWER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to a question for health. The detail is a reason, or a remark for people."""

    ok: bool
    detail: str = ""


async def ask(probe: Probe) -> Finding:
    """Ask once. Never raises."""
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
    if probe.tls:  # any certificate will do: this is a process of ours on this machine
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
    """A process or a service. `stop` and `kill` may be called at any time."""

    name: str
    role: str
    stage: int
    address = ""
    log: Path | None = None
    stop_signal = 0  # 0: it has no process of ours

    @property
    def pid(self) -> int | None:
        """The running process, if it is one of ours."""
        return None

    @property
    def probe(self) -> Probe | None:
        return None

    async def launch(self) -> None:
        """Start it. Unavailable says why it cannot start."""

    def ended(self) -> str | None:
        """Return how it ended; None while it runs."""
        return None

    async def health(self) -> Finding:
        return await ask(self.probe) if self.probe else Finding(False, "not started")

    def last_words(self) -> str:
        """Return the end of its log, for the error of a start that failed."""
        return folders.last_line(self.log)

    async def stop(self) -> None:
        """Ask it to end, wait, and kill it when its time is up."""

    def kill(self) -> None:
        """End it now."""


class ProcessUnit(Unit):
    """A unit that is a process of this topology."""

    log: Path
    abrupt = signal.SIGKILL  # ends it at once

    def __init__(self, name: str, role: str, stage: int, log: Path, ending: Ending) -> None:
        """`ending`: the signals of a stop in turn, each with the seconds it has to work."""
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
            self._send(signal.SIGCONT)  # a stopped process hears only this and SIGKILL
            while self.pid is not None and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(_STOP_TICK)

    def kill(self) -> None:
        self._send(self.abrupt)

    def _send(self, number: int) -> None:
        if self._child is not None:
            self._child.send_signal(number)  # does nothing if it has ended


class ProgramUnit(ProcessUnit):
    """A process of the layout: one of this package's programs."""

    def __init__(
        self,
        process: Process,
        log: Path,
        environ: Mapping[str, str],
        told_by: Callable[[str, str], Mapping[str, str]],
        guard: SupervisorGuard | None,
    ) -> None:
        """`told_by` returns the environment that a service gives for a variable."""
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
        group = self._guard.group() if self._guard else 0  # Ctrl-C is for the supervisor alone
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
                raise Unavailable(f"{self.name}: cannot start: {error}") from error


class UnitHealth(enum.StrEnum):
    """The health of a unit, in the words of the table."""

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
    """The rule for starting a unit again: soon, then after ever longer waits, then no more."""

    allowed: bool = True
    first_wait: float = 0.5
    longest_wait: float = 30.0
    in_a_row: int = 12
    calm: float = 60.0  # a run of this length ends the row


@dataclass(frozen=True, slots=True)
class Row:
    """A unit at one moment, as the state file and the table have it."""

    name: str
    role: str
    stage: int
    pid: int | None
    began: str | None
    address: str
    health: UnitHealth
    detail: str
    restarts: int
    since: float | None  # when it was started, by the wall clock
    log: Path | None
    last_line: str
    probe: Probe | None
    stop_signal: int


class Keeper:
    """A unit and the task that keeps it running."""

    def __init__(self, unit: Unit, restarts: Restarts, changed: Callable[[str], None]) -> None:
        """`changed` gets a line that describes the change, or nothing if only the pid did."""
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
        """Begin to keep it running. `ready` waits until it is up."""
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(), name=f"keep-{self.unit.name}")

    async def ready(self, timeout: float) -> None:
        """Wait until it is up for the first time. Unavailable says why it does not come up."""
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
        """End it, and do not start it again."""
        if self._task is None:
            return  # never begun, or stopped already
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if self._ready is not None and not self._ready.cancel() and not self._ready.cancelled():
            self._ready.exception()  # asyncio complains of an exception that is never retrieved
        self._set(UnitHealth.STOPPING)
        await self.unit.stop()
        self._set(UnitHealth.STOPPED)

    def kill(self) -> None:
        """End it now, and do not start it again, not even where a start is under way."""
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
                self._changed("")  # there is a pid now
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
        """Ask for its health until it ends; return how it ended."""
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
            self._detail = found.detail  # it may not listen yet
        elif self.unit.ended() is None:
            self._set(UnitHealth.FAILING, found.detail)

    def _never_ready(self, error: JobQueueError) -> bool:
        """Tell `ready` of an end before the unit was ever up: the next start would end the same."""
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
