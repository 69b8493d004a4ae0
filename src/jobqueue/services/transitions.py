"""Which status may follow which, and on whose word: one table."""

from __future__ import annotations

from collections.abc import Mapping

from jobqueue.services.model import Actor, Status

TRANSITIONS: Mapping[tuple[Status, Status], Actor] = {
    (Status.QUEUED, Status.RUNNING): Actor.COORDINATOR,
    (Status.QUEUED, Status.CANCELED): Actor.GATEWAY,
    (Status.RUNNING, Status.DONE): Actor.COORDINATOR,
    (Status.RUNNING, Status.FAILED): Actor.COORDINATOR,
    (Status.RUNNING, Status.CANCELED): Actor.COORDINATOR,
}
