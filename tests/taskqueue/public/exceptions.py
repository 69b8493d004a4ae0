"""The answers in which deployments may differ, by name. All other answers are the same for all.

A scenario that is excepted asks ``excepted`` with the name, and asserts for both sides what
happens there.
"""

from __future__ import annotations

from dataclasses import dataclass

DESIGNS = ("microservices", "nodes", "microservices, delivered twice")
"""The document's own services, which hold everything in memory."""


@dataclass(frozen=True)
class Excepted:
    """The deployments that differ from the others, and the reason."""

    deployments: tuple[str, ...]
    why: str


A_DEAD_WORKERS_JOB = "a dead worker's job"
SCOPE_OF_LIST_JOBS = "the scope of ListJobs in B"
LIFETIME_OF_KEYS = "the lifetime of dedup keys"
CAPACITY = "capacity"
MESSAGE_TOO_LARGE = "a message that is too large"

EXCEPTIONS = {
    A_DEAD_WORKERS_JOB: Excepted(
        DESIGNS,
        "v1 has no lease: the job stays RUNNING, and a line says so. A store takes the job away"
        " from the silent worker, and as v1 has no second attempt, it is FAILED.",
    ),
    SCOPE_OF_LIST_JOBS: Excepted(
        ("nodes",),
        "A node lists its own jobs, and v1 has nobody who would put the lists together.",
    ),
    LIFETIME_OF_KEYS: Excepted(
        DESIGNS,
        "MAX_DEDUP_KEYS bounds their number, in each process that has keys. A store remembers all"
        " of them, for a time.",
    ),
    CAPACITY: Excepted(
        DESIGNS,
        "Memory is bounded: MAX_JOBS are kept, the one that ended first is forgotten first, and in"
        " B each node counts for itself. A store keeps all jobs.",
    ),
    MESSAGE_TOO_LARGE: Excepted(
        DESIGNS,
        "They refuse it themselves, up to 16 MiB. At jq-server gRPC does, and for jq.v1 as well:"
        " memory is bounded by what it takes.",
    ),
}


def excepted(exception: str, deployment: str) -> bool:
    """Return whether this deployment is one of those that differ."""
    return deployment in EXCEPTIONS[exception].deployments
