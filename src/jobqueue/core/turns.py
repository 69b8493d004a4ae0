"""Decide the order of jobs in a queue whose limits or shares tell concurrency keys apart.

Without shares, the order is that of every claim: by priority (or by the weights of priorities),
then by age. Jobs of keys that are at a limit are passed over. With shares, each slot goes to the
key that holds the fewest jobs for its weight; several such keys draw lots by their weights. Within
the key, the order is that of every claim.

So a key that waits and holds nothing gets the next slot, however many jobs of other keys wait. Keys
that always wait share the held jobs by their weights, as closely as whole jobs allow. Nothing is
stored for this: only the number of held jobs counts.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar, cast

from jobqueue.core.limits import Allowance, Limits, Shares
from jobqueue.core.queue import MAX_PRIORITY, share

K = TypeVar("K")
K_co = TypeVar("K_co", covariant=True)


class Line(Protocol[K_co]):
    """The claimable jobs of one key and priority, the oldest first."""

    @property
    def key(self) -> K_co:
        """Return the key. None stands for jobs without a key."""

    @property
    def rank(self) -> int:
        """Return 9 - priority."""

    @property
    def seq(self) -> int | None:
        """Return the number of the first job, or None if there are no more jobs."""


L = TypeVar("L", bound=Line[object])
Source = random.Random
_ANY = random.Random()


class KeyAllowances(Generic[K]):
    """Counts what the limits of a queue's keys still allow in a write.

    ``held`` has the number of held jobs by key, and ``full_at`` the state of the keys' buckets. A
    key is its text, or a number that stands for it.
    """

    def __init__(
        self, limits: Limits, held: Mapping[K, int], full_at: Mapping[K, float], now: float
    ) -> None:
        self._limits = limits
        self._held = held
        self._full_at = full_at
        self._now = now
        self.known: dict[K, Allowance] = {}

    def of(self, key: K) -> Allowance:
        """Return what the limits allow a key. Jobs without a key are not limited."""
        found = self.known.get(key)
        if found is None:
            held, full_at = self._held.get(key, 0), self._full_at.get(key, 0.0)
            if key is None:
                found = Allowance(None, None, held, 0.0, self._now)
            else:
                found = self._limits.key_allowance(held, full_at, self._now)
            self.known[key] = found
        return found

    def holds(self, key: K) -> int:
        """Return the number of jobs that a key holds, with those of this write."""
        return self._held.get(key, 0) + self.of(key).started

    @property
    def opens_in(self) -> float | None:
        """Return the seconds until the limits allow another key a start.

        Only keys that were asked for count. None means that no key is at a limit.
        """
        closed = [one.opens_in for one in self.known.values() if not one.left]
        return min(closed) if closed else None

    @property
    def spent(self) -> dict[K, float]:
        """Return the new states of the buckets, by key, of those that must be written."""
        states = ((key, allowed.full_at) for key, allowed in self.known.items())
        return {key: full_at for key, full_at in states if full_at is not None}


class Turns(Generic[K, L]):
    """Chooses, slot by slot, the line whose first job is next.

    The caller takes the job from the line, and calls ``took`` before it asks for the next line.
    """

    def __init__(
        self,
        lines: Iterable[L],
        keys: KeyAllowances[K],
        shares: Shares[K] | None,
        weights: Mapping[int, int] | None = None,
        source: random.Random | None = None,
    ) -> None:
        self._keys = keys
        self._shares = shares
        self._weights = weights
        self._source = source or _ANY
        self._piles: dict[K | None, _Pile[L]] = {}  # by key; without shares, one for all keys
        # A heap of the keys with shares: turn, lot, place, key.
        self._order: list[tuple[float, float, int, K | None]] = []
        for line in lines:
            if line.seq is not None:
                key = self._pile_of(line)
                if key not in self._piles:
                    self._piles[key] = _Pile()
                self._piles[key].add(line, line.seq)
        if shares is not None:
            self._order = [self._turn(key, place) for place, key in enumerate(self._piles)]
            heapq.heapify(self._order)

    def next(self) -> L | None:
        """Return the line whose first job is next; None if limits allow no job, or none waits."""
        if self._shares is None:
            pile = next(iter(self._piles.values()), None)
            return None if pile is None else pile.best(self._weights, self._closed, self._source)
        while self._order:
            key = self._order[0][-1]
            line = self._piles[key].best(self._weights, self._closed, self._source)
            if line is not None:
                return line
            heapq.heappop(self._order)
        return None

    def urgency(self) -> tuple[int, int] | None:
        """Return rank and number of the most urgent job that limits allow, or None."""
        found = (pile.best(None, self._closed, self._source) for pile in self._piles.values())
        firsts = [(line.rank, line.seq) for line in found if line is not None]
        return min(((rank, seq) for rank, seq in firsts if seq is not None), default=None)

    def took(self, line: L, *, started: bool = True) -> None:
        """Record that the first job of the line that was next was taken, and perhaps started."""
        if started:
            self._keys.of(self._key(line)).started += 1
        pile = self._pile_of(line)
        self._piles[pile].moved(line)
        if self._shares is not None:
            heapq.heapreplace(self._order, self._turn(pile, self._order[0][2]))

    def _closed(self, line: L) -> bool:
        return not self._keys.of(self._key(line)).left

    @staticmethod
    def _key(line: L) -> K:
        return cast("K", line.key)

    def _pile_of(self, line: L) -> K | None:
        return None if self._shares is None else self._key(line)

    def _turn(self, pile: K | None, place: int) -> tuple[float, float, int, K | None]:
        assert self._shares is not None
        key = cast("K", pile)
        weight = self._shares.of(key)
        # The least of these lots is that of a key with a chance by its weight.
        lot = -math.log(1.0 - self._source.random()) / weight
        return self._keys.holds(key) / weight, lot, place, pile


class _Pile(Generic[L]):
    """Holds lines of several priorities, ordered by their first jobs."""

    def __init__(self) -> None:
        self._ranks: dict[int, list[tuple[int, int, L]]] = {}  # heaps by first job
        self._count = 0

    def add(self, line: L, seq: int) -> None:
        self._count += 1
        heapq.heappush(self._ranks.setdefault(line.rank, []), (seq, self._count, line))

    def best(
        self, weights: Mapping[int, int] | None, closed: Callable[[L], bool], source: Source
    ) -> L | None:
        """Return the line whose first job is next, without closed lines, which are dropped."""
        for rank, heap in list(self._ranks.items()):
            while heap and closed(heap[0][-1]):
                heapq.heappop(heap)
            if not heap:
                del self._ranks[rank]
        if not self._ranks:
            return None
        rank = min(self._ranks)
        if weights and len(self._ranks) > 1:
            present = sorted(MAX_PRIORITY - rank for rank in self._ranks)
            rank = MAX_PRIORITY - next(iter(share(weights, present, 1, source)))
        return self._ranks[rank][0][-1]

    def moved(self, line: L) -> None:
        """Put the line, which was the best, to the place of its next job."""
        heap = self._ranks[line.rank]
        if line.seq is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (line.seq, heap[0][1], line))
