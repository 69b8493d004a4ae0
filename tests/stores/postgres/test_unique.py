"""Unique jobs on PostgreSQL: several servers at once, their transactions, and rows left behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from jobqueue.core.job import SubmitStatus, Transition
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.store import Claim
from jobqueue.core.unique import UniqueKey
from jobqueue.stores.postgres import layout
from jobqueue.stores.postgres.deciding import Deciding
from tests import patience
from tests.stores.driver import new, spec
from tests.stores.postgres.waiting import until

ACCEPTED, EXISTING = SubmitStatus.ACCEPTED, SubmitStatus.EXISTING
DEBOUNCED: dict[str, Any] = {"scope": "waiting", "on_conflict": "replace"}

pytestmark = pytest.mark.parametrize("few", [1, 16])


def unique(key: str = "k", payload: bytes = b"x", **how):
    return spec(payload, unique=UniqueKey(key=key, **how))


async def waiting(db) -> int:
    return await db.fetchval("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'FAILED')")


async def test_of_equal_jobs_at_two_servers_one_is_accepted(open_store, db):
    """In batches whose keys come in opposite orders, between plain jobs and jobs with keys."""
    stores = [await open_store(), await open_store()]
    keys = [f"k{n}" for n in range(20)]

    async def submit(store, order) -> list[tuple[str, SubmitStatus, str]]:
        specs = [unique(key) for key in order]
        specs[10:10] = [spec(), spec(key="i1"), spec(key="i2")]
        results = (await store.jobs.submit(new(*specs))).results
        del results[10:13]
        assert [one.error for one in results if one.error is not None] == []
        return [(key, one.status, one.job_id) for key, one in zip(order, results, strict=True)]

    answers = await asyncio.gather(
        *(submit(store, keys[::step]) for store in stores for step in (1, -1) for _ in range(2))
    )
    found = [one for answer in answers for one in answer]
    assert sorted(key for key, status, _ in found if status is ACCEPTED) == sorted(keys)
    assert {status for _, status, _ in found} == {ACCEPTED, EXISTING}
    assert len({(key, job_id) for key, _, job_id in found}) == len(keys)
    assert await db.fetchval("SELECT count(*) FROM job_unique") == len(keys)


async def test_replacements_beside_claims_at_several_servers_leave_one_that_waits(open_store, db):
    """Each job is either superseded or handed out, and one of each key waits at most."""
    stores = [await open_store(), await open_store()]
    draw = random.Random(11)
    taken: list[str] = []
    accepted: set[str] = set()
    over = asyncio.Event()

    async def submit(store) -> None:
        for n in range(12):
            jobs = new(
                *(unique(f"k{key}", b"%d" % n, **DEBOUNCED) for key in draw.sample(range(6), 4)),
                *(spec() for _ in range(3)),
            )
            results = (await store.jobs.submit(jobs)).results
            assert {one.status for one in results} == {ACCEPTED}
            accepted.update(one.job_id for one in results)

    async def claim(store) -> None:
        while not over.is_set():
            got = await store.jobs.claim([Claim(("q",), ["w"] * draw.randrange(1, 4))])
            taken.extend(job.id for job in got)
            moves = [Transition.succeeded(job.seq, job.lease, b"r", 0.0) for job in got]
            await store.jobs.apply(moves)
            await asyncio.sleep(0.001)

    claiming = [asyncio.create_task(claim(store)) for store in stores]
    await asyncio.gather(*(submit(store) for store in stores for _ in range(2)))
    over.set()
    await asyncio.gather(*claiming)
    assert len(taken) == len(set(taken))
    rows = await db.fetch("SELECT job_id::text, status, reason FROM jobs")
    found = {row["job_id"]: (row["status"], row["reason"]) for row in rows}
    assert found.keys() == accepted
    assert {one for one, (status, _) in found.items() if status == "DONE"} == set(taken)
    assert {reason for status, reason in found.values() if status == "DEAD_LETTERED"} == {
        "SUPERSEDED"
    }
    many = await db.fetch(
        "SELECT r.more::json -> 'unique' ->> 0 AS key, count(*) FROM jobs AS j"
        " JOIN job_record AS r ON r.seq = j.seq"
        " WHERE j.status = 'PENDING' AND r.more IS NOT NULL GROUP BY 1 HAVING count(*) > 1"
    )
    assert many == []


async def test_a_submit_waits_for_the_move_of_the_job_whose_place_it_takes(
    open_store, db, monkeypatch
):
    """Another server has the row locked: the submit may not leave both jobs waiting."""
    met = asyncio.Event()
    decide = Deciding.decide

    async def watched(*args, **options):
        outcomes = await decide(*args, **options)
        if any(one.is_locked for one in outcomes):
            met.set()
        return outcomes

    monkeypatch.setattr(Deciding, "decide", watched)
    store = await open_store()
    (first,) = (await store.jobs.submit(new(unique(**DEBOUNCED)))).results
    (got,) = await store.jobs.claim([Claim(("q",), ["w"])])
    await store.jobs.apply([Transition.failed(got.seq, got.lease, "boom", retry_after=900.0)])
    other = db.transaction()
    await other.start()
    await db.execute("SELECT FROM job_live WHERE seq = $1 FOR UPDATE", got.seq)
    later = asyncio.create_task(store.jobs.submit(new(unique(payload=b"2", **DEBOUNCED))))
    await patience.wait_for(met.wait(), 10)
    await other.rollback()
    submission = await later
    assert submission.results[0].status is ACCEPTED
    (outcome,) = submission.superseded
    assert (outcome.job_id, outcome.reason) == (first.job_id, Reason.SUPERSEDED)
    assert await waiting(db) == 1


async def test_rows_of_removed_jobs_are_deleted_by_later_submits(open_store, db):
    store = await open_store()
    jobs = (await store.jobs.submit(new(*(unique(f"k{n}") for n in range(20))))).results
    for one in jobs[:15]:
        await store.jobs.apply([Transition.cancelled((await store.reads.get(one.job_id)).seq)])
        assert await store.upkeep.delete_job(one.job_id) is not None
    for n in range(20):
        await store.jobs.submit(new(unique(f"later{n}")))
    keys = {row[0] for row in await db.fetch("SELECT key FROM job_unique")}
    assert keys == {f"k{n}" for n in range(15, 20)} | {f"later{n}" for n in range(20)}


async def test_a_row_that_another_server_renews_meanwhile_is_not_deleted(open_store, db):
    """The key of a removed job gets a new job while another submit tidies up."""
    store, other = await open_store(), await open_store()
    (gone,) = (await store.jobs.submit(new(unique("k")))).results
    await store.jobs.apply([Transition.cancelled((await store.reads.get(gone.job_id)).seq)])
    assert await store.upkeep.delete_job(gone.job_id) is not None
    for n in range(20):
        both = await asyncio.gather(
            store.jobs.submit(new(unique("k", b"%d" % n))), other.jobs.submit(new(unique(f"o{n}")))
        )
        kept = both[0].results[0]
        again = (await other.jobs.submit(new(unique("k")))).results[0]
        assert (again.status, again.job_id) == (EXISTING, kept.job_id)
        await store.jobs.apply([Transition.cancelled((await store.reads.get(kept.job_id)).seq)])
        assert await store.upkeep.delete_job(kept.job_id) is not None


async def test_a_lower_layout_keeps_the_keys(open_store, db):
    store = await open_store()
    jobs = (await store.jobs.submit(new(*(unique(f"k{n}") for n in range(60))))).results
    await store.jobs.submit(new(*(spec() for _ in range(40))))
    await store.jobs.claim([Claim(("q",), ["w"] * 10)])
    for number in (2, 1):
        await layout.change(db, number)
        again = (await store.jobs.submit(new(*(unique(f"k{n}") for n in range(60))))).results
        assert [(one.status, one.job_id) for one in again] == [
            (EXISTING, one.job_id) for one in jobs
        ]
    later = new(*(unique(f"k{n}", b"2", **DEBOUNCED) for n in range(60)))
    submission = await store.jobs.submit(later)
    assert {one.status for one in submission.results} == {ACCEPTED}
    assert len(submission.superseded) == 50
    assert {(await store.reads.get(one.job_id)).state for one in submission.results} == {
        State.PENDING
    }


async def test_a_submit_without_a_unique_key_asks_nothing_about_them(open_store, db):
    store = await open_store()
    await store.jobs.submit(new(spec(), spec(key="k")))
    scans = (
        "SELECT sum(seq_scan + coalesce(idx_scan, 0)) FROM pg_stat_all_tables WHERE relname = $1"
    )

    async def asked() -> int:
        await db.execute("SELECT pg_stat_clear_snapshot()")
        return int(await db.fetchval(scans, "job_unique") or 0)

    before = await asked()
    for _ in range(5):
        await store.jobs.submit(new(*(spec() for _ in range(40)), spec(key="k2")))
        got = await store.jobs.claim([Claim(("q",), ["w"] * 10)])
        await store.jobs.apply([Transition.succeeded(job.seq, job.lease, b"", 0.0) for job in got])
    await store.close()  # its connections report what they did
    await until(lambda: db.fetchval("SELECT true"))
    assert await asked() == before
