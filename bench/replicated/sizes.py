"""How much of everything; each is an option of the command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def size(default: float, about: str) -> Any:
    """A field that becomes an option."""
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, slots=True)
class Sizes:
    jobs: int = size(100_000, "jobs per measurement")
    batch: int = size(1_000, "jobs in a batch, of submits and of the scheduler")
    in_flight: int = size(2, "batches in flight")
    concurrency: int = size(2_000, "slots of each worker in drains")
    calls: int = size(50, "plain calls in flight")
    rounds: int = size(3, "times that each side of a comparison is measured")
    latency_jobs: int = size(500, "jobs of the latency measurement, 50 a second")
    memory_jobs: int = size(1_000_000, "jobs that pass through the server whose memory is watched")
    finished: int = size(10_000_000, "finished jobs in the table")
    delayed: int = size(1_000_000, "delayed jobs in the table")
    pin_seconds: float = size(300, "how long a transaction pins xmin")
    pin_rate: int = size(5_000, "jobs a second meanwhile")
    scanned: int = size(300_000, "finished jobs that are scanned")
    scan_pause: float = size(5, "seconds that a scanning transaction stays open after its scan")
    nap: float = size(0.05, "seconds that a sleeping job sleeps")
    nap_seconds: float = size(10, "seconds of sleeping jobs for each number of workers")
    nap_slots: int = size(10, "slots of each worker of sleeping jobs")
    most_workers: int = size(8, "workers of sleeping jobs: 1, 2, 4 … so many")
    crowd: int = size(100, "workers connected at once")
    crowd_seconds: float = size(60, "how long they are held")
