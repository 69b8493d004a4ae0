"""Drawing lots by weight."""

from __future__ import annotations

import random

from jobqueue.core.queue import share


def test_shares_follow_the_weights():
    drawn = share({9: 5, 5: 3, 0: 1}, [9, 5, 0], 9_000, random.Random(1))
    assert drawn.total() == 9_000
    assert 4_800 < drawn[9] < 5_200
    assert 2_800 < drawn[5] < 3_200
    assert 850 < drawn[0] < 1_150


def test_only_priorities_with_waiting_jobs_take_part():
    drawn = share({9: 1_000_000, 0: 1}, [0], 50, random.Random(1))
    assert drawn == {0: 50}
    assert share({9: 5}, [], 50) == {}


def test_a_priority_that_is_not_named_has_the_least_weight():
    drawn = share({9: 3}, [9, 4], 4_000, random.Random(1))
    assert 850 < drawn[4] < 1_150
