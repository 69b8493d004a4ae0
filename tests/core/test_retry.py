"""The backoff formulas of the three documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.retry import (
    PROFILES,
    Backoff,
    Jitter,
    RetryPolicy,
    check_retry,
    policy_of,
    profile,
)

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


# -- figures of a queue's or a task's own -----------------------------------------------------


@pytest.mark.req("jq:FR-033")
@given(
    name=st.sampled_from([*PROFILES]),
    base=st.floats(0.001, 1e4),
    more=st.floats(1.0, 1e4),
    jitter=st.floats(0.0, 1.0),
    retries=RETRIES,
    draw=DRAWS,
)
def test_no_wait_is_longer_than_a_maximum_that_was_given(name, base, more, jitter, retries, draw):
    cap = base * more
    delay = policy_of(name, base, cap, jitter).delay(retries, lambda: draw)
    assert 0 <= delay <= cap


@pytest.mark.parametrize("name", [*PROFILES])
def test_a_base_that_was_given_is_the_first_wait(name: str):
    policy = policy_of(name, 3.0, 20.0, 0.0)
    assert [policy.delay(n) for n in range(5)] == [3, 6, 12, 20, 20]


def test_at_the_maximum_jitter_spreads_jobs_still():
    policy = policy_of("default", 1.0, 10.0, 0.25)
    assert policy.delay(9, lambda: 0.0) == pytest.approx(8.0)
    assert policy.delay(9, lambda: 1.0) == pytest.approx(10.0)


def test_the_scheduler_profile_takes_jitter_when_told():
    policy = policy_of("scheduler", jitter=0.5)
    assert policy.delay(0, lambda: 0.0) == pytest.approx(1.0)
    assert policy.delay(0, lambda: 1.0) == pytest.approx(1.5)


def test_without_figures_of_its_own_a_queue_waits_as_its_profile_says():
    assert {name: policy_of(name) for name in PROFILES} == PROFILES
    assert policy_of("of-tomorrow") == PROFILES["default"]


@pytest.mark.parametrize(
    ("figures", "field", "said"),
    [
        ((0.0, None, None), "retry_base", "more than 0"),
        ((float("nan"), None, None), "retry_base", "more than 0"),
        ((1.0, float("inf"), None), "retry_max", "more than 0"),
        ((1.0, 1e12, None), "retry_max", "at most"),
        ((None, None, 1.5), "retry_jitter", "0 to 1"),
        ((None, None, float("nan")), "retry_jitter", "0 to 1"),
        ((9.0, 8.0, None), "retry_base", "9 s is more than retry_max, 8 s"),
        ((400.0, None, None), "retry_base", "give retry_max, too"),
        ((None, 4.0, None), "retry_max", "give retry_base, too"),
    ],
)
def test_figures_that_make_no_policy_are_refused(figures, field: str, said: str):
    with pytest.raises(InvalidArgument, match=said) as refused:
        check_retry("default", *figures)
    assert refused.value.field == field


def test_a_backoff_doubles_up_to_its_maximum():
    waits = Backoff(base=2, max=10, jitter=0)
    assert [waits.delay(n) for n in range(4)] == [2, 4, 8, 10]
    assert Backoff(base=2, max=10).delay(9, lambda: 1.0) == pytest.approx(10.0)
    assert Backoff(base=2, max=10).delay(0, lambda: 1.0) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("made", "field"),
    [
        ({"base": 0}, "base"),
        ({"base": "5"}, "base"),
        ({"max": True}, "max"),
        ({"base": 10, "max": 5}, "base"),
        ({"jitter": 2}, "jitter"),
    ],
)
def test_a_backoff_with_wrong_figures_is_refused_at_once(made, field: str):
    with pytest.raises(InvalidArgument) as refused:
        Backoff(**made)
    assert refused.value.field == field
