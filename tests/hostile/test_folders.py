"""A folder that somebody else prepared decides nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.fleet import processes as fleet_processes
from jobqueue.fleet import state
from jobqueue.fleet.backing.redis import PrivateRedis
from jobqueue.fleet.folders import STATE, FolderLock, make_folder
from jobqueue.fleet.layout import Probe, Process
from jobqueue.worker.executors.process import ChildProcess
from tests import patience
from tests.cli import processes
from tests.services.places import new_folder

SOMEBODY = 12_345


@pytest.fixture
def bystander() -> Iterator[int]:
    """The pid of a process of ours that no topology has started."""
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.poll() is None, "it was ended"


def naming(folder: Path, pid: int) -> None:
    """A state file that says that this process is the folder's supervisor."""
    folder.mkdir()
    began = fleet_processes.began(pid)
    state.FleetState("embedded", folder, True, 0.0, True, pid, began, (), (), ()).write()


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to somebody else."""
    if os.geteuid() == 0:
        os.chown(path, SOMEBODY, SOMEBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path):
    folder = tmp_path / "fleet"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Unavailable, match="other users may write"):
        FolderLock(folder)
    assert list(folder.iterdir()) == []


def test_a_folder_with_files_that_the_group_may_write_to_is_refused(tmp_path: Path):
    """Its members may have prepared them."""
    folder = tmp_path / "fleet"
    (folder / "redis").mkdir(parents=True)
    folder.chmod(0o775)
    with pytest.raises(Unavailable, match=f"other users may write.*chmod go-w {folder}"):
        FolderLock(folder)
    assert folder.stat().st_mode & 0o777 == 0o775
    assert [path.name for path in folder.iterdir()] == ["redis"]


def test_an_empty_folder_is_taken_from_the_group(tmp_path: Path):
    """As `mkdir` makes it where the umask is 002."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    folder.chmod(0o775)
    FolderLock(folder).release()
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_down_ends_nothing_that_others_may_have_named(tmp_path: Path, mode: int, bystander: int):
    folder = tmp_path / "fleet"
    naming(folder, bystander)
    folder.chmod(mode)
    done = processes.run("ctl", "down", "--folder", str(folder), "--within", "20", cwd=tmp_path)
    assert (done.returncode, "may write there" in done.stderr) == (6, True), done.stderr


@pytest.mark.parametrize("whose", ["", STATE])
def test_the_state_that_somebody_else_wrote_is_not_read(
    tmp_path: Path, whose: str, bystander: int, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "fleet"
    naming(folder, bystander)
    assert state.read(folder).supervised
    given_away(folder / whose, monkeypatch)
    with pytest.raises(Unavailable, match="another user owns it"):
        state.read(folder)


def test_the_state_behind_a_link_is_not_read(tmp_path: Path, bystander: int):
    """Only a folder that was open to others can have got it."""
    folder = tmp_path / "fleet"
    naming(folder, bystander)
    (folder / STATE).rename(tmp_path / "other")
    (folder / STATE).symlink_to(tmp_path / "other")
    with pytest.raises(JobQueueError):
        state.read(folder)


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "fleet"
    folder.mkdir()
    given_away(folder, monkeypatch)
    with pytest.raises(Unavailable, match="another user owns it"):
        FolderLock(folder)
    assert list(folder.iterdir()) == []


def test_nobody_else_may_write_beside_the_password_of_a_private_server(
    monkeypatch: pytest.MonkeyPatch,
):
    """Also where we are not root, who gives the folder a mode of its own anyway."""
    monkeypatch.setattr(fleet_processes, "is_root", lambda: False)
    with new_folder() as folder:
        server = PrivateRedis(folder / "made" / "redis")
        before = os.umask(0)
        try:
            server.start()
            server.stop()
        finally:
            os.umask(before)
        assert server.folder.stat().st_mode & 0o022 == 0
        assert server.folder.parent.stat().st_mode & 0o022 == 0
        server.folder.chmod(0o777)
        server.start()
        server.stop()
        assert server.folder.stat().st_mode & 0o022 == 0


def test_a_link_that_appears_in_place_of_a_new_folder_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Before, what a link of another user in /tmp named became open to everybody."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    mkdir = Path.mkdir

    def too_late(self: Path, *args: Any, **kwargs: Any) -> None:
        if self.name == "made":
            self.symlink_to(private)
        mkdir(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", too_late)
    make_folder(tmp_path / "made" / "redis", 0o755)
    assert private.stat().st_mode & 0o777 == 0o700


def in_the_way(folder: Path) -> None:
    """A module of somebody else, by the name of ours."""
    folder.mkdir(exist_ok=True)
    (folder / "jobqueue.py").write_text("raise SystemExit('of somebody else')\n")


def test_up_runs_nothing_that_lies_in_the_folder_it_is_called_in(tmp_path: Path):
    """Before, a module there took the place of ours: in /tmp, that of any user."""
    in_the_way(tmp_path)
    probe = Probe("127.0.0.1", 1)
    process = Process(
        "server", "server", 0, "jobqueue.cli.server", {}, probe, "", 1.0, arguments=("--version",)
    )
    ran = subprocess.run(process.command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("jobqueue ")


async def test_a_worker_runs_nothing_that_lies_in_the_folder_it_is_called_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    in_the_way(tmp_path)
    monkeypatch.chdir(tmp_path)
    child = await ChildProcess.start(patience.longest(30), "jobqueue.worker.child")
    await child.kill()
