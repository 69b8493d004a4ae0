"""Design A of the task queue document: six services, each a process."""

from __future__ import annotations

from jobqueue.services.model import TOTAL_WORKER_SLOTS
from jobqueue.topology.layouts import parts
from jobqueue.topology.layouts.layout import SERVERS, SERVICES, TASKQUEUE_API, WORKERS, Layout
from jobqueue.topology.layouts.plan import Plan
from jobqueue.topology.taskqueue import catalogue


def microservices(plan: Plan) -> Layout:
    """The wiring."""
    plan.refuse_all_but("microservices")
    parts.check_service_flags(plan, "microservices")
    # In the order of the document: gateway 50051, job 50052, … with --port-base 50051.
    port = {service.name: plan.ports.take() for service in catalogue.DESIGN_A if service.port}
    address = {name: f"{parts.LOOPBACK}:{number}" for name, number in port.items()}
    owners = {
        catalogue.JOB_SERVICE_ADDR.name: address["job"],
        catalogue.QUEUE_SERVICE_ADDR.name: address["queue"],
        catalogue.RESULT_SERVICE_ADDR.name: address["result"],
    }
    work = {
        catalogue.COORDINATOR_ADDR.name: address["coordinator"],
        catalogue.WORKER_SLOTS.name: str(TOTAL_WORKER_SLOTS),
        catalogue.WORKER_ID.name: f"worker-{plan.label}",
    }
    return Layout(
        name="microservices",
        processes=(
            *(
                parts.service(plan, owner, SERVICES, port=port[owner.name], told={})
                for owner in (catalogue.JOB, catalogue.QUEUE, catalogue.RESULT)
            ),
            *(
                parts.service(plan, caller, SERVERS, port=port[caller.name], told=owners)
                for caller in (catalogue.COORDINATOR, catalogue.GATEWAY)
            ),
            parts.service(plan, catalogue.WORKER, WORKERS, told=work),
        ),
        grpc=(address["gateway"],),
        api=TASKQUEUE_API,
    )
