"""Heartbeats, whichever server the worker is connected to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from jobqueue.core.job import Held, Pulse, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.progress import Progress
from jobqueue.core.store import Store
from jobqueue.engine.scheduler import Scheduler


class Pulses:
    """Passes heartbeats to the store, and fails over leases that the worker does not know of.

    A lease that two complete lists leave out is lost. Which leases one list left out is kept by
    incarnation, not by connection: with several servers the beats of one worker may come here
    seldom, but a lease that is missing from two of them was not held at either time, and no lease
    is ever given out a second time.
    """

    def __init__(
        self, store: Store, scheduler: Scheduler, lose: Callable[[Sequence[Transition]], None]
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._lose = lose  # on the loop
        self._loop = asyncio.get_running_loop()
        self._missing: dict[tuple[str, int], frozenset[int]] = {}

    def beat(
        self,
        worker_id: str,
        incarnation: int,
        owner: str,
        leases: Sequence[int],
        begun: Sequence[int],
        complete: bool,
        progress: Mapping[int, Progress],
        overrun: int | None,
    ) -> Pulse:
        """Blocking, from any thread."""
        session = self._scheduler.sessions.get(worker_id)
        if session is not None and session.info.incarnation != incarnation:
            session = None
        counted = set() if session is None else session.held.copy()
        answer = self._store.pulse(
            worker_id, incarnation, leases, begun, progress, overrun, owner=owner
        )
        if session is not None and answer.known:
            counted.difference_update(one.lease for one in answer.unlisted)
            counted.difference_update(set(leases).difference(answer.lost))
            if counted:  # they ended through another server
                self._loop.call_soon_threadsafe(self._scheduler.relieve, session, counted)
        if not complete and answer.known:
            return answer
        before = self._missing.pop((worker_id, incarnation), frozenset())
        if answer.unlisted:
            missing = frozenset(one.lease for one in answer.unlisted)
            self._missing[worker_id, incarnation] = missing
            self.lose(worker_id, [one for one in answer.unlisted if one.lease in before])
        return answer

    def on_loop(self, callback: Callable[[int], None], argument: int) -> None:
        """Call back on the loop. From any thread."""
        self._loop.call_soon_threadsafe(callback, argument)

    def lose(self, worker_id: str, held: Sequence[Held]) -> None:
        """Fail over what the worker does not have. From any thread."""
        if held:
            lost = [_lost(one, worker_id) for one in held]
            self._loop.call_soon_threadsafe(self._lose, lost)


def _lost(one: Held, worker_id: str) -> Transition:
    """What never reached the worker is simply handed out again."""
    if one.state is State.ASSIGNED:
        return Transition.handed_back(one.seq, one.lease)
    return Transition.worker_lost(one.seq, one.lease, f"worker {worker_id} does not know of it")
