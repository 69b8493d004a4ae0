"""Log lines, each with its event and the method of the call under way."""

from __future__ import annotations

import logging
from contextvars import ContextVar

log = logging.getLogger("jobqueue.services")

METHOD: ContextVar[str] = ContextVar("jobqueue_method", default="")

ANOMALY = "consistency_anomaly"
RACE = "expected_race"
RESCUE = "rescue"
STATE_LOST = "state_lost"
NOT_IN_QUEUE = "queued_not_in_queue"


def note(event: str, message: str, *, level: int = logging.INFO, **fields: object) -> None:
    log.log(level, message, extra={"event": event, "method": METHOD.get(), **fields})


def anomaly(message: str, **fields: object) -> None:
    """Log an error: the parts may disagree."""
    note(ANOMALY, message, level=logging.ERROR, **fields)


def warn(event: str, message: str, **fields: object) -> None:
    """Log a warning: a person may want to look at this."""
    note(event, message, level=logging.WARNING, **fields)
