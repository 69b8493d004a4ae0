"""The package as its users have it: a wheel in a virtual environment outside the checkout.

The wheel is built and installed once for a test run, when the first journey asks for it; all
processes of the run share it. A journey works in an empty folder and sees nothing of the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.journeys.machine import Machine
from tests.services import guardian
from tests.services.plugin import run_of

ROOT = Path(__file__).parents[2]
# What users bring along themselves.
BESIDE = ["gunicorn", "packaging"]
# The first journey waits for pip.
INSTALL_SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("slow")
            item.add_marker("e2e")
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(INSTALL_SECONDS))


@pytest.fixture(scope="session")
def _environment(request: pytest.FixtureRequest) -> Path:
    """The virtual environment with the wheel."""
    run = run_of(request.config)
    folder = Path(tempfile.gettempdir()) / f"jobqueue-journeys-{run.place.token}"
    with run.one_at_a_time("journeys") as is_first:
        if is_first:
            shutil.rmtree(folder, ignore_errors=True)  # an installation that was interrupted
            folder.mkdir()
            guardian.watch(run.place.owner, folder)  # deletes the folder after the run
            _install(folder)
    return folder / "venv"


def _install(folder: Path) -> None:
    own_pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # hatchling is one of the development tools: nothing is fetched to build the wheel.
    wheel = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    _run([*own_pip, *wheel])
    [built] = folder.glob("jobqueue-*.whl")
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")])
    into = ["--python", str(folder / "venv/bin/python")]
    install = [*own_pip, *into, "install", "--quiet", "--no-input", "--no-compile"]
    _run([*install, "--require-hashes", "-r", str(ROOT / "pins/extras.txt")])
    _run([*install, "--no-deps", str(built), *(f"{name}=={version(name)}" for name in BESIDE)])
    _run([*own_pip, *into, "check"])  # the pins are all that the wheel asks for


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, cwd="/", capture_output=True, text=True, env=_clean())
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"


def _clean() -> dict[str, str]:
    """The environment without settings of ours or of the interpreter that runs the tests."""
    unwanted = ("JQ_", "PYTHON", "VIRTUAL_ENV", "COLUMNS", "LINES", "COV_")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


@pytest.fixture
def machine(_environment: Path) -> Iterator[Machine]:
    """An empty folder on a machine where the wheel is installed."""
    # Not in pytest's own folder: a private PostgreSQL does not run as root, and has to enter it.
    with tempfile.TemporaryDirectory(prefix="jobqueue-journey-") as folder:
        Path(folder).chmod(0o755)
        with Machine(Path(folder), _environment / "bin", _clean()) as made:
            yield made
