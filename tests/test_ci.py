"""The gates that a merge has to pass are the ones we say they are."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.req("jq:NFR-021")
def test_a_merge_needs_80_percent_of_the_lines_of_each_part() -> None:
    steps = [
        line.split("make ", 1)[1].strip()
        for line in (ROOT / ".ci/run").read_text().splitlines()
        if line.startswith("step ") and "make " in line
    ]
    assert steps.index("test") < steps.index("coverage")
    said = subprocess.run(
        ["make", "-n", "coverage"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for part in ("core/*", "engine/*", "stores/*", "config.py"):
        assert part in said
    assert "--fail-under=80" in said
    assert "|| exit 1" in said


def test_a_merge_needs_the_static_checks() -> None:
    text = (ROOT / ".ci/run").read_text()
    for check in ("make lint", "make typecheck", "proto --check", "proto --breaking"):
        assert check in text


@pytest.mark.req("jq:NFR-022")
def test_a_merge_needs_the_tests_on_real_servers() -> None:
    """Without its server a test is skipped; in a merge's run that is a failure."""
    text = (ROOT / ".ci/run").read_text()
    assert "\nexport JQ_TEST_REQUIRE=postgres,redis,kafka,prometheus\n" in text
    assert text.index("JQ_TEST_REQUIRE") < text.index("step test")


@pytest.mark.parametrize(
    ("target", "chosen"),
    [
        ("test", None),
        pytest.param("test-integration", "integration", marks=pytest.mark.req("jq:NFR-022")),
        pytest.param("test-e2e", "e2e", marks=pytest.mark.req("jq:NFR-023")),
    ],
)
def test_one_command_finds_the_servers_and_runs_the_tests(target: str, chosen: str | None) -> None:
    said = subprocess.run(
        ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    tests = next(line for line in said if "-m pytest" in line)
    services = next(line for line in said if "scripts/services ensure --or-skip" in line)
    assert said.index(services) < said.index(tests)
    if chosen is None:
        assert ' -m "' not in tests
    else:
        assert f'-m "{chosen} and not bench"' in tests


def test_the_markers_of_the_targets_are_known() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    known = {marker.partition(":")[0] for marker in settings["markers"]}
    assert {"integration", "e2e"} <= known
