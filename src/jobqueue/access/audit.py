"""The audit log: changes that callers made, and credentials that were refused.

Each line has the fields ``caller`` (a name; empty if the server does not authenticate, or refused
the credential), ``address``, ``action`` (of ``access/rules.py``), ``object`` (an id or a name) and
``outcome`` (OK, or the error's code). No line has a credential, a payload or a result.

A credential is judged at once, so that a valid one gets in whatever others behind the same address
do. The answer to a wrong one waits, once its address has had more than a few.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobqueue.access.callers import Caller, current_caller, network
from jobqueue.access.limits import TokenBucket
from jobqueue.core.clock import Clock, MonotonicClock
from jobqueue.core.errors import Code, JobQueueError, PermissionDenied, Unauthenticated

log = logging.getLogger("jobqueue.audit")

OK = "OK"
ABANDONED = "ABANDONED"  # the caller went away before the answer: it may have happened
_LONGEST = 256  # characters of an object

BURST = 10  # refusals of one address that are answered at once, after a pause
RATE = 0.5  # more of them in a second
HOLD = 3.0  # seconds that the answers to others wait
MAX_HELD = 100  # answers that wait, of all addresses; further ones do not wait
_MAX_ADDRESSES = 10_000


@dataclass(slots=True)
class AuditedChange:
    """A change of a caller that is under way."""

    object: str
    outcome: str = ""  # empty until it is known


def write(caller: Caller, action: str, object: str, outcome: str, *, count: int = 1) -> None:
    """Write a line, which stands for ``count`` equal ones."""
    extra: dict[str, int | str] = {
        "caller": caller.name,
        "address": caller.address,
        "action": action,
        "object": object[:_LONGEST],
        "outcome": outcome,
    }
    if count > 1:
        extra["count"] = count
    log.info("%s: %s", action, outcome, extra=extra)


@contextmanager
def change(action: str, object: str = "") -> Iterator[AuditedChange]:
    """Write the line of the change that the current caller makes in the block, at its end."""
    line = AuditedChange(object)
    try:
        yield line
        line.outcome = line.outcome or OK
    except JobQueueError as error:
        line.outcome = error.code.value
        raise
    except Exception:
        line.outcome = Code.INTERNAL.value
        raise
    finally:
        write(current_caller(), action, line.object, line.outcome or ABANDONED)


class RoleMissing(PermissionDenied):
    """The roles of a known caller do not allow the call."""

    def __init__(self, message: str, caller: Caller) -> None:
        super().__init__(message)
        self.caller = caller


class _Origin:
    """The refusals of an address, or of a caller."""

    __slots__ = ("bucket", "unlogged")

    def __init__(self, now: float) -> None:
        self.bucket = TokenBucket(RATE, BURST, now)
        self.unlogged = 0  # refusals since the last line


class Refusals:
    """The refused credentials and calls of one server, on all of its faces."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.on_failure: Callable[[str], None] | None = None
        """Is called for each unknown credential, with the face that refused it."""
        self._clock = clock or MonotonicClock()
        self._origins: OrderedDict[str, _Origin] = OrderedDict()
        self._held = 0

    async def note(self, error: JobQueueError, address: str, action: str, face: str) -> None:
        """Log and count a refusal; returns when the caller may get its answer."""
        if isinstance(error, RoleMissing):
            origin, caller = self._origin(error.caller.account), error.caller
        elif isinstance(error, Unauthenticated):
            if self.on_failure is not None:
                self.on_failure(face)
            origin, caller = self._origin(network(address)), Caller("", frozenset())
        else:
            return
        origin.unlogged += 1
        if origin.bucket.take(1, self._clock.now()):
            caller = Caller(caller.name, caller.roles, address)
            write(caller, action, "", error.code.value, count=origin.unlogged)
            origin.unlogged = 0
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
