"""Concurrency keys: limits of running jobs and of starts for each key, and shares among keys."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from jobqueue.core.job import Assignment, JobSpec, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import KeyState, WaitingType
from jobqueue.core.store import Claim, Claimed
from tests.stores.conftest import OpenDriver
from tests.stores.driver import Driver, new, spec


def jobs(keys: Sequence[str | None], **fields: Any) -> list[JobSpec]:
    """Numbered jobs with these keys."""
    return [spec(b"%d" % n, concurrency_key=key, **fields) for n, key in enumerate(keys)]


def held_back(claimed: Sequence[Assignment]) -> dict[str, float]:
    return dict(claimed.held_back) if isinstance(claimed, Claimed) else {}


def done(*assignments: Assignment) -> list[Transition]:
    return [Transition.succeeded(one.seq, one.lease, b"r") for one in assignments]


async def payloads(driver: Driver, slots: int, **where: Any) -> list[int]:
    return [int(one.payload) for one in await driver.claim(slots, **where)]


# -- without limits ------------------------------------------------------------------------


async def test_a_key_is_kept_with_its_job(driver: Driver):
    keyed = await driver.submit(concurrency_key="tenant:42 ß", type="t", labels={"a": "b"})
    plain = await driver.submit()
    assert (await driver.job(keyed)).spec.concurrency_key == "tenant:42 ß"
    assert (await driver.job(plain)).spec.concurrency_key is None
    one, _ = await driver.claim(2)
    await driver.start(one)
    assert (await driver.job(keyed)).spec.concurrency_key == "tenant:42 ß"
    await driver.succeed(one)
    assert (await driver.job(keyed)).spec.concurrency_key == "tenant:42 ß"


async def test_keys_change_nothing_in_a_queue_without_limits_of_keys(driver: Driver):
    """Some limits do not look at keys; jobs come back, wait, and have types and priorities."""
    source = random.Random(3)
    keys = source.choices([None, "a", "b", "c"], k=120)
    types = source.choices("xyz", k=120)
    priorities = source.choices([0, 0, 5, 9], k=120)
    rows = list(zip(range(120), keys, types, priorities, strict=True))
    for start in range(0, 120, 40):
        await driver.results(
            *(
                spec(b"%d" % n, concurrency_key=key, type=type, priority=priority)
                for n, key, type, priority in rows[start : start + 40]
            )
        )
    order = [n for n, *_ in sorted(rows, key=lambda row: (-row[3], row[0]))]
    first = await driver.claim(10)
    assert [int(one.payload) for one in first] == order[:10]
    back = [Transition.handed_back(one.seq, one.lease) for one in first]
    await driver.apply(*back)
    some = [n for n in order if types[n] in "xz"]
    assert await payloads(driver, 15, types={"x", "z"}) == some[:15]
    left = [n for n in order if n not in some[:15]]
    await driver.store.queues.update("q", {"max_running": 1_000})
    assert await payloads(driver, 20) == left[:20]
    assert await payloads(driver, 200) == left[20:]


async def test_weights_of_priorities_hold_for_jobs_with_and_without_keys(open_driver: OpenDriver):
    driver = await open_driver(priority_weights={9: 1, 0: 1})
    await driver.results(*(jobs([None, "a"] * 30, priority=9) + jobs(["b", None] * 30)))
    got = await driver.claim(60)
    assert 10 < sum(one.priority == 9 for one in got) < 50
    for priority in (0, 9):
        numbers = [int(one.payload) for one in got if one.priority == priority]
        assert numbers == sorted(numbers)


async def test_jobs_with_keys_wait_like_others(driver: Driver):
    await driver.results(*jobs(["a", "a", None], type="t"), *jobs(["b"], type="u"))
    await driver.submit(concurrency_key="a", delay=5.0, type="t")
    expired = await driver.submit(concurrency_key="a", ttl=2.0, priority=9)
    assert await driver.store.queues.waiting_types(10, "q") == [
        WaitingType("q", "", 1), WaitingType("q", "t", 3), WaitingType("q", "u", 1),
    ]  # fmt: skip
    driver.clock.advance(2.0)
    assert await payloads(driver, 9, types={"u", ""}) == [0]
    await driver.sweep()
    assert await driver.state(expired) is State.DEAD_LETTERED
    assert len(await driver.claim(9)) == 3
    await driver.after(4.0)
    assert len(await driver.claim(9)) == 1
    assert await driver.store.queues.waiting_types(10, "q") == []


# -- running jobs of a key -----------------------------------------------------------------


async def test_a_key_at_its_limit_is_passed_over(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=2)
    await driver.results(*jobs(["a", "a", "a", "b", None, "a", "b", "b", None]))
    first = await driver.claim(4)
    assert [int(one.payload) for one in first] == [0, 1, 3, 4]
    second = await driver.claim(9)
    assert [int(one.payload) for one in second] == [6, 8]
    assert held_back(second) == {"q": math.inf}
    assert await driver.claim(9) == []
    await driver.apply(*done(first[1], second[0]))
    assert await payloads(driver, 9) == [2, 7]


async def test_every_end_of_a_lease_frees_a_place_of_its_key(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=1)
    await driver.results(*jobs(["a"] * 20, max_retries=0, timeout=30.0))

    async def next_one() -> Assignment:
        (one,) = await driver.claim(9)
        assert await driver.claim(9) == []
        return one

    await driver.succeed(await next_one())
    await driver.fail(await next_one())
    await driver.lose(await next_one())
    await driver.do(Transition.cancelled((await next_one()).seq))
    back = await next_one()
    await driver.do(Transition.handed_back(back.seq, back.lease))
    assert (await next_one()).id == back.id
    await driver.after(driver.rules.assignment_timeout)
    running = await next_one()
    await driver.start(running)
    await driver.after(30.0 + driver.rules.watchdog_grace)
    flagged = await next_one()
    await driver.start(flagged)
    await driver.store.jobs.request_cancel(flagged.seq)
    assert await driver.claim(9) == []
    await driver.do(Transition.cancel_acknowledged(flagged.seq, flagged.lease))
    last = await next_one()
    await driver.start(last)
    await driver.fail(last)
    dead = (await driver.job(last.id)).seq
    await next_one()
    await driver.do(Transition.retried_by_hand(dead))
    assert await driver.claim(9) == []  # it came back, with its key


async def test_a_retry_keeps_its_key(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=1)
    await driver.results(*jobs(["a", "a"]))
    (first,) = await driver.claim(9)
    await driver.fail(first)
    (second,) = await driver.claim(9)
    await driver.after(1.0)
    assert await driver.claim(9) == []
    await driver.succeed(second)
    assert (await driver.claim_one()).id == first.id


async def test_a_waiting_job_that_is_cancelled_frees_the_way(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=1, key_weights={"*": 1})
    ids = [(await driver.results(one))[0].job_id for one in jobs(["a", "a", "b"])]
    await driver.do(Transition.cancelled((await driver.job(ids[0])).seq))
    assert sorted(await payloads(driver, 9)) == [1, 2]


async def test_a_write_that_ends_a_lease_takes_the_next_job_of_the_key(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=1)
    await driver.results(*jobs(["a", "a", "b", "b"]))
    one, two = await driver.claim(9)
    ended = await driver.store.jobs.apply(done(one), [Claim(("q",), ["w"] * 5)])
    assert set(ended.freed) == {"q"}
    following = list(ended.assigned) or await driver.claim(5)
    assert [int(a.payload) for a in following] == [1]
    assert await driver.claim(9) == []
    await driver.apply(*done(two))
    assert await payloads(driver, 9) == [3]


async def test_a_submit_hands_out_no_more_than_the_limits_of_keys(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=1)
    batch = new(*jobs(["a", "a", "b", None, None]))
    submission = await driver.store.jobs.submit(batch, [Claim(("q",), ["w"] * 9)])
    driver.accepted |= {job.id for job in batch}
    taken = [*submission.assigned, *await driver.claim(9)]
    assert sorted(int(one.payload) for one in taken) == [0, 2, 3, 4]


async def test_claims_of_one_call_share_the_limits_of_keys(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=2, max_running=5)
    await driver.results(*jobs(["a"] * 5 + ["b"] * 5 + ["c"] * 5))
    claims = [Claim(("q",), ["x"] * 3), Claim(("*",), ["y"] * 9)]
    got = await driver.store.jobs.claim(claims)
    assert [int(one.payload) for one in got] == [0, 1, 5, 6, 10]
    assert held_back(got) == {"q": math.inf}


async def test_limits_of_keys_hold_among_the_types_that_are_meant(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=2)
    await driver.results(
        *(
            spec(b"%d" % n, concurrency_key="ab"[n % 2], type="xyz"[n % 3], priority=n % 2)
            for n in range(18)
        )
    )
    # y: 1 (b), 4 (a), 7 (b), 10 (a), 13 (b), 16 (a)
    assert await payloads(driver, 9, types={"y"}) == [1, 7, 4, 10]
    assert await payloads(driver, 9, types={"x", "z"}) == []


async def test_a_key_that_floods_a_queue_does_not_hide_the_others(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=3)
    for _ in range(3):
        await driver.results(
            *(spec(b"-1", concurrency_key="flood", priority=9) for _ in range(700))
        )
    await driver.results(*jobs(["b", None, "c", "b"]))
    assert await payloads(driver, 4) == [-1, -1, -1, 0]
    assert await payloads(driver, 9) == [1, 2, 3]


async def test_a_limit_of_keys_is_set_while_jobs_wait_and_run(driver: Driver):
    """Most jobs have no key and are of a kind: enough for a range, where a store has ranges."""
    await driver.results(*jobs([None] * 40), *jobs(["a"] * 40))
    await driver.store.queues.update("q", {"key_max_running": 5})
    first = await driver.claim(50)
    assert len(first) == 45
    await driver.store.queues.update("q", {"key_max_running": 4})
    keyed = [one for one in await driver.store.workers.held() if one.seq > first[39].seq]
    assert len(keyed) == 5
    await driver.apply(*done(*[one for one in first if one.seq == keyed[0].seq]))
    assert await driver.claim(9) == []
    await driver.store.queues.update("q", {"key_max_running": None, "key_weights": None})
    assert len(await driver.claim(9)) == 9


async def test_very_many_keys_all_have_their_turn(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=1)
    many = 1_300
    for start in range(0, many, 650):
        await driver.results(
            *(
                spec(b"%d" % n, concurrency_key=f"k{n % many}")
                for n in range(start, start + 650)
                for _ in range(2)
            )
        )
    started: set[int] = set()
    for _ in range(60):
        if len(started) == many:
            break
        got = await payloads(driver, 100)
        assert not started & set(got)
        started |= set(got)
    assert len(started) == many
    assert await driver.claim(100) == []


# -- starts of a key -----------------------------------------------------------------------


async def test_each_key_has_a_bucket_of_its_own(open_driver: OpenDriver):
    driver = await open_driver(key_rate=1, key_rate_burst=2)
    await driver.results(*jobs(["a"] * 5 + ["b"] + [None] * 2))
    first = await driver.claim(9)
    assert [int(one.payload) for one in first] == [0, 1, 5, 6, 7]
    assert held_back(first) == {"q": pytest.approx(1.0)}
    await driver.apply(*done(*first))
    driver.clock.advance(0.5)
    assert held_back(await driver.claim(9)) == {"q": pytest.approx(0.5)}
    driver.clock.advance(0.5)
    assert await payloads(driver, 9) == [2]
    driver.clock.advance(9.0)
    assert await payloads(driver, 9) == [3, 4]


async def test_a_key_may_rest_for_long_and_then_starts_its_burst(open_driver: OpenDriver):
    """The states of full buckets are removed meanwhile."""
    driver = await open_driver(key_rate=1, key_rate_burst=2)
    await driver.results(*jobs(["a", "a", "a"]), *jobs(["b"] * 4, delay=1_000.0))
    first = await driver.claim(9)
    assert len(first) == 2
    await driver.apply(*done(*first))
    await driver.after(1_000.0)
    assert await payloads(driver, 9) == [2, 0, 1]
    await driver.after(1.0)
    assert await payloads(driver, 9) == [2]


async def test_rates_of_queue_and_key_hold_together_and_can_be_changed(open_driver: OpenDriver):
    driver = await open_driver(rate=3, rate_burst=3, key_rate=1, key_rate_period=60.0)
    await driver.results(*jobs(["a", "a", "b", "c", "d", "e"]))
    assert await payloads(driver, 9) == [0, 2, 3]
    driver.clock.advance(1.0)
    assert await payloads(driver, 9) == [4, 5]
    await driver.store.queues.update("q", {"key_rate_period": 0.5})
    assert held_back(await driver.claim(9)) == {"q": pytest.approx(0.5)}
    driver.clock.advance(0.5)
    assert await payloads(driver, 9) == [1]


# -- shares --------------------------------------------------------------------------------


async def test_a_key_that_holds_nothing_comes_before_one_that_floods(open_driver: OpenDriver):
    driver = await open_driver(key_weights={"*": 1})
    await driver.results(*jobs(["flood"] * 60))
    first = await driver.claim(4)
    await driver.results(*jobs(["a", "b", None], priority=0))
    got = await driver.claim(4)
    keys = [one.id for one in got]
    assert len(keys) == 4
    assert Counter(int(one.payload) for one in got) == {0: 1, 1: 1, 2: 1, 4: 1}
    assert [int(one.payload) for one in first] == [0, 1, 2, 3]


async def test_keys_that_wait_share_the_running_jobs_by_weight(open_driver: OpenDriver):
    driver = await open_driver(key_weights={"a": 3, "*": 1})
    await driver.results(*(job for key in ("a", "b", None) for job in jobs([key] * 60)))
    seqs = {job.seq: job.spec.concurrency_key for job in await driver.all_jobs()}
    held: list[Assignment] = []
    source = random.Random(5)
    for _ in range(12):
        held += await driver.claim(20 - len(held))
        assert len(held) == 20
        counts = Counter(seqs[one.seq] for one in held)
        assert 10 <= counts["a"] <= 14
        assert 3 <= counts["b"] <= 5
        assert 3 <= counts[None] <= 5
        ended = source.sample(held, 4)
        await driver.apply(*done(*ended))
        held = [one for one in held if one not in ended]


async def test_within_a_key_the_order_stays(open_driver: OpenDriver):
    driver = await open_driver(key_weights={"*": 1})
    priorities = [0, 5, 0, 9, 5, 0, 0, 9]
    await driver.results(
        *(
            spec(b"%d" % n, concurrency_key=key, priority=p, type="xy"[n % 2])
            for n, p in enumerate(priorities)
            for key in "ab"
        )
    )
    got = [one for _ in range(4) for one in await driver.claim(4)]
    keys = {job.seq: job.spec.concurrency_key for job in await driver.all_jobs()}
    expected = sorted(range(len(priorities)), key=lambda n: (-priorities[n], n))
    for key in "ab":
        assert [int(one.payload) for one in got if keys[one.seq] == key] == expected


async def test_one_slot_goes_to_each_key_in_the_long_run(open_driver: OpenDriver):
    driver = await open_driver(key_weights={"*": 1})
    await driver.results(*jobs(["flood"] * 90), *jobs(["b"] * 30), *jobs(["c"] * 30))
    keys = {job.seq: job.spec.concurrency_key for job in await driver.all_jobs()}
    taken: Counter[str | None] = Counter()
    for _ in range(60):
        one = await driver.claim_one()
        taken[keys[one.seq]] += 1
        await driver.succeed(one)
    assert min(taken["b"], taken["c"], taken["flood"]) >= 8  # of 20 expected


async def test_one_tenant_that_floods_does_not_starve_49_others(open_driver: OpenDriver):
    """Judged by the order of hand-out: a job of another tenant is always the next one."""
    driver = await open_driver(key_weights={"*": 1})
    for _ in range(4):
        await driver.results(*(spec(b"flood", concurrency_key="flood") for _ in range(250)))
    held = await driver.claim(10)
    order: list[bytes] = []

    async def end_the_oldest_and_claim() -> None:
        await driver.apply(*done(held.pop(0)))
        one = await driver.claim_one()
        held.append(one)
        order.append(one.payload)

    expected: list[bytes] = []
    for n in range(49):
        name = b"tenant:%d" % n
        await driver.results(spec(name, concurrency_key=name.decode()))
        await end_the_oldest_and_claim()
        await end_the_oldest_and_claim()  # no slot stays empty for tenants that may come
        expected += [name, b"flood"]
    assert order == expected


async def test_tenants_that_all_have_work_wait_for_each_other_alone(open_driver: OpenDriver):
    """Judged by the order of hand-out: each of 50 tenants is next before one has its third job."""
    driver = await open_driver(key_weights={"*": 1})
    for _ in range(2):
        await driver.results(*(spec(b"flood", concurrency_key="flood") for _ in range(250)))
    names = [b"tenant:%d" % n for n in range(49)]
    for _ in range(3):
        await driver.results(*(spec(name, concurrency_key=name.decode()) for name in names))
    got = [one.payload for _ in range(5) for one in await driver.claim(20)]
    assert Counter(got) == dict.fromkeys([b"flood", *names], 2)
    assert len(set(got[:50])) == 50


async def test_shares_leave_no_slot_empty_and_hold_beside_other_queues(open_driver: OpenDriver):
    driver = await open_driver(key_weights={"*": 1})
    await driver.queue("r")
    await driver.results(*jobs(["a"] * 3), *jobs([None] * 3, queue="r", priority=5))
    got = await driver.claim(9, queues=["q", "r"])
    assert [one.queue for one in got] == ["r"] * 3 + ["q"] * 3


async def test_shares_hold_for_retries_and_what_comes_back(open_driver: OpenDriver):
    driver = await open_driver(key_weights={"*": 1})
    await driver.results(*jobs(["a"] * 30))
    first = await driver.claim(3)
    (late,) = await driver.results(*jobs(["b"], delay=1.0))
    await driver.fail(first[0])
    await driver.do(Transition.handed_back(first[1].seq, first[1].lease))
    await driver.after(1.0)
    assert (await driver.claim_one()).id == late.job_id
    assert (await driver.claim_one()).id == first[0].id


# -- what is shown -------------------------------------------------------------------------


async def test_the_state_of_keys_that_wait_is_read(open_driver: OpenDriver):
    driver = await open_driver(key_max_running=2, key_rate=1, key_rate_burst=3)
    await driver.results(*jobs(["b"] * 5 + ["ä"] + ["c"], type="t"), *jobs(["b", None]))
    now = driver.clock.now()
    first = await driver.claim(3)  # two of b, and "ä"
    assert [int(one.payload) for one in first] == [0, 1, 5]
    b, c = await driver.store.queues.key_states("q", 3)
    assert b.full_at == pytest.approx(now + 2)
    assert replace(b, full_at=0.0) == KeyState("b", 2, 3, 0.0, now)
    assert c == KeyState("c", 0, 1, 0.0, now)
    assert [one.waiting for one in await driver.store.queues.key_states("q", 100, "b")] == [4]
    assert await driver.store.queues.key_states("q", 100, "ä") == []
    assert await driver.store.queues.key_states("nowhere", 100) == []
    (state,) = await driver.store.queues.limit_states("q")
    assert state.held == 3
