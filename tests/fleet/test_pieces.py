"""Small pieces: who a pid is, log lines, the guard, folders, the table."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rich.console import Console

from jobqueue.cli import fleet
from jobqueue.core.errors import Conflict
from jobqueue.fleet import folders, keeper, processes
from jobqueue.fleet.guard import SupervisorGuard
from jobqueue.fleet.keeper import Row, UnitHealth
from jobqueue.fleet.layout import Probe
from tests import ports
from tests.cli.ups import gone, wait


def test_a_pid_is_known_by_its_start():
    mark = processes.began(os.getpid())
    assert processes.is_running(os.getpid(), mark)
    assert not processes.is_running(os.getpid(), "1@0")
    assert not processes.is_running(None, None)
    with subprocess.Popen(["true"]) as child:
        wait(lambda: processes.began(child.pid) is None, "a zombie counts as gone")
    processes.send(os.getpid(), "1@0", 9)  # to nobody


def test_the_last_line_in_plain_words(tmp_path):
    path = tmp_path / "log"
    assert folders.last_line(path) == ""
    for text, shown in (
        ('{"level": "INFO", "message": "ready"}\n', "ready"),
        ('{"level": "ERROR", "message": "no"}\n\n', "ERROR: no"),
        (
            '{"level": "ERROR", "message": "no", "exception": {"type": "E", "message": "why"}}\n',
            "ERROR: no (E: why)",
        ),
        ("plain\n", "plain"),
        ("2026-11-15 11:22:17.355 UTC [8056] LOG:  ready now\n", "LOG:  ready now"),
        ("8059:M 15 Nov 2026 11:22:17.323 * Ready\n", "Ready"),
        ("at postgresql://jq:hunter2@db/jobs\n", "at postgresql://jq:***@db/jobs"),
        ("x" * 20_000 + "\nend\n", "end"),
    ):
        with path.open("a") as file:
            file.write(text)
        assert folders.last_line(path) == shown


def test_a_log_begins_anew_and_the_last_one_is_kept(tmp_path):
    path = tmp_path / "log"
    path.write_text("old")
    folders.begin_log(path)
    assert not path.exists()
    assert (tmp_path / "log.1").read_text() == "old"
    folders.begin_log(path)
    assert (tmp_path / "log.1").read_text() == "old"


def test_a_guard_that_is_dismissed_harms_nobody():
    guard = SupervisorGuard({})
    with subprocess.Popen(["sleep", "60"], process_group=guard.group()) as child:
        guard.dismiss()
        guard.dismiss()
        assert child.poll() is None
        child.kill()


def test_a_guard_that_was_killed_is_replaced_and_knows_what_to_watch(tmp_path):
    # Like a supervisor: it dies without a goodbye.
    program = f"""
import os, signal, subprocess
from pathlib import Path
from jobqueue.fleet.guard import SupervisorGuard
guard = SupervisorGuard({{Path({str(tmp_path)!r}): signal.SIGTERM}})
first = guard.group()
os.kill(first, signal.SIGKILL)
while guard.group() == first:
    pass
in_group = subprocess.Popen(["sleep", "60"], process_group=guard.group())
elsewhere = subprocess.Popen(["sleep", "60"], cwd={str(tmp_path)!r}, start_new_session=True)
print(in_group.pid, elsewhere.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pids = [int(word) for word in ran.stdout.split()]
    assert len(pids) == 2, ran.stderr
    wait(lambda: all(map(gone, pids)), "both are ended")


def test_one_claim_at_a_time(tmp_path):
    claim = folders.FolderLock(tmp_path / "fleet")
    with pytest.raises(Conflict, match="a topology runs in"):
        folders.FolderLock(tmp_path / "fleet")
    claim.release()
    folders.FolderLock(tmp_path / "fleet").release()


def test_only_a_folder_of_ours_is_removed(tmp_path):
    (tmp_path / "precious").touch()
    folders.remove(tmp_path)
    assert (tmp_path / "precious").exists()


async def test_a_port_that_says_nonsense_is_not_well():
    import asyncio

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n\r\n")
        writer.close()

    port = ports.take()
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    async with server:
        assert (await keeper.ask(Probe("127.0.0.1", port))).ok
        found = await keeper.ask(Probe("127.0.0.1", port, "/readyz"))
        assert not found.ok
    found = await keeper.ask(Probe("127.0.0.1", port))
    assert not found.ok
    assert found.detail.startswith("no answer")


@pytest.mark.parametrize("width", [80, 110, 200])
def test_the_table_has_one_line_for_each_process(width):
    row = Row(
        name="worker-10", role="worker", stage=2, pid=1234567, began="1@x",
        address="http://127.0.0.1:31598/metrics", health=UnitHealth.OK, detail="", restarts=3,
        since=0.0, log=None, last_line="x" * 500 + "\x1b[2J", probe=None, stop_signal=15,
    )  # fmt: skip
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(fleet.table([row, row], width))
    lines = [line for line in console.export_text().splitlines() if line.strip()]
    assert len(lines) == 4
    assert "worker-10" in lines[2]
    assert "\x1b" not in "".join(lines)
