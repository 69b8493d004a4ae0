"""The client sends each call to the right node."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Any

import pytest

from jobqueue import InvalidArgument, SyncTaskQueueClient, TaskQueueClient, Tls
from jobqueue.core.errors import Unavailable
from jobqueue.taskqueue import JobSort, JobSpec, JobStatus
from jobqueue.taskqueue.components.ownership import owner_index
from tests.taskqueue.client.fakes import JOB_ID, JOB_SCOPED, NODES, Servers, call_each


@pytest.mark.req("tq:INGRESS", "tq:LOCK-3")
async def test_a_gateway_gets_everything(servers: Servers) -> None:
    async with servers.client(gateway="localhost:50051") as client:
        await call_each(client)
        for number in range(12):
            await client.submit_job(job_type="noop")
            await client.submit_job(job_type="noop", client_request_id=f"key {number}")
            await client.get_job_status(str(uuid.uuid4()))
    assert set(servers.asked) == {"localhost:50051"}
    assert servers.closed == ["localhost:50051"]


@pytest.mark.req("tq:INGRESS", "tq:LOCK-3")
async def test_submits_without_a_key_go_round(servers: Servers) -> None:
    async with servers.client() as client:
        for _ in range(18):
            await client.submit_job(JobSpec("noop"))
    first = NODES.index(servers.asked[0])
    assert servers.asked == (NODES[first:] + NODES[:first]) * 3


@pytest.mark.req("tq:INGRESS")
async def test_clients_do_not_all_begin_with_the_same_node(servers: Servers) -> None:
    for seed in range(60):
        async with servers.client(rng=random.Random(seed)) as client:
            await client.submit_job(job_type="noop")
    assert set(servers.asked) == set(NODES)


@pytest.mark.req("tq:INGRESS", "tq:LOCK-38", "tq:LOCK-3")
async def test_a_submit_with_a_key_goes_to_the_owner_of_the_key(servers: Servers) -> None:
    keys = [f"order-{number}" for number in range(60)]
    async with servers.client() as client:
        for key in [*keys, *keys]:
            await client.submit_job(job_type="noop", client_request_id=key)
    expected = [NODES[owner_index(key, 6)] for key in keys]
    assert servers.asked == expected * 2
    assert len(Counter(expected)) == 6


@pytest.mark.req("tq:INGRESS", "tq:LOCK-38")
async def test_keyed_submits_take_no_turn_from_the_others(servers: Servers) -> None:
    async with servers.client() as client:
        for number in range(6):
            await client.submit_job(job_type="noop")
            await client.submit_job(job_type="noop", client_request_id=f"k{number}")
    assert set(servers.asked[::2]) == set(NODES)


@pytest.mark.parametrize("method", JOB_SCOPED)
@pytest.mark.req("tq:INGRESS", "tq:LOCK-27", "tq:LOCK-37")
async def test_what_concerns_a_job_goes_to_the_owner_of_its_id(
    servers: Servers, method: str
) -> None:
    ids = [str(uuid.UUID(int=n, version=4)) for n in range(60)]
    async with servers.client() as client:
        for job_id in ids:
            await getattr(client, method)(job_id)
        for spelling in (ids[10].upper(), f" {ids[10]}"):  # of which the bytes have another owner
            with pytest.raises(InvalidArgument, match="job_id"):
                await getattr(client, method)(spelling)
    expected = [NODES[owner_index(job_id, 6)] for job_id in ids]
    assert servers.asked == expected
    assert [call.arguments[0] for call in servers.calls] == ids
    assert set(expected) == set(NODES)


@pytest.mark.req("tq:ROUTE")
async def test_the_order_of_the_nodes_is_that_of_the_caller(servers: Servers) -> None:
    nodes = NODES[::-1]
    async with servers.client(nodes=nodes) as client:
        await client.get_job_status(JOB_ID)
        nodes.clear()  # it keeps its own list
        await client.get_job_status(JOB_ID)
    assert servers.asked == [NODES[::-1][owner_index(JOB_ID, 6)]] * 2


@pytest.mark.req("tq:INGRESS", "tq:LOCK-28")
async def test_a_listing_is_of_one_node(servers: Servers) -> None:
    async with servers.client() as client:
        await client.list_jobs()
        page = await client.list_jobs(
            [JobStatus.DONE, JobStatus.FAILED], 500, "40", JobSort.CREATED_AT_ASC, node=4
        )
    assert servers.asked == [NODES[0], NODES[4]]
    (listing,) = servers.calls[1].arguments
    assert listing.statuses == {JobStatus.DONE, JobStatus.FAILED}
    assert (listing.sort, listing.offset, listing.limit) == (JobSort.CREATED_AT_ASC, 40, 200)
    assert page.next_page_token == "41"
    (first,) = servers.calls[0].arguments
    assert (first.statuses, first.sort, first.offset, first.limit) == (
        frozenset(),
        JobSort.CREATED_AT_DESC,
        0,
        50,
    )


@pytest.mark.req("tq:INGRESS", "tq:LOCK-38", "tq:LOCK-37", "tq:RETRY")
async def test_nothing_that_has_an_owner_fails_over(servers: Servers) -> None:
    owner = NODES[owner_index("order-1", 6)]
    holder = NODES[owner_index(JOB_ID, 6)]
    servers.dead = {owner: Unavailable("dead"), holder: Unavailable("dead")}
    async with servers.client() as client:
        with pytest.raises(Unavailable):
            await client.submit_job(job_type="noop", client_request_id="order-1")
        assert servers.asked == [owner] * 4
        servers.calls.clear()
        for method in JOB_SCOPED:
            with pytest.raises(Unavailable):
                await getattr(client, method)(JOB_ID)
        assert servers.asked == [holder] * 12
        servers.calls.clear()
        with pytest.raises(Unavailable):
            await client.list_jobs(node=NODES.index(owner))
        assert servers.asked == [owner] * 4


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "gateway"),
        ({"gateway": "a:1", "nodes": ["b:1"]}, "gateway"),
        ({"gateway": ""}, "gateway"),
        ({"gateway": "host"}, "gateway"),
        ({"gateway": "host:0"}, "gateway"),
        ({"gateway": "host:65536"}, "gateway"),
        ({"gateway": "grpc://host:1"}, "gateway"),
        ({"gateway": "a:1,b:1"}, "gateway"),
        ({"gateway": "user@host:1"}, "gateway"),
        ({"gateway": 50051}, "gateway"),
        ({"nodes": []}, "nodes"),
        ({"nodes": "host:1"}, "nodes"),
        ({"nodes": {"host:1"}}, "nodes"),
        ({"nodes": ["a:1", "b"]}, "nodes[1]"),
        ({"nodes": ["a:1", "b:2", "a:1"]}, "nodes[2]"),
        ({"nodes": ["a:1", "b:2,c:3"]}, "nodes[1]"),
        ({"nodes": ["a:1", None]}, "nodes[1]"),
        ({"gateway": "a:1", "api_key": ""}, "api_key"),
        ({"gateway": "a:1", "tls": Tls(cert="cert.pem")}, "tls"),
        ({"gateway": "a:1", "deadlines": 3.0}, "deadlines"),
    ],
)
def test_a_client_that_cannot_work_is_not_made(given: dict[str, Any], field: str) -> None:
    for kind in (TaskQueueClient, SyncTaskQueueClient):
        with pytest.raises(InvalidArgument) as caught:
            kind(**given)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("method", "given", "field"),
    [
        ("submit_job", {}, "spec"),
        ("submit_job", {"spec": JobSpec("noop"), "job_type": "noop"}, "spec"),
        ("submit_job", {"spec": {"job_type": "noop"}}, "spec"),
        ("submit_job", {"job_type": ""}, "spec.job_type"),
        ("submit_job", {"job_type": b"noop"}, "spec.job_type"),
        ("submit_job", {"job_type": "a", "work_duration_ms": -1}, "spec.work_duration_ms"),
        ("submit_job", {"job_type": "a", "work_duration_ms": 1 << 32}, "spec.work_duration_ms"),
        ("submit_job", {"job_type": "a", "payload_size_bytes": 0.5}, "spec.payload_size_bytes"),
        ("submit_job", {"job_type": "a", "labels": {"a": 1}}, "spec.labels"),
        ("submit_job", {"job_type": "a", "labels": ["a"]}, "spec.labels"),
        ("submit_job", {"job_type": "a", "client_request_id": "a\n"}, "client_request_id"),
        ("submit_job", {"job_type": "a", "client_request_id": "\ud800"}, "client_request_id"),
        ("submit_job", {"job_type": "a", "client_request_id": "k" * 256}, "client_request_id"),
        ("submit_job", {"job_type": "a", "client_request_id": None}, "client_request_id"),
        ("get_job_status", {"job_id": ""}, "job_id"),
        ("get_job_result", {"job_id": "order-1"}, "job_id"),
        ("cancel_job", {"job_id": "order-1"}, "job_id"),
        ("cancel_job", {"job_id": JOB_ID, "reason": "r" * 1_001}, "reason"),
        ("cancel_job", {"job_id": JOB_ID, "reason": None}, "reason"),
        ("wait_result", {"job_id": "order-1"}, "job_id"),
        ("wait_result", {"job_id": None}, "job_id"),
        ("list_jobs", {"node": 6}, "node"),
        ("list_jobs", {"node": -1}, "node"),
        ("list_jobs", {"node": "0"}, "node"),
        ("list_jobs", {"page_size": -1}, "page.page_size"),
        ("list_jobs", {"page_token": "-1"}, "page.page_token"),
        ("list_jobs", {"page_token": 10}, "page.page_token"),
        ("list_jobs", {"status_filter": [0]}, "status_filter"),
        ("list_jobs", {"status_filter": ["DONE"]}, "status_filter"),
        ("list_jobs", {"status_filter": JobStatus.DONE}, "status_filter"),
        ("list_jobs", {"sort": "newest"}, "sort"),
    ],
)
async def test_bad_input_is_refused_with_its_field_and_sends_nothing(
    servers: Servers, method: str, given: dict[str, Any], field: str
) -> None:
    client = servers.client()
    with pytest.raises(InvalidArgument) as caught:
        await getattr(client, method)(**given)
    assert caught.value.field == field
    assert servers.calls == []


async def test_a_gateway_has_no_other_nodes_to_list(servers: Servers) -> None:
    with pytest.raises(InvalidArgument, match="gateway lists all"):
        await servers.client(gateway="a:1").list_jobs(node=1)


async def test_credentials_reach_every_connection(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    async with servers.client(gateway="queue.example:1", api_key="secret", tls=True) as client:
        await client.get_job_status(JOB_ID)
    ((_, shown),) = servers.opened
    assert shown is not None
    assert (shown.api_key, shown.tls) == ("secret", Tls())
    assert not caplog.records
    servers.client(nodes=["127.0.0.1:1", "queue.example:1"], api_key="secret")
    (record,) = caplog.records
    assert "queue.example" in record.getMessage()
    assert "secret" not in record.getMessage()
    assert "secret" not in repr(client)


async def test_answers_are_passed_on(servers: Servers) -> None:
    async with servers.client() as client:
        state = await client.get_job_status(JOB_ID)
        assert (state.job_id, state.status, state.failure_reason) == (
            JOB_ID,
            JobStatus.FAILED,
            "broken",
        )
        assert (state.created_at_ms, state.started_at_ms, state.finished_at_ms) == (1, 2, 3)
        assert await client.get_job_result(JOB_ID) is None
        canceled = await client.cancel_job(JOB_ID, "enough")
        assert (canceled.current, canceled.already_terminal) == (JobStatus.CANCELED, False)
        assert servers.calls.pop().arguments == (JOB_ID, "enough")
        assert (await client.submit_job(job_type="noop", labels={"a": "b"})).job_id == JOB_ID
    assert servers.calls.pop().arguments == (JobSpec("noop", 0, 0, {"a": "b"}), "")
