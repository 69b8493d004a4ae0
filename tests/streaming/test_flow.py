"""A job's way: HTTP, Redis, Kafka, the scheduler that leads, Kafka, a worker, and back."""

from __future__ import annotations

import pytest

from tests.streaming.system import System, client, ended

pytestmark = [pytest.mark.integration]


@pytest.mark.req("sch:API", "sch:LOOP", "sch:LIFE")
async def test_a_job_submitted_over_http_is_done(system: System) -> None:
    api = await system.all()
    async with client(api) as http:
        answer = await http.post("/jobs", json={"type": "echo", "payload": {"number": 7}})
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["job_id"]
        await ended(api.backend, job_id)
        shown = (await http.get(f"/jobs/{job_id}")).json()
    assert shown["status"] == "SUCCESS"
    assert shown["assigned_worker"] == "w"
