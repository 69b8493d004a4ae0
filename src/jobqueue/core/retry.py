"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass

from jobqueue.core.errors import InvalidArgument


class Jitter(enum.Enum):
    """How randomness is mixed in, so that jobs that failed together do not return together."""

    NONE = "none"
    ADDED = "added"  # 0–25 % on top, after the cap
    AROUND = "around"  # ±25 %, and capped once more


_SPREAD = 0.25
# 2**64 s is past any cap; a larger exponent would only overflow the float.
_MAX_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``base × 2^(retries + first_exponent)``, capped, with jitter."""

    base: float
    cap: float
    first_exponent: int = 0
    jitter: Jitter = Jitter.ADDED

    def delay(self, retries: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after a failure, ``retries`` being the retries already made."""
        exponent = min(retries + self.first_exponent, _MAX_EXPONENT)
        capped = min(self.base * 2.0**exponent, self.cap)
        if self.jitter is Jitter.NONE:
            return capped
        if self.jitter is Jitter.ADDED:
            return capped + draw() * _SPREAD * capped
        return min(capped * (1 - _SPREAD + draw() * 2 * _SPREAD), self.cap)


PROFILES: dict[str, RetryPolicy] = {
    "default": RetryPolicy(base=5.0, cap=300.0),
    "producer": RetryPolicy(base=0.5, cap=10.0, first_exponent=1, jitter=Jitter.AROUND),
    "scheduler": RetryPolicy(base=1.0, cap=8.0, jitter=Jitter.NONE),
}


def policy_of(name: str) -> RetryPolicy:
    """The policy a queue names; the default if a newer version wrote a name unknown here."""
    return PROFILES.get(name, PROFILES["default"])


def profile(name: str) -> RetryPolicy:
    """Find a retry profile by name."""
    try:
        return PROFILES[name]
    except KeyError:
        raise InvalidArgument(
            "retry_profile", f"unknown profile {name!r}; allowed: {', '.join(PROFILES)}"
        ) from None
