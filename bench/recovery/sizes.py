"""How much of everything; each is an option of the command."""

from __future__ import annotations

from dataclasses import dataclass

from bench.replicated.sizes import size


@dataclass(frozen=True, slots=True)
class Sizes:
    workers: int = size(8, "workers")
    slots: int = size(2, "slots of each")
    jobs: int = size(8_000, "jobs that wait when a fault comes")
    rounds: int = size(3, "times that a server is killed")
    starts: int = size(5, "times that a server is started")
    delay: float = size(0.3, "seconds more, each way, between a slow server and PostgreSQL")
    silent_seconds: float = size(5, "seconds that bytes are swallowed")
    stopped_jobs: int = size(8, "jobs that run when server and worker are stopped")
    stopped_seconds: float = size(4, "seconds that each of them takes")
