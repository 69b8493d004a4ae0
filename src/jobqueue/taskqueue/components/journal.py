"""Write log lines with the name of their event and of the method that is being called."""

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
    """Log a message with the name of its event; ``fields`` become fields of the line."""
    log.log(level, message, extra={"event": event, "method": METHOD.get(), **fields})


def anomaly(message: str, **fields: object) -> None:
    """Log an error: two parts may disagree about the state of a job."""
    note(ANOMALY, message, level=logging.ERROR, **fields)


def warn(event: str, message: str, **fields: object) -> None:
    """Log a warning with the name of its event."""
    note(event, message, level=logging.WARNING, **fields)
