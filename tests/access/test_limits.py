"""Token buckets by a clock that stands still, and over both faces."""

from __future__ import annotations

import pytest

from jobqueue.access.callers import EVERY_ROLE, Caller, enter_call
from jobqueue.access.limits import Limiter, TokenBucket
from jobqueue.core.errors import QueueFull, RateLimited
from jobqueue.core.job import JobSpec, SubmitResult

pytestmark = pytest.mark.req("inp:PROD")
ANN = Caller("ann", EVERY_ROLE, "10.0.0.1")
BOB = Caller("bob", EVERY_ROLE, "10.0.0.1")


def test_a_bucket_fills_with_time_up_to_its_burst():
    bucket = TokenBucket(rate=10, burst=5, now=0.0)
    assert bucket.take(9, 0.0) == 5
    assert bucket.take(1, 0.09) == 0
    assert bucket.take(1, 0.1) == 1
    assert bucket.take(9, 1000.0) == 5


def test_tokens_that_come_in_small_parts_are_not_lost():
    bucket = TokenBucket(rate=1, burst=1, now=0.0)
    assert bucket.take(1, 0.0) == 1
    taken = [bucket.take(1, tenth / 10) for tenth in range(1, 11)]
    assert taken == [0] * 9 + [1]


def test_a_clock_that_goes_back_gives_nothing():
    bucket = TokenBucket(rate=10, burst=5, now=100.0)
    assert bucket.take(5, 100.0) == 5
    assert bucket.take(1, 50.0) == 0
    assert bucket.take(1, 50.05) == 0


def test_each_caller_has_a_bucket_by_name_else_by_address(clock):
    limiter = Limiter(1, 2, clock=clock)
    assert limiter.take(ANN, 2)[1] is None
    assert limiter.take(BOB, 2)[1] is None
    assert limiter.take(Caller("ann", EVERY_ROLE, "10.9.9.9"), 1)[0] == 0
    nobody = Caller("", EVERY_ROLE, "10.0.0.1")
    assert limiter.take(nobody, 2)[1] is None
    assert limiter.take(nobody, 1)[0] == 0
    assert limiter.take(Caller("", EVERY_ROLE, "10.0.0.2"), 1)[1] is None


def test_the_wait_that_is_told_is_the_wait_that_is_needed(clock):
    limiter = Limiter(4, 8, clock=clock)
    assert limiter.take(ANN, 8) == (8, None)
    granted, refusal = limiter.take(ANN, 6)
    assert granted == 0
    assert isinstance(refusal, RateLimited)
    assert refusal.retry_after == pytest.approx(1.5)
    clock.advance(refusal.retry_after)
    assert limiter.take(ANN, 6) == (6, None)


def test_more_than_a_burst_is_told_to_wait_for_a_full_bucket(clock):
    limiter = Limiter(4, 8, clock=clock)
    granted, refusal = limiter.take(ANN, 100)
    assert granted == 8
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(2.0)


def test_there_are_only_so_many_buckets_and_the_idle_go_first(clock):
    limiter = Limiter(1, 1, clock=clock, max_buckets=2)
    limiter.take(ANN, 1)
    limiter.take(BOB, 1)
    limiter.take(ANN, 1)
    limiter.take(Caller("eve", EVERY_ROLE), 1)
    assert len(limiter) == 2
    assert limiter.take(ANN, 1)[0] == 0  # still known


def test_a_refusal_is_logged_once_until_it_is_over(clock, caplog):
    limiter = Limiter(1, 1, clock=clock)
    for _ in range(5):
        limiter.take(ANN, 1)
    assert len(caplog.records) == 1
    assert caplog.records[0].caller == "name ann"
    clock.advance(10)
    limiter.take(ANN, 1)
    limiter.take(ANN, 1)
    assert len(caplog.records) == 2


async def test_the_first_jobs_of_a_batch_go_on_and_the_others_are_refused(clock):
    seen: list[bytes] = []

    async def submit(specs):
        seen.extend(spec.payload for spec in specs)
        return [SubmitResult.refused(QueueFull("full")) for _ in specs]

    enter_call(ANN)
    limited = Limiter(1, 3, clock=clock).around(submit)
    results = await limited([JobSpec(payload=str(n).encode()) for n in range(5)])
    assert seen == [b"0", b"1", b"2"]
    assert [type(result.error) for result in results] == [QueueFull] * 3 + [RateLimited] * 2
    assert [type(r.error) for r in await limited([JobSpec(payload=b"x")])] == [RateLimited]
    assert len(seen) == 3
