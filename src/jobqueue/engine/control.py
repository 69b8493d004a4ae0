"""Apply the changes that other servers have made to workers connected to this server."""

from __future__ import annotations

import asyncio
import logging
import time

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.core.store import WorkerStore
from jobqueue.core.waiting import Background
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.sessions import Session

_log = logging.getLogger("jobqueue.engine.control")
_PAUSE = 0.05  # between two reads, so that many changes cause one read
_SHARE, _LONGEST_PAUSE = 4, 2.0  # the pause as a multiple of the duration of a read, and its limit
_AFTER_FAILURE = 1.0


class Control(Background):
    """Compares the sessions of workers with the store when the store reports a change.

    An operator may drain a worker, or cancel its job, through any server. A worker may connect to
    another server before this server notices that it left. If the report of a change is lost, the
    answer to the worker's next heartbeat has the same effect.
    """

    def __init__(self, workers: WorkerStore, scheduler: Scheduler) -> None:
        self._workers = workers
        self._scheduler = scheduler
        self._wake = asyncio.Event()
        self._told: frozenset[int] = frozenset()  # leases whose worker got the cancel

    def start(self) -> None:
        self._begin(self._run(), "control")

    def heard(self) -> None:
        """Compare the sessions with the store soon, because the store has changed."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = time.monotonic()
            pause = _PAUSE
            try:
                await self.look()
                # Callers may cause changes as fast as they like, and a look may read much.
                pause = max(_PAUSE, min(_LONGEST_PAUSE, _SHARE * (time.monotonic() - began)))
            except JobQueueError as error:
                pause = _AFTER_FAILURE
                _log.debug(
                    "cannot read workers and leases from the store: %s; trying again in %g s",
                    error,
                    pause,
                )
                self._wake.set()
            except Exception:
                _log.exception(
                    "comparing the connected workers with the store failed; trying again after the"
                    " next change"
                )
            await asyncio.sleep(pause)

    async def look(self) -> None:
        """Compare the sessions with the store once."""
        sessions = self._scheduler.sessions.all()
        if not sessions:
            return
        # Copied before the store is read, because its answer lacks later deliveries and changes.
        tells = {session: session.tells for session in sessions}
        delivered = {lease: session for session in sessions for lease in session.held}
        known = await self._workers.all(names=False)
        workers = {worker.info.id: worker for worker in known}
        held = await self._workers.held()
        for session in sessions:
            if self._scheduler.sessions.get(session.info.id) is session:
                self._compare(session, workers.get(session.info.id), tells[session])
        flagged = {one.lease: one.worker_id for one in held if one.cancel_requested}
        for lease in flagged.keys() - self._told:
            if (found := self._scheduler.sessions.get(flagged[lease])) is not None:
                found.inbox.cancel([lease])
        self._told = frozenset(flagged)
        for lease in delivered.keys() - {one.lease for one in held}:
            session = delivered[lease]
            if lease in session.held:  # the lease ended without a report through this session
                self._scheduler.relieve(session, [lease])
                session.inbox.cancel([lease])

    def _compare(self, session: Session, worker: Worker | None, tells: int) -> None:
        info = session.info
        if worker is None or worker.status is WorkerStatus.OFFLINE:
            self._scheduler.dismiss(info.id)  # the answer to its next heartbeat: register again
        elif worker.info.incarnation != info.incarnation:
            _log.warning(
                "another process has registered worker %s at another server; stopping the process"
                " that is connected here",
                info.id,
                extra={"worker_id": info.id},
            )
            self._scheduler.dismiss(info.id)
            session.inbox.set_status(WorkerStatus.STOPPING)
        elif worker.info.link not in (info.link, 0):
            # The worker's jobs and slots are at the other server. If the worker still listens here
            # (because its registration arrived there late), it connects again.
            self._scheduler.dismiss(info.id)
            session.inbox.moved()
        elif worker.status is not session.told and session.tells == tells:
            self._scheduler.tell(session, worker.status)
