"""The share of the processors that the relay takes.

Publishing a job's events costs about as much as running a job that does nothing. That harms no job
while processors are idle. When they are busy with jobs, the relay waits: the stream falls behind
and catches up later, or takes its share after half a minute all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CROWDED = 1.3  # duration of the work, in times of its processor time
_JOBS_FIRST = 4.0  # duration of a rest, in times of the work before it
_LONGEST = 0.5  # seconds of one rest
_PATIENCE = 30.0  # seconds since the stream had everything


class Pace:
    """Measures work without waits. If it exceeds its processor time, processors are busy."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._processor = processor
        self._took = self._worked = 0.0
        self._complete_at = clock()

    def caught_up(self) -> None:
        """Note that the stream has everything, or almost."""
        self._complete_at = self._clock()

    @contextmanager
    def stretch(self) -> Iterator[None]:
        """Measure the work in the block, which must not wait."""
        began, before = self._clock(), self._processor()
        yield
        self._took += self._clock() - began
        self._worked += self._processor() - before

    def rest(self, page: float) -> float:
        """Return the seconds to rest after a page that took so many seconds."""
        crowded = self._took > _CROWDED * self._worked
        self._took = self._worked = 0.0
        if not crowded or self._clock() > self._complete_at + _PATIENCE:
            return 0.0
        return min(_LONGEST, _JOBS_FIRST * page)
