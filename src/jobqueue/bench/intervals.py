"""Compute confidence intervals over repetitions by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

CONFIDENCE = 0.95
_WIDEST = 1e6  # a bound for the search of a quantile
_STEPS = 80


@cache
def student(share: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution for a ``share`` of at least one half."""
    if not 0.5 <= share < 1 or degrees < 1:
        raise ValueError(
            f"no quantile for share {share} with {degrees} degrees of freedom: the share must be"
            " 0.5 or more and below 1, the degrees 1 or more"
        )
    low, high = 0.0, _WIDEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if (1 + _between(middle, degrees)) / 2 < share:
            low = middle
        else:
            high = middle
    return high


def _between(limit: float, degrees: int) -> float:
    """Return the probability of a value from -limit to limit."""
    # Finite sums give the probability, because ``degrees`` is a whole number.
    angle = math.atan(limit / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    if degrees % 2:
        term = total = math.cos(angle) if degrees > 1 else 0.0
        for k in range(1, (degrees - 1) // 2):
            term *= square * (2 * k) / (2 * k + 1)
            total += term
        return (angle + math.sin(angle) * total) * 2 / math.pi
    term = total = 1.0
    for k in range(1, degrees // 2):
        term *= square * (2 * k - 1) / (2 * k)
        total += term
    return math.sin(angle) * total


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which the given share of ``values`` lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Interval:
    """Describes a mean over repetitions and its confidence bounds. A single value has no bounds."""

    mean: float
    low: float | None
    high: float | None
    count: int

    def overlaps(self, other: Interval) -> bool | None:
        """Return True if the two intervals overlap, or None if one of them has no bounds."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return None
        return self.low <= other.high and other.low <= self.high


def interval(values: Sequence[float]) -> Interval:
    """Return the confidence interval of the mean of ``values``.

    The interval is cut off at zero, because no figure of a benchmark is negative.
    """
    mean, count = fmean(values), len(values)
    if count == 1:
        return Interval(mean, None, None, count)
    half = student((1 + CONFIDENCE) / 2, count - 1) * stdev(values) / math.sqrt(count)
    return Interval(mean, max(0.0, mean - half), mean + half, count)
