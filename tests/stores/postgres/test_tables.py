"""What people with psql can read, and what nobody can change."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from jobqueue.core.errors import PermissionDenied
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Claim
from jobqueue.stores.postgres import layout
from tests.stores.driver import accept, new, spec, worker


async def done(store, count: int = 1) -> list[str]:
    job_ids = await accept(store, count)
    held = await store.jobs.claim([Claim(("q",), ["w"] * count)])
    ends = [Transition.succeeded(one.seq, one.lease, b"result", 1.5) for one in held]
    assert all(outcome.applied for outcome in (await store.jobs.apply(ends)).outcomes)
    return job_ids


@pytest.mark.req("jq:FR-011")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE job_event SET at = 0",
        "DELETE FROM job_event",
        "TRUNCATE job_event",
        "UPDATE job_steps SET at = 0",
        "DELETE FROM job_steps",
        "TRUNCATE job_steps",
        "UPDATE job_done SET at = 0",
        "DELETE FROM job_done",
        "TRUNCATE job_done",
        "UPDATE job_events SET detail = 'x'",
        "DELETE FROM job_events",
    ],
)
async def test_the_database_refuses_to_change_an_event(store, db, statement):
    (job_id,) = await done(store)
    before = await store.reads.history(job_id)
    with pytest.raises(asyncpg.PostgresError):
        await db.execute(statement)
    assert await store.reads.history(job_id) == before


@pytest.mark.req("jq:FR-011")
async def test_retention_and_deletion_take_the_history_along(store, db):
    pruned = await done(store, 20)
    kept, deleted = await done(store, 2)
    before = await store.reads.get(kept), await store.reads.history(kept)
    assert await store.upkeep.delete_job(deleted) is State.DONE
    assert (await store.reads.get(kept), await store.reads.history(kept)) == before
    assert await db.fetchval("SELECT max(cardinality(results)) FROM job_done WHERE hi > 20") == 1
    async with db.transaction():
        await db.execute("SET LOCAL jobqueue.retention = 'on'")
        await db.execute("UPDATE job_done SET at = 0 WHERE lo <= 20")
    term = await store.leadership.lead(1, 60.0)
    assert await store.upkeep.prune_done(1.0, 100, term) == len(pruned)
    assert {str(row[0]) for row in await db.fetch("SELECT DISTINCT job_id FROM job_events")} == {
        kept
    }
    for table in ("job_record", "job_done", "batch_end"):
        assert await db.fetchval(f"SELECT count(*) FROM {table}") == 1
    assert await db.fetchval("SELECT count(*) FROM job_steps") == 0
    assert await db.fetchval("SELECT count(*) FROM job_event") == 2
    assert (await store.reads.get(kept), await store.reads.history(kept)) == before
    # What retention may do, it may do in its own transaction only.
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await db.execute("DELETE FROM job_event")
    assert (await store.queues.stats("q"))[0].depth[State.DONE] == 1


async def test_jobs_that_share_a_row_are_deleted_at_once(store, db):
    kept, *deleted = await done(store, 20)
    states = await asyncio.gather(*(store.upkeep.delete_job(one) for one in deleted))
    assert set(states) == {State.DONE}
    assert await db.fetchval("SELECT count(*) FROM batch_end") == 1
    assert (await store.reads.get(kept)).result == b"result"
    assert await store.upkeep.delete_job(kept) is State.DONE
    for table in ("job_record", "job_done", "job_steps", "job_event"):
        assert await db.fetchval(f"SELECT count(*) FROM {table}") == 0


async def test_a_person_can_read_the_jobs(store, db):
    text = new(spec(b'{"to": "a@b.c"}', type="mail", priority=7, key="k", labels={"team": "x"}))
    text[0].spec.key_owner = "web"
    await store.jobs.submit(text)
    (held,) = await store.jobs.claim([Claim(("q",), ["w"])])
    await store.jobs.apply([Transition.succeeded(held.seq, held.lease, b"\xff\x00", 1.5)])
    row = dict(await db.fetchrow("SELECT *, now() - created_at AS age FROM jobs"))
    assert str(row["job_id"]) == text[0].id
    assert (row["queue"], row["type"], row["status"], row["reason"]) == (
        "q", "mail", "DONE", "SUCCEEDED",
    )  # fmt: skip
    assert row["payload"] == '{"to": "a@b.c"}'
    assert row["result"] == r"\xff00"  # not text: as bytes
    assert (row["worker_id"], row["priority"], row["attempt"]) == ("w", 7, 1)
    assert (row["idempotency_key"], row["labels"]) == ("k", '{"team": "x"}')
    assert row["key_owner"] == "web"
    assert 0 <= row["age"].total_seconds() < 60
    assert row["created_at"] <= row["completed_at"]
    events = await db.fetch("SELECT * FROM job_events ORDER BY job_id, version")
    assert [(e["from_status"], e["to_status"], e["reason"], e["worker_id"]) for e in events] == [
        (None, "PENDING", "SUBMITTED", None),
        ("PENDING", "ASSIGNED", "ASSIGNED", "w"),
        ("ASSIGNED", "RUNNING", "STARTED", "w"),
        ("RUNNING", "DONE", "SUCCEEDED", "w"),
    ]
    depth = await db.fetchrow("SELECT * FROM queue_depth")
    assert (depth["queue"], depth["pending"], depth["done"]) == ("q", 0, 1)


async def test_what_is_waiting_for_a_retry_says_when(store, db):
    await accept(store)
    (held,) = await store.jobs.claim([Claim(("q",), ["w"])])
    await store.jobs.apply([Transition.failed(held.seq, held.lease, "boom")])
    row = await db.fetchrow("SELECT status, error, worker_id, next_retry_at > now() FROM jobs")
    assert tuple(row) == ("FAILED", "boom", "w", True)


async def test_a_worker_that_an_older_server_registers_has_no_owner(store, db):
    """Beside servers of this version, while they are updated one by one."""
    await layout.change(db, 1)
    await db.execute(
        "INSERT INTO workers (id, incarnation, hostname, pid, concurrency, queues, version, link,"
        " status, registered_at, last_seen)"
        " VALUES ('old', 1, 'h', 1, 1, '{q}', '', 1, 'ONLINE', now(), now())"
    )
    assert [one.info.owner for one in await store.workers.all() if one.info.id == "old"] == [""]
    await store.workers.register(worker("old", 1, owner="alice"))
    with pytest.raises(PermissionDenied):
        await store.workers.register(worker("old", 1, owner="bob"))
