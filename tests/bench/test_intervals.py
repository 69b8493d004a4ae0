"""Student's t, without a library for it."""

from __future__ import annotations

import math
from random import Random

import pytest

from jobqueue.bench.intervals import interval, student


@pytest.mark.parametrize(
    ("share", "degrees", "value"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.95, 3, 2.353),
        (0.975, 4, 2.776),
        (0.95, 9, 1.833),
        (0.995, 10, 3.169),
        (0.999, 15, 3.733),
        (0.975, 120, 1.980),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_the_printed_tables(share, degrees, value):
    assert student(share, degrees) == pytest.approx(value, abs=6e-4)


def test_a_quantile_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no quantile"):
        student(1.0, 3)
    with pytest.raises(ValueError, match="no quantile"):
        student(0.9, 0)


def test_one_value_has_no_bounds_and_is_compared_with_nothing():
    alone = interval([3.0])
    assert (alone.low, alone.high) == (None, None)
    assert alone.overlaps(interval([1.0, 1.1])) is None


def test_intervals_hold_the_true_mean_as_often_as_they_say():
    random, held, trials = Random(1), 0, 2000
    for _ in range(trials):
        found = interval([random.gauss(50, 5) for _ in range(5)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 50 <= found.high
    # Three standard deviations of a binomial count.
    assert abs(held / trials - 0.95) < 3 * math.sqrt(0.95 * 0.05 / trials)
