"""Define the settings of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import DEFAULT_QUEUE

MAX_CONCURRENCY = 10_000
MAX_RESULT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Holds and checks the settings of one worker. All times are in seconds."""

    id: str
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    concurrency: int = 4  # slots: the number of jobs at the same time
    heartbeat_interval: float = 5.0
    shutdown_timeout: float = 60.0  # time to stop, by ``stop`` or on an operator's request
    connect_timeout: float = 30.0  # time in which ``start`` must reach the server
    cancel_grace: float = 5.0  # time between the request that a process stops and its kill
    process_start_timeout: float = 60.0  # time in which a handler's process must be ready
    exec_command: tuple[str, ...] | list[str] | None = None  # run this program for every job
    max_result_bytes: int = MAX_RESULT_BYTES
    version: str = ""
    fallback: bool = False  # take jobs only from queues that no other worker serves
    recycle: bool = False  # stop when functions that do not end block all slots

    def __post_init__(self) -> None:
        if not self.id:
            raise InvalidArgument("worker.id", "must not be empty")
        if not self.queues or not all(self.queues):
            raise InvalidArgument(
                "worker.queues", "must have at least one queue name, and no empty name"
            )
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
            raise InvalidArgument("worker.exec", "must be a command, got an empty list")
