"""A whole design in one process, on ports that are free: for tests and for trying it out.

The parts still talk over gRPC where the design says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from jobqueue.taskqueue.components.model import TOTAL_WORKER_SLOTS
from jobqueue.taskqueue.designs import catalogue
from jobqueue.taskqueue.designs.wiring import DIRECT, PROGRAMS, Links, node

_LOOPBACK = "127.0.0.1"
_ADDRESSES = {
    "job": "JOB_SERVICE_ADDR",
    "queue": "QUEUE_SERVICE_ADDR",
    "result": "RESULT_SERVICE_ADDR",
    "coordinator": "COORDINATOR_ADDR",
}
# Owners first, then those that call them.
_ORDER = ("job", "queue", "result", "coordinator", "worker", "gateway")


@asynccontextmanager
async def design_a(
    environ: Mapping[str, str] | None = None,
    links: Links = DIRECT,
    *,
    each: Mapping[str, Mapping[str, str]] | None = None,
) -> AsyncIterator[dict[str, str]]:
    """The six services; gives the address of each that has one, the gateway's among them.

    ``environ`` is for all of them, ``each`` for those that it names.
    """
    told = {"BIND_HOST": _LOOPBACK, **(environ or {})}
    addresses: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for name in _ORDER:
            service = catalogue.SERVICES[name]
            port = {service.port.name: "0"} if service.port else {}
            values = service.read({**port, **told, **(each or {}).get(name, {})})
            running = await stack.enter_async_context(PROGRAMS[name](values, links))
            if running.address:
                addresses[name] = running.address
            if name in _ADDRESSES:
                told[_ADDRESSES[name]] = running.address
        yield addresses


@asynccontextmanager
async def design_b(
    nodes: int = TOTAL_WORKER_SLOTS,
    environ: Mapping[str, str] | None = None,
    links: Links = DIRECT,
) -> AsyncIterator[list[str]]:
    """The nodes; gives their addresses in the order that clients use."""
    told = {"BIND_HOST": _LOOPBACK, "NODE_PORT": "0"}
    # Ports are known later; how many nodes there are is all that a node takes from the list.
    unknown = ",".join(f"node-{index}:1" for index in range(nodes))
    addresses = []
    async with AsyncExitStack() as stack:
        for index in range(nodes):
            place = {"NODES": unknown, "NODE_INDEX": str(index)}
            named = {"WORKER_ID": f"node-{index}"}
            values = catalogue.NODE.read({**told, **place, **named, **(environ or {})})
            running = await stack.enter_async_context(node(values, links))
            addresses.append(running.address)
        yield addresses
