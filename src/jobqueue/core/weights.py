"""Sharing a queue's dispatch among its priorities by weight, so that low ones do not starve."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

UNNAMED_WEIGHT = 1
"""The weight of a priority that the queue's weights do not name."""


def share(
    weights: Mapping[int, int],
    present: Sequence[int],
    count: int,
    source: random.Random | None = None,
) -> Counter[int]:
    """Draw how many of ``count`` slots each priority with waiting jobs gets.

    By lot rather than by turn: it needs no state, so that any number of servers share alike.
    """
    if not present:
        return Counter()
    shares = [weights.get(priority, UNNAMED_WEIGHT) for priority in present]
    choices = source.choices if source is not None else random.choices
    return Counter(choices(present, shares, k=count))
