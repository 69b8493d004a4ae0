"""Keep the jobs of a queue that have a concurrency key: the claimable ones, and the held ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from jobqueue.core.limits import MOST_KEYS
from jobqueue.core.queue import MAX_PRIORITY, KeyState
from jobqueue.stores.memory.ready import SLACK, First, ReadyJobs, Types

_RANKS = range(MAX_PRIORITY + 1)


class KeyedJobs:
    """Keeps claimable jobs with a key twice: all together, and those of each key.

    A job that is claimed in one place is a dead entry in the other place.
    """

    __slots__ = ("_by_key", "_kept", "_type_of", "all", "full_at", "held")

    def __init__(self, type_of: Callable[[int], str | None]) -> None:
        self._type_of = type_of
        self.all = ReadyJobs(type_of)
        self._by_key: dict[str, ReadyJobs] = {}
        self.held: dict[str, int] = {}  # jobs that are ASSIGNED or RUNNING, by key
        self.full_at: dict[str, float] = {}  # the state of the buckets of rate limits, by key
        self._kept = 0

    def push(self, key: str, priority: int, seq: int, type: str) -> None:
        """Add a job that has become claimable."""
        self.all.push(priority, seq, type)
        mine = self._by_key.get(key)
        if mine is None:
            mine = self._by_key[key] = ReadyJobs(self._type_of)
        mine.push(priority, seq, type)

    def bury(self, key: str, type: str) -> None:
        """Record that a job is no longer claimable, though it was not claimed."""
        self.all.bury(type)
        self._bury_of(key, type)

    def take(self, first: First, key: str) -> None:
        """Remove the first job of all jobs of its rank and type, because it is claimed."""
        self.all.take(first[0], first[2])
        self._bury_of(key, first[2])

    def _bury_of(self, key: str, type: str) -> None:
        mine = self._by_key[key]
        mine.bury(type)
        if not mine:
            del self._by_key[key]

    def take_of(self, key: str, rank: int, type: str) -> None:
        """Remove the first job of its key, rank and type, because it is claimed."""
        mine = self._by_key[key]
        mine.take(rank, type)
        if not mine:
            del self._by_key[key]
        self.all.bury(type)

    def hold(self, key: str) -> None:
        """Count a job that a worker has got."""
        self.held[key] = self.held.get(key, 0) + 1

    def release(self, key: str) -> None:
        """Count a job whose lease has ended."""
        left = self.held[key] - 1
        if left:
            self.held[key] = left
        else:
            del self.held[key]

    def spend(self, states: dict[str, float], now: float) -> None:
        """Store the new states of buckets. Full buckets are dropped, many at once."""
        self.full_at |= states
        if len(self.full_at) > 2 * self._kept + SLACK:
            self.full_at = {key: at for key, at in self.full_at.items() if at > now}
            self._kept = len(self.full_at)

    def states(self, count_to: int, key: str | None, now: float) -> list[KeyState]:
        """Return the state of the limits of keys that have claimable jobs."""
        keys = islice(self._by_key, MOST_KEYS) if key is None else self._by_key.keys() & {key}
        return [
            KeyState(
                one,
                self.held.get(one, 0),
                min(count_to, sum(self._by_key[one].counts(count_to).values())),
                self.full_at.get(one, 0.0),
                now,
            )
            for one in sorted(keys)
        ]

    def lines(self, types: Types) -> Iterator[KeyLine]:
        """Yield the claimable jobs of given types, by key and priority.

        If there are very many keys, each call yields some of them, and the next call others.
        """
        if len(self._by_key) > MOST_KEYS:
            for key in list(islice(self._by_key, MOST_KEYS)):
                self._by_key[key] = self._by_key.pop(key)
                yield from lines_of(key, self._by_key[key], types)
        else:
            for key, mine in self._by_key.items():
                yield from lines_of(key, mine, types)


class KeyLine:
    """Implements ``core.turns.Line``."""

    __slots__ = ("_jobs", "_types", "key", "rank", "seq", "type")

    def __init__(self, key: str | None, rank: int, jobs: ReadyJobs, types: Types) -> None:
        self._jobs = jobs
        self._types = types
        self.key = key
        self.rank = rank
        self.seq: int | None = None  # of the first job
        self.type = ""  # of the first job
        self.look()

    def look(self) -> None:
        """Look for the first job, because it was taken."""
        found = self._jobs.first_of(self.rank, self._types)
        self.seq, self.type = found or (None, "")


def lines_of(key: str | None, jobs: ReadyJobs, types: Types) -> Iterator[KeyLine]:
    """Yield the claimable jobs of a key, by priority."""
    for rank in _RANKS:
        if jobs.has(rank):
            yield KeyLine(key, rank, jobs, types)
