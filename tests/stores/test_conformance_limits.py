"""Limits of a queue: running jobs, and starts in a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from jobqueue.core.job import Assignment, Transition
from jobqueue.core.queue import LimitState
from jobqueue.core.store import ALL_QUEUES, Application, Claim, Claimed, Rules
from tests.stores.conftest import OpenDriver
from tests.stores.driver import Driver, new, spec


async def fill(driver: Driver, count: int = 20, **fields: Any) -> None:
    """Submit numbered jobs: enough of a kind for a range, where a store has ranges."""
    await driver.results(*(spec(b"%d" % n, **fields) for n in range(count)))


async def limit(driver: Driver, name: str = "q", **limits: Any) -> None:
    assert await driver.store.queues.update(name, limits) is not None


def held_back(claimed: Sequence[Assignment]) -> dict[str, float]:
    return dict(claimed.held_back) if isinstance(claimed, Claimed) else {}


def done(*assignments: Assignment) -> list[Transition]:
    return [Transition.succeeded(one.seq, one.lease, b"r") for one in assignments]


# -- running jobs --------------------------------------------------------------------------


async def test_no_more_jobs_are_held_than_the_limit_says(open_driver: OpenDriver):
    driver = await open_driver(max_running=3)
    await fill(driver)
    first = await driver.claim(2)
    second = await driver.claim(5)
    assert [int(one.payload) for one in [*first, *second]] == [0, 1, 2]
    assert held_back(second) == {"q": math.inf}
    assert await driver.claim(5) == []
    await driver.start(first[0])
    assert await driver.claim(5) == []
    await driver.succeed(first[0])
    assert [int(one.payload) for one in await driver.claim(5)] == [3]


async def test_every_end_of_a_lease_frees_a_place(open_driver: OpenDriver):
    driver = await open_driver(max_running=1, rules=Rules(assignment_timeout=60.0))
    await fill(driver, max_retries=0, timeout=30.0)
    taken = 0

    async def next_one() -> Assignment:
        nonlocal taken
        assert held_back(await driver.claim(0)) == {}
        (one,) = await driver.claim(9)
        taken += 1
        assert await driver.claim(9) == []
        return one

    await driver.succeed(await next_one())
    await driver.fail(await next_one())
    await driver.lose(await next_one())
    await driver.do(Transition.cancelled((await next_one()).seq))
    back = await next_one()
    await driver.do(Transition.handed_back(back.seq, back.lease))
    assert (await next_one()).id == back.id
    await driver.after(60.0)  # it was not started in time
    running = await next_one()
    await driver.start(running)
    await driver.after(30.0 + driver.rules.watchdog_grace)  # it ran too long
    started = await next_one()
    await driver.start(started)
    await driver.store.jobs.request_cancel(started.seq)
    assert await driver.claim(9) == []
    await driver.do(Transition.cancel_acknowledged(started.seq, started.lease))
    await next_one()
    assert taken == 9


async def test_a_write_that_ends_a_lease_says_so_and_takes_the_next_job(open_driver: OpenDriver):
    driver = await open_driver(max_running=2)
    await driver.queue("free")
    await fill(driver)
    await driver.submit(queue="free")
    one, two = await driver.claim(9)
    (other,) = await driver.claim(1, queues=["free"])
    started = Transition.started(one.seq, one.lease)
    quiet = await driver.store.jobs.apply([started, *done(other)])
    assert set(quiet.freed) == set()
    ended: Application = await driver.store.jobs.apply(done(two), [Claim(("q",), ["w"] * 5)])
    assert set(ended.freed) == {"q"}
    following = list(ended.assigned) or await driver.claim(5)
    assert [int(a.payload) for a in following] == [2]


async def test_a_submit_hands_out_no_more_than_the_limit(open_driver: OpenDriver):
    driver = await open_driver(max_running=2)
    jobs = new(*(spec(b"%d" % n) for n in range(5)))
    claims = [Claim(("q",), ["w"] * 5)]
    submission = await driver.store.jobs.submit(jobs, claims)
    driver.accepted |= {job.id for job in jobs}
    assert [int(one.payload) for one in submission.assigned] == [0, 1]
    again = await driver.store.jobs.submit(new(spec(b"5")), claims)
    assert list(again.assigned) == []


async def test_claims_of_one_call_share_a_limit(open_driver: OpenDriver):
    driver = await open_driver(max_running=3)
    await fill(driver)
    claims = [Claim(("q",), ["x"] * 2), Claim((ALL_QUEUES,), ["y"] * 2), Claim(("q",), ["z"])]
    got = await driver.store.jobs.claim(claims)
    assert [one.worker_id for one in got] == ["x", "x", "y"]


async def test_other_queues_are_not_limited_and_keep_their_order(open_driver: OpenDriver):
    driver = await open_driver(max_running=1)
    await driver.queue("r")
    await driver.results(
        *(spec(b"%d" % n, queue="qr"[n % 2], priority=9 if n < 4 else 0) for n in range(8))
    )
    got = await driver.claim(9, queues=["q", "r"])
    assert [int(one.payload) for one in got] == [0, 1, 3, 5, 7]
    assert held_back(got) == {"q": math.inf}


async def test_a_limit_holds_for_all_types_together(open_driver: OpenDriver):
    driver = await open_driver(max_running=2)
    await driver.results(*(spec(b"%d" % n, type="ab"[n % 2]) for n in range(40)))
    assert len(await driver.claim(1, types={"a"})) == 1
    assert [int(one.payload) for one in await driver.claim(9, types={"b"})] == [1]
    assert await driver.claim(9, types={"a"}) == []


async def test_weights_share_the_starts_of_a_limit(open_driver: OpenDriver):
    driver = await open_driver(max_running=30, priority_weights={9: 2, 0: 1})
    await driver.results(*(spec(priority=9 * (n % 2)) for n in range(80)))
    got = await driver.claim(60)
    assert len(got) == 30
    assert 5 < sum(one.priority == 9 for one in got) < 30


async def test_a_limit_can_be_set_raised_lowered_and_taken_away(driver: Driver):
    await fill(driver, 40)
    first = await driver.claim(5)
    await limit(driver, max_running=3)
    assert await driver.claim(9) == []
    await driver.apply(*done(*first[:3]))
    assert [int(one.payload) for one in await driver.claim(9)] == [5]
    await limit(driver, max_running=6)
    assert [int(one.payload) for one in await driver.claim(9)] == [6, 7, 8]
    await limit(driver, max_running=2)
    assert await driver.claim(9) == []
    await limit(driver, max_running=None)
    got = await driver.claim(9)
    assert [int(one.payload) for one in got] == list(range(9, 18))
    assert held_back(got) == {}


async def test_a_retry_waits_for_a_place(open_driver: OpenDriver):
    driver = await open_driver(max_running=1)
    await fill(driver, 2)
    (first,) = await driver.claim(9)
    await driver.fail(first)
    (second,) = await driver.claim(9)
    await driver.after(1.0)  # the first one is due
    assert await driver.claim(9) == []
    await driver.succeed(second)
    assert (await driver.claim_one()).id == first.id


async def test_concurrent_claims_never_exceed_a_limit(open_driver: OpenDriver):
    driver = await open_driver(max_running=7)
    await fill(driver, 200)
    finished = 0
    while finished < 200:
        claims = await asyncio.gather(*(driver.claim(3, worker_id=f"w{n}") for n in range(6)))
        held = [one for claim in claims for one in claim]
        assert 1 <= len(held) <= 7
        half = held[: max(1, len(held) // 2)]
        await asyncio.gather(*(driver.store.jobs.apply(done(one)) for one in half), driver.claim(5))
        rest = await driver.store.workers.held()
        assert len(rest) <= 7
        ended = [Transition.succeeded(one.seq, one.lease, b"r") for one in rest]
        await driver.store.jobs.apply(ended)
        finished += len(half) + len(rest)
    await driver.check(settled=True, running={"q": 7})


# -- starts in a time ----------------------------------------------------------------------


async def test_starts_come_at_once_as_a_burst_and_then_one_by_one(open_driver: OpenDriver):
    driver = await open_driver(rate=2, rate_burst=3)
    await fill(driver)
    first = await driver.claim(9)
    assert [int(one.payload) for one in first] == [0, 1, 2]
    assert held_back(first) == {"q": pytest.approx(0.5)}
    await driver.apply(*done(*first))
    driver.clock.advance(0.25)
    assert held_back(await driver.claim(9)) == {"q": pytest.approx(0.25)}
    driver.clock.advance(0.25)
    assert [int(one.payload) for one in await driver.claim(9)] == [3]
    driver.clock.advance(1.2)
    assert len(await driver.claim(1)) == 1
    assert len(await driver.claim(9)) == 1
    driver.clock.advance(60)
    assert len(await driver.claim(9)) == 3


async def test_a_rate_holds_for_every_kind_of_claim(open_driver: OpenDriver):
    driver = await open_driver(rate=4, rate_burst=4)
    jobs = new(*(spec(b"%d" % n) for n in range(20)))
    submission = await driver.store.jobs.submit(jobs, [Claim(("q",), ["w"] * 3)])
    driver.accepted |= {job.id for job in jobs}
    taken = list(submission.assigned)
    assert len(taken) == 3
    application = await driver.store.jobs.apply(done(*taken), [Claim(("q",), ["w"] * 3)])
    taken += application.assigned
    taken += await driver.claim(9)
    assert len(taken) == 4
    driver.clock.advance(0.25)
    two = [Claim(("q",), ["w"] * 3), Claim(("q",), ["v"] * 3)]
    assert len(await driver.store.jobs.claim(two)) == 1


async def test_a_rate_and_a_number_of_running_jobs_hold_together(open_driver: OpenDriver):
    driver = await open_driver(rate=1, rate_burst=2, max_running=3)
    await fill(driver)
    first = await driver.claim(9)
    assert len(first) == 2
    assert held_back(first) == {"q": pytest.approx(1.0)}
    driver.clock.advance(10)
    second = await driver.claim(9)
    assert (len(second), held_back(second)) == (1, {"q": math.inf})
    await driver.apply(*done(*first))
    assert len(await driver.claim(9)) == 1


async def test_a_changed_rate_holds_at_once(open_driver: OpenDriver):
    driver = await open_driver(rate=1, rate_period=3_600.0)
    await fill(driver)
    assert len(await driver.claim(9)) == 1
    assert held_back(await driver.claim(9)) == {"q": pytest.approx(3_600.0)}
    await limit(driver, rate_period=1.0)
    assert held_back(await driver.claim(9)) == {"q": pytest.approx(1.0)}
    driver.clock.advance(1.0)
    assert len(await driver.claim(9)) == 1
    await limit(driver, rate=None, rate_period=None)
    assert len(await driver.claim(9)) == 9
    await limit(driver, rate=5, rate_burst=1)  # its bucket is still empty
    assert held_back(await driver.claim(9)) == {"q": pytest.approx(0.2)}
    driver.clock.advance(0.2)
    assert len(await driver.claim(9)) == 1


async def test_a_job_that_expired_costs_no_start(open_driver: OpenDriver):
    driver = await open_driver(rate=1, rate_burst=2)
    await driver.results(*(spec(b"9", ttl=5.0) for _ in range(3)))
    driver.clock.advance(5.0)
    await fill(driver, 5)
    assert [int(one.payload) for one in await driver.claim(9)] == [0, 1]


async def test_a_handed_back_job_has_used_its_start(open_driver: OpenDriver):
    driver = await open_driver(rate=1, rate_burst=1)
    await fill(driver, 2)
    (first,) = await driver.claim(9)
    await driver.do(Transition.handed_back(first.seq, first.lease))
    assert held_back(await driver.claim(9)) == {"q": pytest.approx(1.0)}


async def test_queues_have_buckets_of_their_own(open_driver: OpenDriver):
    driver = await open_driver(rate=1)
    await driver.queue("r", rate=2)
    await fill(driver, 5)
    await fill(driver, 5, queue="r")
    got = await driver.claim(9, queues=["q", "r"])
    assert sorted(one.queue for one in got) == ["q", "r", "r"]
    assert held_back(got) == {"q": pytest.approx(1.0), "r": pytest.approx(0.5)}


# -- what is shown -------------------------------------------------------------------------


async def test_the_state_of_limits_is_read_for_one_queue_and_for_all(open_driver: OpenDriver):
    driver = await open_driver(max_running=5)
    await driver.queue("p", rate=1, rate_burst=2)
    await driver.queue("plain")
    await fill(driver, 3)
    await fill(driver, 3, queue="p")
    assert len(await driver.claim(2)) == len(await driver.claim(2, queues=["p"])) == 2
    now = driver.clock.now()
    limited = LimitState("q", 2, 0.0, now)
    assert await driver.store.queues.limit_states("q") == [limited]
    rated, other = await driver.store.queues.limit_states()
    assert other == limited
    assert (rated.queue, rated.held) == ("p", 2)
    assert rated.full_at == pytest.approx(now + 2)
    assert await driver.store.queues.limit_states("plain") == []
    assert await driver.store.queues.limit_states("nowhere") == []
