"""The values that the parts exchange, and the constants that the document locks."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_OUTPUT_BYTES = 262_144
MAX_DEDUP_KEYS = 10_000
DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200
HEARTBEAT_INTERVAL_MS = 1_000
WORKER_TIMEOUT_MS = 4_000
RETRY_AFTER_MS = 200
RECONCILE_INTERVAL_MS = 5_000
RETRY_AFTER_RANGE_MS = (50, 1_000)
TOTAL_WORKER_SLOTS = 6
SUBMIT_SECONDS = CANCEL_SECONDS = 3.0  # that a client waits for an answer
READ_SECONDS = 1.0
OUTPUT_TOO_LARGE = "OUTPUT_TOO_LARGE"
MAX_SUMMARY = 4_096
MAX_UINT32 = 2**32 - 1
CANCELED_UNSTARTED = "canceled before it started"
CANCELED_RUNNING = "canceled while it ran"
CANCELED_LOST = "canceled after it was lost: it was RUNNING, and no worker had it"


class Status(enum.IntEnum):
    """The canonical states. The numbers are part of the wire format."""

    QUEUED = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4
    CANCELED = 5

    @property
    def terminal(self) -> bool:
        """True if a job stays in this state."""
        return self >= Status.DONE


class WorkOutcome(enum.IntEnum):
    """The end of a job as its worker reports it."""

    SUCCEEDED = 1
    FAILED = 2
    CANCELED = 3


class Sort(enum.IntEnum):
    """The order of a listing. Equal times are ordered by id, ascending, in both."""

    CREATED_AT_DESC = 1
    CREATED_AT_ASC = 2


class Actor(enum.StrEnum):
    """A caller, as the caller-to-method matrix names it."""

    CLIENT = "client"
    GATEWAY = "gateway"
    COORDINATOR = "coordinator"
    WORKER = "worker"


# Which status may follow which, and on whose word.
TRANSITIONS: Mapping[tuple[Status, Status], Actor] = {
    (Status.QUEUED, Status.RUNNING): Actor.COORDINATOR,
    (Status.QUEUED, Status.CANCELED): Actor.GATEWAY,
    (Status.RUNNING, Status.DONE): Actor.COORDINATOR,
    (Status.RUNNING, Status.FAILED): Actor.COORDINATOR,
    (Status.RUNNING, Status.CANCELED): Actor.COORDINATOR,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """A job as a client asks for it. Equal specs are the same request."""

    job_type: str
    work_duration_ms: int = 0
    payload_size_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """A job as a listing shows it. A time of 0 is still to come."""

    job_id: str
    status: Status
    job_type: str
    created_at_ms: int
    started_at_ms: int = 0
    finished_at_ms: int = 0
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Everything about a job except its output."""

    summary: Summary
    spec: Spec
    failure_reason: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A question for a page of jobs; ``offset`` counts from the first."""

    statuses: frozenset[Status] = frozenset()  # empty: all
    sort: Sort = Sort.CREATED_AT_DESC
    offset: int = 0
    limit: int = DEFAULT_PAGE_SIZE


@dataclass(frozen=True, slots=True)
class SummaryPage:
    """One page; ``next_offset`` is None on the last."""

    jobs: tuple[Summary, ...]
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """The end of a job, with its output."""

    job_id: str
    status: Status
    runtime_ms: int = 0
    output_summary: str = ""
    output: bytes = b""
    checksum: str = ""  # empty: to be computed


@dataclass(frozen=True, slots=True)
class CreatedJob:
    """The answer to a create. ``created`` False: the key had a job already."""

    job_id: str
    status: Status
    created: bool


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to a guarded change: whether it was made, and the status now.

    ``current`` None: there is no such job, as after a delete.
    """

    applied: bool
    current: Status | None


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to a store; ``current`` is the status of the envelope that is kept."""

    stored: bool
    already_exists: bool
    current: Status


@dataclass(frozen=True, slots=True)
class Submitted:
    job_id: str
    accepted_at_ms: int


@dataclass(frozen=True, slots=True)
class Canceled:
    job_id: str
    accepted: bool
    current: Status
    already_terminal: bool


@dataclass(frozen=True, slots=True)
class Work:
    """The answer to a fetch: a job, or (``job_id`` empty) the time to ask again."""

    job_id: str = ""
    spec: Spec | None = None
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The end of a job, as the worker that ran it reports it."""

    worker_id: str
    job_id: str
    outcome: WorkOutcome
    runtime_ms: int = 0
    failure_reason: str = ""
    output_summary: str = ""
    output: bytes = b""
    checksum: str = ""  # empty: not given


def clamp_hint(milliseconds: int) -> int:
    """Return the time that an idle worker waits, within the bounds."""
    least, most = RETRY_AFTER_RANGE_MS
    return min(max(milliseconds, least), most)


def checksum(output: bytes) -> str:
    """Return the checksum of an output; an empty one has a checksum too."""
    return hashlib.sha256(output).hexdigest()
