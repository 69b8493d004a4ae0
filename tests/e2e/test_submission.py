"""What a client may say when it submits, through jq-ctl and two servers on one PostgreSQL."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path

import grpc.aio
import pytest

from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc
from tests import patience
from tests.cli.layouts import Running
from tests.e2e.conftest import ON_TWO_SERVERS, Ctl, Query

pytestmark = [pytest.mark.e2e, ON_TWO_SERVERS]

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n")


@pytest.mark.req("jq:FR-001", "jq:FR-002", "jq:FR-003", "jq:FR-005", "jq:FR-007", "jq:FR-008")
def test_what_is_not_said_is_the_queues_default(ctl: Ctl, queue: str, tmp_path: Path) -> None:
    plain = ctl("job", "submit", queue, '{"b" : 1}')
    assert UUID4.fullmatch(plain.stdout), "the id, and nothing else"
    (tmp_path / "raw").write_bytes(b"\x00\xff{not json")
    raw = ctl.ok("job", "submit", queue, "@raw", "--priority", "9", "--max-retries", "1")
    assert raw != plain.stdout.strip()
    jobs = ctl.json("job", "list", "--queue", queue)["jobs"]
    ours = {job["job_id"]: job for job in jobs}
    first, second = ours[plain.stdout.strip()], ours[raw]
    assert (first["status"], first["priority"], first["max_retries"]) == ("PENDING", 0, 5)
    assert (second["status"], second["priority"], second["max_retries"]) == ("PENDING", 9, 1)
    status = ctl.json("job", "status", raw)
    assert status["payload_base64"] == "AP97bm90IGpzb24="


@pytest.mark.req("jq:FR-006", "jq:FR-002", "jq:NFR-005")
def test_what_is_refused(layout: Running, ctl: Ctl, queue: str, query: Query) -> None:
    nowhere = ctl("job", "submit", "nowhere", "1")
    assert (nowhere.returncode, nowhere.stdout) == (4, "")
    assert "there is no queue 'nowhere'" in nowhere.stderr
    urgent = ctl("job", "submit", queue, "1", "--priority", "10")
    assert (urgent.returncode, urgent.stdout) == (2, "")
    assert "priority" in urgent.stderr

    async def code_at(target: str) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(target) as channel:
            request = client_pb2.SubmitRequest()
            request.spec.queue, request.spec.payload = "nowhere", b"1"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client_pb2_grpc.ClientServiceStub(channel).Submit(
                    request, timeout=patience.longest(10)
                )
            return refused.value.code()

    for target in layout.targets:
        assert asyncio.run(code_at(target)) is grpc.StatusCode.NOT_FOUND
    assert query("SELECT job_id FROM jobs WHERE queue = $1", queue) == []


@pytest.mark.req("jq:FR-004", "jq:FR-010", "jq:FR-009")
def test_a_job_that_does_not_start_in_its_time_is_a_dead_letter(
    ctl: Ctl, queue: str, query: Query
) -> None:
    job_id = ctl.ok("job", "submit", queue, "1", "--ttl", "0.2")
    assert ctl("job", "watch", job_id).returncode == 12  # it ended, and not well
    events = query(
        "SELECT from_status, to_status, reason FROM job_events WHERE job_id = $1 ORDER BY version",
        uuid.UUID(job_id),
    )
    assert events == [
        (None, "PENDING", "SUBMITTED"),
        ("PENDING", "DEAD_LETTERED", "TTL_EXPIRED"),
    ]
