"""Limit the rate of each caller's submits, and keep idempotency keys of callers apart."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from jobqueue.access.callers import Caller, Role, current_caller
from jobqueue.core.clock import Clock, MonotonicClock
from jobqueue.core.errors import PermissionDenied, RateLimited
from jobqueue.core.ids import TICKS
from jobqueue.core.job import JobSpec, SubmitResult

log = logging.getLogger("jobqueue.access")

MAX_BUCKETS = 10_000
Submit = Callable[[Sequence[JobSpec]], Awaitable[list[SubmitResult]]]


class TokenBucket:
    """A token bucket with at most ``burst`` tokens that gets ``rate`` new tokens per second."""

    __slots__ = ("_burst", "_rate", "_tokens", "_updated", "refusing")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._updated = now
        self.refusing = False  # the last call got fewer tokens than it asked for

    def take(self, wanted: int, now: float) -> int:
        """Take up to ``wanted`` tokens from the bucket, and return the number of tokens taken."""
        passed = max(0.0, now - self._updated)
        self._tokens = min(float(self._burst), self._tokens + passed * self._rate)
        self._updated = now
        # Ten times 0.1 s is not exactly 1 s in floating point; that must not delay a token.
        taken = min(wanted, int(self._tokens + 1e-6))
        self._tokens = max(0.0, self._tokens - taken)
        return taken

    def wait(self, wanted: int) -> float:
        """Return the seconds until the bucket has ``wanted`` tokens, or is full."""
        missing = min(wanted, self._burst) - self._tokens
        return max(0.0, missing / self._rate)


class Limiter:
    """Limits each caller's rate of submits with a token bucket.

    Above ``max_buckets`` callers it deletes the bucket that was unused for longest.
    """

    def __init__(
        self, rate: float, burst: int, *, clock: Clock | None = None, max_buckets: int = MAX_BUCKETS
    ) -> None:
        self._rate = rate
        self._burst = max(1, burst)
        self._clock = clock or MonotonicClock()
        self._max_buckets = max_buckets
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, caller: Caller, wanted: int) -> tuple[int, RateLimited | None]:
        """Return the number of jobs that the caller may submit now, and the error for the rest."""
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
                "%s is over its rate of %g jobs/s; refusing the jobs above the rate",
                caller.account,
                self._rate,
                extra={"caller": caller.account, "rate": self._rate},
            )
        bucket.refusing = True
        wait = bucket.wait(wanted - granted)
        return granted, RateLimited(
            f"the caller is over its rate of {self._rate:g} jobs/s; try again in {wait:.3g} s", wait
        )

    def around(self, submit: Submit) -> Submit:
        """Wrap ``submit``: the wrapper refuses the jobs for which the caller has no tokens left."""

        async def limited(specs: Sequence[JobSpec]) -> list[SubmitResult]:
            granted, refusal = self.take(current_caller(), len(specs))
            if refusal is None:
                return await submit(specs)
            results = await submit(specs[:granted]) if granted else []
            left = len(specs) - granted
            return [*results, *(SubmitResult.refused(refusal) for _ in range(left))]

        return limited


def for_callers(submit: Submit, limiter: Limiter | None) -> Submit:
    """Wrap ``submit`` for the gRPC or HTTP API.

    The wrapper keeps the idempotency keys of each known caller apart from those of other callers,
    and applies the rate limit of ``limiter``.
    """

    async def owned(specs: Sequence[JobSpec]) -> list[SubmitResult]:
        caller = current_caller()
        if not caller.name:
            return await submit(specs)
        refused = {n: error for n, spec in enumerate(specs) if (error := _own(spec, caller))}
        if not refused:
            return await submit(specs)
        allowed = [spec for n, spec in enumerate(specs) if n not in refused]
        results = iter(await submit(allowed) if allowed else [])
        return [
            SubmitResult.refused(refused[n]) if n in refused else next(results)
            for n in range(len(specs))
        ]

    return owned if limiter is None else limiter.around(owned)


def _own(spec: JobSpec, caller: Caller) -> PermissionDenied | None:
    """Set the caller as owner of the job's idempotency key and of its unique key.

    Return an error if the caller may not use the key.
    """
    if spec.unique is not None:
        spec.unique = replace(spec.unique, owner=caller.name)
    if spec.key is None:
        return None
    if not spec.key.startswith(TICKS):
        spec.key_owner = caller.name
    elif Role.WORKER not in caller.roles:
        return PermissionDenied(
            f"idempotency_key: keys that begin with {TICKS!r} belong to schedules and need the role"
            f" {Role.WORKER}; {caller.name!r} does not have it"
        )
    return None
