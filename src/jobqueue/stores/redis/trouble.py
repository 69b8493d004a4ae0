"""What went wrong with Redis, sorted by what it means for the caller."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as SocketTimeout

from jobqueue.core.errors import Internal, JobQueueError, OutcomeUnknown, Unavailable
from jobqueue.core.store import StoreAway

# The connection is gone or silent: what was asked may have happened.
LOST: tuple[type[BaseException], ...] = (OSError, TimeoutError, Disconnected, SocketTimeout)
# Whatever a call to Redis may end with.
TROUBLE: tuple[type[BaseException], ...] = (OSError, TimeoutError, RedisError)
# It answered that it did nothing, and will be better by itself.
LATER: tuple[type[BaseException], ...] = (BusyLoadingError,)
# It answered that it did nothing, and an operator has to mend it.
REFUSED: tuple[type[BaseException], ...] = (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
)
_MEND = ("MISCONF", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "NOPERM", "OOM", "READONLY")
_REPLACED = ("READONLY", "MASTERDOWN")
_WAIT = ("BUSY", "LOADING", "TRYAGAIN")


def passes(error: BaseException) -> bool:
    """Whether Redis did nothing and only has to be asked again."""
    return isinstance(error, LATER) or _begins(error, _WAIT)


def refused(error: BaseException) -> bool:
    """Whether Redis did nothing and goes on to refuse."""
    return isinstance(error, REFUSED) or _begins(error, _MEND)


def replaced(error: BaseException) -> bool:
    """Whether it is a replica: its address may lead to another server by now."""
    return isinstance(error, ReadOnlyError) or _begins(error, _REPLACED)


def _begins(error: BaseException, codes: tuple[str, ...]) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith(codes)


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error.__cause__ or error.__context__, ConnectionRefusedError):
        return "connection refused"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def unavailable(error: BaseException, where: str) -> Unavailable:
    """The error for callers: it did not happen. ``where`` is the server's location."""
    heals = passes(error) or (isinstance(error, LOST) and not refused(error))
    return (StoreAway if heals else Unavailable)(f"{where}: {_said(error)}")


def unknown(error: BaseException, where: str) -> OutcomeUnknown:
    """The error for callers: it may have happened."""
    return OutcomeUnknown(f"{where}: the connection was lost during a write: {_said(error)}")


def defect(error: BaseException, where: str) -> JobQueueError:
    """The error for callers: it should never happen."""
    return Internal(f"{where}: {_said(error)}")
