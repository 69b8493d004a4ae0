"""The programs of the wheel run without the checkout."""

from __future__ import annotations

import pytest

from tests.journeys.machine import Machine


def test_the_package_comes_from_the_wheel(machine: Machine) -> None:
    where = machine.succeed("python", "-c", "import jobqueue; print(jobqueue.__file__)")
    assert "site-packages" in where


@pytest.mark.parametrize("program", ["jq-server", "jq-worker", "jq-ctl", "jq-service", "jq-bench"])
def test_a_program_tells_its_version_and_its_use(machine: Machine, program: str) -> None:
    assert machine.succeed(program, "--version").startswith("jobqueue ")
    assert "Usage:" in machine.succeed(program, "--help")
