"""What the engine can be told."""

from __future__ import annotations

import enum
import os
import socket
from dataclasses import dataclass, field, replace

from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.queue import Queue


class Dispatch(enum.Enum):
    """Who gets jobs to workers."""

    LINKS = "links"  # this process, to those that are connected to it
    # Whichever process leads, to all that the store knows: they hear of it by the event stream.
    ROSTER = "roster"
    ELSEWHERE = "elsewhere"  # other processes, which also lead and sweep


DONE_KEPT = 7 * 86_400.0
"""Seconds that DONE jobs are kept where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Limits, intervals and the defaults of new queues. Times in seconds."""

    # What a queue gets that is created without saying.
    queue: Queue = field(default_factory=lambda: Queue(name=DEFAULT_QUEUE))
    max_payload_bytes: int = 1024 * 1024
    # One scheduling cycle hands out at most so many; the interval is the longest idle wait.
    batch_size: int = 100
    interval: float = 0.5
    # Concurrent calls that one write takes in.
    submit_group: int = 1_000
    report_group: int = 2_000
    heartbeat_interval: float = 5.0
    heartbeat_timeout: float = 30.0
    # How long the lead among several servers stands without being renewed.
    leader_ttl: float = 10.0
    sweep_limit: int = 1_000
    retention: float = DONE_KEPT  # DONE jobs are removed after that; 0 = kept for ever
    dead_letter_retention: float = 0.0  # the same of dead letters
    version: str = ""
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    dispatch: Dispatch = Dispatch.LINKS
    # By the roster: an assignment that was not started for so long is told again.
    resend_after: float = 5.0

    def complete(self, queue: Queue) -> Queue:
        """The queue as it is shown: with what it leaves to these settings."""
        done, dead = queue.retention, queue.dead_letter_retention
        return replace(
            queue,
            retention=self.retention if done is None else done,
            dead_letter_retention=self.dead_letter_retention if dead is None else dead,
        )
