"""The backoff formulas of the three documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.retry import PROFILES, Jitter, RetryPolicy, profile

RETRIES = st.integers(0, 10_000)
DRAWS = st.floats(0.0, 1.0, exclude_max=True)


@pytest.mark.req("jq:FR-033")
@given(retries=RETRIES, draw=DRAWS)
def test_default_is_the_capped_exponential_with_jitter_on_top(retries: int, draw: float):
    capped = min(5.0 * 2 ** min(retries, 100), 300.0)
    delay = profile("default").delay(retries, lambda: draw)
    assert delay == pytest.approx(capped + draw * 0.25 * capped)
    assert capped <= delay <= capped * 1.25


@pytest.mark.req("jq:FR-033")
def test_default_starts_at_five_seconds_doubles_and_stops_at_three_hundred():
    delays = [profile("default").delay(n, lambda: 0.0) for n in range(9)]
    assert delays == [5, 10, 20, 40, 80, 160, 300, 300, 300]


@pytest.mark.req("jq:FR-033")
def test_default_jitter_spreads_jobs_that_failed_together():
    delays = {profile("default").delay(0) for _ in range(100)}
    assert len(delays) > 90
    assert max(delays) - min(delays) > 0.25


@pytest.mark.req("inp:RETRY")
@given(retries=RETRIES, draw=DRAWS)
def test_producer_never_exceeds_its_cap_even_with_jitter(retries: int, draw: float):
    base = min(0.5 * 2 ** min(retries + 1, 100), 10.0)
    delay = profile("producer").delay(retries, lambda: draw)
    assert 0.7499 * base <= delay <= min(1.2501 * base, 10.0)


@pytest.mark.req("inp:RETRY")
@pytest.mark.parametrize(
    ("attempt", "low", "high"),
    [(1, 0.75, 1.25), (2, 1.5, 2.5), (3, 3, 5), (4, 6, 10), (5, 7.5, 10), (9, 7.5, 10)],
)
def test_producer_follows_the_documents_table(attempt: int, low: float, high: float):
    policy = profile("producer")
    assert policy.delay(attempt - 1, lambda: 0.0) == pytest.approx(low)
    assert policy.delay(attempt - 1, lambda: 1.0) == pytest.approx(high)


def test_scheduler_is_one_two_four_eight_without_jitter():
    delays = [profile("scheduler").delay(n) for n in range(6)]
    assert delays == [1, 2, 4, 8, 8, 8]


@given(
    base=st.floats(0.001, 1e6),
    cap=st.floats(0.001, 1e6),
    first=st.integers(0, 3),
    jitter=st.sampled_from(Jitter),
    draw=DRAWS,
)
def test_without_jitter_in_the_way_a_later_retry_never_waits_less(base, cap, first, jitter, draw):
    policy = RetryPolicy(base=base, cap=cap, first_exponent=first, jitter=jitter)
    delays = [policy.delay(n, lambda: draw) for n in range(200)]
    assert delays == sorted(delays)
    assert all(0 <= delay <= cap * 1.2501 for delay in delays)


def test_an_unknown_profile_is_refused_with_the_known_ones():
    with pytest.raises(InvalidArgument) as refused:
        profile("fibonacci")
    assert refused.value.field == "retry_profile"
    assert all(name in refused.value.message for name in PROFILES)
