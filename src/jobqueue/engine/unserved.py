"""Find jobs that wait because no connected worker takes their type from their queue.

Such jobs are neither lost nor failed. ``Job.hint`` and ``QueueStats.unserved`` name them, and
the leader logs one line for each queue and type.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from jobqueue.core import explain
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import JobQueueError
from jobqueue.core.explain import Explained
from jobqueue.core.job import Job, Worker, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import COUNTED_TO, QueueStats, WaitingType
from jobqueue.core.store import ALL_QUEUES, Store, Term
from jobqueue.core.waiting import TURN, Background, Recent, turn
from jobqueue.engine.sessions import Scope, Session, Sessions

_log = logging.getLogger("jobqueue.engine.unserved")
_LOOK_EVERY = 2.0
_SHARE = 10  # the pause between two reads, as a multiple of the duration of one
_MOST_SHOWN = 100  # types of a queue; clients choose their number
_MOST_TOLD = 100  # types in the log
_READ_AT_ONCE = 20  # workers whose names are read together; each may have thousands
_LOOKS = 50  # look-ups of a type in a list that count as an item of a turn
_NOTHING: frozenset[str] = frozenset()
_Registration = tuple[str, int, int]


class Takers:
    """Holds the queues and types of jobs that the connected workers take.

    A type that a worker has paused counts as taken, because the pause ends by itself.
    """

    def __init__(self, scopes: Iterable[Scope], paused: Iterable[OpenBreaker] = ()) -> None:
        self._scopes = set(scopes)
        self._paused: dict[str, OpenBreaker] = {}
        for one in paused:
            known = self._paused.get(one.type)
            if known is None or one.until < known.until:
                self._paused[one.type] = one
        self._by_queue: dict[str, set[frozenset[str] | None]] = {}

    def take(self, queue: str, type: str) -> bool:
        """Return True if some worker takes jobs of this type from this queue."""
        return any(types is None or type in types for types in self._lists(queue))

    def take_from(self, queue: str) -> bool:
        """Return True if some worker takes jobs of some type from this queue."""
        return bool(self._lists(queue))

    def pause(self, type: str) -> OpenBreaker | None:
        """Return the open breaker of a type whose pause ends first, or None if none is open."""
        return self._paused.get(type)

    async def lacking(self, waiting: Sequence[WaitingType]) -> list[WaitingType]:
        """Return those of the waiting types that no worker takes. Other tasks run meanwhile."""
        types: dict[str, set[str]] = {}
        for one in waiting:
            types.setdefault(one.queue, set()).add(one.type)
        lacking = {queue: await self._not_taken(queue, left) for queue, left in types.items()}
        return [one for one in waiting if one.type in lacking[one.queue]]

    async def _not_taken(self, queue: str, types: set[str]) -> set[str]:
        for listed in self._lists(queue):
            if listed is None or not types:
                return set()
            await turn(min(TURN, 1 + len(types) // _LOOKS))
            types = types - listed
        return types

    def _lists(self, queue: str) -> set[frozenset[str] | None]:
        """Return the different lists of types of the workers that take jobs from this queue."""
        # They are not joined: callers may name millions of types.
        if queue not in self._by_queue:
            self._by_queue[queue] = {
                types
                for queues, without, types in self._scopes
                if (queue in queues or ALL_QUEUES in queues) and queue not in without
            }
        return self._by_queue[queue]


def _registration(info: WorkerInfo) -> _Registration:
    return info.id, info.incarnation, info.link


class Unserved(Background):
    """Compares the types of waiting jobs with the types that workers of all servers take."""

    def __init__(self, store: Store, sessions: Sessions, term: Callable[[], Term | None]) -> None:
        self._store = store
        self._sessions = sessions
        self._term = term
        self._takers = Recent(self._read_takers)
        self._registered = Recent(store.workers.all)  # with their names, to explain a job
        self._waiting = Recent(lambda: store.queues.waiting_types(COUNTED_TO))
        # The names of workers of other servers, by registration: these never change.
        self._elsewhere: dict[_Registration, Scope] = {}
        self._seen: set[tuple[str, str]] = set()  # found by the last ``tell``, not logged yet
        self._told: set[tuple[str, str]] = set()  # logged and not served since
        self._too_many = False

    def start(self) -> None:
        """Start the task that logs waiting jobs that no worker takes, while this server leads."""
        self._begin(self._run(), "unserved")

    def workers_changed(self) -> None:
        """Discard the cached workers, because a worker has registered at this server."""
        self._takers.forget()
        self._registered.forget()

    async def cause(self, job: Job, now: float, *, complete: bool = False) -> Explained | None:
        """Return why no worker takes a PENDING job, or None if a worker takes it.

        With ``complete``, the cause also names registered workers that know such jobs.
        """
        every, able = await self._takers.read()
        if not every.take(job.queue, job.type):
            return explain.nobody_takes(
                job.queue,
                job.type,
                others=every.take_from(job.queue),
                registered=await self._registered.read() if complete else (),
            )
        pause = every.pause(job.type)
        if pause is None or able.take(job.queue, job.type):
            return None
        return explain.breaker_open(pause, now)

    async def workers(self) -> list[Worker]:
        """Return all workers that the store knows."""
        return await self._registered.read()

    async def able(self, job: Job) -> list[Worker]:
        """Return the ONLINE workers that take a job, with the most free slots first."""
        found = [
            one
            for one in await self.workers()
            if one.status is WorkerStatus.ONLINE
            and Takers([_without_paused(self._scope_of(one.info), one)]).take(job.queue, job.type)
        ]
        return sorted(found, key=explain.free_slots, reverse=True)

    async def complete(self, queues: Sequence[QueueStats]) -> None:
        """Add to each queue's figures the types of waiting jobs that no connected worker takes."""
        if not any(stats.depth.get(State.PENDING) for stats in queues):
            return
        try:
            (takers, _), waiting = await self._takers.read(), await self._waiting.read()
            lacking = await takers.lacking(waiting)
        except JobQueueError as error:
            _log.debug(
                "cannot read the types of waiting jobs: %s; showing queues without these types",
                error,
            )
            return
        found: dict[str, list[WaitingType]] = {}
        for one in lacking:
            found.setdefault(one.queue, []).append(one)
        for stats in queues:
            types = found.get(stats.queue.name, [])
            types.sort(key=lambda one: (-one.jobs, one.type))
            stats.unserved = tuple(types[:_MOST_SHOWN])

    async def _read_takers(self) -> tuple[Takers, Takers]:
        """Return the takers with all their types, and those without the types that are paused."""
        workers = await self._store.workers.all(names=False)
        online = [worker for worker in workers if worker.status is WorkerStatus.ONLINE]
        found = await self._scopes([worker.info for worker in online])
        scopes = [scope for scope in found if scope is not None]
        paused = [one for worker in online for one in worker.breakers]
        every = Takers(scopes, paused)
        if not paused:
            return every, every
        able = [
            _without_paused(scope, worker)
            for scope, worker in zip(found, online, strict=True)
            if scope is not None
        ]
        return every, Takers(able)

    async def _scopes(self, infos: Sequence[WorkerInfo]) -> list[Scope | None]:
        """Return the scope of each worker, or None if it has left or registered anew meanwhile."""
        here: dict[_Registration, Scope] = {}
        elsewhere: dict[_Registration, Scope] = {}
        missing: list[str] = []
        for info in infos:
            registration = _registration(info)
            session = self._sessions.get(info.id)
            if session is not None and _registration(session.info) == registration:
                here[registration] = self._scope(session)
            elif (kept := self._elsewhere.get(registration)) is not None:
                elsewhere[registration] = kept
            else:
                missing.append(info.id)
        shared = {scope: scope for scope in elsewhere.values()}  # equal lists are kept once
        for start in range(0, len(missing), _READ_AT_ONCE):
            for info in await self._store.workers.infos(missing[start : start + _READ_AT_ONCE]):
                scope = frozenset(info.queues), _NOTHING, info.types
                elsewhere[_registration(info)] = shared.setdefault(scope, scope)
        self._elsewhere = elsewhere
        known = here | elsewhere
        return [known.get(_registration(info)) for info in infos]

    def _scope_of(self, info: WorkerInfo) -> Scope:
        session = self._sessions.get(info.id)
        if session is not None and session.info.fallback:
            return self._scope(session)
        return frozenset(info.queues), _NOTHING, info.types

    def _scope(self, session: Session) -> Scope:
        if session.info.fallback:  # it may leave queues to others
            return self._sessions.scope(session)
        return session.queues, _NOTHING, session.info.types

    # -- the log -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            if self._term() is not None:
                try:
                    await self.tell()
                except JobQueueError as error:
                    _log.debug("cannot read the types of waiting jobs: %s; trying again", error)
                except Exception:
                    _log.exception("looking for jobs that no worker takes failed; trying again")
            await asyncio.sleep(max(_LOOK_EVERY, _SHARE * (time.monotonic() - began)))

    async def tell(self) -> None:
        """Log each queue and type whose jobs no worker takes, neither now nor at the last call.

        A queue and type are logged once, and again only after a worker took their jobs meanwhile.
        The first call logs nothing, because workers that start together with the server need a
        moment to connect.
        """
        takers, _ = await self._takers.read()
        unserved = await takers.lacking(await self._waiting.read())
        lacking = {(one.queue, one.type): one for one in unserved}
        self._told = {place for place in self._told if not takers.take(*place)}
        if len(self._told) + len(lacking) > _MOST_TOLD:
            self._told &= lacking.keys()
        fresh = lacking.keys() - self._told
        confirmed = sorted(fresh & self._seen)
        self._seen = set(fresh)
        room = _MOST_TOLD - len(self._told)
        for place in confirmed[:room]:
            self._told.add(place)
            _warn(takers, lacking[place])
        if len(confirmed) > room and not self._too_many:
            _log.warning(
                "%d more types of jobs wait because no connected worker takes them;"
                " jq-ctl queue stats NAME lists them",
                len(confirmed) - room,
            )
        self._too_many = len(confirmed) > room


def _without_paused(scope: Scope, worker: Worker) -> Scope:
    queues, without, types = scope
    if types is not None and worker.breakers:
        types = types.difference(one.type for one in worker.breakers)
    return queues, without, types


def _warn(takers: Takers, waiting: WaitingType) -> None:
    _log.warning(
        "%s %s %s waiting in queue %r: no connected worker takes %s; start one whose app has the"
        " task (jq-worker --app MODULE:ATTRIBUTE --queues %s)",
        waiting.count,
        "job" if waiting.jobs == 1 else "jobs",
        f"of type {waiting.type!r}" if waiting.type else "without a type",
        waiting.queue,
        "this type from it" if takers.take_from(waiting.queue) else "jobs from it",
        waiting.queue,
        extra={"queue": waiting.queue},
    )
