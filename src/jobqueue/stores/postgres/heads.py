"""Keeps the lowest number at which a claimable job may be, by queue, priority and type.

A claim leaves dead entries in the index of claimable jobs, and a long transaction anywhere in the
database keeps them there. Therefore a claim begins where the previous claim found its first job,
not at the beginning of the index. A write that makes a lower number claimable reports it here. Jobs
that came back (retried or delayed jobs) are in a separate part of the index, which is always read
from its beginning. A full look, now and then, finds the jobs that nobody reported.

Clients choose the types, so a level may have very many. A look reads a limited number of types from
each level, some of them drawn at random. A level that may have more types is crowded. A claim that
names its types then looks for those that the look did not see. A claim for all types gets jobs of
the types that were seen, and jobs of a lower priority only after a look found no further types.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

from jobqueue.core.queue import MAX_PRIORITY
from jobqueue.stores.postgres.queue_cache import Home

Head = tuple[int, int, int]
"""A queue's number, 9 - priority, and the number of a type. The first two are its level."""

Level = tuple[int, int]

Found = tuple[int, int, int, int, int]
"""The result of a look for one head: queue, rank, the place (1: fresh rows, 2: rows that came back,
3: ranges), the number of the type, and the number of the first job in that place."""

_FRESH = (1, 3)
NOTHING_NEW = (1 << 62) - 1
"""A floor above every number: only what came back is read."""

MOST_SEEN = 2_000  # types of one level that a look sees
_MOST_READ = 200  # of those that a claim reads at a time

_MOST_HEADS = 20_000  # that are kept; beyond that a look says which
_LOOK_INTERVAL = 0.5
_SLOW_LOOK = 0.02
_LOOK_SHARE = 20  # a look that is slow is made seldom: at most a twentieth of the time


@lru_cache(maxsize=10_000)
def kind_of(type: str) -> int:
    """Return the number that stands for a type, as the database function of this name does.

    Two types with the same number would be taken for one. The number has 64 bits of SHA-256: among
    a million types, two have the same number in one of thirty million databases.
    """
    digest = hashlib.sha256(type.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], signed=True)


def keyed_kind_of(type: str) -> int:
    """Return the number that stands for a type of jobs with a concurrency key."""
    return kind_of(f"\0{type}")  # no type has a NUL


# A caller may register with one long list of types after the other: lists are kept while a worker
# has them.
_kinds: WeakKeyDictionary[frozenset[str], frozenset[int]] = WeakKeyDictionary()


def kinds_of(types: frozenset[str]) -> frozenset[int]:
    """Return the numbers of a claim's types, for jobs without and with a concurrency key."""
    kinds = _kinds.get(types)
    if kinds is None:
        kinds = frozenset(map(kind_of, types)).union(map(keyed_kind_of, types))
        _kinds[types] = kinds
    return kinds


class Chosen(NamedTuple):
    """Names the heads that a claim reads next."""

    floors: dict[Head, int]  # most urgent first
    whole: bool  # else there may be more heads, which are not to be passed over
    ends: dict[Level, int]  # where heads were left out: the first number that these may have


class Heads:
    """Holds the floor of each head. One claim at a time reads and raises floors; any write lowers
    them.
    """

    def __init__(self) -> None:
        self._floors: dict[Head, int] = {}
        self._meanwhile: dict[Head, int] = {}
        self._crowded: set[Level] = set()
        self._known: set[Head] = set()  # seen by the last look, or asked for since
        self._looked_at = float("-inf")
        self._look_took = 0.0
        self._forgotten = False  # since the claim or look under way began

    def lower(self, head: Head, seq: int = NOTHING_NEW) -> None:
        """Record that jobs of the head from the number ``seq`` on may be claimable.

        Without ``seq``, record that retried or delayed jobs of the head became claimable.
        """
        if len(self._floors) >= _MOST_HEADS and head not in self._floors:
            self.forget()
            return
        self._floors[head] = min(seq, self._floors.get(head, seq))
        self._meanwhile[head] = min(seq, self._meanwhile.get(head, seq))

    def forget(self) -> None:
        """Make a full look due before the next claim, because a report may have been missed."""
        self._forgotten = True
        self._looked_at = float("-inf")
        self._look_took = 0.0

    @property
    def slow(self) -> bool:
        """Return True if the last full look was slow because of dead rows."""
        return self._look_took > _SLOW_LOOK

    def begin(self) -> None:
        """Record that a claim or look begins. It may miss jobs that are reported from now on."""
        self._meanwhile.clear()
        self._forgotten = False

    def of(self, homes: Mapping[int, Home], kinds: frozenset[int] | None) -> Chosen:
        """Return the heads of these queues and types that may have claimable jobs."""
        if self._crowded and kinds is None:
            self._miss(homes)
        heads = sorted(
            (
                (head, floor)
                for head, floor in self._floors.items()
                if head[0] in homes and (kinds is None or head[2] in kinds)
            ),
            key=lambda entry: (entry[0][1], entry[0][0]),
        )
        if len(heads) <= _MOST_READ and not (self._crowded and kinds is None):
            return Chosen(dict(heads), True, {})
        return self._some(heads, homes, kinds)

    def _some(
        self,
        heads: Sequence[tuple[Head, int]],
        homes: Mapping[int, Home],
        kinds: frozenset[int] | None,
    ) -> Chosen:
        """Choose a limited number of heads of each level.

        Types whose jobs came back (retried or delayed jobs) go first, then the types with the
        oldest jobs.
        """
        some: dict[Head, int] = {}
        ends: dict[Level, int] = {}
        last = MAX_PRIORITY
        whole = True
        for (queue, rank), group in groupby(heads, key=lambda entry: entry[0][:2]):
            shares = homes[queue].weights is not None
            if rank > last and not shares:
                continue
            level = list(group)
            if len(level) > _MOST_READ:
                level.sort(key=lambda entry: -1 if entry[1] == NOTHING_NEW else entry[1])
                ends[queue, rank] = level[_MOST_READ][1]
            if len(level) > _MOST_READ or (kinds is None and (queue, rank) in self._crowded):
                whole = False
                if not shares:
                    last = rank
            some.update(level[:_MOST_READ])
        return Chosen(some, whole, ends)

    def _miss(self, queues: Container[int]) -> None:
        """Make a full look due if a crowded level has no more jobs of the types that were seen."""
        left = {head[:2] for head in self._floors}
        if any(level[0] in queues and level not in left for level in self._crowded):
            self.forget()

    def unknown(self, queues: Container[int], kinds: frozenset[int] | None) -> list[Head]:
        """Return the heads of these types that the last look may have passed over.

        A head that a claim has looked for since then is left out. A head whose jobs a write has
        reported is not left out, because older jobs of the head may wait.
        """
        if kinds is None:
            return []
        heads = ((*level, kind) for level in self._crowded if level[0] in queues for kind in kinds)
        return [head for head in heads if head not in self._known]

    def asked(self, heads: Sequence[Head], found: Sequence[Found]) -> None:
        """Record what a claim found when it looked for these heads."""
        self._known.update(heads)
        floors = _floors(found)
        for head in heads:
            self.advance(head, floors.get(head))

    def advance(self, head: Head, floor: int | None) -> None:
        """Record that a claim saw all jobs below ``floor``, or, with None, all jobs of the head."""
        said = self._meanwhile.get(head)
        if floor is None:
            floor = said
        elif said is not None:
            floor = min(floor, said)
        if floor is None:
            self._floors.pop(head, None)
        else:
            self._floors[head] = floor

    def wants_look(self, known: bool) -> bool:
        """Return True if a full look is due. It is due sooner if no head is known to have jobs."""
        pause = _LOOK_SHARE * self._look_took
        if known:
            pause = max(pause, _LOOK_INTERVAL)
        return time.monotonic() >= self._looked_at + pause

    def looked(self, found: Sequence[Found], took: float) -> None:
        """Record what a full look found."""
        if not self._forgotten:  # otherwise it may have looked too early
            self._looked_at = time.monotonic()
            self._look_took = took
        floors = _floors(found)
        full = crowded(found)
        self._crowded = {place[:2] for place in full}
        # Of a head that was not seen among the fresh rows, or ranges, of a crowded level there may
        # be some that were passed over.
        seen = {one[:4] for one in found}
        self._known = {
            head
            for head in floors
            if all(
                (*head[:2], ready, head[2]) in seen
                for ready in _FRESH
                if (*head[:2], ready) in full
            )
        }
        for head, seq in self._meanwhile.items():
            floors[head] = min(seq, floors.get(head, seq))
        self._floors = floors


def _floors(found: Sequence[Found]) -> dict[Head, int]:
    floors: dict[Head, int] = {}
    for queue, rank, ready, kind, seq in found:
        floors.setdefault((queue, rank, kind), NOTHING_NEW)
        if ready in _FRESH:
            head = queue, rank, kind
            floors[head] = min(seq, floors[head])
    return floors


def crowded(found: Sequence[Found]) -> list[tuple[int, int, int]]:
    """Return queue, rank and place (see ``Found``) where a look may not have seen all types."""
    if len(found) < MOST_SEEN:
        return []
    seen = Counter(one[:3] for one in found)
    return [place for place, count in seen.items() if count >= MOST_SEEN]
