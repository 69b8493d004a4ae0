"""The rules of limits: the starts that a bucket allows, and the rest of a limit."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.limits import Limits, Rate, rate_of
from jobqueue.core.queue import (
    LimitState,
    Queue,
    QueueSettings,
    QueueSpec,
    QueueUpdate,
    reached,
)

NOW = 1_800_000_000.0
SERVER = QueueSettings()


def test_a_burst_is_by_default_what_starts_in_a_second():
    assert rate_of(None, None, None) is None
    assert rate_of(10, None, None) == Rate(0.1, 10)
    assert rate_of(100, 60.0, None) == Rate(0.6, 2)
    assert rate_of(1, 3_600.0, None) == Rate(3_600.0, 1)
    assert rate_of(10, None, 3) == Rate(0.1, 3)


def test_a_bucket_begins_full_and_gets_a_token_in_each_interval():
    rate = Rate(0.5, 3)
    assert rate.tokens(0.0, NOW) == 3
    full_at = rate.spent(0.0, NOW, 3)
    assert (rate.tokens(full_at, NOW), rate.opens_in(full_at, NOW)) == (0, 0.5)
    assert rate.tokens(full_at, NOW + 0.49) == 0
    assert rate.tokens(full_at, NOW + 0.5) == 1
    assert rate.opens_in(full_at, NOW + 0.75) == 0.0
    assert rate.tokens(full_at, NOW + 1.75) == 3
    assert rate.tokens(full_at, NOW + 99) == 3


def test_a_bucket_of_a_slower_limit_opens_within_the_time_of_the_new_one():
    slow, fast = Rate(60.0, 10), Rate(0.01, 5)
    full_at = slow.spent(0.0, NOW, 10)
    assert fast.tokens(full_at, NOW) == 0
    assert fast.opens_in(full_at, NOW) == pytest.approx(0.01)
    again = fast.spent(full_at, NOW + 0.02, 2)
    assert again < NOW + 0.1


def test_the_state_of_a_bucket_is_written_anew_after_a_change_even_without_a_start():
    full_at = Rate(60.0, 10).spent(0.0, NOW, 10)
    changed = Limits(None, Rate(0.01, 5)).allowance(0, full_at, NOW)
    assert changed.left == 0
    assert changed.full_at == pytest.approx(NOW + 0.05)
    same = Limits(None, Rate(60.0, 10)).allowance(0, full_at, NOW)
    assert (same.left, same.full_at) == (0, None)


@given(
    starts=st.integers(1, 50),
    period=st.floats(0.01, 100),
    burst=st.one_of(st.none(), st.integers(1, 20)),
    pauses=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30)), max_size=60),
)
def test_no_window_has_more_starts_than_the_limit_and_the_burst(
    starts: int,
    period: float,
    burst: int | None,
    pauses: list[tuple[float, int]],
):
    rate = rate_of(starts, period, burst)
    assert rate is not None
    now, full_at = NOW, 0.0
    times: list[float] = []
    for pause, wanted in pauses:
        now += pause * rate.interval * rate.burst
        taken = min(wanted, rate.tokens(full_at, now))
        assert taken == 0 or rate.opens_in(full_at, now) <= 1e-6
        full_at = rate.spent(full_at, now, taken) if taken else full_at
        times += [now] * taken
    for first in range(len(times)):
        for last in range(first, len(times)):
            window = times[last] - times[first]
            assert last - first + 1 <= rate.burst + (window + 1e-5) / rate.interval + 1e-9


def test_tokens_that_are_taken_in_time_are_not_lost():
    rate, source = Rate(0.01, 2), random.Random(4)
    now, full_at, taken = NOW, rate.spent(0.0, NOW, 2), 0
    while now < NOW + 10:
        now += rate.opens_in(full_at, now) + source.uniform(0, 0.009)
        count = rate.tokens(full_at, now)
        full_at = rate.spent(full_at, now, count)
        taken += count
    assert 990 <= taken <= 1_003


def test_an_allowance_is_the_least_of_all_limits():
    allowed = Limits(5, Rate(1.0, 4)).allowance(2, 0.0, NOW)
    assert (allowed.left, allowed.full_at, allowed.opens_in) == (3, None, 0.0)
    allowed.started = 3
    assert (allowed.left, allowed.full_at, allowed.opens_in) == (0, NOW + 3, math.inf)
    allowed = Limits(None, Rate(1.0, 2)).allowance(9, 0.0, NOW)
    allowed.started = 2
    assert (allowed.left, allowed.opens_in) == (0, 1.0)
    assert Limits(5, None).allowance(7, 0.0, NOW).left == 0  # it was lowered


# -- as settings ---------------------------------------------------------------------------


def test_a_queue_without_limits_has_none():
    assert QueueSpec("q").resolve(SERVER).limits is None
    assert QueueSpec("q", max_running=0, rate=0).resolve(SERVER).limits is None
    queue = QueueSpec("q", max_running=5, rate=100, rate_period=60).resolve(SERVER)
    assert queue.limits == Limits(5, Rate(0.6, 2))


def test_zero_takes_a_limit_away_and_its_details_with_it():
    queue = Queue(name="q", rate=100, rate_period=60.0, rate_burst=9, max_running=5)
    assert QueueUpdate(rate=0).resolve(queue, SERVER) == {
        "rate": None, "rate_period": None, "rate_burst": None,
    }  # fmt: skip
    assert QueueUpdate(rate=None, max_running=0).resolve(queue, SERVER)["max_running"] is None
    assert QueueUpdate(rate_burst=0).resolve(queue, SERVER) == {"rate_burst": None}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("max_running", {"max_running": -1}),
        ("rate", {"rate": 10**10}),
        ("rate", {"rate": 200_000}),
        ("rate", {"rate": 2, "rate_period": 1e-6}),
        ("rate_period", {"rate": 1, "rate_period": 0.0}),
        ("rate_period", {"rate_period": 60.0}),
        ("rate_burst", {"rate_burst": 5}),
        ("rate_burst", {"rate": 0, "rate_burst": 5}),
    ],
)
def test_a_wrong_limit_is_refused_by_name(field: str, said: dict[str, float]):
    with pytest.raises(InvalidArgument) as error:
        QueueSpec("q", **said).resolve(SERVER).check()  # type: ignore[arg-type]
    assert error.value.field == field


def test_the_limits_that_are_reached_are_named():
    queue = Queue(name="q", max_running=2, rate=1)
    assert reached(queue, LimitState("q", 1, 0.0, NOW)) == {}
    assert reached(queue, LimitState("q", 2, NOW + 0.25, NOW)) == {
        "max_running": None, "rate": pytest.approx(0.25),
    }  # fmt: skip
    assert reached(Queue(name="q"), LimitState("q", 99, 0.0, NOW)) == {}
