"""Starts a layout stage by stage, keeps it running, and stops it the other way round."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from itertools import groupby

from jobqueue.core.errors import Unavailable
from jobqueue.core.waiting import is_set_within
from jobqueue.topology.backing import ports
from jobqueue.topology.layouts.layout import Layout
from jobqueue.topology.supervisor import folders, identity, services
from jobqueue.topology.supervisor.guard import Guard
from jobqueue.topology.supervisor.keeper import Keeper, Restarts
from jobqueue.topology.supervisor.state import State
from jobqueue.topology.supervisor.unit import ProcessUnit, Unit

_READY_WITHIN = 60.0
_WRITE_EVERY = 1.0


class PortTaken(Unavailable):
    """It did not come up because a port was taken meanwhile; with other ports it may."""


class Supervisor:
    """Runs one layout in one folder. ``stop`` may be called twice, and before ``start`` ends."""

    def __init__(
        self,
        layout: Layout,
        claim: folders.Claim,
        environ: Mapping[str, str],
        *,
        detached: bool = False,
        restarts: Restarts | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.layout = layout
        self.folder = claim.folder
        self.ready = False
        self._claim = claim
        self._environ = environ
        self._detached = detached
        self._started = time.time()
        self.on_change = on_change
        # A background supervisor may be killed without harm to what runs: `down` finds it all.
        self._guard = None if detached else Guard()
        self._mark = identity.began(os.getpid())
        self._stages: list[list[Keeper]] = []
        self._down = False
        self._build(restarts or Restarts())

    def _build(self, restarts: Restarts) -> None:
        logs = self.folder / folders.LOGS
        behind = {
            service.name: services.create(service, self.folder, logs, self._guard)
            for service in self.layout.services
        }
        units: list[Unit] = [
            *behind.values(),
            *(
                ProcessUnit(
                    process,
                    log=logs / f"{process.name}.log",
                    environ=self._environ,
                    told_by=lambda name, variable: behind[name].told(variable),
                    guard=self._guard,
                )
                for process in self.layout.processes
            ),
        ]
        units.sort(key=lambda unit: unit.stage)
        for _, stage in groupby(units, key=lambda unit: unit.stage):
            self._stages.append([Keeper(unit, restarts, self._changed) for unit in stage])

    @property
    def keepers(self) -> list[Keeper]:
        """All, in the order of the start."""
        return [keeper for stage in self._stages for keeper in stage]

    def state(self) -> State:
        """Now."""
        return State(
            topology=self.layout.name,
            folder=self.folder,
            detached=self._detached,
            started=self._started,
            ready=self.ready,
            pid=os.getpid(),
            began=self._mark,
            http=self.layout.http,
            grpc=self.layout.grpc,
            rows=tuple(keeper.row() for keeper in self.keepers),
            api=self.layout.api,
        )

    async def start(self) -> None:
        """Bring everything up, or stop it again and say why it does not come up."""
        folders.remember(self._environ, self.folder)
        self._changed()
        try:
            for stage in self._stages:
                for keeper in stage:
                    keeper.start()
                    self._write()  # its pid, before anything else can go wrong
                await asyncio.gather(*(keeper.ready(_READY_WITHIN) for keeper in stage))
        except Unavailable as error:
            await self.stop()
            if stolen := self._stolen():
                raise PortTaken(f"{error.message}\n(port {stolen} is somebody else's)") from error
            raise
        except BaseException:
            await self.stop()
            raise
        self.ready = True
        self._changed()

    def _stolen(self) -> int | None:
        """A port that somebody took between our choice and the start of the process for it."""
        chosen = (port for process in self.layout.processes for port in process.ports)
        return next((port for port in chosen if not ports.is_free(port)), None)

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop: the file follows what happens."""
        while not stop.is_set():
            self._write()
            await is_set_within(stop, _WRITE_EVERY)

    async def stop(self) -> None:
        """Stop all, the last stage first. Each process has its own deadline."""
        if self._down:
            return
        self.ready = False
        for stage in reversed(self._stages):
            await asyncio.gather(*(keeper.stop() for keeper in stage))
        self._end()

    def kill(self) -> None:
        """End everything now."""
        for keeper in reversed(self.keepers):
            keeper.unit.kill()
        self._end()

    def _end(self) -> None:
        self._down = True
        if self._guard is not None:
            self._guard.dismiss()
        folders.forget(self._environ, self.folder)
        self._claim.release()

    def _changed(self) -> None:
        self._write()
        with contextlib.suppress(OSError):  # nobody reads what is shown any more
            self.on_change()

    def _write(self) -> None:
        if not self._down:
            with contextlib.suppress(OSError):  # a full disk must not end what runs
                self.state().write()
