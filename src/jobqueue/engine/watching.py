"""Callers that wait for a job to change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

_PAUSE = 0.05  # other processes may end thousands of jobs a second; each look is a read


class Watchers:
    """Wakes whoever waits for a job, by its id."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._heard = False  # during the pause

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def enter(self, job_id: str) -> asyncio.Event:
        """Begin to wait; look at the job after this, so that nothing is missed."""
        event = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(event)
        return event

    def leave(self, job_id: str, event: asyncio.Event) -> None:
        """Stop waiting."""
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            waiting.discard(event)
            if not waiting:
                del self._waiting[job_id]

    def changed(self, job_ids: Iterable[str]) -> None:
        """These jobs changed."""
        for job_id in job_ids:
            for event in self._waiting.get(job_id, ()):
                event.set()

    def changed_elsewhere(self) -> None:
        """Any job may have changed, by another process. Wakes at once, then after a pause."""
        if self._pause is not None:
            self._heard = True
        elif self._waiting:
            self._pause = asyncio.get_running_loop().call_later(_PAUSE, self._resume)
            self.wake_all()

    def _resume(self) -> None:
        self._pause = None
        if self._heard:
            self._heard = False
            self.changed_elsewhere()

    def close(self) -> None:
        """No more news: have everybody look for the last time."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self.wake_all()

    def wake_all(self) -> None:
        """Have everybody look."""
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()
