"""A call whose parts are committed one after the other, and fails between two of them."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Refusal, SubmitStatus, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Change, Claim
from tests import patience
from tests.stores.cutting import Cut
from tests.stores.driver import accept, new, spec
from tests.stores.postgres.waiting import until

pytestmark = [pytest.mark.req("jq:NFR-005"), pytest.mark.parametrize("few", [16, 1])]


async def waiting(db) -> bool:
    return bool(await db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def lock_timeout(db, timeout: str) -> None:
    """For every connection that is made from now on."""
    name = await db.fetchval("SELECT current_database()")
    await db.execute(f"ALTER DATABASE \"{name}\" SET lock_timeout = '{timeout}'")


async def test_a_clash_in_the_second_part_of_a_submit_repeats_nothing(open_store, postgres_dsn, db):
    await lock_timeout(db, "100ms")
    store = await open_store()
    other = await asyncpg.connect(postgres_dsn)
    transaction = other.transaction()
    await transaction.start()
    # Plain submits do not wait for this lock; submits to a bounded queue wait until they time out.
    await store.queues.create(Queue(name="bounded", capacity=9))
    await other.execute("SELECT FROM queues WHERE name = 'bounded' FOR NO KEY UPDATE")
    jobs = new(spec(b"plain"), spec(b"bounded", queue="bounded"))
    submit = asyncio.create_task(store.jobs.submit(jobs))
    await until(lambda: waiting(db))
    await until(lambda: not_waiting(db))
    await transaction.rollback()
    await other.close()
    assert [one.status for one in (await submit).results] == [SubmitStatus.ACCEPTED] * 2
    assert await db.fetchval("SELECT count(*) FROM job_record") == 2


async def not_waiting(db) -> bool:
    return not await waiting(db)


async def test_each_job_of_a_submit_that_fails_half_way_has_its_own_answer(
    open_store, postgres_dsn, db
):
    """Unavailable means that it did not happen; half of this did."""
    await lock_timeout(db, "20ms")
    store = await open_store()
    other = await asyncpg.connect(postgres_dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("LOCK TABLE job_key IN SHARE MODE")
    plain, keyed = (await store.jobs.submit(new(spec(b"plain"), spec(b"keyed", key="k")))).results
    await transaction.rollback()
    await other.close()
    assert plain.status is SubmitStatus.ACCEPTED
    assert isinstance(keyed.error, Unavailable)
    assert [row[0] for row in await db.fetch("SELECT payload FROM job_record")] == [b"plain"]


async def test_a_report_is_answered_while_every_read_connection_is_busy(open_store, db):
    """Another server's worker and queue are looked up on the connection of the write."""
    one, two = await open_store(), await open_store()
    await accept(one)
    (held,) = await one.jobs.claim([Claim(("q",), ["w"])])
    transaction = db.transaction()
    await transaction.start()
    await db.execute("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE")
    reads = [asyncio.create_task(two.workers.all()) for _ in range(20)]
    await until(lambda: waiting(db))
    async with patience.timeout(3):  # a read connection would be waited for longer
        (outcome,) = (
            await two.jobs.apply([Transition.succeeded(held.seq, held.lease, b"r", 1.0)])
        ).outcomes
    await transaction.rollback()
    await asyncio.gather(*reads)
    assert outcome.applied
    assert (outcome.queue, outcome.worker_id) == ("q", "w")


async def test_a_locked_job_is_refused_and_the_others_are_applied(open_store, postgres_dsn, db):
    """A user's transaction may have locked the job, and stay open (ADR 24)."""
    await lock_timeout(db, "20ms")
    store = await open_store()
    job_ids = await accept(store, 2)
    done, stuck = await store.jobs.claim([Claim(("q",), ["w"] * 2)])
    await store.jobs.apply([Transition.started(stuck.seq, stuck.lease)])  # it has a live row
    transaction = db.transaction()
    await transaction.start()
    await db.execute("SELECT 1 FROM job_live WHERE seq = $1 FOR UPDATE", stuck.seq)
    moves = [
        Transition.succeeded(done.seq, done.lease, None, 0.5),
        Transition.failed(stuck.seq, stuck.lease, "boom"),
    ]
    first, second = (await store.jobs.apply(moves)).outcomes
    assert (first.applied, second.refusal) == (True, Refusal.LOCKED)
    await transaction.rollback()
    assert (await store.reads.get(job_ids[0])).state is State.DONE


async def test_what_was_applied_before_a_failure_is_heard_of(open_store, postgres_dsn, db, few):
    """A success that is committed wakes those who wait for it, although the call fails."""
    in_parts = few == 1  # a few moves are one transaction
    await lock_timeout(db, "20ms")
    store = await open_store()
    job_ids = await accept(store, 2)
    done, stuck = await store.jobs.claim([Claim(("q",), ["w"] * 2)])
    await store.jobs.apply([Transition.started(stuck.seq, stuck.lease)])  # it has a live row
    heard: list[Change] = []
    store.on_change(heard.append)
    transaction = db.transaction()
    await transaction.start()
    await db.execute("LOCK TABLE job_live IN SHARE MODE")
    moves = [
        Transition.succeeded(done.seq, done.lease, None, 0.5),
        Transition.failed(stuck.seq, stuck.lease, "boom"),
    ]
    with pytest.raises(Unavailable):
        await store.jobs.apply(moves)
    await transaction.rollback()
    assert [Change.ENDED in change for change in heard] == [True] * in_parts
    states = [(await store.reads.get(job_id)).state for job_id in job_ids]
    assert states == [State.DONE if in_parts else State.ASSIGNED, State.RUNNING]


async def test_an_end_by_somebody_else_is_not_taken_for_ones_own(cuttable, proxy, open_store):
    """The report was lost on its way, and meanwhile its worker was judged."""
    other = await open_store()
    await accept(cuttable)
    (held,) = await cuttable.jobs.claim([Claim(("q",), ["w"])])
    await other.jobs.apply([Transition.worker_lost(held.seq, held.lease, "gone")])
    proxy.arm(Cut.BEFORE, 1)
    (outcome,) = (
        await cuttable.jobs.apply([Transition.succeeded(held.seq, held.lease, None, 1.0)])
    ).outcomes
    assert proxy.cuts == 1
    assert outcome.refusal is Refusal.STALE_LEASE


async def test_a_server_that_goes_again_and_again_is_waited_for(cuttable, proxy, db):
    """The line is lost once more while the store looks what became of the first loss."""
    # The submit; then each second command, since a new connection begins with one of its own.
    proxy.arm(Cut.AFTER, 1, 3, 5)
    (result,) = (await cuttable.jobs.submit(new(spec()))).results
    assert proxy.cuts == 3
    assert result.status is SubmitStatus.ACCEPTED
    assert await db.fetchval("SELECT count(*) FROM job_record") == 1


async def test_a_start_is_recognised_although_its_attempt_has_ended(cuttable, proxy, open_store):
    """The answer to the start was lost, and the next report was faster than the question."""
    other = await open_store()
    await accept(cuttable)
    (held,) = await cuttable.jobs.claim([Claim(("q",), ["w"])])
    start = Transition.started(held.seq, held.lease)
    await other.jobs.apply([start, Transition.succeeded(held.seq, held.lease, None, 1.0)])
    proxy.arm(Cut.BEFORE, 1)
    (outcome,) = (await cuttable.jobs.apply([start])).outcomes
    assert proxy.cuts == 1
    assert outcome.applied
    assert outcome.state is State.DONE
