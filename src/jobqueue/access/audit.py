"""Write the audit log: changes that callers made, and credentials that a server refused.

Each line has the fields ``caller`` (a name; empty if the server does not authenticate, or refused
the credential), ``address``, ``action`` (of ``access/rules.py``), ``object`` (an id or a name) and
``outcome`` (OK, ABANDONED or the error's code). No line has a credential, a payload or a result.

After more than ``BURST`` refusals of an address, the server delays its answers to further wrong
credentials from that address. Calls with a valid credential are never delayed.
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
ABANDONED = "ABANDONED"  # the caller disconnected before the answer: the change may have happened
_LONGEST = 256  # most characters of an object in a line

BURST = 10  # refusals of one address in quick succession that the server answers at once
RATE = 0.5  # further refusals of the address per second that are answered at once
HOLD = 3.0  # seconds that the server delays the answer to any other refusal
MAX_HELD = 100  # most delayed answers, of all addresses; further answers are not delayed
_MAX_ORIGINS = 10_000


@dataclass(slots=True)
class AuditedChange:
    """Describes a change that a caller has started and that may not be finished yet."""

    object: str
    outcome: str = ""  # empty until it is known


def write(caller: Caller, action: str, object: str, outcome: str, *, count: int = 1) -> None:
    """Write one line to the audit log. The line counts ``count`` equal changes or refusals."""
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
    """Write an audit line when the block ends: the current caller's change and its outcome."""
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
    """Says that a known caller has none of the roles that a call needs."""

    def __init__(self, message: str, caller: Caller) -> None:
        super().__init__(message)
        self.caller = caller


class _Origin:
    """Counts the events of one address, or of one known caller."""

    __slots__ = ("bucket", "unlogged")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.bucket = TokenBucket(rate, burst, now)
        self.unlogged = 0  # events since the last line


class LineLimit:
    """Limits the log lines about events that callers cause, and counts the events without a line.

    Each origin, an address or a caller, has ``burst`` lines at once, then ``rate`` in a second.
    """

    def __init__(self, rate: float, burst: int, clock: Clock | None = None) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock or MonotonicClock()
        self._origins: OrderedDict[str, _Origin] = OrderedDict()

    def due(self, name: str) -> int:
        """Count an event of an origin, and return the number of events that its line stands for.

        These are this event and those before it that got no line. Return 0 if this event gets none.
        """
        now = self._clock.now()
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = _Origin(self._rate, self._burst, now)
            if len(self._origins) > _MAX_ORIGINS:
                self._origins.popitem(last=False)
        else:
            self._origins.move_to_end(name)
        origin.unlogged += 1
        if not origin.bucket.take(1, now):
            return 0
        count, origin.unlogged = origin.unlogged, 0
        return count


class Refusals:
    """Logs and counts the credentials and calls that one server refuses, over gRPC and HTTP."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.on_failure: Callable[[str], None] | None = None
        """The server calls this function for each refused credential, with the name of the API."""
        self._lines = LineLimit(RATE, BURST, clock)
        self._held = 0

    async def note(self, error: JobQueueError, address: str, action: str, face: str) -> None:
        """Log and count a refusal. Wait until the server may send the refusal to the caller."""
        if isinstance(error, RoleMissing):
            origin, caller = error.caller.account, error.caller
        elif isinstance(error, Unauthenticated):
            if self.on_failure is not None:
                self.on_failure(face)
            origin, caller = network(address), Caller("", frozenset())
        else:
            return
        if count := self._lines.due(origin):
            caller = Caller(caller.name, caller.roles, address)
            write(caller, action, "", error.code.value, count=count)
        elif not caller.name and self._held < MAX_HELD:
            self._held += 1
            try:
                await asyncio.sleep(HOLD)
            finally:
                self._held -= 1
