"""Limit the processor time that the relay uses while jobs need the processors.

Publishing a job's events costs about as much processor time as running an empty job. While the
processors are busy with jobs, the relay rests after each page of changes, and the event stream
falls behind. The relay catches up when the processors are idle. If the stream has been behind for
30 seconds, the relay does not rest any more, so that the stream cannot fall behind for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CROWDED = 1.3  # processors are busy if work lasts this many times its processor time
_JOBS_FIRST = 4.0  # a rest lasts this many times the work before it
_LONGEST = 0.5  # the longest rest, in seconds
_PATIENCE = 30.0  # seconds behind, after which the relay does not rest


class Pace:
    """Computes the relay's rests from the duration and the processor time of its work.

    The measured work never waits. So if it lasts longer than its processor time, other work has
    used the processors meanwhile: they are busy.
    """

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
        """Note that the event stream has all changes, or nearly all."""
        self._complete_at = self._clock()

    @contextmanager
    def stretch(self) -> Iterator[None]:
        """Measure the work in the block, which must not wait."""
        began, before = self._clock(), self._processor()
        yield
        self._took += self._clock() - began
        self._worked += self._processor() - before

    def rest(self, page: float) -> float:
        """Return the seconds to rest after a page of changes that lasted ``page`` seconds."""
        crowded = self._took > _CROWDED * self._worked
        self._took = self._worked = 0.0
        if not crowded or self._clock() > self._complete_at + _PATIENCE:
            return 0.0
        return min(_LONGEST, _JOBS_FIRST * page)
