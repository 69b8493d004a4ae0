"""The two designs of document 000, a container for each service or node, through their one API."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import yaml

from jobqueue import SyncTaskQueueClient
from jobqueue.taskqueue import JobStatus
from jobqueue.taskqueue.components.model import TOTAL_WORKER_SLOTS
from jobqueue.taskqueue.components.ownership import owner_index
from jobqueue.taskqueue.designs import catalogue
from scripts.taskqueue_doc import HEALTH_TIMING
from tests import patience
from tests.containers.conftest import NewProject
from tests.containers.engine_images import ROOT
from tests.containers.project import Project, running

NODES = tuple(f"node-{number}" for number in range(6))
NODE_PORTS = tuple(f"NODE_{number}_PORT" for number in range(6))
KILLED = 3
SECOND = 1_000_000_000  # the engine counts nanoseconds


@dataclass(frozen=True)
class Design:
    file: str
    services: tuple[str, ...]
    ports: tuple[str, ...]
    client: Callable[[list[str]], SyncTaskQueueClient]
    killed: str
    # Containers whose own check fails while that one is away. A gateway, for instance, answers.
    notice: tuple[str, ...] = ()

    def open(self, system: Project) -> SyncTaskQueueClient:
        return self.client([f"127.0.0.1:{system.variables[name]}" for name in self.ports])


DESIGNS = {
    "microservices": Design(
        "deploy/compose/microservices.yml",
        tuple(service.name for service in catalogue.DESIGN_A),
        ("GATEWAY_PORT",),
        lambda addresses: SyncTaskQueueClient(gateway=addresses[0]),
        killed="coordinator",
        notice=("worker",),
    ),
    "nodes": Design(
        "deploy/compose/nodes.yml",
        NODES,
        NODE_PORTS,
        lambda addresses: SyncTaskQueueClient(nodes=addresses),
        killed=NODES[KILLED],
    ),
}


@pytest.fixture(scope="module", params=DESIGNS)
def running_design(
    project: NewProject, request: pytest.FixtureRequest
) -> Iterator[tuple[Project, Design]]:
    design = DESIGNS[request.param]
    made = project(design.file, *design.ports)
    with running(made):
        made.await_healthy(*design.services)
        yield made, design


@pytest.mark.req("tq:COMPOSE", "tq:HEALTH")
def test_every_container_is_well_hardened_and_asked_as_the_document_says(running_design) -> None:
    system, design = running_design
    system.assert_hardened(*design.services)
    timing = HEALTH_TIMING
    for service in design.services:
        asked = system.look(service)["Config"]["Healthcheck"]
        assert asked["Test"][:4] == ["CMD", "python", "-m", "scripts.healthcheck"]
        assert (asked["Interval"], asked["Timeout"], asked["Retries"], asked["StartPeriod"]) == (
            timing.interval * SECOND,
            timing.timeout * SECOND,
            timing.retries,
            timing.start_period * SECOND,
        )


@pytest.mark.req("tq:COMPOSE")
def test_jobs_go_through_the_public_api(running_design) -> None:
    system, design = running_design
    with design.open(system) as client:
        await_done(client, [submit(client) for _ in range(12)])


@pytest.mark.req("tq:COMPOSE", "tq:HEALTH")
def test_a_killed_container_is_unhealthy_until_it_is_back(running_design) -> None:
    """The others go on: what they accept meanwhile is done, at the latest when it is back."""
    system, design = running_design
    system.compose("kill", design.killed)
    system.await_health("unhealthy", design.killed)
    # The killed one has no part in these: a gateway accepts, or the key belongs to another node.
    keys = (f"while it is away {n}" for n in itertools.count())
    others = (key for key in keys if owner_index(key, len(NODES)) != KILLED)
    with design.open(system) as client:
        jobs = [submit(client, key) for key in itertools.islice(others, 12)]
        for service in design.notice:
            system.await_health("unhealthy", service)
        well = set(design.services) - {design.killed, *design.notice}
        assert {system.health(service) for service in well} == {"healthy"}
        system.compose("start", design.killed)
        system.await_healthy(*design.services)
        await_done(client, jobs + [submit(client) for _ in range(12)])


def submit(client: SyncTaskQueueClient, key: str = "") -> str:
    submitted = client.submit_job(
        job_type="simulate",
        work_duration_ms=20,
        payload_size_bytes=10,
        client_request_id=key,
    )
    return submitted.job_id


def await_done(client: SyncTaskQueueClient, jobs: list[str]) -> None:
    """Each is a job of its own, and ends well."""
    assert len(set(jobs)) == len(jobs)
    for job_id in jobs:
        ended = client.wait_result(job_id, timeout=patience.longest(60))
        assert client.get_job_status(job_id).status is JobStatus.DONE
        assert len(ended.output) == 10


@pytest.mark.req("tq:COMPOSE")
def test_containers_end_in_an_orderly_way(running_design) -> None:
    system, design = running_design
    system.compose("stop", "--timeout", "60")
    for service in design.services:
        assert system.look(service)["State"]["ExitCode"] == 0, system.logs(service)


@pytest.mark.req("tq:COMPOSE")
def test_both_designs_have_equal_slots_and_equal_shares_of_the_machine() -> None:
    told = {
        name: yaml.safe_load((ROOT / design.file).read_text())["services"]
        for name, design in DESIGNS.items()
    }
    slots = {
        name: sum(int(one["environment"].get("WORKER_SLOTS", 0)) for one in services.values())
        for name, services in told.items()
    }
    assert slots == dict.fromkeys(DESIGNS, TOTAL_WORKER_SLOTS)
    shares = {
        (one["mem_limit"], one["cpus"]) for services in told.values() for one in services.values()
    }
    assert len(shares) == 1
    # Each container has one command, and the same policy of health checks.
    assert all(len(one["command"]) == 1 for some in told.values() for one in some.values())
