"""Which of several servers on one store judges workers and removes old jobs.

One task takes the lead, or renews it, every third of its time to live; who stands by asks more
often, so that the lead is not without a holder for long. Between two renewals the
term is believed; the store decides all the same, since what is done under a term is fenced by it
in the same transaction. Whatever goes wrong steps down: no term, no fenced work, until the lead
is renewed.

Only what must be decided by one is guarded: judging silent workers with the fail-over of their
jobs, retention, and forgetting workers. Moves that are due (``Store.due``) are made by every
server: each is fenced by the version of its job, so that the second one to try changes nothing,
and a retry that this server scheduled is made on time although the leader is away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from jobqueue.core.errors import JobQueueError
from jobqueue.core.ids import new_lease
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.store import Store, Term
from jobqueue.core.waiting import is_set_within

_log = logging.getLogger("jobqueue.engine.leadership")
_PAUSE = 0.05  # many nudges are one question
_LAST_ANSWER = 2.0
_STANDBY_LOOK = 0.5  # so soon after a term ran out somebody else has the lead
_SETTLE = 0.2  # a script that submits a job and ends need not lead: it saves two writes


class Leadership:
    """Holds the lead as long as it can."""

    def __init__(
        self,
        store: Store,
        ttl: float,
        failed: Callable[[], None],
        gives_way: Callable[[], Awaitable[bool]] | None = None,
        *,
        name: str = "",
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._failed = failed  # called when the store did not answer
        # Whether somebody else should rather lead: asked once in each time to live. Then the lead
        # is given up for as long; whoever is better suited, if there is anybody, takes it and
        # keeps it.
        self._gives_way = gives_way
        self._name = name
        self._observer = observer or Deaf()
        self._since = 0.0
        self._yielding = False
        self._holder = new_lease()
        self._term: Term | None = None
        self._until = 0.0  # by our monotonic clock, from before the store was asked
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def term(self) -> Term | None:
        """The term to work under, or None: somebody else leads, or it is not certain."""
        return self._term if time.monotonic() < self._until else None

    def start(self) -> None:
        """Begin to stand for the lead."""
        self._observer.leading(None)
        self._task = asyncio.create_task(self._run(), name="jobqueue-leadership")

    async def stop(self) -> None:
        """Resign, so that another server need not wait for the term to run out."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping = True
        self._wake.set()
        # What is being asked may be granted: then it must be given back, too.
        await asyncio.wait([task], timeout=_LAST_ANSWER)
        task.cancel()
        await asyncio.wait([task])
        term = self._term
        self.step_down()
        if term is not None:
            try:
                await self._store.resign(term)
            except JobQueueError as error:
                _log.warning("the lead could not be given up, it runs out instead: %s", error)

    def step_down(self) -> None:
        """Do nothing more under this term; it must be renewed first."""
        self._until = 0.0
        self._observer.leading(None)

    def nudge(self) -> None:
        """Somebody may have resigned: ask now."""
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
                    _log.warning("the lead cannot be taken or renewed: %s", error)
                failing = True
            except Exception:
                self.step_down()
                self._failed()
                _log.exception("taking the lead failed")
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
                _log.warning("another server leads now")
            self._term = None
            self.step_down()
            return
        self._term = term
        if term != before:
            self._since = asked
            _log.info("this server leads", extra={"epoch": term.epoch})
        self._until = asked + self._ttl
        self._observer.leading(term.epoch)
