"""Connect a worker that learns of its jobs by hints in Kafka and uses the store directly.

A hint names a job and an attempt. Before the worker executes the job, the link reads from the store
whether this attempt is assigned to this worker. If not, the hint is old or repeated, and the link
drops it. The link writes reports to the store, fenced by the lease.

Hints may be lost while Kafka is unreachable. The answer to a heartbeat lists the worker's leases in
the store. If it lists a lease that the link does not know, the link reads all its assignments.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from jobqueue.core.api import Inbox
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.dispatch import DispatchStore, Hint, HintKind, HintSource
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Assignment, Held, Pulse, Transition, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import Move, State
from jobqueue.core.observer import Observer
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.waiting import GrowingPause, LatestWrite

_log = logging.getLogger("jobqueue.events.dispatch")
_AT_ONCE = 500  # jobs read together
_ATTEND_PAUSE = 0.05  # a pause after the store reports a change, so that many need one read
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_GOODBYES = 3  # tries to deregister
_LEADERS_LOOK = 2.0  # seconds after which the leader has read the slots of a heartbeat

_Attempt = tuple[str, int]  # job id and number


class KafkaLink:
    """Implements ``core.api.Link`` on the store, with hints from Kafka."""

    def __init__(
        self,
        store: DispatchStore,
        info: WorkerInfo,
        inbox: Inbox,
        observer: Observer,
        closed: Callable[[KafkaLink], None],
    ) -> None:
        self._store = store
        self._info = info
        self._inbox = inbox
        self._observer = observer
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._breakers = LatestWrite(self._record_breakers)
        self._free = 0  # slots that the worker offers
        self._drained = False
        self._status = WorkerStatus.ONLINE  # from the store's latest answer
        self._told: dict[str, int] = {}  # attempts by job id, from hints that are not checked yet
        self._taken: dict[int, _Attempt] = {}  # leases that were delivered and have not ended
        for lease in inbox.holds() or ():  # leases of an earlier connection
            self._taken[lease] = ("", 0)
        # Leases that the last heartbeat did not list, although the store has them.
        self._missing: frozenset[int] = frozenset()
        self._withheld = 0  # slots withheld at the last heartbeat
        self._wake = asyncio.Event()
        self._look_at_all = False
        self._attending = False
        self._one_at_a_time = asyncio.Lock()  # reads and deliveries of assignments
        self._tasks: set[asyncio.Task[None]] = set()
        self._source: HintSource | None = None

    def start(self, source: HintSource) -> None:
        self._source = source
        source.start(self.heard)
        self._spawn(self._run())
        self.look()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- wake-ups ------------------------------------------------------------------------------

    def heard(self, hints: Sequence[Hint]) -> None:
        """Keep the hints that are for this worker, and start a read of the assignments they name.

        Several workers may share a partition: hints for other workers are ignored.
        """
        stale = 0
        taken = set(self._taken.values())
        for hint in hints:
            if hint.kind is not HintKind.JOB_ASSIGNED or hint.worker_id != self._info.id:
                continue
            if (
                hint.incarnation != self._info.incarnation
                or (hint.job_id, hint.attempt) in taken
                or self._told.get(hint.job_id, -1) >= hint.attempt
            ):
                stale += 1
            else:
                self._told[hint.job_id] = hint.attempt
        if stale:
            self._observer.hints_dropped(stale)
        if self._told:
            self._wake.set()

    def look(self) -> None:
        """Start a read of all assignments of this worker, whether or not hints came."""
        self._look_at_all = True
        self._wake.set()

    def attend(self) -> None:
        """Start a read of this worker's status and cancelled jobs, which may have changed."""
        if not self._attending:
            self._attending = True
            self._spawn(self._attend())

    # -- looking -------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = GrowingPause(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                async with self._one_at_a_time:
                    await self._take()
                pause.reset()
            except JobQueueError as error:
                _log.debug(
                    "cannot read the assignments of worker %s from the store: %s; trying again",
                    self._info.id,
                    error,
                )
                await pause.wait()
                self._wake.set()
            except Exception:
                _log.exception(
                    "unexpected error while reading the assignments of worker %s; trying again in"
                    " %g s",
                    self._info.id,
                    _LONGEST_PAUSE,
                )
                await asyncio.sleep(_LONGEST_PAUSE)
                self._wake.set()

    async def _take(self) -> None:
        if self._look_at_all and (self._free or self._drained):
            self._look_at_all = False
            try:
                await self._ask(None)
            except BaseException:
                self._look_at_all = True
                raise
        while self._told and (self._free or self._drained):
            limit = _AT_ONCE if self._drained else min(self._free, _AT_ONCE)
            asked = dict(itertools.islice(self._told.items(), limit))
            for job_id in asked:
                del self._told[job_id]
            try:
                await self._ask(asked)
            except BaseException:
                self._told = asked | self._told  # hints since then are of later attempts
                raise

    async def _ask(self, asked: dict[str, int] | None) -> None:
        """Deliver the attempts that the store confirms as assigned to this worker.

        ``asked`` names the attempts to check, by job id; None: all attempts of this worker.
        """
        # Only this method delivers, one call at a time. So an attempt that was not delivered before
        # the read cannot have ended during the read: the store's answer is not out of date.
        before = set(self._taken)
        ids = None if asked is None else list(asked)
        found = await self._store.jobs.standing(ids, self._info.id, self._info.incarnation)
        fresh = [
            one
            for one in found
            if one.lease not in before and (asked is None or asked[one.id] == one.attempt)
        ]
        if asked is not None and len(fresh) < len(asked):
            self._observer.hints_dropped(len(asked) - len(fresh))
        if self._drained:
            await self._hand_back(fresh)
            return
        now, later = fresh[: self._free], fresh[self._free :]
        for one in later:  # attempts beyond the free slots wait until slots are free
            self._told.setdefault(one.id, one.attempt)
        if now:
            self._deliver(now)

    def _deliver(self, assignments: Sequence[Assignment]) -> None:
        for one in assignments:
            self._taken[one.lease] = (one.id, one.attempt)
        self._free -= len(assignments)
        self._inbox.assigned(assignments)

    async def _hand_back(self, assignments: Sequence[Assignment]) -> None:
        if assignments:
            await self._store.jobs.apply(
                [Transition.handed_back(one.seq, one.lease) for one in assignments]
            )

    def _let_go(self, leases: Sequence[int]) -> None:
        for lease in leases:
            self._taken.pop(lease, None)

    async def _attend(self) -> None:
        """Send an extra heartbeat, and apply the status and the cancels in its answer."""
        await asyncio.sleep(_ATTEND_PAUSE)
        self._attending = False
        leases = list(self._taken)
        info = self._info
        try:
            answer = await asyncio.to_thread(
                self._store.workers.pulse, info.id, info.incarnation, leases
            )
        except JobQueueError as error:
            _log.debug(
                "cannot send an extra heartbeat of worker %s: %s; the next heartbeat has the same"
                " effect",
                info.id,
                error,
            )
            return
        if not answer.known:
            self._inbox.moved()
            return
        before, self._status = self._status, answer.status
        if not before is answer.status is WorkerStatus.ONLINE:
            self._inbox.set_status(answer.status)
        self._inbox.cancel([*answer.cancelled, *answer.lost])

    # -- Link ----------------------------------------------------------------------------------

    def grant(self, slots: int) -> None:
        self._drained = False
        self._free = min(self._free + slots, self._info.concurrency)
        if self._told or self._look_at_all:
            self._wake.set()

    def set_breakers(self, breakers: Sequence[OpenBreaker]) -> None:
        self._breakers.put(breakers)  # the leader reads them from the store

    async def _record_breakers(self, breakers: Sequence[OpenBreaker]) -> bool:
        info = self._info
        try:
            await self._store.workers.set_breakers(info.id, info.incarnation, breakers)
        except JobQueueError as error:
            _log.warning(
                "cannot tell the leader which types worker %s has paused: %s; the worker hands"
                " their jobs back; trying again",
                info.id,
                error,
            )
            return False
        return True

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        outcomes = []
        for one in reports:
            one.worker_id = self._info.id
        if reports:
            outcomes = (await self._store.jobs.apply(reports)).outcomes
        self._let_go(
            [
                report.lease
                for report in reports
                if report.lease is not None and report.move is not Move.START
            ]
        )
        if freed and not self._drained:
            self.grant(freed)
        return [outcome.refusal is None for outcome in outcomes]

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ) -> Pulse:
        withheld = self._count_withheld() if complete else None
        info = self._info
        answer = self._store.workers.pulse(
            info.id, info.incarnation, leases, begun, progress, overrun, withheld=withheld
        )
        if not answer.known:
            return answer
        self._status = answer.status
        if withheld and not self._free:  # the heartbeat has told the leader that no slot is free
            self._call(self._turn_away)
        elif any(one.state is State.ASSIGNED for one in answer.unlisted):
            self._call(self.look)
        running = {one.lease: one for one in answer.unlisted if one.state is State.RUNNING}
        if complete:
            lost = [running[lease] for lease in self._missing & running.keys()]
            self._missing = frozenset(running)
            if lost:
                self._call(self._lose, lost)
        if answer.lost:
            self._call(self._let_go, answer.lost)
        return answer

    def _count_withheld(self) -> int:
        """Return the number of slots that are withheld now and were at the last heartbeat.

        A withheld slot is neither offered nor used by a lease: its attempt is over, but the
        attempt's function still runs. A slot may also be withheld for a moment before the worker
        offers it. Such a slot does not count.
        """
        now = self._info.concurrency - self._free - len(self._taken)
        before, self._withheld = self._withheld, 0 if self._drained else max(0, now)
        return min(before, self._withheld)

    def _turn_away(self) -> None:
        self._spawn(self._hand_back_what_waits())

    async def _hand_back_what_waits(self) -> None:
        """Hand back assignments for which this worker has no free slot."""
        try:
            async with self._one_at_a_time:
                if not self._free:
                    before = set(self._taken)
                    info = self._info
                    found = await self._store.jobs.standing(None, info.id, info.incarnation)
                    await self._hand_back([one for one in found if one.lease not in before])
        except JobQueueError as error:
            _log.warning(
                "cannot hand back the jobs that wait for a slot of worker %s: %s; trying again at"
                " the next heartbeat",
                self._info.id,
                error,
            )

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _lose(self, held: Sequence[Held]) -> None:
        """Report leases as lost.

        The store has these leases, but two heartbeats of this worker in a row did not list them.
        """
        error = f"worker {self._info.id} does not know of it"
        self._spawn(
            self._apply_quietly([Transition.worker_lost(one.seq, one.lease, error) for one in held])
        )

    async def _apply_quietly(self, transitions: Sequence[Transition]) -> None:
        try:
            await self._store.jobs.apply(transitions)
        except JobQueueError as error:
            _log.warning(
                "cannot report %d lost leases of worker %s: %s; the next heartbeats find these"
                " leases again",
                len(transitions),
                self._info.id,
                error,
            )

    async def drain(self, *, pause: bool = False) -> None:
        if pause:
            await self._pause()
            return
        self._drained = True  # assignments are handed back from now on
        self._free = 0
        by_itself = self._status is WorkerStatus.ONLINE  # if False, the store knows of the drain
        async with self._one_at_a_time:  # a read under way may still deliver
            pass
        if by_itself:
            await self._store.workers.set_status(
                self._info.id, WorkerStatus.DRAINING, incarnation=self._info.incarnation
            )
        self.look()

    async def _pause(self) -> None:
        """Report in a heartbeat that no slot is free, and wait until the leader has read it.

        Hand back the assignments that the leader made before.
        """
        self._free = 0
        async with self._one_at_a_time:  # a read under way may still deliver
            pass
        info, leases = self._info, list(self._taken)
        self._withheld = info.concurrency - len(leases)
        await asyncio.to_thread(
            self._store.workers.pulse, info.id, info.incarnation, leases, withheld=self._withheld
        )
        await asyncio.sleep(_LEADERS_LOOK)
        await self._hand_back_what_waits()

    async def close(self) -> None:
        self._closed(self)  # jobs that still run are lost when the worker's heartbeat times out
        self._drained = True
        self._free = 0
        await self._breakers.stop()
        # Stop the tasks first: a worker that does not wait for the end of ``close`` may connect
        # again, and this link must not hand back the assignments of the new connection.
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # Both steps run at the same time: if Kafka is unreachable, its client needs long to stop.
        steps = [self._leave()]
        if self._source is not None:
            steps.append(self._source.stop())
        for failed in await asyncio.gather(*steps, return_exceptions=True):
            if failed is not None:
                raise failed

    async def _leave(self) -> None:
        info = self._info
        for _ in range(_GOODBYES):
            async with self._one_at_a_time:
                await self._ask(None)  # the leader may not know yet that the worker leaves
            if await self._store.workers.retire(info.id, info.incarnation) or self._taken:
                return
