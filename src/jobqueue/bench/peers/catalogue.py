"""The systems that are compared, their settings, and what they keep of a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_HERE = Path(__file__).parent
ADAPTERS = _HERE / "adapters"
OURS = "jobqueue"


class PeerSetting(StrEnum):
    """The two ways to set a system up. Adapters name the pages that the fastest are from."""

    DEFAULT = "default"
    FASTEST = "fastest"


class Backing(StrEnum):
    """The server that keeps the jobs."""

    POSTGRES = "PostgreSQL"
    REDIS = "Redis"
    SQLITE = "SQLite"


@dataclass(frozen=True, slots=True, order=True)
class PeerSetup:
    """A setting, with as many jobs at once in all workers as it has or as are asked for."""

    setting: PeerSetting
    slots: int | None = None

    def __str__(self) -> str:
        return str(self.setting) if self.slots is None else f"{self.setting}, {self.slots} slots"


class Durability(StrEnum):
    """The accepted jobs that a crash of the server may lose."""

    NOTHING = "a crash of the server loses nothing"
    LAST_SECOND = "a crash of the server loses the last second"
    ALL = "a crash of the server loses all"


class Fsync(StrEnum):
    """The moment at which Redis writes to the disk: never, or as its append-only file is set."""

    NEVER = "never"
    EVERYSEC = "everysec"
    ALWAYS = "always"

    @property
    def durability(self) -> Durability:
        """The loss of jobs in Redis."""
        return _OF_REDIS[self]


_OF_REDIS = {
    Fsync.NEVER: Durability.ALL,
    Fsync.EVERYSEC: Durability.LAST_SECOND,
    Fsync.ALWAYS: Durability.NOTHING,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A setting in words, and the records of a job that remain with it."""

    how: str
    keeps: str  # once a job has ended
    lost: str  # with a worker that dies
    unlogged: bool = False  # PostgreSQL does not write these tables to its log


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
        """Tell if the others are compared with this system."""
        return self.name == OURS

    @property
    def module(self) -> str:
        """The adapter's."""
        return f"with_{self.name}"

    @property
    def pins(self) -> Path:
        """Every package of the peer's environment."""
        return _HERE / "pins" / f"{self.name}.txt"

    def kept(self, setting: PeerSetting) -> Kept:
        """The description of a setting for this system."""
        return self.default if setting is PeerSetting.DEFAULT else self.fastest

    def durability(self, setting: PeerSetting, redis: Fsync) -> Durability:
        """The loss by a crash of the server."""
        if self.backing is Backing.REDIS:
            return redis.durability
        return Durability.ALL if self.kept(setting).unlogged else Durability.NOTHING

    def told(self, setting: PeerSetting, redis: Fsync) -> str:
        """All that a figure of it pays for."""
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
