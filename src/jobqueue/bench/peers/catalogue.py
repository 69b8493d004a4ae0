"""What is compared, in which settings, and what each of them keeps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_HERE = Path(__file__).parent
ADAPTERS = _HERE / "adapters"
OURS = "jobqueue"


class Setting(StrEnum):
    """How a system is set up. The adapters name the pages that the fastest settings are from."""

    DEFAULT = "default"
    FASTEST = "fastest"


class Backing(StrEnum):
    """Where the jobs are."""

    POSTGRES = "PostgreSQL"
    REDIS = "Redis"
    SQLITE = "SQLite"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a setting is, and what is left of a job with it."""

    how: str
    keeps: str


@dataclass(frozen=True, slots=True)
class System:
    """One row of the comparison."""

    name: str
    backing: Backing
    default: Kept
    fastest: Kept
    adapters: Path = ADAPTERS  # the folder of its adapter

    @property
    def label(self) -> str:
        """As people read it. Only jobqueue runs on more than one."""
        return f"{self.name} on {self.backing}" if self.is_ours else self.name

    @property
    def is_ours(self) -> bool:
        """Whether it is what the others are compared with."""
        return self.name == OURS

    @property
    def module(self) -> str:
        """The adapter's."""
        return f"with_{self.name}"

    @property
    def pins(self) -> Path:
        """Every package of the peer's environment."""
        return _HERE / "pins" / f"{self.name}.txt"

    def kept(self, setting: Setting) -> Kept:
        """What that setting means here."""
        return self.default if setting is Setting.DEFAULT else self.fastest


_EVERYTHING = "record, result, full history; at least once, one accepted result"
_IN_MEMORY = "nothing on disk"
_SYNCED = "fsync before OK"
_BY_HAND = "jobs of a lost worker wait for a retry by hand"


def _ours(backing: Backing, durability: str) -> System:
    keeps = f"{_EVERYTHING}; {durability}"
    return System(
        OURS,
        backing,
        Kept("as installed", keeps),
        Kept("concurrency 2,000, claims of 1,000, uvloop", keeps),
    )


SYSTEMS = (
    _ours(Backing.POSTGRES, _SYNCED),
    _ours(Backing.REDIS, _IN_MEMORY),
    _ours(Backing.SQLITE, _SYNCED),
    System(
        "celery",
        Backing.REDIS,
        Kept("prefork", f"no result, no history; at most once; {_IN_MEMORY}"),
        Kept(
            "prefetch 128, no rate limits, no gossip",
            f"no result, no history; at most once; {_IN_MEMORY}",
        ),
    ),
    System(
        "rq",
        Backing.REDIS,
        Kept(
            "a fork for each job",
            f"record and result for 500 s; at most once; {_IN_MEMORY}",
        ),
        Kept(
            "SimpleWorker, result_ttl 0",
            f"failed jobs only, no isolation; at most once; {_IN_MEMORY}",
        ),
    ),
    System(
        "dramatiq",
        Backing.REDIS,
        Kept("8 threads", f"no result, no history; at least once, retries; {_IN_MEMORY}"),
        Kept(
            "prefetch 256, polls each 10 ms, no middleware",
            f"no result, no history; at least once, no retries; {_IN_MEMORY}",
        ),
    ),
    System(
        "huey",
        Backing.REDIS,
        Kept("processes", f"results that are not None; at most once; {_IN_MEMORY}"),
        Kept(
            "no results, no periodic tasks, no health check",
            f"nothing; at most once; {_IN_MEMORY}",
        ),
    ),
    System(
        "procrastinate",
        Backing.POSTGRES,
        Kept(
            "one job at a time",
            f"record and events; stalled jobs wait for a retry by hand; {_SYNCED}",
        ),
        Kept(
            "concurrency 20, ended jobs deleted",
            f"failed jobs only; {_BY_HAND}; {_SYNCED}",
        ),
    ),
    System(
        "pgqueuer",
        Backing.POSTGRES,
        Kept("batches of 10", f"log of each job; at least once; {_SYNCED}"),
        Kept(
            "batches of 250, tables not logged, pool, uvloop",
            "log of each job; at least once; a crash of PostgreSQL loses all jobs",
        ),
    ),
)
