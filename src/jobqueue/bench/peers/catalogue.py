"""List the compared systems, their settings, and what each of them keeps of a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_HERE = Path(__file__).parent
ADAPTERS = _HERE / "adapters"
OURS = "jobqueue"


class PeerSetting(StrEnum):
    """Names the two ways to configure a system. The adapters cite the sources of ``FASTEST``."""

    DEFAULT = "default"
    FASTEST = "fastest"


class Backing(StrEnum):
    """Names the server that keeps the jobs."""

    POSTGRES = "PostgreSQL"
    REDIS = "Redis"
    SQLITE = "SQLite"


@dataclass(frozen=True, slots=True, order=True)
class PeerSetup:
    """Combines a setting with the number of slots of all workers.

    None as the number stands for the setting's default.
    """

    setting: PeerSetting
    slots: int | None = None

    def __str__(self) -> str:
        return str(self.setting) if self.slots is None else f"{self.setting}, {self.slots} slots"


class Durability(StrEnum):
    """Says which accepted jobs a crash of the server may lose."""

    NOTHING = "a crash of the server loses nothing"
    LAST_SECOND = "a crash of the server loses the last second"
    ALL = "a crash of the server loses all"


class Fsync(StrEnum):
    """Says when Redis writes to the disk: never, or as its append-only file is configured."""

    NEVER = "never"
    EVERYSEC = "everysec"
    ALWAYS = "always"

    @property
    def durability(self) -> Durability:
        """Return which jobs a crash of Redis may lose."""
        return _OF_REDIS[self]


_OF_REDIS = {
    Fsync.NEVER: Durability.ALL,
    Fsync.EVERYSEC: Durability.LAST_SECOND,
    Fsync.ALWAYS: Durability.NOTHING,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """Describes a setting, and what the system keeps and loses of a job with this setting."""

    how: str
    keeps: str  # what the system keeps after a job has ended
    lost: str  # what happens to the job of a worker that dies
    unlogged: bool = False  # PostgreSQL does not write these tables to its log


@dataclass(frozen=True, slots=True)
class System:
    """Describes one of the compared systems."""

    name: str
    backing: Backing
    default: Kept
    fastest: Kept
    adapters: Path = ADAPTERS  # the folder of its adapter

    @property
    def label(self) -> str:
        """Return the name for readers, followed by the server if the system is jobqueue."""
        return f"{self.name} on {self.backing}" if self.is_ours else self.name

    @property
    def is_ours(self) -> bool:
        """Return True if the system is jobqueue, with which the other systems are compared."""
        return self.name == OURS

    @property
    def module(self) -> str:
        """Return the name of the adapter's module."""
        return f"with_{self.name}"

    @property
    def pins(self) -> Path:
        """Return the file that names every package of the system's environment."""
        return _HERE / "pins" / f"{self.name}.txt"

    def kept(self, setting: PeerSetting) -> Kept:
        """Return the description of a setting for this system."""
        return self.default if setting is PeerSetting.DEFAULT else self.fastest

    def durability(self, setting: PeerSetting, redis: Fsync) -> Durability:
        """Return which jobs a crash of the server may lose with this setting."""
        if self.backing is Backing.REDIS:
            return redis.durability
        return Durability.ALL if self.kept(setting).unlogged else Durability.NOTHING

    def told(self, setting: PeerSetting, redis: Fsync) -> str:
        """Return a text about what the system keeps of a job and what a crash may lose."""
        kept = self.kept(setting)
        return f"{kept.keeps}; {kept.lost}; {self.durability(setting, redis)}"


_RUNS_AGAIN = "a dead worker's job runs again"
_IS_LOST = "a dead worker's job is lost"
_IS_FAILED = "a dead worker's job counts as failed"
_DEAD_LETTERS = "keeps dead letters for 7 days"
_BY_HAND = "a dead worker's job waits for a retry by hand"


def _ours(backing: Backing) -> System:
    kept = "keeps record, result, full history"
    again = f"{_RUNS_AGAIN}, one result is accepted"
    return System(
        OURS,
        backing,
        Kept("as installed", kept, again),
        Kept("2,000 jobs at once in a process, claims of 1,000, uvloop", kept, again),
    )


SYSTEMS = (
    _ours(Backing.POSTGRES),
    _ours(Backing.REDIS),
    _ours(Backing.SQLITE),
    System(
        "celery",
        Backing.REDIS,
        Kept("prefork, no result backend", "keeps nothing", _IS_LOST),
        Kept(
            "prefork, prefetch 128, a connection for each caller, no rate limits, no gossip",
            "keeps nothing",
            _IS_LOST,
        ),
    ),
    System(
        "rq",
        Backing.REDIS,
        Kept(
            "a fork for each job",
            "keeps record and result for 500 s",
            _IS_FAILED,
        ),
        Kept(
            "SimpleWorker (no isolation), result_ttl 0",
            "keeps failed jobs only",
            _IS_FAILED,
        ),
    ),
    System(
        "dramatiq",
        Backing.REDIS,
        Kept("8 threads in a process", _DEAD_LETTERS, _RUNS_AGAIN),
        Kept("8 threads in a process, prefetch 256, polls each 10 ms", _DEAD_LETTERS, _RUNS_AGAIN),
    ),
    System(
        "huey",
        Backing.REDIS,
        Kept("worker processes", "keeps results that are not None", _IS_LOST),
        Kept(
            "worker processes, no results, no periodic tasks, no health check",
            "keeps nothing",
            _IS_LOST,
        ),
    ),
    System(
        "procrastinate",
        Backing.POSTGRES,
        Kept("one job at a time in a process", "keeps record and events", _BY_HAND),
        Kept(
            "20 jobs at once in a process, 21 connections, ended jobs deleted",
            "keeps failed jobs only",
            _BY_HAND,
        ),
    ),
    System(
        "pgqueuer",
        Backing.POSTGRES,
        Kept("batches of 10", "keeps a log line of each job", _RUNS_AGAIN),
        Kept(
            "batches of 250, tables not logged, pool for callers, uvloop, autovacuum tuned",
            "keeps a log line of each job",
            _RUNS_AGAIN,
            unlogged=True,
        ),
    ),
)
