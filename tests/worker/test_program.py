"""Any program as the handler."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import uvloop

from jobqueue.core.lifecycle import Move
from jobqueue.core.progress import Progress
from jobqueue.worker import side_threads
from jobqueue.worker.executors.program import Conversation
from jobqueue.worker.executors.spawn import Spawned
from tests import patience
from tests.worker.fakes import FakeServer, Worker
from tests.worker.test_processes import gone
from tests.worker.test_progress import told


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two heartbeats that tell of progress."""
    monkeypatch.setattr(side_threads, "_PAUSE", 0.1)


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


@pytest.mark.req("jq:FR-029")
async def test_payload_in_result_out(server: FakeServer) -> None:
    async with Worker(server, exec_command=["cat"]):
        assert (await server.end(server.deliver("any", b"\xff\x00"))).result == b"\xff\x00"
        large = b"x" * 1_000_000
        assert (await server.end(server.deliver("any", large))).result == large
        assert (await server.end(server.deliver("any", b""))).result is None


async def test_a_program_knows_its_job_but_not_the_workers_secrets(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("JQ_DB_PASSWORD", "JQ_API_KEY", "JQ_AUTH_API_KEYS", "JQ_AUTH_JWT_SECRET", "JQ_URL")
    for name in secrets:
        monkeypatch.setenv(name, "hidden")
    shown = "".join(f"${{{name}}}" for name in secrets)
    command = shell(f'printf "$JQ_JOB_ID $JQ_QUEUE $JQ_TYPE $JQ_ATTEMPT{shown}"')
    async with Worker(server, exec_command=command):
        job = server.deliver("resize", b"x" * 200_000, attempt=3)  # input that nobody reads
        assert (await server.end(job)).result == b"job-1 default resize 3"


@pytest.mark.req("jq:FR-029")
async def test_exit_status_and_stderr_are_the_error(server: FakeServer) -> None:
    noisy = "i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done; exit 3"
    async with Worker(server, exec_command=shell(noisy)):
        report = await server.end(server.deliver())
        assert (report.move, report.retryable) == (Move.FAIL, True)
        assert report.error.startswith("exit status 3\n")
        assert report.error.endswith("line 2999")
        assert len(report.error.encode()) <= 8192


async def test_a_program_that_is_killed_or_missing(server: FakeServer) -> None:
    async with Worker(server, exec_command=shell("kill -9 $$")):
        assert (await server.end(server.deliver())).error == "killed by SIGKILL"
    async with Worker(FakeServer(), exec_command=["/no/such/program"]) as worker:
        fake = worker._dispatch
        assert isinstance(fake, FakeServer)
        report = await fake.end(fake.deliver())
        assert report.error.startswith("cannot start the program '/no/such/program': ")
        assert fake.free == 4


async def test_output_is_bounded(server: FakeServer) -> None:
    async with Worker(server, exec_command=["cat", "/dev/zero"], max_result_bytes=1000):
        report = await server.end(server.deliver())
        assert not report.retryable
        assert report.error == "result: the program wrote more than the 1000 bytes allowed"


async def test_timeout_kills_the_whole_group(server: FakeServer, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = shell(f"sleep 600 & echo $! > {pid_file}; wait")
    async with Worker(server, exec_command=command, concurrency=1):
        report = await server.end(server.deliver(timeout=0.3))
        assert report.move is Move.TIME_OUT
        await server.until(lambda: server.free == 1)
        assert await gone(int(pid_file.read_text()))


async def test_cancel_asks_first_then_kills(server: FakeServer, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    polite = f"trap 'exit 0' TERM; touch {ready}; while :; do sleep 0.01; done"
    stubborn = f"trap '' TERM; touch {ready}; while :; do sleep 0.01; done"
    for script in (polite, stubborn):
        fake = FakeServer()
        async with Worker(fake, exec_command=shell(script), cancel_grace=0.2) as worker:
            job = fake.deliver()
            limit = patience.Limit(10)
            while not ready.exists():
                assert not limit.over
                await asyncio.sleep(0.005)
            ready.unlink()
            worker.cancel([job.lease])
            assert (await fake.end(job)).move is Move.ACKNOWLEDGE_CANCEL
            await fake.until(lambda: fake.free == 4)  # noqa: B023


async def test_what_a_program_leaves_behind_does_not_hold_its_job(
    server: FakeServer, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    command = shell(f"sleep 600 & echo $! > {pid_file}; echo done")
    async with Worker(server, exec_command=command):
        report = await server.end(server.deliver())
        assert report.result == b"done\n"
        assert await gone(int(pid_file.read_text()))


async def test_stop_kills_at_the_deadline(server: FakeServer) -> None:
    code = "import time; time.sleep(600)"
    async with Worker(server, exec_command=[sys.executable, "-c", code]) as worker:
        await server.start_of(server.deliver())
        assert worker._executors.program is not None
        await server.until(lambda: True)
        while not (pids := list(worker._executors.program._pids.values())):
            await asyncio.sleep(0.005)
        await worker.stop(0.3)
        assert await gone(pids[0])
        assert not server.ends()
        assert os.getpid() not in pids


def test_a_program_that_ends_before_it_is_spoken_to() -> None:
    """On uvloop a pipe whose reader is gone refuses the write itself."""

    async def talk() -> None:
        process = Spawned(["true"], stdin=PIPE, stdout=PIPE, stderr=PIPE)
        await process.wait()
        assert await patience.wait_for(Conversation(process, 100).hold(b"x" * 100_000), 10) == 0

    uvloop.run(talk())


async def test_a_program_tells_how_far_it_is(server: FakeServer, tmp_path: Path) -> None:
    go_on, finish = tmp_path / "go-on", tmp_path / "finish"
    script = f"""
        echo "0.25 1 of 4 files" > "$JQ_PROGRESS"
        until test -e {go_on}; do sleep 0.01; done
        echo "- counting" > "$JQ_PROGRESS"
        until test -e {finish}; do sleep 0.01; done
        echo done
    """
    async with Worker(server, exec_command=shell(script)):
        job = server.deliver()
        await told(server, job.lease, Progress(0.25, "1 of 4 files"))
        go_on.touch()
        await told(server, job.lease, Progress(None, "counting"))
        finish.touch()
        assert (await server.end(job)).result == b"done\n"


async def test_of_much_that_a_program_tells_the_last_counts(server: FakeServer) -> None:
    script = """
        i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo "0.5 step $i"; done > "$JQ_PROGRESS"
        cat > /dev/null; sleep 600
    """
    async with Worker(server, exec_command=shell(script), stop_within=0.2):
        job = server.deliver()
        await told(server, job.lease, Progress(0.5, "step 20000"))


async def test_a_line_that_is_no_progress_is_ignored_and_logged_once(
    server: FakeServer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    script = f"""
        echo "12 of 30 files" > "$JQ_PROGRESS"
        until test -e {go_on}; do sleep 0.01; done
        sleep 0.3
        echo "nearly there" > "$JQ_PROGRESS"
        sleep 0.3
        echo "1" > "$JQ_PROGRESS"
        sleep 600
    """

    def complaints() -> list[str]:
        return [one.getMessage() for one in caplog.records if "ignored a line" in one.getMessage()]

    async with Worker(server, exec_command=shell(script), stop_within=0.2):
        job = server.deliver()
        limit = patience.Limit(20)
        while not complaints():
            assert not limit.over
            await asyncio.sleep(0.005)
        go_on.touch()
        await told(server, job.lease, Progress(1.0))
    assert complaints() == [
        f"ignored a line of progress of job {job.id}: progress.value: must be 0 to 1 (0.25 is 25"
        " %), got 12.0; further such lines are ignored silently"
    ]


async def test_what_a_program_leaves_running_does_not_hold_its_end_up(
    server: FakeServer, tmp_path: Path
) -> None:
    """Not even if it has the pipe for progress, and nothing else, open."""
    pid = tmp_path / "pid"
    script = f"sleep 600 < /dev/null > /dev/null 2>&1 & echo $! > {pid}; echo done"
    async with Worker(server, exec_command=shell(script), stop_within=0.2):
        assert (await server.end(server.deliver())).result == b"done\n"
        os.kill(int(pid.read_text()), signal.SIGKILL)
