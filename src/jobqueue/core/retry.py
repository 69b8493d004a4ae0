"""The wait of a failed job before its next attempt."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument

_SPREAD = 0.25
# 2**64 s is past any cap; a larger exponent would only overflow the float.
_MAX_EXPONENT = 64


class Jitter(enum.Enum):
    """The random part of a wait, so that jobs that failed together do not return together."""

    NONE = "none"
    ADDED = "added"  # a share on top, after the cap
    AROUND = "around"  # a share more or less, and capped once more
    WITHIN = "within"  # a share on top, and the cap holds for the sum


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``base × 2^(retries + first_exponent)``, capped, with jitter."""

    base: float
    cap: float
    first_exponent: int = 0
    jitter: Jitter = Jitter.ADDED
    spread: float = _SPREAD  # the share that jitter may add, 0 to 1

    def delay(self, retries: int, draw: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait after a failure that followed so many retries."""
        exponent = min(retries + self.first_exponent, _MAX_EXPONENT)
        wait = self.base * 2.0**exponent
        if self.jitter is Jitter.WITHIN:
            # Lowered so that the jitter fits: at the cap, too, jobs come back one by one.
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
    """Return the policy of a queue: its profile, with the figures that the queue sets itself.

    ``base`` is the first wait. With any figure of its own no wait is longer than the maximum,
    jitter included. A name that a newer version wrote counts as the default profile.
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
    """Refuse figures that make no policy. ``prefix`` begins the names of the fields."""
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
    """Waits of a task's retries that double: ``base``, then twice as long, up to ``max`` seconds.

    A random share of each wait, up to ``jitter``, is added so that jobs that failed together do not
    come back together; no wait is longer than ``max``.
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
        """Return the seconds to wait after a failure that followed so many retries."""
        return policy_of("default", self.base, self.max, self.jitter).delay(retries, draw)
