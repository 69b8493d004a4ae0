"""What other servers changed for the workers connected here."""

from __future__ import annotations

import asyncio
import logging

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.core.store import Store
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.sessions import Session

_log = logging.getLogger("jobqueue.engine.control")
_PAUSE = 0.05  # many words are one look
_AFTER_FAILURE = 1.0


class Control:
    """One task, one look at a time.

    An operator may drain a worker, or cancel its job, at any server; and a worker may have
    connected to another one before this one noticed. A word from the store makes us look. Where
    no word comes, the worker's next heartbeat brings the same.
    """

    def __init__(self, store: Store, scheduler: Scheduler) -> None:
        self._store = store
        self._scheduler = scheduler
        self._wake = asyncio.Event()
        self._told: frozenset[int] = frozenset()  # leases whose cancel was passed on
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="jobqueue-control")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def heard(self) -> None:
        """Something may have changed."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pause = _PAUSE
            try:
                await self.look()
            except JobQueueError as error:
                _log.debug("cannot look at the workers: %s", error)
                pause = _AFTER_FAILURE
                self._wake.set()
            except Exception:
                _log.exception("looking at the workers failed")
            await asyncio.sleep(pause)

    async def look(self) -> None:
        """Compare the sessions with what the store says."""
        sessions = self._scheduler.sessions.all()
        if not sessions:
            return
        # Before the store is asked: what is delivered or told meanwhile is not in its answer.
        tells = {session: session.tells for session in sessions}
        delivered = {lease: session for session in sessions for lease in session.held}
        workers = {worker.info.id: worker for worker in await self._store.workers()}
        held = await self._store.held()
        for session in sessions:
            if self._scheduler.sessions.get(session.info.id) is session:
                self._compare(session, workers.get(session.info.id), tells[session])
        flagged = {one.lease: one.worker_id for one in held if one.cancel_requested}
        for lease in flagged.keys() - self._told:
            session_or_none = self._scheduler.sessions.get(flagged[lease])
            if session_or_none is not None:
                session_or_none.inbox.cancel([lease])
        self._told = frozenset(flagged)
        for lease in delivered.keys() - {one.lease for one in held}:
            session = delivered[lease]
            if lease in session.held:  # it ended, and not by a report through this session
                self._scheduler.relieve(session, [lease])
                session.inbox.cancel([lease])

    def _compare(self, session: Session, worker: Worker | None, tells: int) -> None:
        info = session.info
        if worker is None or worker.status is WorkerStatus.OFFLINE:
            self._scheduler.dismiss(info.id)  # its next heartbeat says: register again
        elif worker.info.incarnation != info.incarnation:
            _log.warning("a worker was started anew elsewhere", extra={"worker_id": info.id})
            self._scheduler.dismiss(info.id)
            session.inbox.set_status(WorkerStatus.STOPPING)
        elif worker.info.link not in (info.link, 0):
            # Its jobs and slots are at the other server. If it does listen here after all (a
            # registration that arrived late there), it connects again.
            self._scheduler.dismiss(info.id)
            session.inbox.moved()
        elif worker.status is not session.told and session.tells == tells:
            self._scheduler.tell(session, worker.status)
