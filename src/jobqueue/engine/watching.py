"""Callers that wait for a job to change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from itertools import islice

from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.job import Outcome
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.core.store import ANY_VERSION, Store
from jobqueue.core.waiting import is_set_within

_log = logging.getLogger("jobqueue.engine.watching")
_SAFETY_NET = 1.0  # how long a watcher trusts that it will be told
_PAUSE = 0.005  # between two looks: other processes may end thousands of jobs a second
_SHARE = 4  # after a look it rests so many times as long as the look took
_AT_ONCE = 1_000  # jobs in one question to the store
_STOPPED = "shutting down"


class Watcher:
    """One caller that waits for one job.

    Calls ``begin``, reads the job, and calls ``wait``, which ends at what happens after ``begin``.
    """

    __slots__ = (
        "_changed",
        "_failure",
        "_news",
        "_watchers",
        "every_move",
        "job_id",
        "seq",
        "version",
    )

    def __init__(self, watchers: Watchers, job_id: str, every_move: bool) -> None:
        self.job_id = job_id
        self.every_move = every_move  # else only the end of the job counts
        self.seq = 0  # of the job that it waits for now; 0: it does not wait
        self.version = ANY_VERSION
        self._watchers = watchers
        self._news = 0
        self._changed = asyncio.Event()
        self._failure = ""

    def begin(self) -> None:
        """The job is about to be read."""
        self._changed.clear()
        self._news = self._watchers.news

    async def wait(self, seq: int, version: int, seconds: float | None = None) -> None:
        """Wait until the job has moved on since it was read, for ``seconds`` at most.

        Raises Unavailable when the store cannot be asked about it.
        """
        self._watchers.expect(self._news)
        self.seq, self.version = seq, version if self.every_move else ANY_VERSION
        try:
            if seconds is None:
                await self._changed.wait()
            else:
                await is_set_within(self._changed, seconds)
        finally:
            self.seq = 0
        if self._failure:
            raise Unavailable(self._failure)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits and nothing has been told to it yet."""
        return self.seq != 0 and not self._changed.is_set()

    def wake(self) -> None:
        """The job has moved on."""
        self._changed.set()

    def fail(self, why: str) -> None:
        """Nobody knows whether the job moves on."""
        if self.is_waiting:
            self._failure = why
            self._changed.set()


class Watchers:
    """Wakes those who wait for jobs.

    What this engine writes is told at once. What other processes write is found by one task, which
    asks the store for all of the jobs together: when another process said that it changed
    something, and after a second without a word. While nobody waits it asks nothing.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_job: dict[str, set[Watcher]] = {}
        self._awaited = asyncio.Event()  # somebody waits, or did so at the last look
        self._heard = asyncio.Event()  # another process may have changed something
        self.news = 0  # how often that was heard
        self._stopped = False
        self._task: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._by_job)

    def start(self) -> None:
        """Begin to look."""
        self._stopped = False
        self._task = asyncio.create_task(self._run(), name="jobqueue-watching")

    async def stop(self) -> None:
        """End. Whoever still waits is told so."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        _fail(self._by_job.values(), _STOPPED)

    def enter(self, job_id: str, *, every_move: bool = False) -> Watcher:
        """Hear of the end of a job, or of its every move."""
        watcher = Watcher(self, job_id, every_move)
        self._by_job.setdefault(job_id, set()).add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Hear no more."""
        watchers = self._by_job[watcher.job_id]
        watchers.discard(watcher)
        if not watchers:
            del self._by_job[watcher.job_id]

    def expect(self, news: int) -> None:
        """Somebody begins to wait, who had heard of the first ``news`` when it read its job."""
        if self._stopped:
            raise Unavailable(_STOPPED)
        self._awaited.set()
        if news != self.news:
            self._heard.set()

    def written(self, outcomes: Iterable[Outcome]) -> None:
        """This engine moved these jobs."""
        for outcome in outcomes:
            watchers = self._by_job.get(outcome.job_id)
            if watchers is not None:
                is_over = outcome.state is None or outcome.state in TERMINAL
                for watcher in watchers:
                    if is_over or watcher.every_move:
                        watcher.wake()

    def changed_elsewhere(self) -> None:
        """Any job may have changed, by another process."""
        self.news += 1
        if self._awaited.is_set():
            self._heard.set()

    async def _run(self) -> None:
        while True:
            await self._awaited.wait()
            await is_set_within(self._heard, _SAFETY_NET)
            self._heard.clear()
            began = time.monotonic()
            await self._look()
            took = time.monotonic() - began
            await asyncio.sleep(min(_SAFETY_NET, max(_PAUSE, _SHARE * took)))

    async def _look(self) -> None:
        """Wake those whose jobs have moved on."""
        waiting: dict[int, list[Watcher]] = {}
        for watchers in self._by_job.values():
            for watcher in watchers:
                if watcher.is_waiting:
                    waiting.setdefault(watcher.seq, []).append(watcher)
        if not waiting:
            self._awaited.clear()
        jobs = iter(waiting.items())
        try:
            while part := dict(islice(jobs, _AT_ONCE)):
                seen = {seq: _seen(watchers) for seq, watchers in part.items()}
                for seq in await self._store.moved_on(seen):
                    for watcher in part[seq]:
                        watcher.wake()
        except JobQueueError as error:  # a store that is away is not asked for each part anew
            _fail(waiting.values(), error.message)
        except Exception as error:
            _log.exception("looking at the jobs that are waited for failed")
            _fail(waiting.values(), f"looking at the job failed: {error}")


def _fail(by_job: Iterable[Iterable[Watcher]], why: str) -> None:
    for watchers in by_job:
        for watcher in watchers:
            watcher.fail(why)


def _seen(watchers: list[Watcher]) -> int:
    """The version of a job below which all of its watchers have seen every move."""
    versions = [watcher.version for watcher in watchers if watcher.every_move]
    return min(versions, default=ANY_VERSION)
