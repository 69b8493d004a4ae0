"""The servers of a test run end with it, however it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import patience
from tests.services.conftest import ROOT, InnerRun, environment, inner_command

pytestmark = pytest.mark.integration

SHARED = """
import json, os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(postgres_dsn, redis_url, kafka, services, number):
    folder = services.place.folder
    note = {
        "folder": str(folder), "process": services.number, "redis": redis_url,
        "prefix": kafka.prefix,
        "pids": [service_pid(folder / name) for name in ("postgres", "redis", "kafka")],
        "guardians": sum(is_guardian(process, folder) for process in Path("/proc").glob("[0-9]*")),
    }
    Path(os.environ["NOTES"], str(number)).write_text(json.dumps(note))

def service_pid(folder):
    return int(next((folder / "data").glob("*.pid")).read_text().split()[0])

def is_guardian(process, folder):
    try:
        words = (process / "cmdline").read_bytes().split(b"\\0")
    except OSError:
        return False
    return b"tests.services.guardian" in words and str(folder).encode() in words
"""

HANGING = """
import os
from pathlib import Path

def test_it(postgres_dsn, redis_url, own_postgres, services, request):
    servers = [own_postgres()]
    names = ["postgres", "redis", servers[0].folder.name]
    if "KAFKA" in os.environ:
        request.getfixturevalue("kafka")
        names.append("kafka")
    folder = services.place.folder
    pids = [next((folder / n / "data").glob("*.pid")).read_text().split()[0] for n in names]
    with open(os.environ["NOTES"], "w") as notes:
        notes.write(" ".join([str(folder), *pids]))
    if "CRASH" in os.environ:
        os._exit(1)
    os.read(int(os.environ["BLOCK"]), 1)  # nobody ever writes
"""


@pytest.fixture(autouse=True)
def _needed(services: Any) -> None:
    services.need("postgres")
    services.need("redis")


@pytest.mark.timeout(240)
def test_all_processes_of_a_run_share_its_servers(
    inner_run: InnerRun, tmp_path: Path, services: Any
) -> None:
    services.need("kafka")
    notes = tmp_path / "notes"
    notes.mkdir()
    done = inner_run(SHARED, "-n", "2", NOTES=str(notes))
    assert done.returncode == 0, done.stdout
    told = [json.loads(note.read_text()) for note in notes.iterdir()]
    assert len({note["folder"] for note in told}) == 1
    assert len({tuple(note["pids"]) for note in told}) == 1
    assert {note["process"] for note in told} == {0, 1}
    assert {note["guardians"] for note in told} == {1}
    assert len({note["redis"] for note in told}) == 2
    assert len({note["prefix"] for note in told}) == len(told) == 6
    assert_ended(Path(told[0]["folder"]), told[0]["pids"])


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a run whose test notes its servers, and then hangs or crashes."""
    started: list[subprocess.Popen[bytes]] = []
    os.mkfifo(tmp_path / "notes")
    blocked, never = os.pipe()

    def start(*args: str, **extra: str) -> subprocess.Popen[bytes]:
        told = {"NOTES": str(tmp_path / "notes"), "BLOCK": str(blocked), **extra}
        started.append(
            subprocess.Popen(
                inner_command(tmp_path, HANGING, *args),
                cwd=ROOT,
                env=environment(**told),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[blocked],
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    os.close(blocked)
    os.close(never)
    for process in started:
        process.kill()
        process.wait()


def noted(tmp_path: Path) -> tuple[Path, list[int]]:
    """Waits for the note."""
    folder, *pids = (tmp_path / "notes").read_text().split()
    return Path(folder), [int(pid) for pid in pids]


def assert_ended(folder: Path, pids: list[int]) -> None:
    assert not folder.exists()
    for pid in pids:
        assert not Path(f"/proc/{pid}/cwd").exists()


def test_an_interrupted_run_ends_its_servers(hanging, tmp_path: Path) -> None:
    run = hanging()
    folder, pids = noted(tmp_path)
    run.send_signal(signal.SIGINT)
    assert run.wait(patience.longest(30)) == pytest.ExitCode.INTERRUPTED
    assert_ended(folder, pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_no_servers(hanging, tmp_path: Path, how: signal.Signals) -> None:
    assert_killed_without_a_trace(hanging(), tmp_path, how)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_run_leaves_no_kafka(hanging, tmp_path: Path, services: Any) -> None:
    services.need("kafka")
    assert_killed_without_a_trace(hanging(KAFKA="1"), tmp_path, signal.SIGKILL)


def assert_killed_without_a_trace(
    run: subprocess.Popen[bytes], tmp_path: Path, how: signal.Signals
) -> None:
    _, pids = noted(tmp_path)
    watched = [os.pidfd_open(pid) for pid in pids]
    run.send_signal(how)
    run.wait(patience.longest(30))
    try:
        for descriptor in watched:
            assert select.select([descriptor], [], [], 30)[0], "a server was left running"
    finally:
        for descriptor in watched:
            os.close(descriptor)


def test_a_crashed_process_of_a_run_leaves_no_servers(hanging, tmp_path: Path) -> None:
    run = hanging("-n", "1", CRASH="1")
    folder, pids = noted(tmp_path)
    assert run.wait(patience.longest(30)) == pytest.ExitCode.TESTS_FAILED
    assert_ended(folder, pids)
