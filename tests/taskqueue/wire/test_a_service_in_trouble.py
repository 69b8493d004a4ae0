"""A service that is frozen, killed and started again, seen by who calls it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobqueue.core.errors import DeadlineExceeded, NotFound, Unavailable
from jobqueue.taskqueue.grpc.remote import RemoteJobs
from tests import patience, ports
from tests.taskqueue.wire.parts import SPEC

ROOT = Path(__file__).parents[3]
Start = Callable[..., tuple[subprocess.Popen[str], int]]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def launch(port: int | None = None) -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.taskqueue.wire.job_service", str(port or ports.take())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield launch
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.faults
@pytest.mark.req("tq:DEADLINE", "tq:CODES")
async def test_frozen_killed_and_started_again(start, peer, lines):
    process, port = start()
    jobs = RemoteJobs(peer(f"127.0.0.1:{port}"))
    created = await _when_it_answers(lambda: jobs.create(SPEC, "", request_id="r1"))
    job_id = created.job_id

    process.send_signal(signal.SIGSTOP)
    async with patience.timeout(20):
        with pytest.raises(Unavailable, match="the job service did not answer within 1 s"):
            await jobs.get(job_id)
    process.send_signal(signal.SIGCONT)
    assert (await _when_it_answers(lambda: jobs.get(job_id))).spec == SPEC

    process.kill()
    process.wait()
    async with patience.timeout(20):
        with pytest.raises(Unavailable):
            await jobs.get(job_id)
    assert lines.of("state_lost") == []

    start(port)
    with pytest.raises(NotFound):
        await _when_it_answers(lambda: jobs.get(job_id))
    assert len(lines.of("state_lost")) == 1


async def _when_it_answers(call):
    async with patience.timeout(30):
        while True:
            try:
                return await call()
            except (Unavailable, DeadlineExceeded):
                continue  # it took its time
