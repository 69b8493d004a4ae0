"""Compute how long a failed job waits before its next attempt."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument

_SPREAD = 0.25
# 2**64 s is longer than any cap; a much larger exponent would overflow the float.
_MAX_EXPONENT = 64


class Jitter(enum.Enum):
    """The random change of a wait, so that jobs that failed together retry at different times."""

    NONE = "none"
    ADDED = "added"  # adds a share to the capped wait; the sum may exceed the cap
    AROUND = "around"  # adds or subtracts a share; the sum is capped again
    WITHIN = "within"  # adds a share; the sum never exceeds the cap


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Computes waits as ``base × 2^(retries + first_exponent)``, at most ``cap``, with jitter."""

    base: float
    cap: float
    first_exponent: int = 0
    jitter: Jitter = Jitter.ADDED
    spread: float = _SPREAD  # the share that jitter may add, 0 to 1

    def delay(self, retries: int, draw: Callable[[], float] = random.random) -> float:
        """Return the wait in seconds after a failure that followed ``retries`` retries."""
        exponent = min(retries + self.first_exponent, _MAX_EXPONENT)
        wait = self.base * 2.0**exponent
        if self.jitter is Jitter.WITHIN:
            # The wait is lowered to leave room for the jitter below the cap. So jobs that failed
            # together are spread even when their wait has reached the cap.
            lowered = min(wait, self.cap / (1 + self.spread))
            return min(lowered + draw() * self.spread * lowered, self.cap)
        capped = min(wait, self.cap)
        if self.jitter is Jitter.NONE:
            return capped
        if self.jitter is Jitter.ADDED:
            return capped + draw() * self.spread * capped
        return min(capped * (1 - self.spread + draw() * 2 * self.spread), self.cap)


PROFILES: dict[str, RetryPolicy] = {
    "default": RetryPolicy(base=5.0, cap=300.0),
    "producer": RetryPolicy(base=0.5, cap=10.0, first_exponent=1, jitter=Jitter.AROUND),
    "scheduler": RetryPolicy(base=1.0, cap=8.0, jitter=Jitter.NONE),
}


@lru_cache(maxsize=1_000)
def policy_of(
    name: str, base: float | None = None, cap: float | None = None, jitter: float | None = None
) -> RetryPolicy:
    """Return the retry policy of a queue: its profile, changed by the queue's own settings.

    ``base`` is the first wait and ``cap`` the longest wait, in seconds. If the queue sets any of
    the three, no wait is longer than the cap, even with jitter. An unknown profile, which only a
    newer version can have written, counts as the default profile.
    """
    policy = PROFILES.get(name, PROFILES["default"])
    if base is None and cap is None and jitter is None:
        return policy
    kind = policy.jitter
    if kind is Jitter.ADDED or (kind is Jitter.NONE and jitter):
        kind = Jitter.WITHIN
    return RetryPolicy(
        base=policy.base if base is None else base,
        cap=policy.cap if cap is None else cap,
        first_exponent=policy.first_exponent if base is None else 0,
        jitter=kind,
        spread=policy.spread if jitter is None else jitter,
    )


def profile(name: str) -> RetryPolicy:
    try:
        return PROFILES[name]
    except KeyError:
        raise InvalidArgument(
            "retry_profile", f"unknown profile {name!r}; allowed: {', '.join(PROFILES)}"
        ) from None


def check_retry(
    name: str, base: float | None, cap: float | None, jitter: float | None, prefix: str = "retry_"
) -> None:
    """Raise InvalidArgument if the retry settings of a queue are not valid for its profile.

    ``prefix`` is the beginning of the fields' names in the error.
    """
    profile(name)
    for field, value in ((f"{prefix}base", base), (f"{prefix}max", cap)):
        if value is not None and not 0 < value <= MAX_SECONDS:  # NaN, too
            raise InvalidArgument(
                field, f"must be more than 0 and at most {MAX_SECONDS:.0f} seconds"
            )
    if jitter is not None and not 0 <= jitter <= 1:  # NaN, too
        raise InvalidArgument(f"{prefix}jitter", "must be a share of the wait, 0 to 1")
    policy = policy_of(name, base, cap)
    if policy.base <= policy.cap:
        return
    least, most = f"{prefix}base", f"{prefix}max"
    if base is None:
        raise InvalidArgument(
            most,
            f"{cap:g} s is less than the first wait, {policy.base:g} s in the profile {name};"
            f" give {least}, too",
        )
    whose = f" of the profile {name}; give {most}, too" if cap is None else ""
    raise InvalidArgument(least, f"{base:g} s is more than {most}, {policy.cap:g} s{whose}")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits before a task's retries: first ``base`` seconds, then each twice as long.

    A random share of each wait, up to ``jitter``, is added, so that jobs that failed together do
    not retry together. No wait is longer than ``max`` seconds.
    """

    base: float = 5.0
    max: float = 300.0
    jitter: float = _SPREAD

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidArgument(name, f"expected a number, got {value!r:.80}")
        check_retry("default", self.base, self.max, self.jitter, prefix="")

    def delay(self, retries: int, draw: Callable[[], float] = random.random) -> float:
        """Return the wait in seconds after a failure that followed ``retries`` retries."""
        return policy_of("default", self.base, self.max, self.jitter).delay(retries, draw)
