"""``jq.complete`` ends an attempt once, in its handler's transaction; no other write waits."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import asyncpg
import pytest

from jobqueue.core.decide import decide, event_of, events_of
from jobqueue.core.job import Assignment, Refusal, Transition
from jobqueue.core.lifecycle import Move, Reason, State
from jobqueue.core.retry import policy_of
from jobqueue.core.store import Change, Claim, Rules
from jobqueue.stores.postgres import layout
from tests import patience
from tests.stores.driver import new, spec
from tests.stores.postgres.test_notices import Ears

CALL = "SELECT jq.complete($1::bigint, $2::bigint, $3::text, $4::text, $5::float8)"


async def complete(
    db: Any, held: Assignment, result: bytes | None = b"r", worker: str = "w", **other: Any
) -> str:
    raw = None if result is None else base64.b64encode(result).decode()
    lease = other.get("lease", held.lease)
    return str(await db.fetchval(CALL, held.seq, lease, worker, raw, other.get("ran_for", 0.5)))


async def assigned(store: Any, count: int = 1, **said: Any) -> list[Assignment]:
    await store.jobs.submit(new(*(spec(**said) for _ in range(count))))
    held = await store.jobs.claim([Claim(("q",), ["w"] * count)])
    assert len(held) == count
    return list(held)


async def running(store: Any, count: int = 1, **said: Any) -> list[Assignment]:
    held = await assigned(store, count, **said)
    started = [Transition.started(one.seq, one.lease) for one in held]
    assert all(one.applied for one in (await store.jobs.apply(started)).outcomes)
    return held


async def outcome(store: Any, *moves: Transition) -> Refusal | None:
    (found, *_) = (await store.jobs.apply(list(moves))).outcomes
    return found.refusal


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 40])
async def test_the_end_is_the_one_that_the_rules_make(store, db, number, count):
    """The rows equal those of ``core.decide`` and of a worker's report, in each field and event."""
    await layout.change(db, number)
    ours, theirs = await running(store, count), await running(store, count)
    before = [await store.reads.get(one.id) for one in ours]
    async with db.transaction():
        for one in ours:
            assert await complete(db, one, ran_for=0.25) == "done"
    reports = [Transition.succeeded(one.seq, one.lease, b"r", 0.25) for one in theirs]
    assert all(one.applied for one in (await store.jobs.apply(reports)).outcomes)
    for was, one, other in zip(before, ours, theirs, strict=True):
        job, expected = await store.reads.get(one.id), await store.reads.get(other.id)
        history = await store.reads.history(one.id)
        same = ("state", "version", "attempt", "retry_count", "result", "error", "reason", "spec",
                "worker_id", "expires_at", "cancel_requested", "next_retry_at")  # fmt: skip
        assert [getattr(job, name) for name in same] == [getattr(expected, name) for name in same]
        at = history[-1].at
        assert (job.completed_at, job.updated_at) == (at, at)
        assert job.started_at == max(min(was.started_at, at - 0.25), job.created_at)
        theirs_history = await store.reads.history(other.id)
        assert [(e.version, e.from_state, e.to_state, e.reason, e.attempt, e.worker_id, e.detail)
                for e in history] == [
            (e.version, e.from_state, e.to_state, e.reason, e.attempt, e.worker_id, e.detail)
            for e in theirs_history
        ]  # fmt: skip
    stats = (await store.queues.stats("q"))[0]
    assert stats.depth[State.DONE] == 2 * count
    assert (stats.succeeded, stats.run_seconds) == (2 * count, pytest.approx(0.5 * count))
    assert stats.unfinished == 0


async def test_the_event_is_that_of_the_rules(store, db):
    (held,) = await running(store)
    live = await live_of(db, held)
    assert await complete(db, held) == "done"
    history = await store.reads.history(held.id)
    asked = Transition.succeeded(held.seq, held.lease, b"r", 0.5)
    decision = decide(live, asked, now=history[-1].at, rules=Rules(), policy=policy_of("default"))
    assert not isinstance(decision, Refusal)
    steps = decision.steps
    made = events_of(live, held.id, "q", State.RUNNING, steps, history[-1].at, "", "w")
    assert [history[-1]] == [event_of(one) for one in made]


async def live_of(db: Any, held: Assignment) -> Any:
    from jobqueue.stores.postgres.deciding import _Row
    from jobqueue.stores.postgres.statements import SQL

    async with db.transaction():
        return _Row(await db.fetchrow(SQL["lock_live"], [held.seq], None)).live


@pytest.mark.parametrize("few", [1, 16])
@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"lease": 1}, "stale"),
        ({"worker": "other"}, "stale"),
        ({"worker": "unknown"}, "stale"),
    ],
)
async def test_another_lease_or_worker_is_refused(store, db, wrong, status):
    (held, _) = await running(store, 2)
    assert await complete(db, held, **wrong) == status
    assert (await store.reads.get(held.id)).state is State.RUNNING
    assert await complete(db, held) == "done"


@pytest.mark.parametrize("few", [1, 16])
async def test_a_start_that_is_not_stored_is_asked_for(store, db):
    """Before its start is stored, a job may share a row, and the other jobs must not be locked."""
    held, neighbour = await assigned(store, 2)
    async with db.transaction():
        assert await complete(db, held) == "held"
        async with patience.timeout(10):
            report = Transition.succeeded(neighbour.seq, neighbour.lease, None, 0.1)
            assert await outcome(store, report) is None
    await store.jobs.apply([Transition.started(held.seq, held.lease)])
    assert await complete(db, held) == "done"


async def test_a_cancel_that_was_requested_wins(store, db):
    (held,) = await running(store)
    assert await store.jobs.request_cancel(held.seq) is not None
    assert await complete(db, held) == "cancelled"
    assert (await store.reads.get(held.id)).state is State.RUNNING


async def test_a_second_call_is_refused_after_any_commit(store, db):
    """A handler may repeat a transaction whose commit got no answer, without a second effect."""
    (held,) = await running(store)
    async with db.transaction():
        assert await complete(db, held) == "done"
        assert await complete(db, held) == "stale"
    assert await complete(db, held) == "stale"
    history = await store.reads.history(held.id)
    assert [event.to_state for event in history].count(State.DONE) == 1


async def test_the_workers_own_reports_are_refused_afterwards(store, db):
    (held,) = await running(store)
    assert await complete(db, held) == "done"
    for report in (
        Transition.failed(held.seq, held.lease, "late"),
        Transition.succeeded(held.seq, held.lease, b"late"),
        Transition.timed_out(held.seq, held.lease),
        Transition.started(held.seq, held.lease),
    ):
        assert await outcome(store, report) in (Refusal.STALE_LEASE, Refusal.WRONG_STATE)
    job = await store.reads.get(held.id)
    assert (job.state, job.result) == (State.DONE, b"r")


async def test_a_rolled_back_completion_does_not_end_the_job(store, db):
    (held,) = await running(store)
    transaction = db.transaction()
    await transaction.start()
    assert await complete(db, held) == "done"
    await transaction.rollback()
    assert await outcome(store, Transition.failed(held.seq, held.lease, "not committed")) is None
    assert (await store.reads.get(held.id)).state is State.FAILED


@pytest.mark.parametrize(
    "move",
    [
        lambda held: Transition.failed(held.seq, held.lease, "boom"),
        lambda held: Transition.timed_out(held.seq, held.lease),
        lambda held: Transition(held.seq, Move.TIME_OUT, held.lease, 3),
        lambda held: Transition.worker_lost(held.seq, held.lease, "gone"),
        lambda held: Transition.cancelled(held.seq),
        lambda held: Transition.dropped_with_queue(held.seq),
    ],
)
async def test_no_write_waits_for_the_row_of_an_open_transaction(store, db, move):
    """The sweep skips the locked job, and applies the other moves of the batch."""
    held, other = await running(store, 2)
    async with db.transaction():
        assert await complete(db, held) == "done"
        async with patience.timeout(10):
            moves = [move(held), Transition.failed(other.seq, other.lease, "boom")]
            found = (await store.jobs.apply(moves)).outcomes
        assert (found[0].refusal, found[0].state) == (Refusal.LOCKED, State.RUNNING)
        assert found[1].applied
        assert (await store.reads.get(other.id)).state is State.FAILED
        async with patience.timeout(10):
            assert await store.jobs.request_cancel(held.seq) is None
    assert (await store.reads.get(held.id)).state is State.DONE


async def test_the_sweep_comes_again_for_a_job_whose_transaction_was_rolled_back(open_store, db):
    store = await open_store(rules=Rules(watchdog_grace=0.0))
    (held,) = await running(store, timeout=0.01)
    transaction = db.transaction()
    await transaction.start()
    assert await complete(db, held) == "done"
    async with patience.timeout(20):
        while not (due := await store.upkeep.due(10)).transitions:
            await asyncio.sleep(0.01)
    assert await outcome(store, *due.transitions) is Refusal.LOCKED
    await transaction.rollback()
    due = await store.upkeep.due(10)
    assert await outcome(store, *due.transitions) is None
    assert (await store.reads.get(held.id)).reason is Reason.TIMED_OUT


async def test_a_fail_over_and_a_completion_at_once_are_one_of_both(store, db):
    """The one that locks the row first is applied, and the other is refused."""
    ended: list[str] = []
    for _ in range(15):
        (held,) = await running(store)
        status, refusal = await asyncio.gather(
            complete(db, held),
            outcome(store, Transition.worker_lost(held.seq, held.lease, "gone")),
        )
        job = await store.reads.get(held.id)
        assert (status == "done") is (job.state is State.DONE)
        assert (status == "done") is (refusal is not None)
        ended.append(status)
    assert set(ended) <= {"done", "stale"}


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_an_old_snapshot_ends_no_attempt_that_was_failed_over(store, db, isolation):
    (held,) = await running(store)
    transaction = db.transaction(isolation=isolation)
    await transaction.start()
    await db.fetchval("SELECT count(*) FROM queues")
    assert await outcome(store, Transition.failed(held.seq, held.lease, "over")) is None
    with pytest.raises(asyncpg.SerializationError):
        await complete(db, held)
    await transaction.rollback()
    assert (await store.reads.get(held.id)).state is State.FAILED


async def test_waiters_for_the_job_wake_at_the_commit(open_store, db):
    store = await open_store()
    (held,) = await running(store)
    await asyncio.sleep(0.1)  # let the words of the claim pass
    ears = Ears(store)
    async with db.transaction():
        assert await complete(db, held) == "done"
    await ears.hear(Change.ENDED)


async def test_a_large_result_is_an_error(store, db):
    (held,) = await running(store)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="at most 1048576 bytes"):
        await complete(db, held, b"x" * (1 << 20 | 1))
    assert await complete(db, held, b"x" * (1 << 20)) == "done"
    assert len((await store.reads.get(held.id)).result) == 1 << 20


async def test_heartbeats_go_on_beside_an_open_transaction(store, db):
    held, other = await running(store, 2)
    async with db.transaction():
        assert await complete(db, held) == "done"
        began = time.monotonic()
        pulse = await asyncio.to_thread(
            store.workers.pulse, "w", 1, [held.lease, other.lease], [], {}, None
        )
        assert pulse.known
        assert pulse.lost == []
        assert time.monotonic() - began < patience.longest(10)
    pulse = await asyncio.to_thread(
        store.workers.pulse, "w", 1, [held.lease, other.lease], [], {}, None
    )
    assert pulse.lost == [held.lease]
