"""deploy/systemd, judged by systemd's own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobqueue.config import Settings
from tests import patience

ROOT = Path(__file__).parents[2]
UNITS = {path.name: path.read_text() for path in (ROOT / "deploy/systemd").iterdir()}
PROGRAMS = "/opt/jobqueue/bin"
STARTED_AS = {
    "jq-server.service": "jq-server.service",
    "jq-worker@.service": "jq-worker@9464.service",
}


def analyze(*arguments: str, folder: Path) -> str:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=patience.longest(50),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As an administrator installs it, but with the programs of this environment."""
    here = str(Path(sys.executable).parent)
    path = tmp_path / STARTED_AS[request.param]
    path.write_text(UNITS[request.param].replace(PROGRAMS, here))
    return path


def test_systemd_takes_it_without_a_word(unit: Path) -> None:
    """Unknown settings and programs that are not there are warnings, and those are words."""
    assert analyze("verify", "--man=no", f"./{unit.name}", folder=unit.parent) == ""


def test_little_is_exposed(unit: Path) -> None:
    """Fails above 2 on systemd's scale, on which a unit that says nothing has 9.6."""
    analyze("security", "--offline=true", "--threshold=20", f"./{unit.name}", folder=unit.parent)


def settings_of(name: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", UNITS[name], re.MULTILINE))


@pytest.mark.req("jq:NFR-014", "jq:NFR-015")
def test_programs_are_given_the_time_to_stop() -> None:
    settings = Settings()
    for name, needed in (
        ("jq-server.service", settings.server.shutdown_timeout),
        ("jq-worker@.service", settings.worker.shutdown_timeout),
    ):
        told = settings_of(name)
        assert float(told["TimeoutStopSec"]) > needed
        assert told["KillMode"] == "mixed"  # the program hears of it, and ends its processes
        assert (told["Restart"], told["RestartPreventExitStatus"]) == ("always", "2")
        assert told["DynamicUser"] == "yes"  # never root


def test_the_instance_is_the_port_of_its_metrics() -> None:
    assert "JQ_WORKER_METRICS_PORT=%i" in UNITS["jq-worker@.service"]
    assert str(Settings().worker.metrics_port) in STARTED_AS["jq-worker@.service"]
