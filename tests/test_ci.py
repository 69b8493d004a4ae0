"""The gates that a merge has to pass are the ones we say they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.services import catalog

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
    assert f"\nexport JQ_TEST_REQUIRE={','.join(catalog.known())}\n" in text
    assert text.index("JQ_TEST_REQUIRE") < text.index("step test")


@pytest.mark.req("jq:AC-8")
def test_a_merge_needs_every_kind_of_test() -> None:
    """What a plain run of pytest leaves out has a step of its own, or is for the night."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    left_out = settings["addopts"][settings["addopts"].index("-m") + 1]
    assert left_out == "not bench and not containers and not nightly"
    text = (ROOT / ".ci/run").read_text()
    targets = [line.rpartition(" make ")[2] for line in text.splitlines() if " make " in line]
    said = "\n".join(
        subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for target in targets
        if target.startswith("test")
    )
    commands = [line for line in said.splitlines() if "-m pytest" in line]
    assert any(" -m " not in command.partition("-m pytest")[2] for command in commands)
    assert any("-m bench tests/bench" in command for command in commands)
    assert any("-m containers tests/containers" in command for command in commands)


def test_what_runs_at_night_has_a_target() -> None:
    said = subprocess.run(
        ["make", "-n", "test-nightly"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert '-m "(nightly or hypothesis) and not containers"' in said
    assert "JQ_TEST_EXAMPLES=" in said


@pytest.mark.parametrize(("marker", "refused"), [("nightly", True), ("nightly('slow')", False)])
def test_a_test_that_runs_at_night_says_why(tmp_path: Path, marker: str, refused: bool) -> None:
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n@pytest.mark.{marker}\ndef test_it(): pass\n"
    )
    command = ("-m", "pytest", "-q", "-p", "tests.plugin_nightly", "-p", "no:cacheprovider", "-n0")
    done = subprocess.run(
        [sys.executable, *command, tmp_path],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("test_it.py::test_it: nightly needs a reason" in done.stderr) == refused
    assert ("1 passed" in done.stdout) != refused


@pytest.mark.req("jq:AC-8")
def test_a_step_that_fails_ends_the_run_and_fails_it(tmp_path: Path) -> None:
    """With programs in place of make and scripts/proto that only say that they were called."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    for name in ("make", "scripts/proto"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            '#!/bin/sh\ncalled="${0##*/} $*"; echo "called $called"; [ "$called" != "$FAILS" ]\n'
        )
        program.chmod(0o755)

    def run(fails: str) -> tuple[int, list[str]]:
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [tmp_path / ".ci/run"],
            env={"PATH": path, "FAILS": fails},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ("ci: all steps passed" in done.stdout) == (done.returncode == 0)
        assert ("ci: FAILED at step" in done.stderr) == (done.returncode != 0)
        said = done.stdout.splitlines()
        return done.returncode, [line[7:] for line in said if line.startswith("called ")]

    status, steps = run("nothing")
    assert status == 0
    assert {"make test", "make test-bounds", "make test-containers"} <= set(steps)
    for number, step in enumerate(steps, 1):
        assert run(step) == (1, steps[:number])


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
        assert f'-m "{chosen} and not bench and not nightly"' in tests


def test_the_markers_of_the_targets_are_known() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    known = {marker.partition(":")[0] for marker in settings["markers"]}
    assert {"integration", "e2e"} <= known
