"""deploy/compose/embedded.yml in a real container."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.containers.conftest import NewProject
from tests.containers.project import Project, running

FILE = "deploy/compose/embedded.yml"


@pytest.fixture(scope="module")
def system(project: NewProject) -> Iterator[Project]:
    made = project(FILE, "JQ_HTTP_PORT", "JQ_GRPC_PORT")
    with running(made):
        made.await_healthy("jobqueue")
        yield made


def ctl(system: Project, *words: str) -> str:
    return system.compose("exec", "-T", "jobqueue", "jq-ctl", *words)


def test_one_container_does_a_job_and_keeps_it(system: Project) -> None:
    system.assert_hardened("jobqueue")
    said = json.loads(ctl(system, "status", "--output", "json"))
    assert said["ok"]
    job_id, result = ctl(
        system, "job", "submit", "default", "7", "--type", "echo", "--wait"
    ).split()
    assert result == "7"
    system.kill_process("jobqueue")
    system.await_healthy("jobqueue")
    kept = json.loads(ctl(system, "job", "status", job_id, "--output", "json"))
    assert kept["status"] == "DONE"


def test_it_ends_in_an_orderly_way(system: Project) -> None:
    system.compose("stop", "--timeout", "60")
    assert system.look("jobqueue")["State"]["ExitCode"] == 0, system.logs("jobqueue")
