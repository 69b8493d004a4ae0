"""Jobs from one end to the other: submitted, run and looked at through jq-ctl."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.req("jq:NFR-023", "jq:AC-1")
def test_a_submitted_job_is_done(ctl) -> None:
    job = ctl.ok("job", "submit", "default", '{"hello": "world"}', "--type", "echo")
    ctl.ok("job", "watch", job)  # returns when the job has ended
    status = ctl.json("job", "status", job)
    assert status["status"] == "DONE"
    assert status["result"] == {"hello": "world"}
    assert "DONE" in ctl.ok("job", "status", job)


@pytest.mark.req("jq:NFR-023")
def test_a_job_that_fails_is_a_dead_letter_and_can_be_sent_again(ctl) -> None:
    job = ctl.ok("job", "submit", "default", "{}", "--type", "fail", "--max-retries", "0")
    ctl("job", "watch", job)
    assert ctl.json("job", "status", job)["status"] == "DEAD_LETTERED"
    assert job in ctl.ok("dlq", "list")
    ctl.ok("job", "retry", job)
    ctl("job", "watch", job)
    again = ctl.json("job", "status", job)
    assert again["status"] == "DEAD_LETTERED"
    assert again["attempt"] == 2


@pytest.mark.req("jq:NFR-023")
def test_a_waiting_job_can_be_cancelled(ctl) -> None:
    job = ctl.ok("job", "submit", "default", "{}", "--type", "echo", "--delay", "3600")
    assert ctl.json("job", "status", job)["status"] == "PENDING"
    ctl.ok("job", "cancel", job)
    assert ctl.json("job", "status", job)["status"] == "DEAD_LETTERED"
