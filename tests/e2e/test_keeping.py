"""What two servers keep, and for how long."""

from __future__ import annotations

import uuid

import pytest

from tests.cli.ups import wait
from tests.e2e.conftest import ON_TWO_HASTY_SERVERS, Ctl, Query, Workshop

pytestmark = [pytest.mark.e2e, ON_TWO_HASTY_SERVERS]

TEN_YEARS = 315_576_000.0


@pytest.mark.req("jq:FR-035", "jq:FR-013")
def test_a_dead_letter_stays_until_somebody_deletes_it(
    ctl: Ctl, queue: str, query: Query, workshop: Workshop
) -> None:
    """However old it is, and although retention takes what was done as long ago."""
    with workshop.worker(queue) as worker:
        done = ctl.ok("job", "submit", queue, "{}", "--type", "work", "--wait").split()[0]
        failing = ("--type", "fail", "--max-retries", "0", "--wait")
        dead = ctl("job", "submit", queue, "{}", *failing).stdout.strip()
        assert worker.stop() == 0
    kept = "SELECT job_id::text, status FROM jobs WHERE queue = $1 ORDER BY seq"
    assert query(kept, queue) == [(done, "DONE"), (dead, "DEAD_LETTERED")]
    for table, column, seq in (
        ("job_record", "created_at", "seq"),
        ("job_ended", "completed_at", "seq"),
        ("job_done", "at", "lo"),
    ):
        query(
            "DO $$ BEGIN PERFORM set_config('jobqueue.retention', 'on', true);"
            f" UPDATE {table} SET {column} = {column} - {TEN_YEARS}"
            f" WHERE {seq} IN (SELECT seq FROM jobs WHERE queue = '{queue}'); END $$"
        )
    wait(lambda: len(query(kept, queue)) < 2, "retention has taken one")
    assert query(kept, queue) == [(dead, "DEAD_LETTERED")]

    def listed() -> list[str]:
        found = ctl.json("job", "list", "--status", "DEAD_LETTERED", "--queue", queue)["jobs"]
        return [job["job_id"] for job in found]

    assert listed() == [dead]
    events = ctl.json("job", "logs", dead)["events"]
    assert [event["to_status"] for event in events][-1] == "DEAD_LETTERED"
    ctl.ok("job", "delete", dead)
    assert listed() == []
    gone = "SELECT count(*)::int FROM job_events WHERE job_id = $1"
    assert query(gone, uuid.UUID(dead)) == [(0,)]
