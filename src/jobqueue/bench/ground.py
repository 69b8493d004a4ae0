"""A topology to measure: brought up as processes, as ``jq-ctl up`` does, or one that runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobqueue import JobQueue, TaskQueueClient, config
from jobqueue.bench.cell import Cell
from jobqueue.bench.machine import peak_bytes
from jobqueue.bench.targets import QueueTarget, Target, TaskQueueTarget
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.topology.layouts import LAYOUTS
from jobqueue.topology.layouts.layout import TASKQUEUE_API, Layout
from jobqueue.topology.layouts.plan import Plan
from jobqueue.topology.supervisor import folders, services
from jobqueue.topology.supervisor.keeper import Keeper, Restarts
from jobqueue.topology.supervisor.supervisor import PortTaken, Supervisor
from jobqueue.topology.taskqueue.catalogue import SERVICES

_PORT_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ground:
    """A topology that runs."""

    target: Target
    keepers: Sequence[Keeper] = ()
    database: Mapping[str, str] = field(default_factory=dict)  # how PostgreSQL is found, if it is

    @property
    def pids(self) -> dict[str, int]:
        """Its processes by name; none where it runs elsewhere."""
        rows = [keeper.row() for keeper in self.keepers]
        return {row.name: row.pid for row in rows if row.pid is not None}

    @property
    def peaks(self) -> dict[str, int]:
        """The most memory that each had."""
        return {name: peak_bytes(pid) for name, pid in self.pids.items()}

    def check(self) -> None:
        """Raise Unavailable if one of its processes ended."""
        for keeper in self.keepers:
            if (how := keeper.unit.ended()) is not None:
                raise Unavailable(
                    f"{keeper.unit.name} ended during the run: {how}; what was measured is void"
                )


@contextlib.asynccontextmanager
async def brought_up(cell: Cell) -> AsyncIterator[Ground]:
    """Processes on this machine in a folder of their own, which is removed afterwards."""
    home = _new_folder()
    try:
        supervisor = await _started(cell, home / "topology")
        try:
            target = _target(supervisor.layout.api, supervisor.layout.grpc)
            try:
                yield Ground(target, supervisor.keepers, _database(supervisor))
            finally:
                await target.close()
        finally:
            await supervisor.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.asynccontextmanager
async def running_at(cell: Cell, addresses: Sequence[str]) -> AsyncIterator[Ground]:
    """A topology that somebody else started, such as one in containers."""
    api = TASKQUEUE_API if cell.topology in ("microservices", "nodes") else ""
    if cell.topology == "nodes" and len(addresses) != cell.servers:
        raise InvalidArgument("--at", f"nodes: {cell.servers} addresses are needed, one for each")
    target = _target(api, addresses)
    try:
        yield Ground(target)
    finally:
        await target.close()


def layout_of(cell: Cell, folder: Path) -> Layout:
    """The wiring of a cell's topology, with the cell's slots."""
    each = str(cell.slots // cell.workers)
    flags = {"worker.concurrency": each, "log.level": "warning"}
    plan = Plan(folder=folder, settings=config.load(None, {}, flags).settings, flags=flags)
    if cell.topology == "replicated":
        plan = replace(plan, servers=cell.servers, workers=cell.workers)
    elif cell.topology == "streaming":
        plan = replace(plan, schedulers=cell.servers, workers=cell.workers)
    elif cell.topology == "nodes":
        plan = replace(plan, nodes=cell.servers)
    return LAYOUTS[cell.topology](plan)


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="jq-bench-"))
    folder.chmod(0o711)  # services may run as another user
    return folder


async def _started(cell: Cell, folder: Path) -> Supervisor:
    for tries_left in reversed(range(_PORT_TRIES)):
        layout = layout_of(cell, folder)
        services.check(layout.services)
        supervisor = Supervisor(
            layout, folders.Claim(folder), _environment(), restarts=Restarts(allowed=False)
        )
        try:
            await supervisor.start()
        except PortTaken:
            if not tries_left:
                raise
        else:
            return supervisor
    raise AssertionError("the last try raises")


def _environment() -> dict[str, str]:
    """Ours, without anything that would tell a part something."""
    told = {one.name for service in SERVICES.values() for one in service.all_variables}
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JQ_") and name not in told
    }


def _target(api: str, addresses: Sequence[str]) -> Target:
    if api != TASKQUEUE_API:
        return QueueTarget(JobQueue(f"grpc://{','.join(addresses)}"))
    if len(addresses) == 1:
        return TaskQueueTarget(TaskQueueClient(gateway=addresses[0]))
    return TaskQueueTarget(TaskQueueClient(nodes=list(addresses)))


def _database(supervisor: Supervisor) -> Mapping[str, str]:
    for keeper in supervisor.keepers:
        if keeper.unit.name == "postgres" and isinstance(keeper.unit, services.PrivateService):
            return keeper.unit.told("JQ_DB_URL")
    return {}
