"""Keep the sessions of connected workers, and plan claims for the workers' free slots."""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from jobqueue.core.api import BoundedInbox, Inbox
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.job import Assignment, WorkerInfo, WorkerStatus
from jobqueue.core.store import ALL_QUEUES, Claim

_NOTHING: frozenset[str] = frozenset()
_ALL = frozenset({ALL_QUEUES})
_NONE: frozenset[int] = frozenset()
# The most names of queues and types in the claims of one write. Workers may name millions.
_MOST_NAMES = 10_000
# A fallback worker gets no jobs while the different lists of other workers name more queues.
_MOST_TAKEN = 100_000


@dataclass(slots=True, eq=False)
class Session:
    """Describes a connected worker: its slots, its leases and the inbox for its jobs.

    ``free`` counts slots that may be promised to a claim. ``promised`` counts slots that belong to
    a claim in progress. ``held`` has the leases that were delivered and have not ended; their
    number is the worker's load. Their sum never exceeds the worker's slots. A lease that never
    arrived, because its server died, is in ``held`` until heartbeats show that it is lost.
    """

    info: WorkerInfo
    inbox: Inbox
    free: int = 0
    promised: int = 0
    held: set[int] = field(default_factory=set)
    inherited: frozenset[int] = frozenset()  # held when it connected
    open: bool = True  # False: drained by an operator, or gone; no slots are promised
    counted: bool = False  # it grants no slots: every slot that holds no lease is free
    drained: bool = False  # the worker withdrew its slots and has granted none since
    told: WorkerStatus = WorkerStatus.ONLINE  # the latest status sent to the worker
    tells: int = 0  # number of changes of ``told``; a heartbeat before the last one is outdated
    bounded: BoundedInbox | None = field(init=False)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _named: tuple[str, ...] = ()  # the list that ``_queues`` was made of
    _queues: frozenset[str] = _NOTHING
    breakers: tuple[OpenBreaker, ...] = ()
    trials: set[OpenBreaker] = field(default_factory=set)  # for each, one job may be claimed
    _known: frozenset[str] | None = None  # the list that ``_types`` was made of
    _types: frozenset[str] | None = None
    taken: frozenset[str] = _NOTHING  # of a fallback: the queues that it leaves to other workers
    _left: list[frozenset[str]] = field(default_factory=list)  # the lists that made ``taken``

    def __post_init__(self) -> None:
        self.bounded = self.inbox if isinstance(self.inbox, BoundedInbox) else None

    @property
    def queues(self) -> frozenset[str]:
        """Return the worker's queues as a set, whose hash is computed only once."""
        if self._named is not self.info.queues:
            self._named = self.info.queues
            self._queues = frozenset(self._named)
        return self._queues

    @property
    def types(self) -> frozenset[str] | None:
        """Return the types that the worker takes at present, without those of open breakers."""
        known = self.info.types
        if not self.breakers or known is None:
            return known
        if self._types is None or self._known is not known:
            self._known, self._types = known, known.difference(one.type for one in self.breakers)
        return self._types

    def set_breakers(self, breakers: Sequence[OpenBreaker]) -> None:
        """Replace the worker's open breakers. Each new trial allows the claim of one job."""
        before = {(one.type, one.trial) for one in self.breakers}
        new = {one for one in breakers if one.trial and (one.type, one.trial) not in before}
        self.breakers, self._types = tuple(breakers), None
        self.trials = (self.trials & set(breakers)) | new

    def leave(self, lists: list[frozenset[str]]) -> None:
        """Leave the queues in these lists to other workers."""
        if self._left != lists:
            many = sum(map(len, lists)) > _MOST_TAKEN
            self._left, self.taken = lists, _ALL if many else _NOTHING.union(*lists)

    def share_names(self, other: Session) -> None:
        """Use the other session's lists where they are equal: one object is compared fast."""
        if other.queues is not self.queues and other.queues == self.queues:
            self.info = dataclasses.replace(self.info, queues=other.info.queues)
            self._named, self._queues = other._named, other._queues
        if other.info.types is not self.info.types and other.info.types == self.info.types:
            self.info = dataclasses.replace(self.info, types=other.info.types)

    def close(self) -> None:
        """Promise no more slots of this session, and forget the names of its queues and types.

        Its link may keep it for a long time, and a worker may name thousands.
        """
        self.open = False
        self.info = dataclasses.replace(self.info, queues=(), types=None)
        self._named, self._queues = (), _NOTHING
        self.breakers, self.trials = (), set()
        self._known = self._types = None

    @property
    def offers(self) -> bool:
        return self.counted or self.free > 0

    @property
    def takes(self) -> bool:
        return self.open and not self.drained

    def tell(self, status: WorkerStatus) -> None:
        self.open = status is WorkerStatus.ONLINE
        self.told = status
        self.tells += 1
        self.inbox.set_status(status)

    async def settle(self) -> None:
        """Wait until no claim in progress can assign jobs to this worker."""
        while self.promised:
            self._settled.clear()
            await self._settled.wait()

    def settled(self) -> None:
        """End ``settle`` calls if no claim in progress has slots of this worker any more."""
        if not self.promised:
            self._settled.set()


Scope = tuple[frozenset[str], frozenset[str], frozenset[str] | None]
"""The queues of which a session takes jobs, the excluded queues, and its types (None: all)."""

Work = Mapping[str, Collection[str] | None]
"""The types of jobs that may be claimable, by queue; None: every type."""


def concerns(scope: Scope, work: Work) -> bool:
    """Return True if some jobs in ``work`` are of the scope's queues and types."""
    queues, without, types = scope
    return any(
        (queue in queues or ALL_QUEUES in queues)
        and queue not in without
        and (types is None or came is None or not types.isdisjoint(came))
        for queue, came in work.items()
    )


@dataclass(slots=True)
class Plan:
    """Holds the claims of one write and the slots that are promised to these claims.

    After the write the slots must be filled or freed (``Sessions.settle``).
    """

    claims: list[Claim]
    scopes: list[Scope]  # of ``claims``, in the same order
    promised: dict[Session, int]
    news: int  # the scheduler's number when the plan was made
    # True: the batch was too small for every scope with free slots, or a slot was kept for a trial.
    left_out: bool
    trials: list[tuple[Session, OpenBreaker]] = field(default_factory=list)  # in these claims
    asked: int = field(init=False)

    def __post_init__(self) -> None:
        self.asked = sum(self.promised.values())

    @classmethod
    def nothing(cls) -> Plan:
        return cls([], [], {}, 0, False)

    def filled(self, assigned: Sequence[Assignment]) -> list[tuple[Scope, bool]]:
        """Return for each claim its scope, and True if the claim got a job for every slot."""
        if len(assigned) == self.asked or not assigned:
            return [(scope, bool(assigned)) for scope in self.scopes]
        got: dict[str, int] = {}
        for one in assigned:
            got[one.worker_id] = got.get(one.worker_id, 0) + 1
        return [
            (
                scope,
                sum(got.get(worker_id, 0) for worker_id in set(claim.slots)) == len(claim.slots),
            )
            for scope, claim in zip(self.scopes, self.claims, strict=True)
        ]


class Sessions:
    """Keeps the sessions of all connected workers, and plans claims for their free slots."""

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        # The scopes that had no room in the names of a write. They come first, the oldest first.
        self._delayed: dict[Scope, None] = {}

    def add(self, session: Session) -> Session | None:
        """Add a session and return the worker's earlier session, or None."""
        hash((session.queues, session.info.types))  # sets whose hashes differ are compared at once
        for other in self._by_id.values():
            session.share_names(other)
        replaced = self._by_id.get(session.info.id)
        self._by_id[session.info.id] = session
        return replaced

    def remove(self, session: Session) -> None:
        """Remove a session, unless a later session of its worker has replaced it."""
        if self._by_id.get(session.info.id) is session:
            del self._by_id[session.info.id]

    def get(self, worker_id: str | None) -> Session | None:
        return None if worker_id is None else self._by_id.get(worker_id)

    def all(self) -> list[Session]:
        return list(self._by_id.values())

    def plan(
        self,
        limit: int,
        news: int,
        skip: Callable[[Scope], bool],
        freed: Mapping[Session, int],
        ending: Mapping[Session, set[int]],
    ) -> Plan:
        """Promise up to ``limit`` free slots to claims, the least loaded worker first.

        Scopes for which ``skip`` returns True get no claim. ``freed`` counts the slots that become
        free, and ``ending`` names the leases that end, in the write that contains the claims.
        Both are applied to the sessions only after the write has succeeded.
        """
        groups: dict[Scope, list[tuple[Session, int]]] = {}
        trials: dict[Scope, list[tuple[Session, OpenBreaker]]] = {}
        for session in self._by_id.values():
            free = session.info.concurrency if session.counted else session.free
            free += freed.get(session, 0)
            if free > 0 and session.takes:
                held = len(session.held) - len(ending.get(session, _NONE) & session.held)
                free = min(free, session.info.concurrency - session.promised - held)
            if free > 0 and session.takes:
                scope = self.scope(session)
                if session.trials:
                    for one in list(session.trials)[:free]:
                        only = scope[0], scope[1], frozenset({one.type})
                        if not skip(only):
                            groups.setdefault(only, []).append((session, 1))
                            trials.setdefault(only, []).append((session, one))
                            free -= 1
                if session.breakers and not scope[2]:
                    continue  # the worker has paused all its types
                if free > 0 and not skip(scope):
                    groups.setdefault(scope, []).append((session, free))
        claims: list[Claim] = []
        scopes: list[Scope] = []
        promised: dict[Session, int] = {}
        tried: list[tuple[Session, OpenBreaker]] = []
        left_out = bool(trials)  # if there is no job to try, the slots are for other jobs
        names = 0
        turns = sorted(groups, key=lambda scope: _turn(scope, groups[scope]))
        if self._delayed:
            delayed = [scope for scope in self._delayed if scope in groups]
            turns = list(dict.fromkeys([*delayed, *turns]))
        for place, scope in enumerate(turns):
            # Each scope gets an equal share, so that no scope starves another.
            share = -(-limit // (len(groups) - place))
            if share <= 0 or names >= _MOST_NAMES:
                left_out = True
                if share > 0:
                    self._delay(turns[place:])
                break
            self._delayed.pop(scope, None)
            slots = _spread(groups[scope], share, promised, freed)
            if slots:  # else all inboxes of the scope are full
                limit -= len(slots)
                names += sum(len(listed or ()) for listed in scope)
                queues = groups[scope][0][0].info.queues if scope[0] else ()
                claims.append(Claim(queues, slots, *scope[1:]))
                scopes.append(scope)
                if scope in trials:
                    tried += [one for one in trials[scope] if one[0].info.id in slots]
        for session, count in promised.items():
            session.free -= count
            session.promised += count
        for session, one in tried:
            session.trials.discard(one)
        return Plan(claims, scopes, promised, news, left_out, tried)

    def _delay(self, scopes: Sequence[Scope]) -> None:
        if len(self._delayed) > 2 * len(self._by_id):
            self._delayed.clear()  # of workers that have left
        self._delayed.update(dict.fromkeys(scopes))

    def scope(self, session: Session) -> Scope:
        """Return the queues and types of which a worker may get jobs at present.

        A fallback worker gets no jobs from queues of other workers that can run the same types.
        """
        info = session.info
        if not info.fallback:
            return session.queues, _NOTHING, session.types
        lists = {  # equal lists are one object
            id(other.queues): other.queues
            for other in self._by_id.values()
            if other.takes and not other.info.fallback and _overlap(other.info.types, info.types)
        }
        session.leave(list(lists.values()))
        if ALL_QUEUES in session.taken:
            return _NOTHING, _NOTHING, session.types
        return session.queues, session.taken, session.types

    def settle(self, plan: Plan, assigned: Sequence[Assignment]) -> list[Assignment]:
        """Deliver the jobs of a plan and free the plan's other slots.

        Return the jobs that cannot be delivered, because their worker's session is gone.
        """
        by_worker: dict[str, list[Assignment]] = {}
        for assignment in assigned:
            by_worker.setdefault(assignment.worker_id, []).append(assignment)
        orphans: list[Assignment] = []
        for session, one in plan.trials:
            got = by_worker.get(session.info.id, ())
            if one in session.breakers and all(job.type != one.type for job in got):
                session.trials.add(one)  # there was no job to try
        for session, count in plan.promised.items():
            got = by_worker.pop(session.info.id, [])
            session.promised -= count
            session.free += count - len(got)
            if got and self._by_id.get(session.info.id) is session:
                session.held.update(one.lease for one in got)
                session.inbox.assigned(got)
            else:
                orphans += got
            if session.bounded is not None:
                session.bounded.release(count)
            session.settled()
        for got in by_worker.values():
            orphans += got
        return orphans


def _turn(scope: Scope, members: list[tuple[Session, int]]) -> tuple[int, int]:
    """Return the sort key of a scope: the least load of its workers, then the number of types.

    Scopes with few types come first. The slots of workers with more types stay free for jobs that
    only these workers can run.
    """
    types = scope[2]
    load = min(len(session.held) + session.promised for session, _ in members)
    return load, sys.maxsize if types is None else len(types)


def _overlap(some: frozenset[str] | None, others: frozenset[str] | None) -> bool:
    return some is None or others is None or not some.isdisjoint(others)


def _spread(
    members: list[tuple[Session, int]],
    limit: int,
    promised: dict[Session, int],
    freed: Mapping[Session, int],
) -> list[str]:
    if len(members) == 1:
        session, free = members[0]
        count = min(free, limit)
        if session.bounded is not None:
            count = session.bounded.reserve(count)
        if count:
            promised[session] = promised.get(session, 0) + count
        return [session.info.id] * count
    heap = [
        (len(session.held) + session.promised - freed.get(session, 0), place, free, session)
        for place, (session, free) in enumerate(members)
    ]
    heapq.heapify(heap)
    slots: list[str] = []
    while heap and len(slots) < limit:
        load, place, free, session = heap[0]
        if session.bounded is not None and not session.bounded.reserve(1):
            heapq.heappop(heap)
            continue
        slots.append(session.info.id)
        promised[session] = promised.get(session, 0) + 1
        if free > 1:
            heapq.heapreplace(heap, (load + 1, place, free - 1, session))
        else:
            heapq.heappop(heap)
    return slots
