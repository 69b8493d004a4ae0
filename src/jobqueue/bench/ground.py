"""Start the topology to measure as processes or in containers, or connect to a running topology."""

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
    """Describes a running topology: the target for a load, and its processes or containers."""

    target: Target
    keepers: Sequence[Keeper] = ()
    database: Mapping[str, str] = field(default_factory=dict)  # variables that name its PostgreSQL
    http: Sequence[str] = ()  # URLs of the processes that jq-bench started
    grpc: Sequence[str] = ()
    containers: Sequence[Container] = ()

    @property
    def pids(self) -> dict[str, int]:
        """Return the process ids of the topology by name, empty if jq-bench did not start it."""
        rows = [keeper.row() for keeper in self.keepers]
        return {row.name: row.pid for row in rows if row.pid is not None}

    @property
    def peaks(self) -> dict[str, int]:
        """Return the peak memory in bytes of each process and container, by name."""
        inside = {one.name: one.pid for one in self.containers}
        return {name: peak_bytes(pid) for name, pid in {**self.pids, **inside}.items()}

    @property
    def meters(self) -> dict[str, Callable[[], float]]:
        """Return, by container, a function that reads the container's processor seconds."""
        return {one.name: one.cpu_seconds for one in self.containers}

    def check(self) -> None:
        """Raise Unavailable if a process or container of the topology has ended."""
        for keeper in self.keepers:
            if (how := keeper.unit.ended()) is not None:
                raise Unavailable(
                    f"{keeper.unit.name} ended during the run: {how}; the run's figures are invalid"
                )
        for one in self.containers:
            if not one.is_there:
                raise Unavailable(
                    f"the container {one.name} ended during the run; the run's figures are invalid"
                )


@contextlib.asynccontextmanager
async def brought_up(
    cell: Cell,
    change: Change = lambda layout: layout,
    restarts: Restarts = _NO_RESTARTS,
    within: Path | None = None,
) -> AsyncIterator[Ground]:
    """Start a topology as processes on this machine, and stop it at the end of the block.

    The processes use a temporary folder, which is created in ``within`` and removed afterwards.
    ``change`` changes the layout of the topology before its start.
    """
    async with contextlib.AsyncExitStack() as stack:
        home = _new_folder(within)
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        supervisor = await _started(cell, home / "topology", change, restarts)
        stack.push_async_callback(supervisor.stop)
        layout = supervisor.layout
        target = _target(layout.api, layout.grpc)
        stack.push_async_callback(target.close)
        database = _database(supervisor)
        yield Ground(target, supervisor.keepers, database, layout.http, layout.grpc)


@contextlib.asynccontextmanager
async def in_containers(cell: Cell, folder: Path) -> AsyncIterator[Ground]:
    """Start the containers of a topology, and remove them at the end of the block.

    ``folder`` is the folder of the compose files.
    """
    async with containers.up(folder, cell.topology) as made:
        addresses = containers.called(cell.topology, made)
        async with running_at(cell, addresses) as ground:
            on_this_machine = all(one.is_there for one in made)
            yield replace(ground, containers=made if on_this_machine else ())


@contextlib.asynccontextmanager
async def running_at(cell: Cell, addresses: Sequence[str]) -> AsyncIterator[Ground]:
    """Connect to a topology that already runs at ``addresses``, for example in containers."""
    api = TASKQUEUE_API if cell.topology in ("microservices", "nodes") else ""
    if cell.topology == "nodes" and len(addresses) != cell.servers:
        raise InvalidArgument(
            "--at",
            f"the topology nodes needs {cell.servers} addresses, one for each node;"
            f" {len(addresses)} were given",
        )
    target = _target(api, addresses)
    try:
        yield Ground(target)
    finally:
        await target.close()


def layout_of(cell: Cell, folder: Path) -> Layout:
    """Return the layout of the cell's topology, with the cell's slots shared among its workers."""
    each = str(cell.slots // max(1, cell.workers))
    flags = {"worker.concurrency": each, "log.level": "warning"}
    if cell.topology in ("microservices", "nodes"):
        # No counted job runs at the end. Without a short time-out a worker whose result service was
        # killed would wait for it for a long time.
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
    raise AssertionError("the last attempt to start the topology returns or raises")


def _environment() -> dict[str, str]:
    """Return this process's environment without the variables that configure a topology."""
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
