"""How fast a caller may submit: a token bucket each."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from jobqueue.access.callers import Caller, current_caller
from jobqueue.core.clock import Clock
from jobqueue.core.errors import RateLimited
from jobqueue.core.job import JobSpec, SubmitResult

log = logging.getLogger("jobqueue.access")

MAX_BUCKETS = 10_000
Submit = Callable[[Sequence[JobSpec]], Awaitable[list[SubmitResult]]]


class MonotonicClock:
    """Time that no one sets back."""

    def now(self) -> float:
        """Return the current time."""
        return time.monotonic()


class TokenBucket:
    """Holds up to ``burst`` tokens, and gets ``rate`` new ones in a second."""

    __slots__ = ("_burst", "_rate", "_tokens", "_updated", "refusing")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._updated = now
        self.refusing = False  # whether the last call got less than it asked for

    def take(self, wanted: int, now: float) -> int:
        """Take as many as there are, at most those wanted; returns how many."""
        passed = max(0.0, now - self._updated)
        self._tokens = min(float(self._burst), self._tokens + passed * self._rate)
        self._updated = now
        # 0.1 s ten times is not quite 1 s; a token must not be late for that.
        taken = min(wanted, int(self._tokens + 1e-6))
        self._tokens = max(0.0, self._tokens - taken)
        return taken

    def wait(self, wanted: int) -> float:
        """Seconds until that many can be taken, or a full bucket of them."""
        missing = min(wanted, self._burst) - self._tokens
        return max(0.0, missing / self._rate)


class Limiter:
    """Buckets by caller. The caller that was idle longest is forgotten first."""

    def __init__(
        self,
        rate: float,
        burst: int,
        *,
        clock: Clock | None = None,
        max_buckets: int = MAX_BUCKETS,
    ) -> None:
        self._rate = rate
        self._burst = max(1, burst)
        self._clock = clock or MonotonicClock()
        self._max_buckets = max_buckets
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, caller: Caller, wanted: int) -> tuple[int, RateLimited | None]:
        """How many of the jobs may go on, and what the others are told."""
        now = self._clock.now()
        bucket = self._buckets.get(caller.account)
        if bucket is None:
            bucket = self._buckets[caller.account] = TokenBucket(self._rate, self._burst, now)
            if len(self._buckets) > self._max_buckets:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(caller.account)
        granted = bucket.take(wanted, now)
        if granted == wanted:
            bucket.refusing = False
            return granted, None
        if not bucket.refusing:
            log.warning(
                "a caller is over its rate, jobs are refused",
                extra={"caller": caller.account, "rate": self._rate},
            )
        bucket.refusing = True
        wait = bucket.wait(wanted - granted)
        return granted, RateLimited(
            f"over the rate of {self._rate:g} jobs/s; try again in {wait:.3g} s", wait
        )

    def around(self, submit: Submit) -> Submit:
        """A submit that refuses, one by one, the jobs for which the caller has no tokens left."""

        async def limited(specs: Sequence[JobSpec]) -> list[SubmitResult]:
            granted, refusal = self.take(current_caller(), len(specs))
            if refusal is None:
                return await submit(specs)
            results = await submit(specs[:granted]) if granted else []
            left = len(specs) - granted
            return [*results, *(SubmitResult.refused(refusal) for _ in range(left))]

        return limited
