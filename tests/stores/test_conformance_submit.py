"""Submit: what is kept, idempotency keys, batches."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from jobqueue.core.decide import event_of
from jobqueue.core.errors import KeyConflict, NotFound
from jobqueue.core.job import SubmitStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue, QueueSettings
from jobqueue.core.store import Claim, Rules
from jobqueue.core.unique import UniqueKey
from tests.stores.driver import Driver, new, spec
from tests.stores.twin import Twin

ACCEPTED, DUPLICATE, REFUSED = (
    SubmitStatus.ACCEPTED,
    SubmitStatus.DUPLICATE,
    SubmitStatus.REFUSED,
)


@pytest.mark.req("jq:FR-009", "jq:FR-011")
async def test_an_accepted_job_is_pending_with_its_first_event(driver: Driver):
    job_id = await driver.submit()
    job = await driver.job(job_id)
    assert (job.id, job.state, job.version, job.attempt, job.retry_count) == (
        job_id,
        State.PENDING,
        1,
        0,
        0,
    )
    assert job.created_at == driver.clock.now()
    assert job.reason is Reason.SUBMITTED
    (event,) = await driver.store.reads.history(job_id)
    assert (event.job_id, event.version, event.from_state, event.to_state, event.reason) == (
        job_id,
        1,
        None,
        State.PENDING,
        Reason.SUBMITTED,
    )
    assert (event.at, event.attempt, event.queue) == (driver.clock.now(), 0, "q")


async def test_every_field_of_the_spec_is_kept(driver: Driver):
    now = driver.clock.now()
    job_id = await driver.submit(
        b"payload",
        type="mail.send",
        priority=7,
        max_retries=11,
        ttl=90.0,
        run_at=now + 30.0,
        timeout=12.5,
        key="schlüssel-✓",
        unique=UniqueKey(key="schlüssel", scope="waiting", on_conflict="replace"),
        labels={"tenant": "a", "größe": "ü"},
    )
    job = await driver.job(job_id)
    assert (job.queue, job.type, job.payload, job.priority) == ("q", "mail.send", b"payload", 7)
    assert (job.max_retries, job.ttl, job.timeout) == (11, 90.0, 12.5)
    assert job.run_at == pytest.approx(now + 30.0)
    assert job.expires_at == pytest.approx(now + 90.0)
    assert job.key == "schlüssel-✓"
    unique = UniqueKey(key="schlüssel", scope="waiting", on_conflict="replace")
    assert job.spec.unique == unique
    assert dict(job.labels) == {"tenant": "a", "größe": "ü"}
    assert (job.result, job.error, job.worker_id) == (None, "", None)
    assert (job.started_at, job.completed_at, job.next_retry_at) == (None, None, None)


@pytest.mark.req("jq:FR-007")
@pytest.mark.parametrize(
    "payload",
    [b"\x00", b"\xff\xfe\x00\x01", b"not json {", bytes(range(256)) * 4_096],
    ids=["nul", "no utf-8", "no json", "1 MiB"],
)
async def test_payloads_are_opaque_bytes(driver: Driver, payload: bytes):
    job_id = await driver.submit(payload)
    assert (await driver.job(job_id)).payload == payload
    assert (await driver.claim_one()).payload == payload


@pytest.mark.req("jq:FR-003", "jq:FR-025")
async def test_what_the_spec_leaves_open_the_queue_decides_at_submit(driver: Driver):
    await driver.queue("defaults", max_retries=8, ttl=60.0, timeout=5.0)
    job = await driver.job(await driver.submit(queue="defaults"))
    assert (job.max_retries, job.ttl, job.timeout) == (8, 60.0, 5.0)
    assert job.expires_at == pytest.approx(driver.clock.now() + 60.0)
    job = await driver.job(await driver.submit(queue="defaults", max_retries=0, ttl=1.0, timeout=2))
    assert (job.max_retries, job.ttl, job.timeout) == (0, 1.0, 2)


async def test_a_delay_counts_from_the_stores_clock(driver: Driver):
    job = await driver.job(await driver.submit(delay=15.0))
    assert job.run_at == pytest.approx(driver.clock.now() + 15.0)


async def test_an_unknown_queue_is_refused_and_leaves_nothing(driver: Driver):
    (job,) = new(spec(queue="nowhere", key="k"))
    (result,) = (await driver.store.jobs.submit([job])).results
    assert result.status is REFUSED
    assert isinstance(result.error, NotFound)
    assert "nowhere" in result.error.message
    assert await driver.store.reads.get(job.id) is None
    assert await driver.store.reads.history(job.id) == []


async def test_a_refused_job_harms_no_other_in_its_batch(driver: Driver):
    results = await driver.results(spec(b"1"), spec(queue="nowhere"), spec(b"3"))
    assert [r.status for r in results] == [ACCEPTED, REFUSED, ACCEPTED]
    assert [(await driver.job(r.job_id)).payload for r in (results[0], results[2])] == [b"1", b"3"]


@pytest.mark.parametrize("count", [2, 40])
async def test_a_batch_for_many_queues_finds_each_of_them(driver: Driver, count: int):
    """Each job gets what its own queue says; those that cannot be kept are in nobody's way."""
    for n in range(count):
        await driver.store.queues.create(Queue(name=f"many-{n}", max_retries=n, ttl=100.0 + n))
    gone = [n for n in range(count) if n % 3 == 1]
    for n in gone:
        assert await driver.store.queues.delete(f"many-{n}") == 0
    numbers = [*range(count), *reversed(range(count))]
    results = await driver.results(
        *(spec(b"%d" % n, queue=f"many-{n}", priority=n % 2) for n in numbers)
    )
    kept: dict[int, list[int]] = {}
    for n, result in zip(numbers, results, strict=True):
        if n in gone:
            with pytest.raises(NotFound, match=f"'many-{n}'"):
                result.unwrap()
            continue
        job = await driver.job(result.unwrap())
        assert (job.queue, job.payload, job.max_retries, job.ttl, job.timeout) == (
            f"many-{n}", b"%d" % n, n, 100.0 + n, None,
        )  # fmt: skip
        kept.setdefault(n, []).append(job.seq)
    for seqs in kept.values():
        assert seqs == sorted(seqs)  # in the order of the batch
    wanted = [Claim((f"many-{n}",), ["w"] * 3) for n in range(count) if n not in gone]
    claimed = [one.queue for one in await driver.store.jobs.claim(wanted)]
    assert Counter(claimed) == {f"many-{n}": 2 for n in range(count) if n not in gone}


ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"priority": 9, "type": "t", "labels": {"a": "b"}},
    {"ttl": 40.0, "max_retries": 0},
    {"timeout": 2.5, "ttl": 7.0},
    {"delay": 30.0, "ttl": 60.0, "timeout": 1.0},
    {"run_at": 1_800_000_100.0},
    {"run_at": 1_700_000_000.0, "priority": 5},  # over: claimable at once
)
FREE = {"free": 2, "none": 0}


@pytest.mark.parametrize("queues", [1, 3, 12])
@pytest.mark.parametrize("keys", [False, True], ids=["plain", "keys"])
@pytest.mark.parametrize("free", FREE)
async def test_a_batch_is_accepted_and_handed_out_as_the_core_decides(
    driver: Driver, queues: int, keys: bool, free: str
):
    """Whichever statement or script a store has for it."""
    settings = [
        QueueSettings(),
        QueueSettings(max_retries=7, ttl=90.0, timeout=12.0),
        QueueSettings(max_retries=0, timeout=3.0, capacity=1_000),
    ]
    names = {f"q{n}": settings[n % len(settings)] for n in range(queues)}
    for name, one in names.items():
        said = {"max_retries": one.max_retries, "ttl": one.ttl, "timeout": one.timeout}
        await driver.queue(name, capacity=one.capacity, **said)
    jobs = new(
        *(
            spec(queue=name, key=f"{name} {n}" if keys else None, **asked)
            for n, (name, asked) in enumerate(itertools.product(names, ASKED))
        )
    )
    claims = [Claim(tuple(names), ["w"] * FREE[free])] if FREE[free] else []
    done = await driver.store.jobs.submit(jobs, claims)
    assert [result.status for result in done.results] == [SubmitStatus.ACCEPTED] * len(jobs)
    driver.accepted |= {job.id for job in jobs}
    now = driver.clock.now()
    twins = {}
    for job in jobs:
        seq = (await driver.job(job.id)).seq
        twins[job.id] = Twin(job.id, seq, job.spec, now, driver.rules, names[job.spec.queue])
    assert len(done.assigned) == FREE[free]
    for got in done.assigned:
        twins[got.id].assigned(got, now)
    driver.clock.advance(1.0)
    taken = await driver.claim(len(jobs), queues=tuple(names))
    assert len(taken) == len(jobs) - 2 * queues - FREE[free]  # two of each queue wait
    for got in taken:
        twins[got.id].assigned(got, driver.clock.now())
    for twin in twins.values():
        assert await driver.job(twin.id) == twin.job
        history = await driver.store.reads.history(twin.id)
        assert history == [event_of(entry) for entry in twin.entries]


async def test_an_empty_batch_is_fine(driver: Driver):
    assert (await driver.store.jobs.submit([])).results == []


async def test_results_come_in_the_order_of_the_batch(driver: Driver):
    jobs = new(*(spec(b"%d" % n, priority=n % 10) for n in range(300)))
    results = (await driver.store.jobs.submit(jobs)).results
    assert [r.job_id for r in results] == [job.id for job in jobs]
    for priority in range(10):  # within a level; a store may number the levels one after the other
        seqs = [(await driver.job(job.id)).seq for job in jobs[priority::10]]
        assert seqs == sorted(seqs)


# -- idempotency keys ----------------------------------------------------------------------


async def test_an_equal_key_and_payload_answers_the_original(driver: Driver):
    first = await driver.submit(b"p", type="t", key="k")
    (again,) = await driver.results(spec(b"p", type="t", key="k", priority=5))
    assert (again.status, again.job_id) == (DUPLICATE, first)
    assert len(await driver.all_jobs()) == 1


@pytest.mark.parametrize("other", [{"payload": b"other"}, {"type": "other"}], ids=str)
async def test_a_key_used_for_another_request_is_a_conflict(driver: Driver, other: dict):
    first = await driver.submit(b"p", type="t", key="k")
    (result,) = await driver.results(spec(**({"payload": b"p", "type": "t", "key": "k"} | other)))
    assert result.status is REFUSED
    assert isinstance(result.error, KeyConflict)
    assert result.error.job_id == first
    assert len(await driver.all_jobs()) == 1


async def test_keys_belong_to_their_queue(driver: Driver):
    await driver.queue("other")
    first = await driver.submit(b"p", key="k")
    second = await driver.submit(b"p", key="k", queue="other")
    assert first != second


async def test_jobs_without_a_key_are_never_duplicates(driver: Driver):
    assert await driver.submit(b"p") != await driver.submit(b"p")


async def test_equal_keys_in_one_batch_resolve_to_the_first(driver: Driver):
    results = await driver.results(
        spec(b"p", key="k"), spec(b"p", key="k"), spec(b"other", key="k"), spec(b"p", key="l")
    )
    assert [r.status for r in results] == [ACCEPTED, DUPLICATE, REFUSED, ACCEPTED]
    assert results[1].job_id == results[0].job_id
    assert isinstance(results[2].error, KeyConflict)
    assert results[2].error.job_id == results[0].job_id
    assert len(await driver.all_jobs()) == 2


@pytest.mark.parametrize("state", State)
async def test_a_duplicate_is_one_in_every_state_of_the_original(driver: Driver, state: State):
    original = await driver.brought_to(state, payload=b"p", key="k")
    (again,) = await driver.results(spec(b"p", key="k"))
    assert (again.status, again.job_id) == (DUPLICATE, original.id)


async def test_a_key_is_free_again_after_its_time(open_driver):
    driver: Driver = await open_driver(Rules(key_ttl=100.0))
    first = await driver.submit(b"p", key="k")
    driver.clock.advance(99.9)
    (again,) = await driver.results(spec(b"p", key="k"))
    assert again.status is DUPLICATE
    driver.clock.advance(0.2)
    second = await driver.submit(b"other payload", key="k")
    assert second != first
    (again,) = await driver.results(spec(b"other payload", key="k"))
    assert (again.status, again.job_id) == (DUPLICATE, second)


async def test_an_expired_key_is_replaced_inside_a_batch_too(open_driver):
    driver: Driver = await open_driver(Rules(key_ttl=100.0))
    first = await driver.submit(b"p", key="k")
    driver.clock.advance(101.0)
    results = await driver.results(spec(b"p", key="k"), spec(b"p", key="k"))
    assert [r.status for r in results] == [ACCEPTED, DUPLICATE]
    assert results[0].job_id == results[1].job_id != first


async def test_the_key_of_a_refused_job_is_not_taken(driver: Driver):
    await driver.queue("small", capacity=1)
    await driver.submit(queue="small")
    (refused,) = await driver.results(spec(b"p", queue="small", key="k"))
    assert refused.status is REFUSED
    await driver.claim(1, queues=["small"])
    job_id = await driver.submit(b"another", queue="small", key="k")
    assert (await driver.job(job_id)).key == "k"


# -- keys of callers -----------------------------------------------------------------------


async def test_a_key_belongs_to_its_owner(driver: Driver):
    ann = await driver.submit(b"ann", key="k", key_owner="ann")
    bob = await driver.submit(b"bob", key="k", key_owner="bob")
    mine, theirs, conflict = await driver.results(
        spec(b"ann", key="k", key_owner="ann"),
        spec(b"bob", key="k", key_owner="bob"),
        spec(b"bob", key="k", key_owner="ann"),
    )
    assert [(r.status, r.job_id) for r in (mine, theirs)] == [(DUPLICATE, ann), (DUPLICATE, bob)]
    assert isinstance(conflict.error, KeyConflict)
    assert conflict.job_id == ann
    assert "'k'" in conflict.error.message
    shown = {(job.key, job.spec.key_owner) for job in await driver.all_jobs()}
    assert shown == {("k", "ann"), ("k", "bob")}


async def test_owners_share_a_batch(driver: Driver):
    results = await driver.results(
        spec(b"1", key="k", key_owner="ann"),
        spec(b"2", key="k", key_owner="bob"),
        spec(b"1", key="k", key_owner="ann"),
        spec(b"1", key="k", key_owner="bob"),
    )
    assert [r.status for r in results] == [ACCEPTED, ACCEPTED, DUPLICATE, REFUSED]
    assert results[2].job_id == results[0].job_id
    assert results[3].job_id == results[1].job_id


async def test_a_key_without_owner_counts_for_all_until_it_expires(open_driver):
    """As it was written before keys had owners."""
    driver: Driver = await open_driver(Rules(key_ttl=100.0))
    old = await driver.submit(b"p", key="k")
    driver.clock.advance(60.0)
    same, other = await driver.results(
        spec(b"p", key="k", key_owner="ann"), spec(b"q", key="k", key_owner="bob")
    )
    assert [(r.status, r.job_id) for r in (same, other)] == [(DUPLICATE, old), (REFUSED, old)]
    driver.clock.advance(41.0)
    ann = await driver.submit(b"p", key="k", key_owner="ann")
    assert ann != old
    # And the other way round, an owner's key is in nobody else's way.
    shared = await driver.submit(b"other", key="k")
    again, taken = await driver.results(
        spec(b"p", key="k", key_owner="ann"), spec(b"other", key="k", key_owner="bob")
    )
    assert [(r.status, r.job_id) for r in (again, taken)] == [(DUPLICATE, ann), (DUPLICATE, shared)]


async def test_an_owners_expired_key_is_no_answer_while_everybodys_stands(open_driver):
    driver: Driver = await open_driver(Rules(key_ttl=100.0))
    await driver.submit(b"p", key="k", key_owner="ann")
    driver.clock.advance(60.0)
    shared = await driver.submit(b"p", key="k")
    driver.clock.advance(60.0)
    (again,) = await driver.results(spec(b"p", key="k", key_owner="ann"))
    assert (again.status, again.job_id) == (DUPLICATE, shared)


async def test_a_delete_frees_the_owners_key_only(driver: Driver):
    done = await driver.brought_to(State.DONE, payload=b"p", key="k", key_owner="ann")
    other = await driver.submit(b"p", key="k", key_owner="bob")
    await driver.delete(done.id)
    (kept,) = await driver.results(spec(b"p", key="k", key_owner="bob"))
    assert (kept.status, kept.job_id) == (DUPLICATE, other)
    again = await driver.submit(b"p", key="k", key_owner="ann")
    assert again != done.id


async def test_the_key_of_a_pruned_job_stays_its_owners(driver: Driver):
    done = await driver.brought_to(State.DONE, payload=b"p", key="k", key_owner="ann")
    driver.clock.advance(100.0)
    assert await driver.prune(driver.clock.now() - 50.0) == 1
    (again,) = await driver.results(spec(b"p", key="k", key_owner="ann"))
    assert (again.status, again.job_id) == (DUPLICATE, done.id)
    await driver.submit(b"p", key="k", key_owner="bob")


@pytest.mark.parametrize("key", ["\x1f", "\x1fann\x1fk", "a\x1fb", "\x1f\x1f"])
async def test_no_key_can_be_taken_for_one_with_an_owner(driver: Driver, key: str):
    owned = await driver.submit(b"p", key="k", key_owner="ann")
    odd = await driver.submit(b"q", key=key)
    assert (await driver.job(odd)).key == key
    assert (await driver.job(odd)).spec.key_owner == ""
    both = await driver.results(spec(b"p", key="k", key_owner="ann"), spec(b"q", key=key))
    assert [(r.status, r.job_id) for r in both] == [(DUPLICATE, owned), (DUPLICATE, odd)]


async def test_the_longest_key_of_the_longest_name_is_kept(driver: Driver):
    key, owner = "\N{SNOWMAN}" * 255, "\N{GREEK SMALL LETTER OMEGA}" * 200
    job_id = await driver.submit(b"p", key=key, key_owner=owner)
    job = await driver.job(job_id)
    assert (job.key, job.spec.key_owner) == (key, owner)
