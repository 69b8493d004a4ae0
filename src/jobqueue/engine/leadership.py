"""Elect the leader: the server that sets silent workers OFFLINE and removes old jobs.

One task takes or renews the lead every third of its time to live. A standby tries more often, so
that the system is not without a leader for long. Between two renewals the server assumes that its
term is in force, but the store decides: it checks the term in the transaction of all fenced work.
After any error the server steps down: it does no fenced work until it has renewed the lead.

Only decisions that one server must make are fenced: to set silent workers OFFLINE, to fail over
their jobs, to remove old jobs and to delete workers' records. Every server makes the transitions
that are due (``Upkeep.due``), so that a retry is on time even while there is no leader. The version
of the job fences such a transition: if two servers try to make it, only one succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from jobqueue.core.errors import JobQueueError
from jobqueue.core.ids import new_lease
from jobqueue.core.observer import Observer
from jobqueue.core.store import LeaderStore, Term
from jobqueue.core.waiting import is_set_within

_log = logging.getLogger("jobqueue.engine.leadership")
_PAUSE = 0.05  # after a nudge, so that many nudges cause one try
_LAST_ANSWER = 2.0
_STANDBY_LOOK = 0.5  # seconds between two tries of a standby
_SETTLE = 0.2  # before the first try: a short script that submits a job saves two writes


class Leadership:
    """Takes the lead for this server, renews it and gives it up."""

    def __init__(
        self,
        store: LeaderStore,
        ttl: float,
        failed: Callable[[], None],
        gives_way: Callable[[], Awaitable[bool]] | None = None,
        *,
        name: str = "",
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._failed = failed  # is called when the store did not answer
        # Is called once in each time to live. If it returns True, this server gives up the lead for
        # one time to live. If a better suited server runs, that server takes the lead and keeps it.
        self._gives_way = gives_way
        self._name = name
        self._observer = observer or Observer()
        self._since = 0.0
        self._yielding = False
        self._holder = new_lease()
        self._term: Term | None = None
        self._until = 0.0  # the end of the term, by the monotonic clock
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def term(self) -> Term | None:
        """Return this server's term, or None if another server leads or may lead."""
        return self._term if time.monotonic() < self._until else None

    def start(self) -> None:
        self._observer.leading(None)
        self._task = asyncio.create_task(self._run(), name="jobqueue-leadership")

    async def stop(self) -> None:
        """Stop and give up the lead, so that another server can take it at once."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping = True
        self._wake.set()
        # A try in progress may succeed: then its lead must be given up, too.
        await asyncio.wait([task], timeout=_LAST_ANSWER)
        task.cancel()
        await asyncio.wait([task])
        term = self._term
        self.step_down()
        if term is not None:
            try:
                await self._store.resign(term)
            except JobQueueError as error:
                _log.warning(
                    "cannot give up the lead: %s; another server can take it in at most %g s",
                    error,
                    self._ttl,
                )

    def step_down(self) -> None:
        """Prevent fenced work of this server until it has renewed the lead."""
        self._until = 0.0
        self._observer.leading(None)

    def nudge(self) -> None:
        """Try to take the lead now, because the leader may have resigned."""
        if self.term is None and not self._yielding:
            self._wake.set()

    async def _run(self) -> None:
        failing = False
        await self._rest(min(_SETTLE, self._ttl / 50))
        while not self._stopping:
            self._wake.clear()
            try:
                await self._stand()
                failing = False
                if await self._gave_way():
                    self._yielding = True
                    await self._rest(self._ttl)
                    self._yielding = False
                    continue
            except JobQueueError as error:
                self.step_down()
                self._failed()
                if not failing:
                    _log.warning(
                        "cannot take or renew the lead: %s; trying again; this server does not"
                        " lead until that succeeds",
                        error,
                    )
                failing = True
            except Exception:
                self.step_down()
                self._failed()
                _log.exception("taking or renewing the lead failed; trying again")
            await self._rest(self._ttl / 3 if self.term else min(self._ttl / 3, _STANDBY_LOOK))

    async def _gave_way(self) -> bool:
        term = self.term
        if self._gives_way is None or term is None or time.monotonic() - self._since < self._ttl:
            return False
        if not await self._gives_way():
            self._since = time.monotonic()
            return False
        self.step_down()
        self._term = None
        await self._store.resign(term)
        return True

    async def _rest(self, seconds: float) -> None:
        if await is_set_within(self._wake, seconds) and not self._stopping:
            await asyncio.sleep(min(_PAUSE, self._ttl / 100))

    async def _stand(self) -> None:
        asked = time.monotonic()
        before = self._term
        term = await self._store.lead(self._holder, self._ttl, self._name)
        if term is None:
            if before is not None:
                _log.warning("another server leads now; this one stands by")
            self._term = None
            self.step_down()
            return
        self._term = term
        if term != before:
            self._since = asked
            _log.info("this server leads", extra={"epoch": term.epoch})
        self._until = asked + self._ttl
        self._observer.leading(term.epoch)
