"""How much of everything; each is an option of the command."""

from __future__ import annotations

from dataclasses import dataclass

from bench.replicated.sizes import size


@dataclass(frozen=True, slots=True)
class Sizes:
    jobs: int = size(50_000, "jobs of each measurement and scenario")
    payload: int = size(100, "bytes of a job in the backlog that is published")
    rounds: int = size(3, "times that each side of a comparison is measured")
    outage: float = size(30, "seconds that Kafka is away")
    left_open: float = size(60, "seconds that an enqueueing transaction stays open")
    open_rate: int = size(200, "jobs a second meanwhile")
    batch: int = size(1_000, "jobs in a batch, of submits and of the scheduler")
    in_flight: int = size(2, "batches in flight")
    concurrency: int = size(2_000, "slots of a worker in drains")
    scenario_slots: int = size(200, "slots of a worker in scenarios")
    stream_jobs: int = size(20_000, "jobs of a round through the streaming topology")
    stream_slots: int = size(500, "slots of each of its workers")
    large: int = size(1_000, "jobs of 256 KiB in the backlog that memory is watched with")
