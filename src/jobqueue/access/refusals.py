"""Refused credentials: a line of the audit log each, a count, and answers that guessing waits for.

A credential is always judged at once, so a valid one gets in, whatever its neighbours behind the
same address do. What waits is the answer to a wrong one, once its address has had more than a few.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from jobqueue.access import audit
from jobqueue.access.callers import Caller, network
from jobqueue.access.limits import MonotonicClock, TokenBucket
from jobqueue.core.clock import Clock
from jobqueue.core.errors import JobQueueError, PermissionDenied, Unauthenticated

BURST = 10  # refusals of one address that are answered at once, after a pause
RATE = 0.5  # more of them in a second
HOLD = 3.0  # seconds that the answers to others wait
MAX_HELD = 100  # answers that wait, of all addresses; others than these do not wait
_MAX_ADDRESSES = 10_000


class RoleMissing(PermissionDenied):
    """A known caller asked for what its roles do not allow."""

    def __init__(self, message: str, caller: Caller) -> None:
        super().__init__(message)
        self.caller = caller


class _Origin:
    """What is known of an address, or of a caller."""

    __slots__ = ("bucket", "unsaid")

    def __init__(self, now: float) -> None:
        self.bucket = TokenBucket(RATE, BURST, now)
        self.unsaid = 0  # refusals since the last line


class Refusals:
    """Of one server, on all of its faces."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.on_failure: Callable[[str], None] | None = None
        """Hears of each credential that nobody knows, with the face it was shown to."""
        self._clock = clock or MonotonicClock()
        self._origins: OrderedDict[str, _Origin] = OrderedDict()
        self._held = 0

    async def note(self, error: JobQueueError, address: str, action: str, face: str) -> None:
        """Write down that a caller was refused; returns when it may be told so."""
        if isinstance(error, RoleMissing):
            origin, caller = self._origin(error.caller.account), error.caller
        elif isinstance(error, Unauthenticated):
            if self.on_failure is not None:
                self.on_failure(face)
            origin, caller = self._origin(network(address)), Caller("", frozenset())
        else:
            return
        origin.unsaid += 1
        if origin.bucket.take(1, self._clock.now()):
            caller = Caller(caller.name, caller.roles, address)
            audit.write(caller, action, "", error.code.value, count=origin.unsaid)
            origin.unsaid = 0
        elif not caller.name and self._held < MAX_HELD:
            self._held += 1
            try:
                await asyncio.sleep(HOLD)
            finally:
                self._held -= 1

    def _origin(self, name: str) -> _Origin:
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = _Origin(self._clock.now())
            if len(self._origins) > _MAX_ADDRESSES:
                self._origins.popitem(last=False)
        else:
            self._origins.move_to_end(name)
        return origin
