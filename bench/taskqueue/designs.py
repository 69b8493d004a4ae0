"""Both designs as processes on this machine, with the same number of slots."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from bench.processes import PATIENCE, running
from jobqueue import TaskQueueClient
from jobqueue.core.errors import JobQueueError
from jobqueue.services.model import TOTAL_WORKER_SLOTS
from jobqueue.topology.backing.ports import free_port
from jobqueue.topology.taskqueue.catalogue import SERVICES

NODES = 6
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Part:
    """One process: which service, under which name, told what."""

    name: str
    service: str
    environment: Mapping[str, str]

    @property
    def slots(self) -> int:
        """Jobs that it runs at once."""
        told = self.environment.get("WORKER_SLOTS", "0")
        return int(told)


@dataclass(frozen=True, slots=True)
class Plan:
    """All processes of a design, and how a client finds them."""

    parts: tuple[Part, ...]
    gateway: str | None = None
    nodes: tuple[str, ...] | None = None

    def client(self) -> TaskQueueClient:
        """The same client for both, which routes as the design wants."""
        return TaskQueueClient(gateway=self.gateway, nodes=self.nodes)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A design that runs."""

    client: TaskQueueClient
    pids: dict[str, int]


def microservices() -> Plan:
    """Design A: six services, one of them a worker with all slots."""
    called = ("gateway", "job", "queue", "coordinator", "result")
    addresses = {name: f"{_LOOPBACK}:{free_port()}" for name in called}
    told = {
        "JOB_SERVICE_ADDR": addresses["job"],
        "QUEUE_SERVICE_ADDR": addresses["queue"],
        "RESULT_SERVICE_ADDR": addresses["result"],
        "COORDINATOR_ADDR": addresses["coordinator"],
        "WORKER_ID": "worker",
        "WORKER_SLOTS": str(TOTAL_WORKER_SLOTS),
    }
    told |= {f"{name.upper()}_PORT": address.split(":")[1] for name, address in addresses.items()}
    parts = tuple(_part(name, name, told) for name in (*called, "worker"))
    return Plan(parts, gateway=addresses["gateway"])


def nodes() -> Plan:
    """Design B: six equal nodes that share the slots."""
    addresses = tuple(f"{_LOOPBACK}:{free_port()}" for _ in range(NODES))
    parts = tuple(
        _part(
            f"node {index}",
            "node",
            {
                "NODE_PORT": address.split(":")[1],
                "NODES": ",".join(addresses),
                "NODE_INDEX": str(index),
                "WORKER_ID": f"node-{index}",
                "WORKER_SLOTS": str(TOTAL_WORKER_SLOTS // NODES),
            },
        )
        for index, address in enumerate(addresses)
    )
    return Plan(parts, nodes=addresses)


DESIGNS: dict[str, Callable[[], Plan]] = {"microservices": microservices, "nodes": nodes}


def _part(name: str, service: str, told: Mapping[str, str]) -> Part:
    """Every variable is said, so that nothing in the caller's environment makes a difference."""
    variables = SERVICES[service].all_variables
    said = {one.name: one.default for one in variables if one.default is not None}
    said |= {one.name: told[one.name] for one in variables if one.name in told}
    local = {"LOG_LEVEL": "ERROR"}  # what is lost at their end is no news here
    if SERVICES[service].port is not None:
        local["BIND_HOST"] = _LOOPBACK
    return Part(name, service, said | local)


@contextlib.asynccontextmanager
async def fleet(plan: Plan) -> AsyncIterator[Fleet]:
    """Start it, wait until every slot's node has done a job, stop it."""
    with contextlib.ExitStack() as stack:
        pids = {}
        for part in plan.parts:
            process = stack.enter_context(
                running("jobqueue.cli.service", part.environment, part.service)
            )
            pids[part.name] = process.pid
        async with plan.client() as client:
            give_up = time.monotonic() + PATIENCE
            for _ in plan.nodes or ("gateway",):
                await _does_a_job(client, give_up)
            yield Fleet(client, pids)


async def _does_a_job(client: TaskQueueClient, give_up: float) -> None:
    while True:
        try:
            job = await client.submit_job(job_type="ready")
            await client.wait_result(job.job_id, max(1.0, give_up - time.monotonic()))
        except JobQueueError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.1)
        else:
            return
