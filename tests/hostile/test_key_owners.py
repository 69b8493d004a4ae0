"""Idempotency and unique keys belong to their caller; nobody is shown another caller's job."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from jobqueue.core.errors import PermissionDenied
from jobqueue.core.job import JobQuery, JobSpec, SubmitStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.unique import UniqueKey
from jobqueue.server.process import ServerProcess
from jobqueue.stores.sqlite.store import SqliteStore
from jobqueue.taskqueue.components.model import Spec
from tests.hostile.known_callers import over_grpc, over_http, over_taskqueue, serving
from tests.stores.driver import new

pytestmark = pytest.mark.req("inp:PROD", "jq:FR-009")

SECRET = "the first caller's secret"
TICK = "cron:clean_up:2026-01-01T03:00:00Z"


async def posted(server: ServerProcess, name: str, payload: Any, key: str) -> Any:
    async with over_http(server, name) as client:
        body = {"payload": payload, "idempotency_key": key}
        return await client.post("/jobs", json=body)


async def test_another_callers_key_is_free_over_http_and_its_payload_is_not_shown():
    async with serving() as server:
        mine = await posted(server, "web", SECRET, "order-42")
        theirs = await posted(server, "shop", "guess", "order-42")
        assert (mine.status_code, theirs.status_code) == (202, 202)
        assert SECRET not in theirs.text
        again = await posted(server, "web", SECRET, "order-42")
        assert (again.status_code, again.json()["job_id"]) == (409, mine.json()["job_id"])
        assert again.json()["job"]["payload"] == SECRET
        assert again.json()["job"]["idempotency_key"] == "order-42"
        async with over_http(server, "web") as client:
            batch = {"jobs": [{"payload": 1, "idempotency_key": "b"}]}
            assert (await client.post("/jobs/batch", json=batch)).json()["accepted"] == 1
            assert (await client.post("/jobs/batch", json=batch)).json()["duplicate"] == 1
        async with over_http(server, "shop") as client:
            assert (await client.post("/jobs/batch", json=batch)).json()["accepted"] == 1


async def test_another_callers_key_is_free_over_grpc():
    spec = JobSpec(payload=b"1", key="order-42")
    async with serving() as server, AsyncExitStack() as stack:
        web = await stack.enter_async_context(over_grpc(server, "web"))
        shop = await stack.enter_async_context(over_grpc(server, "shop"))
        (first,) = await web.submit([spec])
        (other,) = await shop.submit([JobSpec(payload=b"2", key="order-42")])
        many = await shop.submit([spec, JobSpec(payload=b"2", key="order-42")])
        (again,) = await web.submit([spec])
        assert (first.status, other.status) == (SubmitStatus.ACCEPTED, SubmitStatus.ACCEPTED)
        assert [one.status for one in many] == [SubmitStatus.REFUSED, SubmitStatus.DUPLICATE]
        assert (again.status, again.job_id) == (SubmitStatus.DUPLICATE, first.job_id)
        shown = (await web.list_jobs(JobQuery())).jobs
        assert {job.key for job in shown} == {"order-42"}


async def test_another_callers_unique_key_is_free_whatever_the_client_says_of_its_owner():
    debounced: dict[str, Any] = {"key": "k", "scope": "waiting", "on_conflict": "replace"}
    async with serving() as server, AsyncExitStack() as stack:
        web = await stack.enter_async_context(over_grpc(server, "web"))
        shop = await stack.enter_async_context(over_grpc(server, "shop"))
        (first,) = await web.submit([JobSpec(payload=b"1", unique=UniqueKey(key="k"))])
        claimed = UniqueKey(**debounced, owner="web")
        (other,) = await shop.submit([JobSpec(payload=b"2", unique=claimed)])
        assert (first.status, other.status) == (SubmitStatus.ACCEPTED, SubmitStatus.ACCEPTED)
        async with over_http(server, "shop") as client:
            body = {"payload": 3, "unique": {"key": "k", "on_conflict": "reject"}}
            refused = await client.post("/jobs", json=body)
            assert (refused.status_code, refused.json()["reason"]) == (409, "not_unique")
            assert refused.json()["job_id"] == refused.json()["job"]["job_id"] == other.job_id
            body["unique"] = {**debounced, "owner": "web"}
            assert (await client.post("/jobs", json=body)).status_code == 400
        assert (await web.get(first.job_id)).state is State.PENDING
        (again,) = await web.submit([JobSpec(payload=b"4", unique=UniqueKey(key="k"))])
        assert (again.status, again.job_id) == (SubmitStatus.EXISTING, first.job_id)


async def test_another_callers_key_is_free_over_taskqueue():
    async with serving() as server, AsyncExitStack() as stack:
        web = await stack.enter_async_context(over_taskqueue(server, "web"))
        shop = await stack.enter_async_context(over_taskqueue(server, "shop"))
        # The first submit of all makes the queue; it must not lose its owner by that.
        first = await web.submit(Spec("a"), "order-42")
        other = await shop.submit(Spec("b"), "order-42")
        assert first.job_id != other.job_id
        assert (await web.submit(Spec("a"), "order-42")).job_id == first.job_id


async def test_only_workers_may_use_the_keys_of_schedules_and_all_workers_share_them():
    tick = JobSpec(payload=b"1", key=TICK)
    plain = JobSpec(payload=b"2", key="order-42")
    async with serving() as server, AsyncExitStack() as stack:
        web = await stack.enter_async_context(over_grpc(server, "web"))
        night = await stack.enter_async_context(over_grpc(server, "night"))
        day = await stack.enter_async_context(over_grpc(server, "day"))
        refused, taken = await web.submit([tick, plain])
        assert isinstance(refused.error, PermissionDenied)
        assert "idempotency_key" in refused.error.message
        assert taken.status is SubmitStatus.ACCEPTED
        (first,) = await night.submit([tick])
        (second,) = await day.submit([tick])
        assert (first.status, second.status) == (SubmitStatus.ACCEPTED, SubmitStatus.DUPLICATE)
        assert first.job_id == second.job_id

        answer = await posted(server, "web", 1, TICK)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED")
        shared = await posted(server, "day", "another", TICK)
        assert (shared.status_code, shared.json()["job_id"]) == (409, first.job_id)
        assert shared.json()["job"] is None  # the job is not this caller's own


async def test_a_key_from_before_there_were_owners_still_protects(tmp_path: Path):
    """As at the moment of an upgrade: the store has keys that name no caller."""
    file = tmp_path / "jobs.db"
    store = SqliteStore(file)
    await store.open()
    await store.queues.create(Queue(name="default"))
    old = JobSpec(payload=b'"before"', key="order-42")
    (made,) = (await store.jobs.submit(new(old))).results
    await store.close()
    async with serving(f"sqlite:///{file}") as server:
        same = await posted(server, "web", "before", "order-42")
        assert (same.status_code, same.json()["job_id"]) == (409, made.job_id)
        other = await posted(server, "shop", "guess", "order-42")
        assert (other.status_code, other.json()["reason"]) == (409, "conflict")
        assert other.json()["job"] is None
        assert "before" not in other.text
