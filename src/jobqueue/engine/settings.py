"""Define the engine's settings."""

from __future__ import annotations

import enum
import os
import socket
from dataclasses import dataclass, field, replace

from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.queue import Queue
from jobqueue.core.schedule import CATCH_UP, ON_TIME, TickRules


class Dispatch(enum.Enum):
    """Says which process assigns jobs, and how workers learn of their jobs."""

    LINKS = "links"  # this process assigns them to the workers connected to it
    ROSTER = "roster"  # the leader assigns them to all workers, which learn of it by the stream
    ELSEWHERE = "elsewhere"  # other processes assign them, and also lead and sweep


_TAKE_OVER = 1.5  # terms that a new leader may need to take over
_LONGEST_GRACE = 300.0  # seconds
DONE_KEPT = 7 * 86_400.0
"""The default number of seconds for which DONE jobs are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Holds the limits and intervals of an engine, and the default settings of new queues.

    All times are in seconds.
    """

    # The settings of queues that are created without any.
    queue: Queue = field(default_factory=lambda: Queue(name=DEFAULT_QUEUE))
    max_payload_bytes: int = 1024 * 1024
    batch_size: int = 100  # jobs that one scheduling cycle assigns at most
    interval: float = 0.5  # the longest idle wait
    submit_group: int = 1_000  # jobs in one write
    report_group: int = 2_000  # reports in one write
    heartbeat_interval: float = 5.0
    heartbeat_timeout: float = 30.0
    leader_ttl: float = 10.0  # how long a term lasts if it is not renewed
    sweep_limit: int = 1_000
    retention: float = DONE_KEPT  # DONE jobs are removed after that; 0 = kept for ever
    dead_letter_retention: float = 0.0  # the same for dead letters
    version: str = ""
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    dispatch: Dispatch = Dispatch.LINKS
    # How late the newest missed tick of a schedule may be submitted; 0 = missed ticks are skipped.
    catch_up: float = CATCH_UP
    key_ttl: float = 86_400.0  # as in the store's rules
    resend_after: float = 5.0  # with a roster: the hint of an assignment not started is repeated

    @property
    def ticks(self) -> TickRules:
        """Return the limits of late ticks. A tick that waited for a new leader is still on time."""
        grace = max(ON_TIME, min(_TAKE_OVER * self.leader_ttl, _LONGEST_GRACE))
        return TickRules(self.catch_up, self.key_ttl, grace)

    def complete(self, queue: Queue) -> Queue:
        """Return a copy of the queue with the engine's retention times where the queue has none."""
        done, dead = queue.retention, queue.dead_letter_retention
        return replace(
            queue,
            retention=self.retention if done is None else done,
            dead_letter_retention=self.dead_letter_retention if dead is None else dead,
        )
