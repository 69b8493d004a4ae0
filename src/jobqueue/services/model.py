"""What travels between the parts, and the constants that the document locks."""

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
SUBMIT_SECONDS = CANCEL_SECONDS = 3.0  # what a client waits for an answer
READ_SECONDS = 1.0
OUTPUT_TOO_LARGE = "OUTPUT_TOO_LARGE"
MAX_SUMMARY = 4_096
MAX_UINT32 = 2**32 - 1
CANCELED_UNSTARTED = "canceled before it started"
CANCELED_RUNNING = "canceled while it ran"
CANCELED_LOST = "canceled after it was lost: it was RUNNING, and no worker had it"


class Status(enum.IntEnum):
    """The canonical states. The number is what travels."""

    QUEUED = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4
    CANCELED = 5

    @property
    def terminal(self) -> bool:
        """Whether a job stays there."""
        return self >= Status.DONE


class Outcome(enum.IntEnum):
    """What a worker says of a job."""

    SUCCEEDED = 1
    FAILED = 2
    CANCELED = 3


class Sort(enum.IntEnum):
    """The order of a listing; equal times are ordered by id, ascending, in both."""

    CREATED_AT_DESC = 1
    CREATED_AT_ASC = 2


class Actor(enum.StrEnum):
    """Who calls, as the caller-to-method matrix names them."""

    CLIENT = "client"
    GATEWAY = "gateway"
    COORDINATOR = "coordinator"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Spec:
    """A job as a client asks for it. Two are the same request when they are equal."""

    job_type: str
    work_duration_ms: int = 0
    payload_size_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """A job as a listing shows it; a time of 0 is still to come."""

    job_id: str
    status: Status
    job_type: str
    created_at_ms: int
    started_at_ms: int = 0
    finished_at_ms: int = 0
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """All that is known of a job but its output."""

    summary: Summary
    spec: Spec
    failure_reason: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Which jobs, in which order; ``offset`` counts from the first."""

    statuses: frozenset[Status] = frozenset()  # empty: all
    sort: Sort = Sort.CREATED_AT_DESC
    offset: int = 0
    limit: int = DEFAULT_PAGE_SIZE


@dataclass(frozen=True, slots=True)
class Page:
    """One page; ``next_offset`` is None on the last."""

    jobs: tuple[Summary, ...]
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """How a job ended, with its output."""

    job_id: str
    status: Status
    runtime_ms: int = 0
    output_summary: str = ""
    output: bytes = b""
    checksum: str = ""  # empty: to be computed


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to a create. ``created`` False: the job was there, by its key."""

    job_id: str
    status: Status
    created: bool


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to a guarded change: whether it was made, and what the status is now.

    ``current`` None: there is no such job (a delete that was made).
    """

    applied: bool
    current: Status | None


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to a store: ``current`` is the status of the envelope that is kept."""

    stored: bool
    already_exists: bool
    current: Status


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer to a submit."""

    job_id: str
    accepted_at_ms: int


@dataclass(frozen=True, slots=True)
class Canceled:
    """The answer to a cancel."""

    job_id: str
    accepted: bool
    current: Status
    already_terminal: bool


@dataclass(frozen=True, slots=True)
class Work:
    """The answer to a fetch: a job, or (``job_id`` empty) when to ask again."""

    job_id: str = ""
    spec: Spec | None = None
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of a job it ran."""

    worker_id: str
    job_id: str
    outcome: Outcome
    runtime_ms: int = 0
    failure_reason: str = ""
    output_summary: str = ""
    output: bytes = b""
    checksum: str = ""  # empty: not given


def clamp_hint(milliseconds: int) -> int:
    """How long an idle worker waits, within the bounds."""
    least, most = RETRY_AFTER_RANGE_MS
    return min(max(milliseconds, least), most)


def checksum(output: bytes) -> str:
    """Of every output, the empty one too."""
    return hashlib.sha256(output).hexdigest()
