"""How much of the machine the relay takes.

Publishing a job's events costs about as much as running a job that does nothing. Where processors
are idle, that is nobody's loss. Where they are not, and jobs are being worked on, jobs come first:
the stream falls behind, and catches up when there is room. If there is none for long, it takes its
share all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CROWDED = 1.3  # times the processor time
_JOBS_FIRST = 4.0  # times what the relay took, for others
_LONGEST = 0.5  # seconds at once
_PATIENCE = 30.0  # seconds since the stream had everything


class Pace:
    """Measured by stretches of work in which nothing is waited for.

    One that took longer than its processor time had to wait for a processor.
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
        """The stream has everything, or almost."""
        self._complete_at = self._clock()

    @contextmanager
    def stretch(self) -> Iterator[None]:
        """Work without a break."""
        began, before = self._clock(), self._processor()
        yield
        self._took += self._clock() - began
        self._worked += self._processor() - before

    def rest(self, page: float) -> float:
        """How long to leave the machine to others, after a page that took so many seconds."""
        crowded = self._took > _CROWDED * self._worked
        self._took = self._worked = 0.0
        if not crowded or self._clock() > self._complete_at + _PATIENCE:
            return 0.0
        return min(_LONGEST, _JOBS_FIRST * page)
