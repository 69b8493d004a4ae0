"""From PENDING to the end, and what an operator can do on the way, on two servers."""

from __future__ import annotations

import signal
import uuid
from datetime import datetime
from pathlib import Path

import asyncpg
import pytest

from jobqueue.core.lifecycle import TRANSITIONS
from tests.cli.ups import wait
from tests.e2e.conftest import ON_TWO_SERVERS, Ctl, Query, Workshop

pytestmark = [pytest.mark.e2e, ON_TWO_SERVERS]

EVENTS = "SELECT from_status, to_status, reason FROM job_events WHERE job_id = $1 ORDER BY version"
ALLOWED = {
    (origin.name if origin else None, target.name, reason.value)
    for (origin, target), reasons in TRANSITIONS.items()
    for reason in reasons
}


@pytest.mark.req("jq:AC-1", "jq:FR-009", "jq:FR-010", "jq:FR-011", "jq:FR-029", "jq:FR-033")
def test_a_job_that_fails_once_is_retried_and_done(ctl: Ctl, query: Query) -> None:
    """Each transition is a row that nobody can change; the result is in PostgreSQL."""
    done = ctl.ok("job", "submit", "default", '{"times": 1}', "--type", "fail", "--wait")
    job_id = done.split()[0]
    events = ctl.json("job", "logs", job_id)["events"]
    assert [(event["to_status"], event["reason"]) for event in events] == [
        ("PENDING", "SUBMITTED"),
        ("ASSIGNED", "ASSIGNED"),
        ("RUNNING", "STARTED"),
        ("FAILED", "HANDLER_FAILED"),
        ("PENDING", "RETRY_DUE"),
        ("ASSIGNED", "ASSIGNED"),
        ("RUNNING", "STARTED"),
        ("DONE", "SUCCEEDED"),
    ]
    failed, due = (datetime.fromisoformat(event["at"]).timestamp() for event in events[3:5])
    assert due - failed >= 1.0  # this profile's first wait
    key = uuid.UUID(job_id)
    assert query(EVENTS, key) == [
        (event["from_status"], event["to_status"], event["reason"]) for event in events
    ]
    [(status, result)] = query("SELECT status, result FROM jobs WHERE job_id = $1", key)
    assert (status, result) == ("DONE", '{"attempts":2}')
    for change in ("UPDATE job_event SET at = 0", "DELETE FROM job_event", "TRUNCATE job_event"):
        with pytest.raises(asyncpg.PostgresError):
            query(change)
    every = query("SELECT DISTINCT from_status, to_status, reason FROM job_events")
    assert set(every) <= ALLOWED  # of all jobs of all tests so far


@pytest.mark.req("jq:FR-013", "jq:FR-035", "jq:AC-3", "jq:FR-029")
def test_a_job_out_of_retries_is_a_dead_letter_that_can_be_sent_again(
    ctl: Ctl, queue: str, workshop: Workshop
) -> None:
    with workshop.worker(queue) as worker:
        worker.line("ready")
        failing = ("--type", "fail", "--max-retries", "1", "--wait")
        ended = ctl("job", "submit", queue, '{"message": "boo"}', *failing)
        assert ended.returncode == 12
        assert worker.stop() == 0  # nobody takes it again
    job_id = ended.stdout.strip()
    listed = ctl.json("job", "list", "--status", "DEAD_LETTERED", "--queue", queue)["jobs"]
    assert [(job["job_id"], job["attempt"], job["retry_count"]) for job in listed] == [
        (job_id, 2, 1)
    ]
    assert "boo" in listed[0]["error"]
    ctl.ok("job", "retry", job_id)
    again = ctl.json("job", "status", job_id)
    assert (again["status"], again["retry_count"]) == ("PENDING", 0)


@pytest.mark.req("jq:FR-012")
def test_cancel_of_a_pending_and_of_an_assigned_job(
    ctl: Ctl, queue: str, query: Query, workshop: Workshop
) -> None:
    pending = ctl.ok("job", "submit", queue, "{}", "--type", "work")
    ctl.ok("job", "cancel", pending)
    with workshop.worker(queue) as worker:
        ctl.ok("job", "submit", queue, "{}", "--type", "work", "--wait")
        worker.signal(signal.SIGSTOP)  # it cannot start what it is given
        assigned = ctl.ok("job", "submit", queue, "{}", "--type", "work")
        state = "SELECT status FROM jobs WHERE job_id = $1"
        wait(lambda: query(state, uuid.UUID(assigned)) == [("ASSIGNED",)], "it is ASSIGNED")
        ctl.ok("job", "cancel", assigned)
        worker.signal(signal.SIGCONT)
        ctl.ok("job", "submit", queue, "{}", "--type", "work", "--wait")  # what it does is refused
        assert worker.stop() == 0
    for job_id, origin in ((pending, "PENDING"), (assigned, "ASSIGNED")):
        assert query(EVENTS, uuid.UUID(job_id))[-1] == (origin, "DEAD_LETTERED", "CANCELLED")


@pytest.mark.req("jq:FR-033")
def test_the_wait_before_a_retry_grows_from_five_seconds(
    ctl: Ctl, query: Query, workshop: Workshop
) -> None:
    name = f"q-{uuid.uuid4().hex[:8]}"
    ctl.ok("queue", "create", name, "--retry-profile", "default")
    with workshop.worker(name) as worker:
        worker.line("ready")
        job_id = ctl.ok("job", "submit", name, "{}", "--type", "fail")
        waits = (
            "SELECT extract(epoch FROM j.next_retry_at - e.at)::float8 FROM jobs j"
            " JOIN job_events e USING (job_id)"
            " WHERE j.job_id = $1 AND j.status = 'FAILED' AND e.to_status = 'FAILED'"
        )
        [(seconds,)] = wait(lambda: query(waits, uuid.UUID(job_id)), "it has failed")
        assert 5.0 <= seconds <= 6.26  # 5 s and up to a quarter more
        assert worker.stop() == 0


@pytest.mark.req("jq:AC-5", "jq:NFR-023")
def test_the_figures_of_a_queue_are_right_at_every_server(
    ctl: Ctl, queue: str, workshop: Workshop
) -> None:
    with workshop.worker(queue) as worker:
        worker.line("ready")
        ctl.ok("job", "submit", queue, "{}", "--type", "work", "--count", "7")
        ctl("job", "submit", queue, "{}", "--type", "fail", "--max-retries", "0", "--wait")
        wait(lambda: len(workshop.attempts()) == 7, "seven jobs have run")
        assert worker.stop() == 0
    ctl.ok("job", "submit", queue, "{}", "--type", "work", "--count", "3")
    for _ in range(2):  # at one server, then at the other
        stats = ctl.json("queue", "stats", queue)
        depth = {state: count for state, count in stats["depth"].items() if count}
        assert depth == {"DONE": 7, "DEAD_LETTERED": 1, "PENDING": 3}
        assert (stats["processed"], stats["error_rate"]) == (8, 1 / 8)
        assert stats["average_seconds"] >= 0


@pytest.mark.req("jq:NFR-020")
def test_the_servers_have_applied_the_migrations(query: Query) -> None:
    """Both started at once on an empty database."""
    folder = Path(__file__).parents[2] / "db" / "migrations"
    files = {path.name for path in folder.glob("V*__*.sql")}
    applied = query("SELECT version, name FROM schema_history")
    assert {f"V{version}__{name}.sql" for version, name in applied} == files
