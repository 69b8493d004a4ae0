"""One thing the supervisor runs: what it can be asked and told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from jobqueue.core.errors import Unavailable
from jobqueue.topology.layouts.layout import Probe, Process
from jobqueue.topology.supervisor import logfile, probing
from jobqueue.topology.supervisor.guard import Guard
from jobqueue.worker.executors.groups import describe_exit

_TICK = 0.05


class Unit(Protocol):
    """A process or a service. ``stop`` and ``kill`` may be called at any time."""

    name: str
    role: str
    stage: int
    log: Path | None
    stop_signal: int

    @property
    def pid(self) -> int | None:
        """The process, while there is one of ours."""

    @property
    def address(self) -> str:
        """Where it answers."""

    @property
    def probe(self) -> Probe | None:
        """How its health is asked."""

    async def launch(self) -> None:
        """Start it; Unavailable says why it cannot."""

    def ended(self) -> str | None:
        """How it ended; None while it runs."""

    async def health(self) -> probing.Finding:
        """Ask it."""

    async def stop(self) -> None:
        """Ask it to end, wait, and kill it when its time is up."""

    def kill(self) -> None:
        """End it now."""


class ProcessUnit:
    """A process of the layout."""

    stop_signal = int(signal.SIGTERM)

    def __init__(
        self,
        process: Process,
        *,
        log: Path,
        environ: Mapping[str, str],
        told_by: Callable[[str, str], Mapping[str, str]],  # of a service and a variable
        guard: Guard | None,
    ) -> None:
        self.name = process.name
        self.role = process.role
        self.stage = process.stage
        self.address = process.address
        self.probe: Probe | None = process.probe
        self.log: Path | None = log
        self._process = process
        self._file = log
        self._environ = environ
        self._told_by = told_by
        self._guard = guard
        self._child: subprocess.Popen[bytes] | None = None
        logfile.begin(log)

    @property
    def pid(self) -> int | None:
        """The running process."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    async def launch(self) -> None:
        """Start it in a process group apart: Ctrl-C at a terminal is for the supervisor."""
        needed: dict[str, str] = {}
        for variable, service in self._process.needs.items():
            needed |= self._told_by(service, variable)
        group = self._guard.group() if self._guard else 0
        with logfile.append_to(self._file) as log:
            try:
                self._child = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                    self._process.command,
                    env={**self._environ, **self._process.environment, **needed},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=group,
                )
            except OSError as error:
                raise Unavailable(f"{self.name}: cannot start: {error}") from error

    def ended(self) -> str | None:
        """How it ended."""
        if self._child is None:
            return "not started"
        status = self._child.poll()
        return None if status is None else describe_exit(status)

    async def health(self) -> probing.Finding:
        """Ask it."""
        return await probing.ask(self._process.probe)

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL when its time is up."""
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        deadline = time.monotonic() + self._process.stop_timeout
        while child.poll() is None:
            if time.monotonic() > deadline:
                child.kill()
            await asyncio.sleep(_TICK)

    def kill(self) -> None:
        """SIGKILL."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
