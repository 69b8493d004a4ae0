"""How a worker runs."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import DEFAULT_QUEUE

MAX_CONCURRENCY = 10_000
MAX_RESULT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of one worker. Times are seconds."""

    id: str
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    concurrency: int = 4  # jobs held at once
    heartbeat_interval: float = 5.0
    shutdown_timeout: float = 60.0  # for ``stop`` and an operator's shutdown
    connect_timeout: float = 30.0  # how long ``start`` tries to reach the server
    cancel_grace: float = 5.0  # between asking a process to stop and killing it
    process_start_timeout: float = 60.0  # for a process to come up
    exec_command: tuple[str, ...] | list[str] | None = None  # run this program for every job
    max_result_bytes: int = MAX_RESULT_BYTES
    version: str = ""
    fallback: bool = False  # leave queues alone that another worker takes from
    recycle: bool = False  # end when every slot is taken by a function that does not end

    def __post_init__(self) -> None:
        if not self.id:
            raise InvalidArgument("worker.id", "must not be empty")
        if not self.queues or not all(self.queues):
            raise InvalidArgument("worker.queues", "expected at least one queue name")
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise InvalidArgument(
                "worker.concurrency", f"must be 1 to {MAX_CONCURRENCY}, got {self.concurrency}"
            )
        for name in ("heartbeat_interval", "process_start_timeout", "max_result_bytes"):
            if (value := getattr(self, name)) <= 0:
                raise InvalidArgument(f"worker.{name}", f"must be above 0, got {value}")
        for name in ("shutdown_timeout", "connect_timeout", "cancel_grace"):
            if (value := getattr(self, name)) < 0:
                raise InvalidArgument(f"worker.{name}", f"must not be negative, got {value}")
        if self.exec_command is not None and not self.exec_command:
            raise InvalidArgument("worker.exec", "expected a command")
