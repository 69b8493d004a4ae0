"""Workers connected to this server, their free slots, and how claims are laid over them."""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from jobqueue.core.api import BoundedInbox, Inbox
from jobqueue.core.job import Assignment, WorkerInfo, WorkerStatus
from jobqueue.core.store import ALL_QUEUES, Claim

_NOTHING: frozenset[str] = frozenset()
_NONE: frozenset[int] = frozenset()


class Session:
    """One connected worker.

    ``free`` slots may be promised in a claim; ``promised`` ones are in a claim under way; ``held``
    are the leases delivered and not yet ended, whose number is the worker's load. All three
    together never exceed the worker's slots: what it was given by a server that died before it
    arrived still counts in the store, until it is found to be lost.
    """

    __slots__ = (
        "_settled",
        "bounded",
        "counted",
        "drained",
        "free",
        "held",
        "inbox",
        "info",
        "inherited",
        "open",
        "promised",
        "tells",
        "told",
    )

    def __init__(self, info: WorkerInfo, inbox: Inbox) -> None:
        self.info = info
        self.inbox = inbox
        self.bounded = inbox if isinstance(inbox, BoundedInbox) else None
        self.free = 0
        self.promised = 0
        self.held: set[int] = set()
        self.inherited: frozenset[int] = frozenset()  # held when it connected
        self.open = True  # False: drained by an operator, or gone; nothing is promised to it
        # Nobody grants its slots: every one that holds no lease is free.
        self.counted = False
        self.drained = False  # the worker withdrew its slots; a grant takes that back
        self.told = WorkerStatus.ONLINE  # what the worker was last told to be
        self.tells = 0  # how often it was told: a heartbeat from before the last time is old
        self._settled = asyncio.Event()

    @property
    def offers(self) -> bool:
        """Whether it may have a slot that is free."""
        return self.counted or self.free > 0

    @property
    def takes(self) -> bool:
        """Whether slots of it may be promised."""
        return self.open and not self.drained

    def tell(self, status: WorkerStatus) -> None:
        """An operator drains or stops the worker, or takes a drain back."""
        self.open = status is WorkerStatus.ONLINE
        self.told = status
        self.tells += 1
        self.inbox.set_status(status)

    async def settle(self) -> None:
        """Wait until no claim under way can still bring it something."""
        while self.promised:
            self._settled.clear()
            await self._settled.wait()

    def settled(self) -> None:
        """A claim under way ended."""
        if not self.promised:
            self._settled.set()


Scope = tuple[tuple[str, ...], frozenset[str], frozenset[str] | None]
"""The queues a session takes from, those it leaves alone, and the types it knows (None: all)."""

Work = Mapping[str, Collection[str]]
"""Jobs that came: the types of those in each queue."""


def concerns(scope: Scope, work: Work) -> bool:
    """Whether some of these jobs are of the scope's queues and types."""
    queues, without, types = scope
    return any(
        (queue in queues or ALL_QUEUES in queues)
        and queue not in without
        and (types is None or not types.isdisjoint(came))
        for queue, came in work.items()
    )


class Plan:
    """Slots promised in one claim, to be delivered or given back."""

    __slots__ = ("asked", "claims", "left_out", "news", "promised", "scopes")

    def __init__(
        self,
        claims: list[Claim],
        scopes: list[Scope],
        promised: dict[Session, int],
        news: int,
        left_out: bool,
    ) -> None:
        self.claims = claims
        self.scopes = scopes  # of the claims, in order
        self.promised = promised
        self.news = news
        self.left_out = left_out  # the batch was too small for every scope with free slots
        self.asked = sum(promised.values())

    @classmethod
    def nothing(cls) -> Plan:
        """A plan that promises nothing."""
        return cls([], [], {}, 0, False)

    def filled(self, assigned: Sequence[Assignment]) -> list[tuple[Scope, bool]]:
        """For each claim, whether it got a job for every slot."""
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
    """All of them, by worker id."""

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}

    def add(self, session: Session) -> Session | None:
        """Connect; returns the session it replaces."""
        for other in self._by_id.values():
            # One object for equal lists: the scopes of a fleet are then compared at a glance.
            if other.info.types == session.info.types:
                session.info = dataclasses.replace(session.info, types=other.info.types)
                break
        replaced = self._by_id.get(session.info.id)
        self._by_id[session.info.id] = session
        return replaced

    def remove(self, session: Session) -> None:
        """Disconnect, unless another session has taken its place."""
        if self._by_id.get(session.info.id) is session:
            del self._by_id[session.info.id]

    def get(self, worker_id: str | None) -> Session | None:
        """Find a worker connected here."""
        return None if worker_id is None else self._by_id.get(worker_id)

    def all(self) -> list[Session]:
        """Every session."""
        return list(self._by_id.values())

    def plan(
        self,
        limit: int,
        news: int,
        skip: Callable[[Scope], bool],
        freed: Mapping[Session, int],
        ending: Mapping[Session, set[int]],
    ) -> Plan:
        """Promise up to ``limit`` slots, least loaded worker first.

        ``freed`` slots come free, and ``ending`` leases end, in the very write that the claim is
        part of, so they count here and nowhere else until it has happened. Scopes to ``skip``
        have nothing to be claimed.
        """
        groups: dict[Scope, list[tuple[Session, int]]] = {}
        for session in self._by_id.values():
            free = session.info.concurrency if session.counted else session.free
            free += freed.get(session, 0)
            if free > 0 and session.takes:
                held = len(session.held) - len(ending.get(session, _NONE) & session.held)
                free = min(free, session.info.concurrency - session.promised - held)
            if free > 0 and session.takes:
                scope = self.scope(session)
                if not skip(scope):
                    groups.setdefault(scope, []).append((session, free))
        claims: list[Claim] = []
        scopes: list[Scope] = []
        promised: dict[Session, int] = {}
        left_out = False
        turns = sorted(groups, key=lambda scope: _turn(scope, groups[scope]))
        for place, scope in enumerate(turns):
            # An even share, so that one busy group does not starve another of the batch.
            share = -(-limit // (len(groups) - place))
            if share <= 0:
                left_out = True
                break
            slots = _spread(groups[scope], share, promised, freed)
            if slots:  # else no inbox has room
                limit -= len(slots)
                claims.append(Claim(scope[0], slots, *scope[1:]))
                scopes.append(scope)
        for session, count in promised.items():
            session.free -= count
            session.promised += count
        return Plan(claims, scopes, promised, news, left_out)

    def scope(self, session: Session) -> Scope:
        """What it may take from now."""
        info = session.info
        if not info.fallback:
            return info.queues, _NOTHING, info.types
        taken = frozenset(
            queue
            for other in self._by_id.values()
            if other.takes and not other.info.fallback and _overlap(other.info.types, info.types)
            for queue in other.info.queues
        )
        if ALL_QUEUES in taken:
            return (), _NOTHING, info.types
        return info.queues, taken, info.types

    def settle(self, plan: Plan, assigned: Sequence[Assignment]) -> list[Assignment]:
        """Deliver what a plan brought and take the rest back; returns what nobody is there for."""
        by_worker: dict[str, list[Assignment]] = {}
        for assignment in assigned:
            by_worker.setdefault(assignment.worker_id, []).append(assignment)
        orphans: list[Assignment] = []
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
    """The lower, the sooner: by the least load, then who knows least.

    So the slots of a worker that knows more are left for jobs that only it knows.
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
            promised[session] = count
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
