"""deploy/compose/streaming.yml in real containers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from jobqueue import JobQueue
from tests import patience
from tests.containers.conftest import NewProject
from tests.containers.kills import every_job_ends_once
from tests.containers.project import Project, running

OURS = ("api", "scheduler-a", "scheduler-b", "worker-a", "worker-b")


@pytest.fixture(scope="module")
def system(project: NewProject) -> Iterator[Project]:
    made = project("deploy/compose/streaming.yml", "JQ_HTTP_PORT", "JQ_GRPC_PORT")
    with running(made):
        made.await_healthy("redis", "kafka", *OURS)
        yield made


def is_well(system: Project) -> bool:
    done = system.try_compose("run", "--rm", "-T", "ctl", "status", "--output", "json")
    return done.returncode == 0 and json.loads(done.stdout)["active_workers"] == 2


@pytest.mark.req("jq:FR-049")
async def test_a_killed_scheduler_and_a_killed_worker_leave_every_job_done_once(
    system: Project,
) -> None:
    system.assert_hardened(*OURS)
    patience.until(lambda: is_well(system), "jq-ctl status: all components healthy", 120)
    path = "/run/jobqueue/operator/api-key"
    key = system.compose("run", "--rm", "-T", "--entrypoint", "cat", "ctl", path).strip()
    address = f"grpc://127.0.0.1:{system.variables['JQ_GRPC_PORT']}"
    async with JobQueue(address, api_key=key) as app:
        await every_job_ends_once(system, app, "scheduler-a", "worker-a")
    system.await_healthy(*OURS)
    patience.until(lambda: is_well(system), "jq-ctl status: all components healthy", 120)
