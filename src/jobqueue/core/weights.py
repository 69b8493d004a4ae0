"""Sharing a queue's dispatch among its priorities by weight, so that low ones do not starve."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

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


Ranked = TypeVar("Ranked", bound=tuple[Any, ...])
"""A claimable job as a store reads it: first its rank (9 - priority), then its number."""


def by_weight(
    weights: Mapping[int, int], levels: Mapping[int, Sequence[Ranked]], limit: int
) -> list[Ranked]:
    """Pick ``limit`` jobs of a queue that shares by weight; ``levels`` are its jobs by priority."""
    present = [priority for priority, rows in levels.items() if rows]
    drawn = share(weights, present, limit)
    picked: list[Ranked] = []
    rest: list[Ranked] = []
    for priority in present:
        rows = levels[priority]
        picked += rows[: drawn[priority]]
        rest += rows[drawn[priority] :]
    # Slots that a priority drew but has no job for go to the most urgent of the others.
    rest.sort(key=lambda row: row[:2])
    return sorted(picked + rest[: limit - len(picked)], key=lambda row: row[:2])


def merge_queues(found: Sequence[tuple[bool, Sequence[Ranked]]], limit: int) -> list[Ranked]:
    """Lay queues over each other in claim order; each is in order already.

    A queue that shares by weight (True) competes with the others by its most urgent job.
    """
    if len(found) == 1:
        return list(found[0][1][:limit])
    keyed = [
        [((rows[0] if shares else row)[:2], place, row) for place, row in enumerate(rows)]
        for shares, rows in found
    ]
    merged = heapq.merge(*keyed, key=lambda entry: entry[:2])
    return [row for _, _, row in islice(merged, limit)]
