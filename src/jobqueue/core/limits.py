"""Decide how many jobs the limits of a queue let start. The functions read no clock.

A start is a move to ASSIGNED. A job that is ASSIGNED or RUNNING is *held*. The number of held jobs
is counted from the jobs themselves, so a job frees its place exactly when its lease ends. A rate
limit is a bucket of tokens: each start takes one. The only state of a bucket is the time at which
it is full again, by the store's clock.

The stores on memory, SQLite and PostgreSQL call these functions; Redis has the same rules in Lua.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
SECOND = 1.0
OTHER_KEYS = "*"
"""The name in weights that stands for every key that is not named."""
UNNAMED_WEIGHT = 1
MOST_KEYS = 1_000
"""The most keys that a claim looks at. If more keys wait, each claim looks at others, by lot."""
ROUNDING = 1e-6  # seconds by which a stored time may differ


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of starts: a bucket of ``burst`` tokens, which gets one more in each interval.

    In any time of t seconds, there are at most ``burst + t / interval`` starts.
    """

    interval: float
    burst: int

    def tokens(self, full_at: float, now: float) -> int:
        """Return the number of starts that the bucket allows now."""
        missing = self._missing(full_at, now) - ROUNDING
        return self.burst if missing <= 0 else math.floor(self.burst - missing / self.interval)

    def spent(self, full_at: float, now: float, starts: int) -> float:
        """Return the time at which the bucket is full, after ``starts`` starts at ``now``."""
        return now + self._missing(full_at, now) + starts * self.interval

    def opens_in(self, full_at: float, now: float) -> float:
        """Return the seconds until the bucket has a token."""
        return max(0.0, self._missing(full_at, now) - (self.burst - 1) * self.interval)

    def outdated(self, full_at: float, now: float) -> bool:
        """Return True if ``full_at`` is later than an empty bucket of this limit needs.

        This happens after a change of the limit. The state must then be written anew, or the bucket
        would not fill.
        """
        return full_at - now > self.burst * self.interval + ROUNDING

    def _missing(self, full_at: float, now: float) -> float:
        return min(max(0.0, full_at - now), self.burst * self.interval)


def rate_of(starts: int | None, period: float | None, burst: int | None) -> Rate | None:
    """Return the limit of ``starts`` in ``period`` seconds, or None if there is no limit."""
    if starts is None:
        return None
    interval = (period or SECOND) / starts
    return Rate(interval, burst or max(1, math.ceil(SECOND / interval - ROUNDING)))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a queue. Limits of keys hold for the jobs of each concurrency key."""

    max_running: int | None = None
    rate: Rate | None = None
    key_max_running: int | None = None
    key_rate: Rate | None = None
    key_weights: Mapping[str, int] | None = None  # None: jobs go by age, whatever their keys

    @property
    def counts_held(self) -> bool:
        """Return True if the end of a held job may let another job start."""
        return self.max_running is not None or self.key_max_running is not None

    @property
    def keyed(self) -> bool:
        """Return True if claims must tell jobs of different keys apart."""
        return not (self.key_max_running is None and self.key_rate is None and not self.key_weights)

    def allowance(self, held: int, full_at: float, now: float) -> Allowance:
        """Return what the limits of the whole queue still allow at ``now``.

        ``held`` is the number of held jobs, and ``full_at`` the state of the queue's bucket.
        """
        return Allowance(self.max_running, self.rate, held, full_at, now)

    def key_allowance(self, held: int, full_at: float, now: float) -> Allowance:
        """Return what the limits of one key still allow."""
        return Allowance(self.key_max_running, self.key_rate, held, full_at, now)

    @property
    def shares(self) -> Shares[str | None] | None:
        """Return the shares of keys, or None if jobs go by age, whatever their keys."""
        if not self.key_weights:
            return None
        named: dict[str | None, int] = dict(self.key_weights.items())
        named.pop(OTHER_KEYS, None)
        return Shares(named, self.key_weights.get(OTHER_KEYS, UNNAMED_WEIGHT))


@dataclass(frozen=True, slots=True)
class Shares(Generic[K]):
    """The weights by which keys share the held jobs of a queue."""

    named: Mapping[K, int]
    others: int  # of every other key, and of jobs without a key

    def of(self, key: K) -> int:
        return self.named.get(key, self.others)


class Allowance:
    """Counts the starts that the limits of a queue still allow within one write."""

    __slots__ = ("_before", "_most", "_now", "_rate", "_running", "started")

    def __init__(
        self, most: int | None, rate: Rate | None, held: int, full_at: float, now: float
    ) -> None:
        self._running = math.inf if most is None else most - held
        self._rate = rate
        self._most = min(self._running, math.inf if rate is None else rate.tokens(full_at, now))
        self._before = full_at
        self._now = now
        self.started = 0

    @property
    def left(self) -> float:
        """Return the number of starts that are still allowed; it may be infinite."""
        return max(0, self._most - self.started)

    @property
    def full_at(self) -> float | None:
        """Return the new state of the bucket, or None if there is nothing to write."""
        rate = self._rate
        if rate is None or not (self.started or rate.outdated(self._before, self._now)):
            return None
        return rate.spent(self._before, self._now, self.started)

    @property
    def opens_in(self) -> float:
        """Return the seconds until another start is allowed; infinity: when a held job ends."""
        if self.left > 0:
            return 0.0
        if self._running - self.started <= 0 or self._rate is None:
            return math.inf
        full_at = self.full_at
        return self._rate.opens_in(self._before if full_at is None else full_at, self._now)
