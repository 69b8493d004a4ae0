"""Design B of the task queue document: equal nodes, among which clients choose."""

from __future__ import annotations

from jobqueue.services.model import TOTAL_WORKER_SLOTS
from jobqueue.topology.layouts import parts
from jobqueue.topology.layouts.layout import SERVERS, TASKQUEUE_API, Layout
from jobqueue.topology.layouts.plan import Plan, counted
from jobqueue.topology.taskqueue import catalogue

_NODES = 6


def nodes(plan: Plan) -> Layout:
    """The wiring."""
    plan.refuse_all_but("nodes", "--nodes")
    parts.check_service_flags(plan, "nodes")
    count = counted("--nodes", plan.nodes, _NODES, least=1)
    ports = [plan.ports.take() for _ in range(count)]
    addresses = tuple(f"{parts.LOOPBACK}:{port}" for port in ports)
    return Layout(
        name="nodes",
        processes=tuple(
            parts.service(
                plan,
                catalogue.NODE,
                SERVERS,
                name=f"node-{index}",
                port=port,
                told={
                    catalogue.NODES.name: ",".join(addresses),
                    catalogue.NODE_INDEX.name: str(index),
                    catalogue.NODE_SLOTS.name: str(slots(index, count)),
                    catalogue.WORKER_ID.name: f"node-{index}-{plan.label}",
                },
            )
            for index, port in enumerate(ports)
        ),
        grpc=addresses,
        api=TASKQUEUE_API,
    )


def slots(index: int, count: int) -> int:
    """The same number in all as Design A has, shared out; a node has one at least."""
    each, more = divmod(TOTAL_WORKER_SLOTS, count)
    return max(1, each + (index < more))
