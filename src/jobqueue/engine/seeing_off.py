"""What a server that stops does for its workers.

A worker that stops at the same time, or is drained, reports its jobs here: there may be no other
server to report to. A worker that goes on working is sent to another server, where it gets jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from jobqueue.engine.scheduler import Scheduler

_log = logging.getLogger("jobqueue.engine")
# A worker that is stopped together with the server withdraws its slots within this time.
_HEAR_OUT = 1.0
_LOOK = 0.02


async def see_off(scheduler: Scheduler, connected: Callable[[str], bool], within: float) -> None:
    """Assign nothing more, and wait for the workers that have jobs to report.

    ``connected`` says by its id whether a worker can still report here.
    """
    scheduler.assign_no_more()
    began = last_busy = time.monotonic()
    told = False
    while True:
        now = time.monotonic()
        busy: list[str] = []
        leaving = False
        for session in scheduler.sessions.all():
            if not connected(session.info.id):
                continue
            holds = bool(session.held or session.promised)
            if holds and (session.drained or now < began + _HEAR_OUT):
                busy.append(session.info.id)
                last_busy = now
            elif session.drained and session.open and now < last_busy + _HEAR_OUT:
                leaving = True  # it has reported everything and is about to deregister
            else:
                session.inbox.moved()
        if not busy and not leaving:
            return
        if now >= began + within:
            if busy:
                _log.warning(
                    "%d workers did not finish their jobs in time; the jobs will be reclaimed",
                    len(busy),
                    extra={"workers": busy},
                )
            return
        if busy and not told:
            told = True
            _log.info(
                "waiting up to %.1f s for %d workers that hold jobs",
                within,
                len(busy),
                extra={"workers": busy},
            )
        await asyncio.sleep(_LOOK)
