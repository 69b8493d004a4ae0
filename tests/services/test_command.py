"""scripts/services, as a person calls it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobqueue.fleet.backing import PrivateServer
from jobqueue.redaction import redact
from tests import patience
from tests.services import command, install
from tests.services.catalog import ON_REQUEST, SERVICES, known
from tests.services.chromium import NoServer
from tests.services.conftest import ROOT, environment
from tests.services.maven import FetchFailed
from tests.services.places import end_all

Call = Callable[..., subprocess.CompletedProcess[str]]
NAMES = ["JQ_TEST_POSTGRES_DSN", "JQ_TEST_REDIS_URL", "JQ_TEST_KAFKA_BOOTSTRAP"]


@pytest.fixture
def call(folder: Path) -> Iterator[Call]:
    """Run it with a folder of the test's own for the servers."""
    inside = folder / "services"

    def run(name: str, *args: str, **extra: str) -> subprocess.CompletedProcess[str]:
        where = [] if name in ("ensure", "--help") else ["--folder", str(inside)]
        return subprocess.run(
            [sys.executable, ROOT / "scripts/services", name, *where, *args],
            env=environment(**extra),
            capture_output=True,
            text=True,
            timeout=patience.longest(120),
        )

    yield run
    end_all(inside)


@pytest.fixture
def _needed(services: Any) -> None:
    for name in SERVICES:
        services.need(name)


def rows(said: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in said.stdout.splitlines()[1:]}


def test_it_explains_itself_with_examples(call: Call) -> None:
    said = call("--help").stdout
    for example in ("scripts/services ensure", 'eval "$(scripts/services start)"', *NAMES):
        assert example in said


def test_it_needs_nothing_but_python(call: Call) -> None:
    """`-S -I`: no installed package, no variable."""
    done = subprocess.run(
        [sys.executable, "-S", "-I", ROOT / "scripts/services", "status"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert set(rows(done)) == set(SERVICES)


@pytest.mark.integration
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_needed")
def test_start_status_and_stop(call: Call, folder: Path) -> None:
    assert {row[0] for row in rows(call("status")).values()} == {"stopped"}
    done = call("start")
    assert done.returncode == 0, done.stderr
    told = dict(line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines())
    assert list(told) == NAMES
    running = rows(call("status"))
    assert {name: (row[0], row[2]) for name, row in running.items()} == {
        "postgres": ("running", redact(told["JQ_TEST_POSTGRES_DSN"])),
        "redis": ("running", redact(told["JQ_TEST_REDIS_URL"])),
        "kafka": ("running", told["JQ_TEST_KAFKA_BOOTSTRAP"]),
        "prometheus": ("stopped", "-"),
        "chromium": ("stopped", "-"),
    }
    again = call("start", "--json")
    assert json.loads(again.stdout) == told
    assert rows(call("status"))["redis"][1] == running["redis"][1]
    assert call("stop", "redis").returncode == 0
    assert {name: row[0] for name, row in rows(call("status")).items()} == {
        "postgres": "running",
        "redis": "stopped",
        "kafka": "running",
        "prometheus": "stopped",
        "chromium": "stopped",
    }
    assert call("stop").returncode == 0
    assert call("stop").returncode == 0
    assert {row[0] for row in rows(call("status")).values()} == {"stopped"}
    assert not (folder / "services").exists()


@pytest.mark.integration
@pytest.mark.usefixtures("_needed")
def test_a_shell_can_read_what_start_prints(call: Call) -> None:
    done = call("start", "redis")
    shell = f"{done.stdout}\necho $JQ_TEST_REDIS_URL"
    said = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
    assert redact(said.strip()) == rows(call("status"))["redis"][2]


def test_a_service_that_is_named_is_not_started(call: Call, folder: Path) -> None:
    named = dict.fromkeys(NAMES, "scheme://user:secret@host/0")
    done = call("start", "--json", **named)
    assert json.loads(done.stdout) == named
    assert not (folder / "services").exists()
    status = call("status", **named)
    states = {name: row[0] for name, row in rows(status).items()}
    for name in ("prometheus", "chromium"):  # no variable names one
        assert states.pop(name) == "stopped"
    assert set(states.values()) == {"named"}
    assert "secret" not in status.stdout
    assert call("ensure", *states, PATH="", **named).returncode == 0


def test_a_folder_of_somebody_else_is_refused(call: Call, folder: Path) -> None:
    (folder / "services").symlink_to(folder)
    done = call("start", "redis")
    assert done.returncode == 1
    assert "belongs to somebody else" in done.stderr


def test_an_unknown_service_is_named(call: Call) -> None:
    done = call("start", "rabbit")
    assert done.returncode == 2
    assert "unknown service 'rabbit'; known: postgres, redis, kafka" in done.stderr


# -- ensure -------------------------------------------------------------------------------------


class Machine:
    """What is installed, and what the package manager does when asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.installed: set[str] = set()
        self.tools: set[str] = set()  # of services that are fetched
        self.asked: list[str] = []
        self.fetched: list[str] = []
        self.works = True
        for service in known().values():
            monkeypatch.delenv(service.variable, raising=False)
            hidden = dataclasses.replace(
                service,
                find=partial(self.find, service.name),
                fetch=partial(self.fetch, service.name) if service.fetch else None,
                can_fetch=partial(self.can_fetch, service.name),
            )
            where = SERVICES if service.name in SERVICES else ON_REQUEST
            monkeypatch.setitem(where, service.name, hidden)
        monkeypatch.delenv("JQ_TEST_REQUIRE", raising=False)
        monkeypatch.setattr(install, "can_install", lambda: True)
        monkeypatch.setattr(install, "install", self.install)

    def find(self, name: str) -> Path | None:
        return Path("/somewhere") if name in self.installed else None

    def install(self, services) -> None:
        self.asked += [service.name for service in services]
        if not self.works:
            raise install.InstallFailed("no route to the mirror")
        for service in services:
            (self.tools if service.fetch else self.installed).add(service.name)

    def can_fetch(self, name: str) -> bool:
        return name in self.tools

    def fetch(self, name: str) -> None:
        self.fetched.append(name)
        if not self.works:
            raise FetchFailed("no route to the repository")
        self.installed.add(name)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_what_is_missing_is_installed(machine: Machine) -> None:
    machine.installed.add("postgres")
    assert command.main(["ensure"]) == 0
    assert machine.asked == ["redis", "kafka", "prometheus", "chromium"]
    assert machine.fetched == ["kafka"]
    assert command.main(["ensure"]) == 0
    assert machine.asked == ["redis", "kafka", "prometheus", "chromium"]
    assert machine.fetched == ["kafka"]


def test_a_container_engine_is_installed_only_when_it_is_named(machine: Machine) -> None:
    machine.installed |= SERVICES.keys()
    assert command.main(["ensure"]) == 0
    assert machine.asked == []
    assert command.main(["ensure", "--or-skip", "kafka", "containers"]) == 0
    assert machine.asked == ["containers"]


def test_what_can_be_fetched_needs_no_root(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "can_install", lambda: False)
    machine.tools.add("kafka")
    assert command.main(["ensure", "kafka"]) == 0
    assert machine.asked == []
    assert machine.fetched == ["kafka"]


def test_a_failed_fetch_says_what_went_wrong(machine: Machine, capsys) -> None:
    machine.tools.add("kafka")
    machine.works = False
    assert command.main(["ensure", "kafka"]) == 1
    said = capsys.readouterr().err
    assert "no route to the repository" in said
    assert "kafka is missing" in said
    assert "KAFKA_HOME" in said
    assert "JQ_TEST_KAFKA_BOOTSTRAP" in said


def test_a_failed_installation_says_what_went_wrong(machine: Machine, capsys) -> None:
    machine.works = False
    assert command.main(["ensure", "redis"]) == 1
    said = capsys.readouterr().err
    assert "no route to the mirror" in said
    assert "redis is missing" in said
    assert "JQ_TEST_REDIS_URL" in said


def test_without_root_it_says_how(
    machine: Machine, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "can_install", lambda: False)
    assert command.main(["ensure"]) == 1
    assert machine.asked == []
    assert "as root: scripts/services ensure postgres" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("required", "status"), [("", 0), ("redis", 1), ("postgres", 0), ("postgres,kafka", 1)]
)
def test_tests_may_be_skipped_unless_their_service_is_required(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, required: str, status: int
) -> None:
    machine.installed.add("postgres")
    machine.works = False
    monkeypatch.setenv("JQ_TEST_REQUIRE", required)
    assert command.main(["ensure", "--or-skip"]) == status


# -- installing ---------------------------------------------------------------------------------


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package manager that notes what it was told and what it found, in a machine of its own."""
    system = tmp_path / "system"
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("apt-get", "systemctl"):
        (programs / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n'
            f"cd {system} && find . -type f -print -exec cat {{}} ';' >> {tmp_path}/seen\n"
            f'case "$*" in *update*) touch {tmp_path}/updated;; esac\n'
            f'case "$*" in *install*) test -e {tmp_path}/updated;; esac\n'
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return system


def test_the_system_starts_nothing_and_is_left_as_it_was(apt: Path) -> None:
    (apt / "usr/sbin").mkdir(parents=True)
    install.install(list(SERVICES.values()), root=apt)
    calls = (apt.parent / "calls").read_text().splitlines()
    assert [line.split()[0] for line in calls] == [*["apt-get"] * 3, *["systemctl"] * 2]
    packages = (
        "postgresql redis-server openjdk-17-jre-headless maven prometheus chromium"
        " fonts-dejavu-core"
    )
    assert all(line.endswith(packages) for line in (calls[0], calls[2]))
    assert calls[1].endswith("update")  # the first try failed: nothing was known yet
    assert calls[3:] == [
        "systemctl disable redis-server.service",
        "systemctl disable prometheus.service",
    ]
    seen = (apt.parent / "seen").read_text()
    assert "./usr/sbin/policy-rc.d\n#!/bin/sh\nexit 101" in seen
    assert "createcluster.d/jobqueue.conf\ncreate_main_cluster = false" in seen
    assert [str(path.relative_to(apt)) for path in sorted(apt.rglob("*"))] == ["usr", "usr/sbin"]


def test_a_policy_of_the_systems_own_comes_back(apt: Path) -> None:
    policy = apt / "usr/sbin/policy-rc.d"
    policy.parent.mkdir(parents=True)
    policy.write_text("#!/bin/sh\nexit 0\n")
    policy.chmod(0o700)
    with pytest.raises(ZeroDivisionError, match="exit 101"), install.nothing_started(apt):
        raise ZeroDivisionError(policy.read_text())
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"
    assert policy.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in policy.parent.iterdir()] == ["policy-rc.d"]


def test_a_failed_installation_tells_what_apt_said(
    apt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (apt / "usr/sbin").mkdir(parents=True)
    failing = apt.parent / "programs/apt-get"
    failing.write_text("#!/bin/sh\necho E: no such package\nexit 100\n")
    with pytest.raises(install.InstallFailed, match="E: no such package"):
        install.install([SERVICES["redis"]], root=apt)
    assert list((apt / "usr/sbin").iterdir()) == []


def test_every_service_can_be_stopped_by_its_folder() -> None:
    """`kind_of` reads a service from the name of its folder, up to a dash."""
    for name, service in SERVICES.items():
        assert "-" not in name
        assert isinstance(service.server(Path("/nowhere")), PrivateServer | NoServer)
