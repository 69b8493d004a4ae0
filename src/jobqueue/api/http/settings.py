"""Define the settings of the HTTP API."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from jobqueue.access.budgets import Budgets
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access
from jobqueue.access.rules import MAX_BATCH
from jobqueue.access.tls import ServerTls
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import ComponentHealth

KIB = 1024
MIB = 1024 * KIB
# The views that the HTTP API supports: each has its own names of states. The task queue's view is
# available over gRPC only.
VIEWS = ("canonical", "scheduler", "producer")
CONSOLE = "/ui"
"""The path of the console, the web page for operators."""


def is_console(path: str) -> bool:
    """Return True if a request's path belongs to the console."""
    return path.startswith(f"{CONSOLE}/") or path == CONSOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFaceSettings:
    """Holds the limits and options of the HTTP API. Sizes are in bytes, times in seconds."""

    host: str = "127.0.0.1"  # the address that the server listens on
    allowed_hosts: tuple[str, ...] = ()  # further names of the server (`HostNames`)
    max_payload_bytes: int = MIB
    max_batch_jobs: int = MAX_BATCH
    max_batch_bytes: int = 16 * MIB
    max_buffered_bytes: int = 256 * MIB  # request bodies in memory, of all requests together
    # The slowest allowed rate of a body (bytes/s) and its longest pause. A slow sender would occupy
    # memory for long. For large bodies the request's time limit is stricter.
    body_rate: int = 16 * KIB
    body_pause: float = 10.0
    max_connections: int = 3072
    max_connections_per_address: int = 2048
    max_listed_payload_bytes: int = 16 * KIB  # a longer payload or result is left out of lists
    view: str = "canonical"
    request_timeout: float = 30.0
    head_timeout: float = 10.0  # for the TLS handshake, and for a request's headers
    read_timeout: float = 60.0  # within which the client must read some bytes of its answer
    keep_alive: float = 15.0  # after which an idle connection is closed
    max_wait: float = 30.0  # longest long poll
    stream_timeout: float = 600.0  # longest event stream
    stream_heartbeat: float = 15.0  # a comment keeps idle streams open through proxies
    # Returns the metrics as (body, content type); None: the server has no /metrics.
    metrics: Callable[[], Awaitable[tuple[bytes, str]]] | None = None
    # Returns the parts of the process beside the backend that have failed, for /readyz.
    failed_parts: Callable[[], Sequence[ComponentHealth]] = tuple

    access: Access = field(default_factory=Access)  # who may call
    limiter: Limiter | None = None  # how fast each caller may submit
    # Limits of calls under way; a server derives them from its number of connections.
    budgets: Budgets = field(default_factory=Budgets)
    tls: ServerTls | None = None
    console: bool = True  # serve the web page for operators
    # Each setting of the server as (name, value, source), without secrets.
    configuration: Sequence[tuple[str, str, str]] = ()
    started_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise InvalidArgument(
                "http.view", f"unknown view {self.view!r}; allowed: {', '.join(VIEWS)}"
            )

    @property
    def max_answer_bytes(self) -> int:
        """Return the most bytes in memory for an answer with a job.

        The payload and the result are each in memory twice, as read and as written.
        """
        return 4 * self.max_payload_bytes

    @property
    def max_body_bytes(self) -> int:
        """Return the most bytes of a request for one job, with its payload and all other fields."""
        return self.max_payload_bytes + 64 * KIB
