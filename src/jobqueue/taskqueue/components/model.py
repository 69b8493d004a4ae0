"""Define the values that the parts exchange, and the constants that must not change."""

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
SUBMIT_SECONDS = CANCEL_SECONDS = 3.0  # the time that a client waits for an answer
READ_SECONDS = 1.0
OUTPUT_TOO_LARGE = "OUTPUT_TOO_LARGE"
MAX_SUMMARY = 4_096
MAX_UINT32 = 2**32 - 1
CANCELED_UNSTARTED = "canceled before it started"
CANCELED_RUNNING = "canceled while it ran"
CANCELED_LOST = "canceled after it was lost: it was RUNNING, and no worker had it"


class Status(enum.IntEnum):
    """Names the states of a job. The numbers are part of the wire format."""

    QUEUED = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4
    CANCELED = 5

    @property
    def terminal(self) -> bool:
        """Return True if a job never leaves this state."""
        return self >= Status.DONE


class WorkOutcome(enum.IntEnum):
    """Names the outcomes of a job that a worker can report."""

    SUCCEEDED = 1
    FAILED = 2
    CANCELED = 3


class Sort(enum.IntEnum):
    """Names the orders of a listing. Both orders sort jobs with equal times by ascending id."""

    CREATED_AT_DESC = 1
    CREATED_AT_ASC = 2


class Actor(enum.StrEnum):
    """Names the kinds of callers in the matrix that says who may call which method."""

    CLIENT = "client"
    GATEWAY = "gateway"
    COORDINATOR = "coordinator"
    WORKER = "worker"


# The allowed transitions, and for each the only caller that may make it.
TRANSITIONS: Mapping[tuple[Status, Status], Actor] = {
    (Status.QUEUED, Status.RUNNING): Actor.COORDINATOR,
    (Status.QUEUED, Status.CANCELED): Actor.GATEWAY,
    (Status.RUNNING, Status.DONE): Actor.COORDINATOR,
    (Status.RUNNING, Status.FAILED): Actor.COORDINATOR,
    (Status.RUNNING, Status.CANCELED): Actor.COORDINATOR,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """Holds everything that a client says about a job. Equal specs are the same request."""

    job_type: str
    work_duration_ms: int = 0
    payload_size_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """Holds what a listing shows about a job. A time of 0 is not known yet."""

    job_id: str
    status: Status
    job_type: str
    created_at_ms: int
    started_at_ms: int = 0
    finished_at_ms: int = 0
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Holds everything about a job except its output."""

    summary: Summary
    spec: Spec
    failure_reason: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Describes a request for a page of jobs. ``offset`` is the number of jobs to skip."""

    statuses: frozenset[Status] = frozenset()  # empty: all
    sort: Sort = Sort.CREATED_AT_DESC
    offset: int = 0
    limit: int = DEFAULT_PAGE_SIZE


@dataclass(frozen=True, slots=True)
class SummaryPage:
    """Holds one page of a listing. ``next_offset`` is None on the last page."""

    jobs: tuple[Summary, ...]
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """Holds the result of a job that has ended: its status, its run time and its output."""

    job_id: str
    status: Status
    runtime_ms: int = 0
    output_summary: str = ""
    output: bytes = b""
    checksum: str = ""  # empty: to be computed


@dataclass(frozen=True, slots=True)
class CreatedJob:
    """Holds the answer to a create. ``created`` is False if the key already had a job."""

    job_id: str
    status: Status
    created: bool


@dataclass(frozen=True, slots=True)
class Applied:
    """Holds the answer to a change that is made only if the job has an expected status.

    ``applied`` is True if the change was made. ``current`` is the job's status afterwards; None
    means that the job does not exist, for example after a delete.
    """

    applied: bool
    current: Status | None


@dataclass(frozen=True, slots=True)
class Stored:
    """Answers the storing of an envelope. ``current`` is the status of the job's first envelope."""

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
    """Holds the answer to a worker's fetch: either a job, or the delay before the next fetch.

    If there is no job, ``job_id`` is empty and ``retry_after_ms`` is the delay.
    """

    job_id: str = ""
    spec: Spec | None = None
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Holds a worker's report that a job has ended: its outcome, run time and output."""

    worker_id: str
    job_id: str
    outcome: WorkOutcome
    runtime_ms: int = 0
    failure_reason: str = ""
    output_summary: str = ""
    output: bytes = b""
    checksum: str = ""  # empty: not given


def clamp_hint(milliseconds: int) -> int:
    """Return the delay before an idle worker polls again, limited to the allowed range."""
    least, most = RETRY_AFTER_RANGE_MS
    return min(max(milliseconds, least), most)


def checksum(output: bytes) -> str:
    """Return the SHA-256 of an output in hex digits. An empty output has a checksum too."""
    return hashlib.sha256(output).hexdigest()
