"""A topology to measure: brought up as processes or in containers, or one that runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobqueue import JobQueue, TaskQueueClient, config
from jobqueue.bench import containers
from jobqueue.bench.cell import Cell
from jobqueue.bench.containers import Container
from jobqueue.bench.machine import peak_bytes
from jobqueue.bench.targets import QueueTarget, Target, TaskQueueTarget
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.fleet import folders, services
from jobqueue.fleet.keeper import Keeper, Restarts
from jobqueue.fleet.layout import TASKQUEUE_API, Layout, UpRequest
from jobqueue.fleet.supervisor import PortTaken, Supervisor
from jobqueue.fleet.topologies import LAYOUTS
from jobqueue.taskqueue.designs.catalogue import SERVICES

_PORT_TRIES = 3
_NO_RESTARTS = Restarts(allowed=False)

Change = Callable[[Layout], Layout]


@dataclass(frozen=True, slots=True)
class Ground:
    """A topology that runs."""

    target: Target
    keepers: Sequence[Keeper] = ()
    database: Mapping[str, str] = field(default_factory=dict)  # how PostgreSQL is found, if it is
    http: Sequence[str] = ()  # URLs of the processes that were brought up
    grpc: Sequence[str] = ()
    containers: Sequence[Container] = ()

    @property
    def pids(self) -> dict[str, int]:
        """Its processes by name; none where it runs elsewhere."""
        rows = [keeper.row() for keeper in self.keepers]
        return {row.name: row.pid for row in rows if row.pid is not None}

    @property
    def peaks(self) -> dict[str, int]:
        """The most memory that each had."""
        inside = {one.name: one.pid for one in self.containers}
        return {name: peak_bytes(pid) for name, pid in {**self.pids, **inside}.items()}

    @property
    def meters(self) -> dict[str, Callable[[], float]]:
        """A function for each container that returns its processor seconds."""
        return {one.name: one.cpu_seconds for one in self.containers}

    def check(self) -> None:
        """Raise Unavailable if one of its processes or containers ended."""
        for keeper in self.keepers:
            if (how := keeper.unit.ended()) is not None:
                raise Unavailable(
                    f"{keeper.unit.name} ended during the run: {how}; what was measured is void"
                )
        for one in self.containers:
            if not one.is_there:
                raise Unavailable(
                    f"the container {one.name} ended during the run; what was measured is void"
                )


@contextlib.asynccontextmanager
async def brought_up(
    cell: Cell,
    change: Change = lambda layout: layout,
    restarts: Restarts = _NO_RESTARTS,
    within: Path | None = None,
) -> AsyncIterator[Ground]:
    """Processes on this machine in a folder of their own, which is removed afterwards.

    ``change``: to the wiring of the topology; ``within``: where the folder is made.
    """
    home = _new_folder(within)
    try:
        supervisor = await _started(cell, home / "topology", change, restarts)
        layout = supervisor.layout
        try:
            target = _target(layout.api, layout.grpc)
            try:
                database = _database(supervisor)
                yield Ground(target, supervisor.keepers, database, layout.http, layout.grpc)
            finally:
                await target.close()
        finally:
            await supervisor.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.asynccontextmanager
async def in_containers(cell: Cell, folder: Path) -> AsyncIterator[Ground]:
    """The containers of a compose file of this folder, which are removed afterwards."""
    async with containers.up(folder, cell.topology) as made:
        addresses = containers.called(cell.topology, made)
        async with running_at(cell, addresses) as ground:
            on_this_machine = all(one.is_there for one in made)
            yield replace(ground, containers=made if on_this_machine else ())


@contextlib.asynccontextmanager
async def running_at(cell: Cell, addresses: Sequence[str]) -> AsyncIterator[Ground]:
    """A topology that runs already, such as one in containers."""
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
    each = str(cell.slots // max(1, cell.workers))
    flags = {"worker.concurrency": each, "log.level": "warning"}
    if cell.topology in ("microservices", "nodes"):
        # Nothing that counts is under way at the end. A worker whose result service was killed
        # would wait for it as long as it may.
        flags |= {"server.shutdown_timeout": "5", "worker.shutdown_timeout": "5"}
    plan = UpRequest(folder=folder, settings=config.load(None, {}, flags).settings, flags=flags)
    if cell.topology == "replicated":
        plan = replace(plan, servers=cell.servers, workers=cell.workers)
    elif cell.topology == "streaming":
        plan = replace(plan, schedulers=cell.servers, workers=cell.workers)
    elif cell.topology == "nodes":
        plan = replace(plan, nodes=cell.servers)
    return LAYOUTS[cell.topology](plan)


def _new_folder(within: Path | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="jq-bench-", dir=within))
    folder.chmod(0o711)  # services may run as another user
    return folder


async def _started(cell: Cell, folder: Path, change: Change, restarts: Restarts) -> Supervisor:
    for tries_left in reversed(range(_PORT_TRIES)):
        layout = change(layout_of(cell, folder))
        services.check(layout.services)
        supervisor = Supervisor(
            layout, folders.FolderLock(folder), _environment(), restarts=restarts
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
