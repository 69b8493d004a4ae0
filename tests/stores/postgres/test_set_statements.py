"""``finish`` and ``start`` decide over a batch in SQL, as ``core.decide`` decides over one job."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobqueue.core.clock import ManualClock
from jobqueue.core.decide import decide
from jobqueue.core.job import Outcome, Refusal, Transition
from jobqueue.core.lifecycle import TERMINAL, Move, State
from jobqueue.core.queue import Queue
from jobqueue.core.retry import PROFILES
from jobqueue.core.store import Claim, JobFilter, Rules
from jobqueue.stores.postgres import layout
from jobqueue.stores.postgres.deciding import _Row
from jobqueue.stores.postgres.statements import REASONS, SQL
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.rows import STATES
from tests.examples import examples
from tests.stores.driver import new, spec, worker

pytestmark = pytest.mark.integration

RULES = Rules(assignment_timeout=6.0, poison_after=3, watchdog_grace=1.0)
NO_JITTER = "scheduler"

JOB = st.fixed_dictionaries(
    {
        "path": st.sampled_from(
            ["pending", "assigned", "assigned", "running", "running", "failed", "retried",
             "done", "dead"]
        ),
        "cancel": st.booleans(),
        "lease": st.sampled_from(["own", "own", "own", "wrong", "none"]),
        "move": st.sampled_from([Move.START, Move.SUCCEED]),
        "ran_for": st.sampled_from([None, 0.0, 0.25, 3.0]),
        "timeout": st.sampled_from([None, 5.0]),
        "ttl": st.sampled_from([None, 1_000.0]),
        "result": st.sampled_from([None, b"", b"r"]),
    }
)  # fmt: skip


async def bring(store: PostgresStore, clock: ManualClock, wish: dict[str, Any]) -> tuple[int, int]:
    """A job as wished: its number, and the last lease it had."""
    delay = 500.0 if wish["path"] == "pending" else None  # so that nobody claims it
    job = new(spec(timeout=wish["timeout"], ttl=wish["ttl"], delay=delay, max_retries=2))
    await store.jobs.submit(job)
    if wish["path"] == "pending":
        (found,) = [one for one in await store.reads.list_jobs(JobFilter()) if one.id == job[0].id]
        return found.seq, 1
    (held,) = await store.jobs.claim([Claim(("q",), ["w"])])
    clock.advance(0.5)
    if wish["path"] == "assigned":
        return held.seq, held.lease
    await store.jobs.apply([Transition.started(held.seq, held.lease)])
    clock.advance(0.5)
    match wish["path"]:
        case "running" if wish["cancel"]:
            await store.jobs.request_cancel(held.seq)
        case "failed" | "retried":
            await store.jobs.apply([Transition.failed(held.seq, held.lease, "boom")])
        case "done":
            await store.jobs.apply([Transition.succeeded(held.seq, held.lease, None, 0.1)])
        case "dead":
            await store.jobs.apply(
                [Transition.failed(held.seq, held.lease, "boom", retryable=False)]
            )
    if wish["path"] == "retried":
        await store.jobs.apply([Transition(held.seq, Move.RETRY_BY_HAND)])
        (held,) = await store.jobs.claim([Claim(("q",), ["w"])])
    return held.seq, held.lease


def ask(wish: dict[str, Any], seq: int, lease: int) -> Transition:
    given_lease = {"own": lease, "wrong": lease ^ 1, "none": None}[wish["lease"]]
    if wish["move"] is Move.START:
        return Transition(seq, Move.START, given_lease, ran_for=wish["ran_for"])
    return Transition(
        seq, Move.SUCCEED, given_lease, result=wish["result"], ran_for=wish["ran_for"]
    )


async def expect(db, asked: Transition, now: float) -> tuple[Outcome, dict[str, Any], list[Any]]:
    """By ``decide``: the outcome, the record, and the events that it adds."""
    async with db.transaction():
        row = None
        for name in ("lock_live", "lock_ended", "lock_done", "lock_plain"):
            row = row or await db.fetchrow(SQL[name], [asked.seq], now)
        was = _Row(row)
        events = [tuple(e) for e in await db.fetch(EVENTS, asked.seq)]
    live, before, version = was.live, was.live.state, was.live.version
    decision = decide(
        live, asked, now=now, rules=RULES, policy=PROFILES[NO_JITTER], draw=lambda: 0.5
    )
    record = await seen(db, asked.seq)
    if isinstance(decision, Refusal):
        return Outcome(decision, before, live.reason, was.job_id, "q"), record, events
    outcome = decision.outcome(live, was.job_id, "q")
    outcome.worker_id = "w"
    here = before
    for state, reason in decision.steps:
        version += 1
        events.append((version, int(here), int(state), reason.value, now, live.attempt, "w"))
        here = state
    record |= {
        "state": live.state, "reason": live.reason, "version": live.version,
        "attempt": live.attempt, "retry_count": live.retry_count, "started_at": live.started_at,
        "completed_at": live.completed_at, "result": live.result, "error": live.error,
        "lease": live.lease if live.state not in TERMINAL else asked.lease,
        "expires_at": live.expires_at, "updated_at": now,
        "due": live.due if live.state not in TERMINAL else None,
    }  # fmt: skip
    return outcome, record, events


EVENTS = """
SELECT e.version, e.from_state, e.to_state, n.name, e.at, e.attempt, w.name
FROM job_events_of($1::bigint, $1::bigint >> 10 << 10) e JOIN reason_name n USING (reason)
LEFT JOIN worker_name w ON w.id = e.worker ORDER BY e.version
"""
RECORD = """
SELECT coalesce(l.state, e.state) AS state, coalesce(l.reason, e.reason) AS reason,
       coalesce(l.version, e.version) AS version, coalesce(l.attempt, e.attempt) AS attempt,
       coalesce(l.retry_count, e.retry_count) AS retry_count,
       coalesce(l.started_at, e.started_at) AS started_at, e.completed_at, e.result,
       coalesce(l.error, e.error, '') AS error, coalesce(l.lease, e.lease) AS lease,
       l.expires_at, coalesce(l.updated_at, e.completed_at) AS updated_at,
       coalesce((SELECT coalesce(due, wake_at) FROM job_live j WHERE j.seq = r.seq),
                (SELECT due FROM job_plain_of(r.seq))) AS due
FROM job_record r LEFT JOIN LATERAL job_live_of(r.seq) l ON true
LEFT JOIN LATERAL job_end_of(r.seq) e ON true
WHERE r.seq = $1
"""


async def seen(db, seq: int) -> dict[str, Any]:
    row = dict(await db.fetchrow(RECORD, seq))
    return row | {"state": STATES[row["state"]], "reason": REASONS[row["reason"]]}


def near(value: object) -> object:
    return pytest.approx(value) if isinstance(value, float) else value


@settings(
    max_examples=examples(10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(wishes=st.lists(JOB, min_size=1, max_size=6), seed=st.integers(0, 99))
@pytest.mark.parametrize(("number", "few"), [(1, 16), (2, 16), (2, 1), (3, 1)])
def test_a_batch_in_sql_is_decided_as_each_job_by_the_core(compare, wishes, seed):
    compare(wishes, seed)


@pytest.fixture
def compare(postgres_dsn: str, number: int, few: int) -> Iterator[Callable[..., None]]:
    """``_compare`` on one store: each example has jobs of its own there."""
    clock = ManualClock()
    store = PostgresStore(postgres_dsn, rules=RULES, clock=clock, few=few)

    async def begin() -> asyncpg.Connection:
        db = await asyncpg.connect(postgres_dsn)
        await layout.change(db, number)
        await store.open()
        await store.queues.create(Queue(name="q", retry_profile=NO_JITTER))
        await store.workers.register(worker())
        return db

    with asyncio.Runner() as runner:
        db = runner.run(begin())
        yield lambda wishes, seed: runner.run(_compare(db, store, clock, wishes, seed))
        runner.run(store.close())
        runner.run(db.close())


async def _compare(
    db: asyncpg.Connection,
    store: PostgresStore,
    clock: ManualClock,
    wishes: list[dict[str, Any]],
    seed: int,
) -> None:
    asked = []
    try:
        for wish in wishes:
            asked.append(ask(wish, *await bring(store, clock, wish)))
            await _put_aside(store)
        random.Random(seed).shuffle(asked)
        expected = [await expect(db, one, clock.now()) for one in asked]
        before = (await store.queues.stats("q"))[0]
        outcomes = (await store.jobs.apply(asked)).outcomes
        after = (await store.queues.stats("q"))[0]
        for one, got, (outcome, record, events) in zip(asked, outcomes, expected, strict=True):
            assert (got.refusal, got.state, got.reason, got.job_id, got.queue) == (
                outcome.refusal, outcome.state, outcome.reason, outcome.job_id, outcome.queue,
            )  # fmt: skip
            if got.applied:
                assert (got.lease, got.worker_id) == (outcome.lease, outcome.worker_id)
                assert got.steps == outcome.steps
                assert got.ran_for == near(outcome.ran_for)
            now_seen = await seen(db, one.seq)
            assert now_seen == {name: near(value) for name, value in record.items()}
            assert [tuple(near(part) for part in event) for event in events] == [
                tuple(event) for event in await db.fetch(EVENTS, one.seq)
            ]
        moved = [outcome for outcome in outcomes if outcome.applied]
        ended = [one for one in moved if one.state is State.DONE]
        assert after.succeeded - before.succeeded == len(ended)
        ran = sum(one.ran_for or 0.0 for one in moved)
        assert after.run_seconds - before.run_seconds == pytest.approx(ran)
        assert sum(after.depth.values()) == sum(before.depth.values())
    finally:
        await _put_aside(store)  # what an example handed back


async def _put_aside(store: PostgresStore) -> None:
    """What is claimable stays out of the way of the next job that is brought up."""
    while held := await store.jobs.claim([Claim(("q",), ["aside"])]):
        await store.jobs.apply([Transition(held[0].seq, Move.CANCEL)])
