"""docker-compose.yml in real containers: two servers, two workers, and all that they stand on.

Grafana is the one part that is left out: it cannot be had without an image registry.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from jobqueue import JobQueue
from tests import patience
from tests.containers.conftest import NewProject
from tests.containers.kills import every_job_ends_once
from tests.containers.project import UP_SECONDS, Project, running
from tests.test_metrics import NAMES

SERVERS = ("server-a", "server-b")
WORKERS = ("worker-a", "worker-b")
BACKING = ("postgres", "redis", "kafka")
PORTS = ("JQ_HTTP_PORT", "JQ_GRPC_PORT", "JQ_HTTP_PORT_B", "JQ_GRPC_PORT_B", "PROMETHEUS_PORT")


@pytest.fixture(scope="module")
def system(project: NewProject) -> Iterator[Project]:
    made = project("docker-compose.yml", *PORTS, "GRAFANA_PORT")
    with running(made, *SERVERS, *WORKERS, "prometheus"):
        made.await_healthy(*BACKING, *SERVERS, *WORKERS, "prometheus")
        yield made


@pytest.fixture(scope="module")
def api_key(system: Project) -> str:
    """The operator's, as a person would get it."""
    path = "/run/jobqueue/operator/api-key"
    return system.compose("run", "--rm", "-T", "--entrypoint", "cat", "ctl", path).strip()


def client(system: Project, api_key: str) -> JobQueue:
    named = [system.variables[name] for name in ("JQ_GRPC_PORT", "JQ_GRPC_PORT_B")]
    return JobQueue("grpc://" + ",".join(f"127.0.0.1:{port}" for port in named), api_key=api_key)


def await_status(system: Project) -> dict[str, Any]:
    """What `jq-ctl status` says once all is well."""

    def well() -> dict[str, Any] | None:
        done = system.try_compose("run", "--rm", "-T", "ctl", "status", "--output", "json")
        if done.returncode:
            return None
        said: dict[str, Any] = json.loads(done.stdout)
        parts = said["connectivity"].values()
        return said if all(part.startswith("ok") for part in parts) else None

    found: dict[str, Any] = patience.until(well, "jq-ctl status: all components healthy", 120)
    return found


@pytest.mark.req("jq:AC-7", "jq:NFR-019")
def test_status_reports_all_components_healthy(system: Project) -> None:
    said = await_status(system)
    assert said["ok"]
    assert said["server"]["reachable"]
    assert said["connectivity"].keys() == {"db", "redis", "kafka"}
    assert said["active_workers"] == 2


@pytest.mark.req("jq:FR-049", "jq:NFR-019")
def test_every_container_of_ours_is_hardened(system: Project) -> None:
    system.assert_hardened(*SERVERS, *WORKERS)
    for service in SERVERS:
        # What a server reads is for it alone, and no worker has it.
        mounts = {mount["Destination"] for mount in system.look(service)["Mounts"]}
        assert "/run/jobqueue/server" in mounts
        assert not any(
            mount["RW"]
            for mount in system.look(service)["Mounts"]
            if "jobqueue" in mount["Destination"]
        )
    for service in WORKERS:
        mounts = {mount["Destination"] for mount in system.look(service)["Mounts"]}
        assert mounts == {"/run/jobqueue/worker"}


@pytest.mark.req("jq:NFR-019")
async def test_killed_containers_come_back_and_every_job_is_done_once(
    system: Project, api_key: str
) -> None:
    async with client(system, api_key) as app:
        await every_job_ends_once(system, app, SERVERS[0], WORKERS[0])
    system.await_healthy(SERVERS[0], WORKERS[0])
    assert await_status(system)["ok"]


@pytest.mark.req("jq:AC-6", "jq:FR-040")
def test_prometheus_scrapes_servers_and_workers(system: Project) -> None:
    def ask(path: str) -> Any:
        address = f"http://127.0.0.1:{system.variables['PROMETHEUS_PORT']}/api/v1/{path}"
        with urllib.request.urlopen(address) as answer:
            return json.load(answer)["data"]

    def states() -> dict[str, str]:
        targets = ask("targets")["activeTargets"]
        return {one["labels"]["instance"].partition(":")[0]: one["health"] for one in targets}

    def families() -> set[str]:
        return {name.removesuffix("_total") for name in ask("metadata")}

    patience.until(lambda: states() == dict.fromkeys((*SERVERS, *WORKERS), "up"), "all are up")
    patience.until(lambda: families() >= NAMES.keys(), "all metrics of FR-040 are there")


@pytest.mark.req("jq:NFR-014")
async def test_a_rolling_restart_loses_nothing_and_refuses_nobody(
    system: Project, api_key: str
) -> None:
    over = asyncio.Event()

    async def keep_submitting(app: JobQueue) -> list[Any]:
        jobs: list[Any] = []
        while not over.is_set():
            jobs.append(await app.submit("echo", len(jobs)))
        return jobs

    async with client(system, api_key) as app:
        submitting = asyncio.create_task(keep_submitting(app))
        try:
            for service in SERVERS:
                await asyncio.to_thread(system.compose, "restart", "--timeout", "60", service)
                await asyncio.to_thread(system.await_healthy, service)
        finally:
            over.set()
        jobs = await submitting
        assert len(jobs) > 0
        async with patience.timeout(UP_SECONDS):
            results = await asyncio.gather(*(job.result() for job in jobs))
        assert results == list(range(len(jobs)))


@pytest.mark.req("jq:NFR-014", "jq:NFR-015")
def test_stopped_containers_end_in_an_orderly_way(system: Project) -> None:
    """SIGTERM reaches the programs: they drain, and end by themselves."""
    system.compose("stop", "--timeout", "90", *WORKERS, *SERVERS)
    for service in (*WORKERS, *SERVERS):
        state = system.look(service)["State"]
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), system.logs(service)
