"""Workers: how they register, beat, die, drain and leave, at whichever server."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests import patience
from tests.cli.layouts import Running
from tests.cli.ups import wait
from tests.e2e.conftest import ON_TWO_HASTY_SERVERS, Ctl, Query, Workshop

LAST_SEEN = "SELECT last_seen FROM workers WHERE id = 'beater'"

pytestmark = [pytest.mark.e2e, ON_TWO_HASTY_SERVERS]


def shown(ctl: Ctl, worker_id: str) -> Any:
    """What jq-ctl shows of a worker."""
    workers = ctl.json("worker", "list", "--all")["workers"]
    [one] = [worker for worker in workers if worker["worker_id"] == worker_id]
    return one


@pytest.mark.req("jq:FR-018", "jq:FR-019", "jq:FR-022")
def test_a_worker_registers_beats_and_takes_from_its_queues_alone(
    ctl: Ctl, queue: str, query: Query, workshop: Workshop
) -> None:
    elsewhere = ctl.ok("job", "submit", "default", "{}", "--type", "work")
    with workshop.worker(queue, "--id", "beater", "--concurrency", "7") as worker:
        worker.line("ready")
        done = ctl.ok("job", "submit", queue, "{}", "--type", "work", "--wait").split()[0]
        listed = shown(ctl, "beater")
        assert (listed["concurrency"], listed["status"]) == (7, "ONLINE")
        assert (listed["hostname"], listed["pid"]) == (socket.gethostname(), worker.process.pid)
        assert listed["queues"] == [queue]
        beats: set[tuple[object, ...]] = set()

        def has_beaten() -> bool:
            beats.update(query(LAST_SEEN))
            return len(beats) > 3

        wait(has_beaten, "three more heartbeats, one each 0.3 s", timeout=6)
        assert worker.stop() == 0
    assert workshop.attempts() == [(done, 1)]
    assert ctl.json("job", "status", elsewhere)["status"] == "PENDING"
    ctl.ok("job", "cancel", elsewhere)


@pytest.mark.req("jq:FR-020", "jq:NFR-006", "jq:NFR-007", "jq:AC-2")
def test_a_killed_worker_is_offline_and_its_job_runs_elsewhere(
    ctl: Ctl, queue: str, workshop: Workshop
) -> None:
    with workshop.worker(queue, "--id", "victim") as victim:
        job_id = ctl.ok("job", "submit", queue, "{}", "--type", "first_attempt_hangs")
        # Not only begun: what the server has not heard of by then is an assignment that timed out.
        wait(lambda: ctl.json("job", "status", job_id)["status"] == "RUNNING", "it runs")
        victim.process.kill()
        with workshop.worker(queue, "--id", "successor") as successor:
            ctl.ok("job", "watch", job_id)
            assert successor.stop() == 0
    assert shown(ctl, "victim")["status"] == "OFFLINE"
    job = ctl.json("job", "status", job_id)
    assert (job["status"], job["worker_id"], job["result"]) == ("DONE", "successor", "attempt 2")
    events = ctl.json("job", "logs", job_id)["events"]
    assert [event["to_status"] for event in events if event["reason"] == "WORKER_LOST"] == [
        "FAILED"
    ]
    assert workshop.attempts() == [(job_id, 1), (job_id, 2)]


@pytest.mark.req("jq:FR-021")
def test_a_worker_never_holds_more_than_its_concurrency(
    ctl: Ctl, queue: str, query: Query, workshop: Workshop
) -> None:
    ctl.ok("job", "submit", queue, '{"seconds": 0.2}', "--type", "work", "--count", "9")
    with workshop.worker(queue, "--concurrency", "2") as worker:
        wait(lambda: len(workshop.attempts()) == 9, "all have begun")
        assert worker.stop() == 0
    steps = query(
        "SELECT CASE to_status WHEN 'ASSIGNED' THEN 1 ELSE -1 END FROM job_events"
        " WHERE queue = $1 AND to_status IN ('ASSIGNED', 'DONE') ORDER BY at, version DESC",
        queue,
    )
    held = [sum(step for (step,) in steps[: n + 1]) for n in range(len(steps))]
    assert (max(held), held[-1]) == (2, 0)


@pytest.mark.req("jq:FR-023", "jq:FR-024", "jq:NFR-008", "jq:NFR-015")
def test_drain_and_shutdown_at_the_server_that_the_worker_is_not_connected_to(
    layout: Running, queue: str, workshop: Workshop, tmp_path: Path
) -> None:
    here, there = layout.targets
    operator = Ctl([there], tmp_path)
    with workshop.worker(queue, "--server", here, "--id", "leaver") as worker:
        running = operator.ok("job", "submit", queue, '{"seconds": 4}', "--type", "work")
        wait(lambda: workshop.attempts() == [(running, 1)], "it runs")
        operator.ok("worker", "drain", "leaver")
        worker.line("draining")
        assert shown(operator, "leaver")["status"] == "DRAINING"
        waiting = operator.ok("job", "submit", queue, "{}", "--type", "work")
        limit = patience.Limit(60)
        operator.ok("worker", "shutdown", "leaver")
        assert worker.wait(60) == 0
        assert not limit.over
    jobs = operator.json("job", "list", "--queue", queue)["jobs"]
    assert {job["job_id"]: job["status"] for job in jobs} == {running: "DONE", waiting: "PENDING"}
    assert workshop.attempts() == [(running, 1)]
