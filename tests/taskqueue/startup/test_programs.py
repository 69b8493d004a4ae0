"""The services as processes: what they say when they start and end, and what stops them."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobqueue.taskqueue.components.model import Listing, Spec, Status
from jobqueue.taskqueue.designs.catalogue import DESIGN_A
from scripts import healthcheck
from tests.cli.processes import Service
from tests.taskqueue.fleet import REQUIRED, WORKER_ID, Fleet, event
from tests.taskqueue.startup.test_designs import client, counted, result_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Started all at once: none needs another one to start."""
    made = Fleet(tmp_path_factory.mktemp("six"))
    try:
        made.launch()
        made.ready()
        yield made
    finally:
        made.end()


@pytest.mark.req("tq:STARTUP", "tq:LOG", "tq:LOCK-34")
def test_each_says_that_it_is_ready_and_where(fleet: Fleet) -> None:
    for service in DESIGN_A:
        ready = event(fleet.running[service.name], "ready")
        assert ready["service"] == service.name
        if service.port:
            assert f"127.0.0.1:{ready['port']}" == fleet.address[service.name]
            assert service.serves in ready["message"]
        else:
            assert (ready["worker_id"], ready["slots"]) == (WORKER_ID, 6)


@pytest.mark.req("tq:STARTUP", "tq:LOCK-9", "tq:LOCK-17")
def test_the_worker_is_ready_after_its_first_heartbeat_was_tried(fleet: Fleet) -> None:
    lines = fleet.running["worker"].lines
    beats = [
        n for n, line in enumerate(lines) if line["event"] in ("heartbeat", "heartbeat_failed")
    ]
    ready = next(n for n, line in enumerate(lines) if line["event"] == "ready")
    assert beats
    assert beats[0] < ready
    assert lines[beats[0]]["worker_id"] == WORKER_ID


@pytest.mark.req("tq:STARTUP", "tq:LOG", "tq:LOCK-34")
async def test_jobs_run_and_every_line_has_the_required_fields(fleet: Fleet) -> None:
    async with client(fleet.address["gateway"]) as queue:
        jobs = [await queue.submit(Spec("short", 20), "") for _ in range(10)]
        for job in jobs:
            assert (await result_of(queue, job.job_id)).status is Status.DONE
    for name, service in fleet.running.items():
        assert service.noise == []
        for line in service.lines:
            assert line.keys() >= REQUIRED
            assert line["service"] == name


@pytest.mark.req("tq:HEALTH")
def test_the_health_check_of_each_service(fleet: Fleet) -> None:
    for service in DESIGN_A:
        name = service.name
        mode, target = ("tcp", name) if service.port else ("worker", "coordinator")
        words = ["--mode", mode, "--target", fleet.address[target], "--timeout-ms", "5000"]
        assert healthcheck.main([*words, "--service", name]) == 0


@pytest.mark.req("tq:STARTUP")
def test_a_port_that_is_taken_is_said_and_fails(fleet: Fleet, tmp_path: Path) -> None:
    port = fleet.address["job"].rpartition(":")[2]
    with Service("service", "job", cwd=tmp_path, BIND_HOST="127.0.0.1", JOB_PORT=port) as second:
        assert second.wait() == 6
    assert [line for line in second.lines if line["event"] == "ready"] == []
    (error,) = (line for line in second.lines if line["level"] == "ERROR")
    assert port in error["message"]
    assert error.keys() >= REQUIRED


@pytest.mark.req("tq:LOCK-17")
def test_a_worker_without_a_name_is_called_after_its_host(fleet: Fleet, tmp_path: Path) -> None:
    told = {"COORDINATOR_ADDR": fleet.address["coordinator"], "WORKER_ID": "", "WORKER_SLOTS": "1"}
    with Service("service", "worker", cwd=tmp_path, **told) as worker:
        named = event(worker, "ready")["worker_id"]
        assert re.fullmatch(r"[\w.-]+", named)
        event(fleet.running["coordinator"], "worker_available", worker_id=named)
        assert worker.stop() == 0


# The last one: it ends them.
@pytest.mark.req("tq:STARTUP")
async def test_each_ends_when_it_is_told_to_and_says_what_is_lost(fleet: Fleet) -> None:
    async with client(fleet.address["gateway"]) as queue:
        for _ in range(8):
            await queue.submit(Spec("half", work_duration_ms=500), "")
        await counted(queue, RUNNING=6, QUEUED=2)
        await _ends(fleet, "worker")
        # It finished and reported what it ran, and took no more.
        await counted(queue, RUNNING=0, QUEUED=2)
        assert await _lost(fleet, "coordinator")
        jobs = (await queue.list(Listing(limit=200))).jobs
        done = sum(job.status is Status.DONE for job in jobs)
        await _ends(fleet, "gateway")
    lost = await _lost(fleet, "job")
    assert (lost["jobs"], lost["unfinished_jobs"]) == (done + 2, 2)
    assert (await _lost(fleet, "queue"))["queued_jobs"] == 2
    assert (await _lost(fleet, "result"))["results"] == done
    words = ["--mode", "tcp", "--target", fleet.address["job"]]
    assert healthcheck.main(words) == 1


async def _ends(fleet: Fleet, name: str) -> None:
    service = fleet.running[name]
    service.signal(signal.SIGTERM)
    assert await asyncio.to_thread(service.wait) == 0
    assert service.lines[-1]["event"] in ("stopped", "state_lost")


async def _lost(fleet: Fleet, name: str) -> dict:
    await _ends(fleet, name)
    line = fleet.running[name].lines[-1]
    assert (line["event"], line["level"]) == ("state_lost", "WARNING")
    return line
