"""Start the units of a layout stage by stage, keep them running, and stop them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from jobqueue.connect.starting import started
from jobqueue.core.errors import Code, Internal, JobQueueError, Unavailable
from jobqueue.core.waiting import is_set_within
from jobqueue.fleet import folders, ports, processes, services, state
from jobqueue.fleet.guard import SupervisorGuard
from jobqueue.fleet.keeper import Keeper, ProgramUnit, Restarts, Unit
from jobqueue.fleet.layout import Layout
from jobqueue.fleet.state import FleetState
from jobqueue.logs import timestamp

_READY_WITHIN = 60.0
_WRITE_EVERY = 1.0
_STDERR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Message = dict[str, Any]


class PortTaken(Unavailable):
    """Raised if a topology did not start because another program took one of its ports.

    The caller may try again with other ports.
    """


class Supervisor:
    """Runs a layout in a folder. ``stop`` may be called twice, and before ``start`` ends."""

    def __init__(
        self,
        layout: Layout,
        claim: folders.FolderLock,
        environ: Mapping[str, str],
        *,
        detached: bool = False,
        restarts: Restarts | None = None,
        on_change: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.layout = layout
        self.folder = claim.folder
        self.ready = False
        self.on_change = on_change
        self._claim = claim
        self._environ = environ
        self._detached = detached
        self._started = time.time()
        self._guard: SupervisorGuard | None = None
        self._began = processes.began(os.getpid())
        self._down = False
        units = sorted(self._units(), key=lambda unit: unit.stage)
        self._stages = [
            [Keeper(unit, restarts or Restarts(), self._changed) for unit in stage]
            for _, stage in groupby(units, key=lambda unit: unit.stage)
        ]

    def _units(self) -> list[Unit]:
        logs = self.folder / folders.LOGS
        behind = {
            service.name: services.create(service, self.folder, logs)
            for service in self.layout.services
        }
        private = [one for one in behind.values() if isinstance(one, services.PrivateService)]
        if not self._detached:  # the processes of a detached topology survive its supervisor
            self._guard = SupervisorGuard({one.data: one.stop_signal for one in private})

        def told_by(service: str, variable: str) -> Mapping[str, str]:
            return behind[service].told(variable)

        processes = [
            ProgramUnit(process, logs / f"{process.name}.log", self._environ, told_by, self._guard)
            for process in self.layout.processes
        ]
        return [*behind.values(), *processes]

    @property
    def keepers(self) -> list[Keeper]:
        """Return the keepers of all units, in the order of the start."""
        return [keeper for stage in self._stages for keeper in stage]

    def state(self) -> FleetState:
        return FleetState(
            topology=self.layout.name,
            folder=self.folder,
            detached=self._detached,
            started=self._started,
            ready=self.ready,
            pid=os.getpid(),
            began=self._began,
            http=self.layout.http,
            grpc=self.layout.grpc,
            rows=tuple(keeper.row() for keeper in self.keepers),
            api=self.layout.api,
        )

    async def start(self) -> None:
        """Start all units, and return when every unit is healthy.

        If a unit does not start, stop all units and raise the reason. Raise PortTaken if another
        program has taken a port.
        """
        folders.remember(self._environ, self.folder)
        self._changed("")
        if self._guard is not None:
            self._guard.group()  # starts the guard
        try:
            for stage in self._stages:
                for keeper in stage:
                    keeper.start()
                await asyncio.gather(*(keeper.ready(_READY_WITHIN) for keeper in stage))
        except BaseException as error:
            await self.stop()
            if isinstance(error, Unavailable) and (taken := self._taken_port()):
                why = f"{error.message}\n(another program has taken port {taken})"
                raise PortTaken(why) from error
            raise
        self.ready = True
        self._changed("")

    def _taken_port(self) -> int | None:
        """Return a port of the layout that another program has taken meanwhile, or None."""
        chosen = [port for process in self.layout.processes for port in process.ports]
        private = [one for one in self.keepers if isinstance(one.unit, services.PrivateService)]
        chosen += [one.unit.probe.port for one in private if one.unit.probe]
        return next((port for port in chosen if not ports.is_free(port)), None)

    async def run(self, stop: asyncio.Event) -> None:
        """Write the state file at intervals until ``stop`` is set."""
        while not stop.is_set():
            self._write()
            await is_set_within(stop, _WRITE_EVERY)

    async def stop(self) -> None:
        """Stop all units, the last stage first. Each process has its own deadline."""
        if not self._down:
            self.ready = False
            for stage in reversed(self._stages):
                await asyncio.gather(*(keeper.stop() for keeper in stage))
            self._end()

    def kill(self) -> None:
        """Kill all units at once."""
        for keeper in reversed(self.keepers):
            keeper.kill()
        self._end()

    def _end(self) -> None:
        self._down = True
        if self._guard is not None:
            self._guard.dismiss()
        folders.forget(self._environ, self.folder)
        self._claim.release()

    def _changed(self, line: str) -> None:
        self._write()
        with contextlib.suppress(OSError):  # the terminal or the pipe's reader does not exist
            self.on_change(line)

    def _write(self) -> None:
        if not self._down:
            with contextlib.suppress(OSError):  # a full disk must not stop the topology
                self.state().write()


class Ending(enum.Enum):
    """Names the ways in which a `jq-ctl up` can end."""

    STOPPED = "stopped"
    INTERRUPTED = "interrupted"  # by a signal before all units were healthy
    KILLED = "killed"  # by a second signal


async def supervise(
    supervisor: Supervisor, on_up: Callable[[], None], on_stopping: Callable[[], None]
) -> Ending:
    """Start a topology and keep it running until a signal stops it; a second signal kills it.

    If the topology does not start, raise the reason.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    life = asyncio.create_task(_live(supervisor, stop, on_up), name="supervise")

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill()
            life.cancel()
        else:
            stop.set()
            on_stopping()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        return await life
    except asyncio.CancelledError:
        if not stop.is_set():
            raise  # the caller was cancelled
        return Ending.KILLED
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _live(supervisor: Supervisor, stop: asyncio.Event, on_up: Callable[[], None]) -> Ending:
    try:
        # ``start`` itself stops the units that it has started.
        if not await started(supervisor.start(), stop):
            return Ending.INTERRUPTED
        on_up()
        await supervisor.run(stop)
        return Ending.STOPPED
    finally:
        await supervisor.stop()


# A supervisor in the background.


def launch(
    layout: Layout,
    claim: folders.FolderLock,
    environ: Mapping[str, str],
    restarts: Restarts,
    on_line: Callable[[str], None],
) -> FleetState:
    """Start a supervisor in the background, and return its state when all units are healthy.

    If the topology does not start, raise the reason. ``on_line`` is called with each line about a
    change. The caller must not have threads or event loops, because the supervisor is its fork.
    """
    log = claim.folder / folders.LOGS / "supervisor.log"

    async def keep_running(tell: Callable[[_Message], None]) -> None:
        def on_change(line: str) -> None:
            if line:
                tell({"line": line})
                print(f"{timestamp(time.time())} {line}", flush=True)  # noqa: T201 - its log

        supervisor = Supervisor(
            layout, claim, environ, detached=True, restarts=restarts, on_change=on_change
        )
        await supervise(supervisor, lambda: tell({"up": True}), lambda: None)

    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()  # the child inherits the lock, and the settings with their secrets
    if pid == 0:
        os.close(reading)
        _go_on(keep_running, writing, log)
    os.close(writing)
    outcome: _Message = {}
    try:
        with os.fdopen(reading) as messages:
            for message in map(json.loads, messages):
                if "line" in message:
                    on_line(message["line"])
                else:
                    outcome = message
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)  # the supervisor stops its units
        raise
    claim.release()
    if "up" in outcome:
        return state.read(claim.folder)
    os.waitpid(pid, 0)
    if not outcome:
        raise Internal(f"the supervisor (pid {pid}) ended unexpectedly; see its log {log}")
    if outcome["port_taken"]:
        raise PortTaken(outcome["failed"])
    error = JobQueueError(outcome["failed"])
    error.code = Code(outcome["code"])
    raise error


def _go_on(body: Callable[[Callable[[_Message], None]], Any], writing: int, log: Path) -> NoReturn:
    """Run ``body`` in a new session in the forked process, and exit.

    ``body`` gets a function that sends messages to the parent through the pipe ``writing``.
    """
    status = 1
    try:
        os.setsid()  # the terminal's signals do not reach the new session
        _close_inherited()
        folders.begin_log(log)
        with folders.open_log(log) as out, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        pipe = os.fdopen(writing, "w", buffering=1)

        def tell(message: _Message) -> None:
            if not pipe.closed:
                with contextlib.suppress(OSError):  # the parent has ended
                    pipe.write(json.dumps(message) + "\n")
                    if "line" not in message:  # this was the last message
                        pipe.close()

        try:
            asyncio.run(body(tell))
            status = 0
        except JobQueueError as error:
            taken = isinstance(error, PortTaken)
            tell({"failed": error.message, "code": error.code.value, "port_taken": taken})
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _close_inherited() -> None:
    """Close the files that this program inherited from its caller.

    Otherwise the supervisor would keep a file lock of the caller until the topology stops. The
    files that this program opened itself are not inheritable, and stay open.
    """
    for name in os.listdir("/dev/fd"):
        number = int(name)
        with contextlib.suppress(OSError):  # the file of the listing itself is closed by now
            if number > _STDERR and os.get_inheritable(number):
                os.close(number)
