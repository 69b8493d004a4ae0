"""Wake callers that wait for a job to change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.job import Outcome
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.core.store import ANY_VERSION, JobReads
from jobqueue.core.waiting import Background, is_set_within

_log = logging.getLogger("jobqueue.engine.watching")
_SAFETY_NET = 1.0  # the longest time between two reads
_PAUSE = 0.005  # between two reads: other processes may end thousands of jobs a second
_SHARE = 4  # the pause after a read, as a multiple of its duration
_AT_ONCE = 1_000  # jobs in one read
_STOPPED = "the engine is shutting down"


@dataclass(slots=True, eq=False)
class Watcher:
    """Represents a caller that waits for a job to change.

    The caller calls ``begin``, reads the job, and then calls ``wait``.
    """

    _watchers: Watchers
    job_id: str
    every_move: bool  # True: each transition ends the wait; False: only the end of the job does
    seq: int = 0  # the number of the job while the caller waits; else 0
    version: int = ANY_VERSION
    _news: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: str = ""

    def begin(self) -> None:
        """Begin to notice changes of the job. The caller must read the job after this call."""
        self._changed.clear()
        self._news = self._watchers.news

    async def wait(self, seq: int, version: int, seconds: float | None = None) -> None:
        """Wait until the job has changed since ``begin``, or for ``seconds``.

        ``seq`` and ``version`` are those of the job that the caller has read. Raise Unavailable if
        the store cannot be read.
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
        return self.seq != 0 and not self._changed.is_set()

    def wake(self) -> None:
        """End the wait, because the job has changed."""
        self._changed.set()

    def fail(self, why: str) -> None:
        """End the wait with the error ``why``, because the store cannot be read."""
        if self.is_waiting:
            self._failure = why
            self._changed.set()


class Watchers(Background):
    """Wakes callers that wait for jobs to change.

    A write of this engine wakes them at once. One task finds the writes of other processes: it
    reads all awaited jobs together, when another process reports a change and at least once a
    second. While no caller waits, this task reads nothing.
    """

    def __init__(self, reads: JobReads) -> None:
        self._reads = reads
        self._by_job: dict[str, set[Watcher]] = {}
        self._awaited = asyncio.Event()  # a caller waits, or waited at the last read
        self._heard = asyncio.Event()  # another process may have changed something
        self.news = 0  # the number of reports by other processes
        self._stopped = False

    def __bool__(self) -> bool:
        return bool(self._by_job)

    def start(self) -> None:
        self._stopped = False
        self._begin(self._run(), "watching")

    async def stop(self) -> None:
        """Stop the task. Callers that still wait get Unavailable."""
        self._stopped = True
        await super().stop()
        _fail(self._by_job.values(), _STOPPED)

    def enter(self, job_id: str, *, every_move: bool = False) -> Watcher:
        """Add a caller that waits for the end of a job.

        With ``every_move`` the caller waits for the job's next transition instead.
        """
        watcher = Watcher(self, job_id, every_move)
        self._by_job.setdefault(job_id, set()).add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        watchers = self._by_job[watcher.job_id]
        watchers.discard(watcher)
        if not watchers:
            del self._by_job[watcher.job_id]

    def expect(self, news: int) -> None:
        """Record that a caller begins to wait.

        ``news`` is the value of ``self.news`` from before the caller read its job. If the value
        has changed since, all awaited jobs are read again soon.
        """
        if self._stopped:
            raise Unavailable(_STOPPED)
        self._awaited.set()
        if news != self.news:
            self._heard.set()

    def written(self, outcomes: Iterable[Outcome]) -> None:
        """Wake the callers that wait for jobs that a write of this engine has changed."""
        for outcome in outcomes:
            watchers = self._by_job.get(outcome.job_id)
            if watchers is not None:
                is_over = outcome.state is None or outcome.state in TERMINAL
                for watcher in watchers:
                    if is_over or watcher.every_move:
                        watcher.wake()

    def changed_elsewhere(self) -> None:
        """Read the awaited jobs soon, because another process may have changed any job."""
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
                for seq in await self._reads.moved_on(seen):
                    for watcher in part[seq]:
                        watcher.wake()
        except JobQueueError as error:  # the other parts would wait for the same failing store
            _fail(waiting.values(), error.message)
        except Exception as error:
            _log.exception("reading the awaited jobs failed; their callers get an error")
            _fail(waiting.values(), f"reading the job failed: {error}")


def _fail(by_job: Iterable[Iterable[Watcher]], why: str) -> None:
    for watchers in by_job:
        for watcher in watchers:
            watcher.fail(why)


def _seen(watchers: list[Watcher]) -> int:
    """Return the lowest version of a job that a watcher of its transitions has seen.

    If all watchers wait for the end of the job, return ANY_VERSION.
    """
    versions = [watcher.version for watcher in watchers if watcher.every_move]
    return min(versions, default=ANY_VERSION)
