"""Group dead letters by type, reason and error, to show thousands of them as a few causes.

Errors are in one group if their first lines are equal without numbers and ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from jobqueue.core.job import DeadLetterCause
from jobqueue.core.lifecycle import Reason

BARS = 24
"""The number of parts into which the time from the oldest to the newest dead letter is divided."""
_LONGEST = 200  # characters of an error that are compared
_VARYING = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|\b[0-9a-f]{16,}\b|[0-9]+",
    re.IGNORECASE,
)
_GAP = "…"
_MOST_QUEUES = 10


@dataclass(slots=True, kw_only=True)
class DeadLetterGroup:
    """Describes the dead letters of one cause."""

    type: str
    reason: Reason
    error: str  # the first line, with … in place of numbers and ids
    part: str  # a text that all errors of the group contain; empty: there is none
    jobs: int = 0
    queues: list[str] = field(default_factory=list)  # at most ten
    first_at: float  # when the oldest and the newest of them were given up
    last_at: float
    newest: str  # the id of the newest job
    by_time: list[int] = field(default_factory=list)  # jobs in each part of the whole time


@dataclass(slots=True, kw_only=True)
class DeadLetterGroups:
    """Holds the groups of the newest dead letters, largest first."""

    groups: list[DeadLetterGroup] = field(default_factory=list)
    looked_at: int = 0
    complete: bool = True  # False: there are older dead letters, which were not read
    since: float = 0.0  # the whole time, which the groups divide into ``BARS`` parts
    until: float = 0.0


def error_key(error: str) -> str:
    """Return the first line of an error with … in place of all numbers and ids."""
    return _VARYING.sub(_GAP, error.strip().partition("\n")[0][:_LONGEST])


def group(letters: Iterable[DeadLetterCause], most: int) -> list[DeadLetterGroup]:
    """Return the ``most`` largest groups of dead letters."""
    found: dict[tuple[str, Reason, str], DeadLetterGroup] = {}
    times: dict[tuple[str, Reason, str], list[float]] = {}
    for one in letters:
        key = one.type, one.reason, error_key(one.error)
        known = found.get(key)
        if known is None:
            known = found[key] = DeadLetterGroup(
                type=one.type,
                reason=one.reason,
                error=key[2],
                part=max(key[2].split(_GAP), key=len).strip(),
                first_at=one.at,
                last_at=one.at,
                newest=one.id,
            )
        known.jobs += 1
        known.first_at = min(known.first_at, one.at)
        if one.at > known.last_at:
            known.last_at, known.newest = one.at, one.id
        if len(known.queues) < _MOST_QUEUES and one.queue not in known.queues:
            known.queues.append(one.queue)
        times.setdefault(key, []).append(one.at)
    if not found:
        return []
    since = min(one.first_at for one in found.values())
    whole = max(one.last_at for one in found.values()) - since
    for key, known in found.items():
        known.by_time = [0] * BARS
        for at in times[key]:
            place = int((at - since) / whole * BARS) if whole else BARS - 1
            known.by_time[min(place, BARS - 1)] += 1
    return sorted(found.values(), key=lambda one: (-one.jobs, -one.last_at))[:most]
