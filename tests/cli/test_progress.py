"""How far a running job is, as jq-ctl shows it to people and to programs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest_asyncio

from jobqueue.cli.display import progress_line
from jobqueue.core.clock import SystemClock
from jobqueue.core.job import Assignment, Pulse
from jobqueue.core.progress import Progress
from jobqueue.core.store import Rules
from jobqueue.stores.sqlite.store import SqliteStore
from tests.cli import processes, terminal
from tests.programs import Program
from tests.stores.driver import Driver, worker

URL = "sqlite:///jobs.db"


@dataclass
class Running:
    """A job that runs, in a file that jq-ctl reads."""

    folder: Path
    driver: Driver
    job: Assignment

    def tell(self, value: float | None, text: str) -> Pulse:
        told = {self.job.lease: Progress.of(value, text)}
        return self.driver.store.workers.pulse("w", 1, [self.job.lease], [self.job.lease], told)

    async def ctl(self, *args: str) -> str:
        ran = await asyncio.to_thread(processes.run, "ctl", "--url", URL, *args, cwd=self.folder)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    def watch(self, *args: str) -> Program:
        command = [sys.executable, "-m", "jobqueue.cli.ctl", "--url", URL, "job", "watch"]
        return Program([*command, self.job.id, *args], self.folder, processes.environment())


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    store = SqliteStore(tmp_path / "jobs.db")
    driver = Driver(store, SystemClock(), Rules())  # type: ignore[arg-type]
    await store.open()
    await driver.queue("q")
    await store.workers.register(worker())
    yield Running(tmp_path, driver, await driver.running())
    await store.close()


def test_a_percentage_is_not_rounded_up_to_the_end() -> None:
    values = {0.0: "0 %", 0.29: "29 %", 0.57: "57 %", 0.9999: "99 %", 1.0: "100 %"}
    for value, shown in values.items():
        assert progress_line(Progress(value)) == shown
    assert progress_line(Progress(None, "a\x1b[31m")) == "a\\x1b[31m"


async def test_status_shows_how_far_a_running_job_is(running: Running) -> None:
    assert "Progress" not in await running.ctl("job", "status", running.job.id)
    running.tell(0.999, "999 of 1000 [red]files[/red]")
    shown = await running.ctl("job", "status", running.job.id)
    assert "Progress:    99 %  999 of 1000 [red]files[/red] (" in shown
    assert " s ago)" in shown
    document = json.loads(await running.ctl("job", "status", running.job.id, "-o", "json"))
    assert document["progress"]["value"] == 0.999
    assert document["progress"]["text"] == "999 of 1000 [red]files[/red]"
    assert document["progress"]["at"].endswith("Z")
    listed = json.loads(await running.ctl("job", "list", "-o", "json"))
    assert listed["jobs"][0]["progress"] == document["progress"]
    running.tell(None, "no number")
    assert "Progress:    no number (" in await running.ctl("job", "status", running.job.id)
    await running.driver.succeed(running.job)
    assert "Progress" not in await running.ctl("job", "status", running.job.id)
    document = json.loads(await running.ctl("job", "status", running.job.id, "-o", "json"))
    assert document["progress"] is None


async def test_watch_follows_progress_in_a_pipe(running: Running) -> None:
    running.tell(0.25, "1 of 4 files")
    watching = running.watch()
    try:
        await asyncio.to_thread(watching.line_with, "progress  25 %  1 of 4 files\n")
        running.tell(0.5, "")
        await asyncio.to_thread(watching.line_with, "progress  50 %\n")
        await running.driver.succeed(running.job)
        assert await asyncio.to_thread(watching.wait) == 0
    finally:
        watching.end()
    assert watching.text.count("progress") == 2
    assert "SUCCEEDED" in watching.printed[-1]


async def test_watch_tells_programs_of_progress(running: Running) -> None:
    running.tell(0.25, "1 of 4 files")
    watching = running.watch("--output", "json")
    try:
        line = await asyncio.to_thread(watching.line_with, '"progress"')
        await running.driver.succeed(running.job)
        assert await asyncio.to_thread(watching.wait) == 0
    finally:
        watching.end()
    told = json.loads(line)
    assert told.pop("attempt") == 1
    assert (told["progress"]["value"], told["progress"]["text"]) == (0.25, "1 of 4 files")
    lines = [json.loads(line) for line in watching.printed]
    assert [line.get("to_status") for line in lines] == [
        "PENDING", "ASSIGNED", "RUNNING", None, "DONE",
    ]  # fmt: skip


async def test_a_person_at_a_terminal_sees_a_bar(running: Running) -> None:
    running.tell(0.4, "12 of 30 [red]files[/red]")
    status, shown = await asyncio.to_thread(
        terminal.run,
        "ctl", "--url", URL, "job", "watch", running.job.id,
        cwd=running.folder, answers={"40 %  12 of 30 [red]files[/red]": "^C"},
    )  # fmt: skip
    assert status == 130
    assert "━━━" in terminal.screen(shown)
    assert "Traceback" not in shown
