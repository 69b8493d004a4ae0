"""Unique jobs: at most one with a key waits, or has not ended, or was submitted within a period."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobqueue.core.errors import NotUnique, QueueFull
from jobqueue.core.job import Job, JobSpec, SubmitResult, SubmitStatus, Transition
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.unique import UniqueKey
from tests.stores.driver import Driver, new, spec

P, A, R, D, F, X = State
ACCEPTED, EXISTING, REFUSED = SubmitStatus.ACCEPTED, SubmitStatus.EXISTING, SubmitStatus.REFUSED


def unique(key: str = "k", payload: bytes = b"x", **how: Any) -> JobSpec:
    """Return a spec with a unique key. Names that are not about the key go into the spec."""
    fields = {name: how.pop(name) for name in list(how) if name not in UniqueKey.__slots__}
    if "idempotency" in fields:
        fields["key"] = fields.pop("idempotency")
    return spec(payload, unique=UniqueKey(key=key, **how), **fields)


def debounced(payload: bytes, **fields: Any) -> JobSpec:
    return unique(payload=payload, scope="waiting", on_conflict="replace", **fields)


async def one(driver: Driver, asked: JobSpec) -> SubmitResult:
    (result,) = await driver.results(asked)
    return result


async def bring(driver: Driver, state: State, **how: Any) -> str:
    """A job with the unique key, in that state."""
    how.setdefault("max_retries", 0 if state is X else 3)
    result = await one(driver, unique(**how))
    assert result.status is ACCEPTED
    if state is P:
        return result.job_id
    assignment = await driver.claim_one()
    if state is not A:
        await driver.start(assignment)
    if state is D:
        await driver.succeed(assignment)
    elif state in (F, X):
        await driver.fail(assignment)
    assert await driver.state(result.job_id) is state
    return result.job_id


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
@pytest.mark.parametrize(
    ("scope", "in_the_way"), [("waiting", {P, F}), ("unfinished", {P, A, R, F})]
)
async def test_the_state_of_the_earlier_job_decides(
    driver: Driver, state: State, scope: str, in_the_way: set[State]
):
    earlier = await bring(driver, state)
    result = await one(driver, unique(scope=scope))
    if state in in_the_way:
        assert (result.status, result.job_id) == (EXISTING, earlier)
        assert len(await driver.all_jobs()) == 1
    else:
        assert result.status is ACCEPTED
        again = await one(driver, unique(scope=scope))
        assert (again.status, again.job_id) == (EXISTING, result.job_id)
    assert await driver.state(earlier) is state


async def test_a_period_counts_from_the_submit_whatever_becomes_of_the_job(driver: Driver):
    earlier = await bring(driver, D)
    driver.clock.advance(9.5)
    assert (await one(driver, unique(period=10.0))).job_id == earlier
    driver.clock.advance(0.5)
    later = await one(driver, unique(period=10.0))
    assert later.status is ACCEPTED
    driver.clock.advance(9.0)
    assert (await one(driver, unique(period=10.0))).job_id == later.job_id


async def test_a_refused_submit_names_the_earlier_job(driver: Driver):
    earlier = await bring(driver, P)
    result = await one(driver, unique(on_conflict="reject"))
    assert (result.status, result.job_id) == (REFUSED, earlier)
    assert isinstance(result.error, NotUnique)
    assert result.error.job_id == earlier
    assert str(result.error) == f"unique.key: 'k' belongs to job {earlier}"
    assert (await driver.stats()).depth[P] == 1


async def test_keys_belong_to_their_queue_and_caller(driver: Driver):
    await driver.queue("other")
    for asked in (
        unique(),
        unique("another"),
        unique(queue="other"),
        unique(owner="ann"),
        unique(owner="bob"),
        spec(),
    ):
        assert (await one(driver, asked)).status is ACCEPTED
    assert (await one(driver, unique(owner="ann"))).status is EXISTING


async def test_what_was_said_about_the_key_is_kept(driver: Driver):
    said = UniqueKey(key="schlüssel ✓", scope="waiting", on_conflict="replace", owner="ann")
    job_id = await driver.submit(unique=said)
    assert (await driver.job(job_id)).spec.unique == said
    said = UniqueKey(key="k", period=2.5)
    job_id = await driver.submit(unique=said)
    assert (await driver.job(job_id)).spec.unique == said


# -- replacing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [P, F], ids=lambda state: state.name)
async def test_a_waiting_job_is_superseded_in_the_same_write(driver: Driver, state: State):
    earlier = await bring(driver, state)
    version = (await driver.job(earlier)).version
    changes = await driver.store.jobs.submit(new(debounced(b"later")))
    (result,) = changes.results
    driver.accepted.add(result.job_id)
    old = await driver.job(earlier)
    assert (old.state, old.reason, old.version) == (X, Reason.SUPERSEDED, version + 1)
    assert old.error == f"superseded by job {result.job_id}"
    assert old.completed_at == driver.clock.now()
    (outcome,) = changes.superseded
    assert (outcome.job_id, outcome.state, outcome.reason) == (earlier, X, Reason.SUPERSEDED)
    assert outcome.queue == "q"
    event = (await driver.store.reads.history(earlier))[-1]
    assert (event.from_state, event.to_state, event.reason) == (state, X, Reason.SUPERSEDED)
    assert event.detail == old.error
    depth = (await driver.stats()).depth
    assert (depth[P], depth[F], depth[X]) == (1, 0, 1)
    got = await driver.claim(5)
    assert [(job.id, job.payload) for job in got] == [(result.job_id, b"later")]


async def test_a_delayed_job_is_pushed_back_until_nothing_comes(driver: Driver):
    """Debounce: only the last one runs, when its time has come."""
    for n in range(5):
        await one(driver, debounced(b"%d" % n, delay=10.0))
        await driver.after(9.0)
        assert await driver.claim(5) == []
    await driver.after(1.5)
    (job,) = await driver.claim(5)
    assert job.payload == b"4"
    assert (await driver.stats()).depth[X] == 4


@pytest.mark.parametrize("state", [A, R, D, X], ids=lambda state: state.name)
async def test_a_job_that_does_not_wait_is_left_alone(driver: Driver, state: State):
    earlier = await bring(driver, state)
    later = await one(driver, debounced(b"later"))
    assert later.status is ACCEPTED
    assert await driver.state(earlier) is state
    last = await one(driver, debounced(b"last"))
    assert (await driver.job(later.job_id)).reason is Reason.SUPERSEDED
    assert await driver.state(last.job_id) is P


async def test_jobs_of_one_batch_see_each_other(driver: Driver):
    results = await driver.results(
        *(unique("a"), spec(), unique("a"), debounced(b"1")),
        *(debounced(b"2"), unique("b"), debounced(b"3")),
    )
    assert [result.status for result in results] == [
        *(ACCEPTED, ACCEPTED, EXISTING),
        *([ACCEPTED] * 4),
    ]
    assert results[2].job_id == results[0].job_id
    states = [await driver.state(result.job_id) for result in results]
    assert states == [P, P, P, X, X, P, P]
    waiting = [job.payload for job in await driver.claim(10)]
    assert sorted(waiting) == [b"3", b"x", b"x", b"x"]


async def test_a_superseded_job_may_be_retried_by_hand(driver: Driver):
    """The operator's word counts: it waits beside the one that took its place."""
    earlier = await bring(driver, P)
    later = (await one(driver, debounced(b"later"))).job_id
    await driver.do(Transition.retried_by_hand((await driver.job(earlier)).seq))
    assert sorted(job.id for job in await driver.claim(5)) == sorted([earlier, later])


# -- beside other rules --------------------------------------------------------------------------


async def test_an_idempotency_key_comes_first_and_a_conflict_takes_none(driver: Driver):
    first = await one(driver, unique(payload=b"1", idempotency="i1"))
    assert first.status is ACCEPTED
    again = await one(driver, unique(payload=b"1", idempotency="i1", on_conflict="reject"))
    assert (again.status, again.job_id) == (SubmitStatus.DUPLICATE, first.job_id)
    refused = await one(driver, unique(payload=b"2", idempotency="i2", on_conflict="reject"))
    assert isinstance(refused.error, NotUnique)
    taken = await driver.claim_one()
    await driver.start(taken)
    await driver.succeed(taken)
    later = await one(driver, unique(payload=b"3", idempotency="i2", on_conflict="reject"))
    assert later.status is ACCEPTED, "the refused submit has not taken the idempotency key"


async def test_a_full_queue_refuses_and_supersedes_nothing(driver: Driver):
    await driver.queue("small", capacity=1)
    earlier = (await one(driver, unique(queue="small"))).job_id
    later = await one(driver, debounced(b"later", queue="small"))
    assert later.status is ACCEPTED, "it needs no place of its own"
    assert await driver.state(earlier) is X
    other = await one(driver, unique("other", queue="small"))
    assert isinstance(other.error, QueueFull)
    (job,) = await driver.claim(queues=("small",))
    await driver.fail(job)
    assert (await one(driver, spec(queue="small"))).status is ACCEPTED
    refused = await one(driver, debounced(b"no room", queue="small"))
    assert isinstance(refused.error, QueueFull), "what waits for its retry has no place to give"
    assert await driver.state(later.job_id) is F


async def test_a_removed_job_frees_its_key(driver: Driver):
    earlier = await bring(driver, D)
    await driver.delete(earlier)
    later = await one(driver, unique(period=1_000.0))
    assert later.status is ACCEPTED
    assignment = await driver.claim_one()
    await driver.start(assignment)
    await driver.succeed(assignment)
    driver.clock.advance(10.0)
    assert await driver.prune(driver.clock.now()) == 1
    assert (await one(driver, unique(period=1_000.0))).status is ACCEPTED


async def expired(driver: Driver, job: Job) -> None:
    await driver.after(60.0)
    assert (await driver.job(job.id)).reason is Reason.TTL_EXPIRED


async def cancelled(driver: Driver, job: Job) -> None:
    await driver.do(Transition.cancelled(job.seq))


async def cancelled_while_running(driver: Driver, job: Job) -> None:
    running = await driver.claim_one()
    await driver.start(running)
    assert await driver.store.jobs.request_cancel(job.seq)
    assert (await one(driver, unique())).job_id == job.id, "it still runs"
    await driver.do(Transition.cancel_acknowledged(job.seq, running.lease))


async def poisoned(driver: Driver, job: Job) -> None:
    for _ in range(driver.rules.poison_after):
        running = await driver.claim_one()
        await driver.start(running)
        await driver.lose(running)
        await driver.after(10.0)
    assert (await driver.job(job.id)).reason is Reason.POISON


async def dropped_with_its_queue(driver: Driver, job: Job) -> None:
    await driver.do(Transition.dropped_with_queue(job.seq))
    assert await driver.store.queues.delete("q") == 0
    await driver.queue("q")


@pytest.mark.parametrize(
    "end", [expired, cancelled, cancelled_while_running, poisoned, dropped_with_its_queue]
)
async def test_every_end_leaves_the_key_to_the_next_job(
    driver: Driver, end: Callable[[Driver, Job], Awaitable[None]]
):
    earlier = await one(driver, unique(ttl=30.0, max_retries=9))
    await end(driver, await driver.job(earlier.job_id))
    later = await one(driver, unique())
    assert later.status is ACCEPTED
    assert (await one(driver, unique())).job_id == later.job_id


async def test_many_jobs_that_end_in_one_write_leave_their_keys(driver: Driver):
    keys = [unique(f"k{n}") for n in range(60)]
    assert {result.status for result in await driver.results(*keys)} == {ACCEPTED}
    taken = await driver.claim(60)
    assert {result.status for result in await driver.results(*keys)} == {EXISTING}
    await driver.apply(*(Transition.started(job.seq, job.lease) for job in taken))
    await driver.apply(*(Transition.succeeded(job.seq, job.lease, b"r", 0.1) for job in taken[:40]))
    statuses = [result.status for result in await driver.results(*keys)]
    ended = {job.id for job in taken[:40]}
    assert statuses.count(ACCEPTED) == len(ended)
    assert statuses.count(EXISTING) == 20


async def test_many_waiting_jobs_are_superseded_in_one_write(driver: Driver):
    """Beside plain jobs that share their ranges."""

    def batch(payload: bytes) -> list[JobSpec]:
        return [
            debounced(payload, key=f"k{n}") if n % 3 else spec(payload, labels={"n": str(n)})
            for n in range(60)
        ]

    await driver.results(*batch(b"1"))
    first = {job.id for job in await driver.claim(5)}
    assert {result.status for result in await driver.results(*batch(b"2"))} == {ACCEPTED}
    jobs = await driver.all_jobs()
    gone = {job.id for job in jobs if job.reason is Reason.SUPERSEDED}
    waiting = [job for job in jobs if job.state is P and job.spec.unique is not None]
    claimed = sum(job.spec.unique is not None for job in jobs if job.id in first)
    assert len(gone) == 40 - claimed
    assert sorted(job.payload for job in waiting) == [b"2"] * 40
    got = await driver.claim(200)
    assert len(got) == 20 + 20 + 40 - (5 - claimed)
    assert not gone & {job.id for job in got}


async def test_a_later_holder_keeps_the_key_when_an_earlier_one_is_removed(driver: Driver):
    earlier = await bring(driver, D)
    later = await bring(driver, P)
    await driver.delete(earlier)
    assert (await one(driver, unique())).job_id == later


async def test_two_submits_at_once_accept_one(driver: Driver):
    for turn in range(10):
        asked = [unique(f"k{turn}", payload=b"%d" % n) for n in range(8)]
        results = await asyncio.gather(*(driver.results(each) for each in asked))
        found = Counter(result.status for (result,) in results)
        assert found == {ACCEPTED: 1, EXISTING: 7}
        assert len({result.job_id for (result,) in results}) == 1


async def test_many_replacements_at_once_leave_one_that_waits(driver: Driver):
    asked = [debounced(b"%d" % n) for n in range(20)]
    results = await asyncio.gather(*(driver.results(each) for each in asked))
    assert {result.status for (result,) in results} == {ACCEPTED}
    depth = (await driver.stats()).depth
    assert (depth[P], depth[X]) == (1, 19)
    assert len(await driver.claim(30)) == 1


async def test_replacements_and_claims_at_once_lose_nothing(driver: Driver):
    """What was claimed is not superseded; what was superseded is not claimed."""
    got: list[str] = []

    async def submit() -> None:
        for n in range(20):
            await driver.results(debounced(b"%d" % n))
            await asyncio.sleep(0)

    async def claim() -> None:
        for _ in range(20):
            got.extend(job.id for job in await driver.claim(3))
            await asyncio.sleep(0)

    await asyncio.gather(submit(), claim(), claim())
    got += [job.id for job in await driver.claim(30)]
    jobs = await driver.all_jobs()
    assert len(jobs) == 20
    assert len(set(got)) == len(got)
    assert {job.id for job in jobs if job.state is A} == set(got)
    assert {job.reason for job in jobs if job.state is X} <= {Reason.SUPERSEDED}


# -- with concurrency keys ---------------------------------------------------------------------


async def test_a_unique_job_with_a_concurrency_key_gives_its_place_and_counts_for_its_key(
    open_driver: Callable[..., Awaitable[Driver]],
):
    driver = await open_driver(key_max_running=1)
    plain = spec(b"plain", concurrency_key="c")
    first, other, _ = await driver.results(
        debounced(b"1", concurrency_key="c"), debounced(b"o", key="o"), plain
    )
    second = await one(driver, debounced(b"2", concurrency_key="c"))
    assert [one.status for one in (first, other, second)] == [ACCEPTED] * 3
    job = await driver.job(first.job_id)
    assert (job.state, job.reason) == (X, Reason.SUPERSEDED)
    got = await driver.claim(9)
    assert sorted(one.payload for one in got) == [b"o", b"plain"]
    for held in got:
        await driver.start(held)
        await driver.succeed(held)
    assert [one.payload for one in await driver.claim(9)] == [b"2"]
    seen = await driver.job(second.job_id)
    assert (seen.spec.concurrency_key, seen.spec.unique and seen.spec.unique.key) == ("c", "k")
