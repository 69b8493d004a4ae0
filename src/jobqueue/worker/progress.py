"""What handlers say of their progress, on its way to the next heartbeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping

from jobqueue.core.progress import Progress


class ProgressNews:
    """The latest word of each attempt that no heartbeat has told. Usable from any thread.

    Each step on the dictionary is one that no other thread can come between.
    """

    def __init__(self) -> None:
        self._latest: dict[int, Progress] = {}  # by lease

    def add(self, lease: int, progress: Progress) -> None:
        """An attempt has come further."""
        self._latest[lease] = progress

    def take(self, held: Container[int]) -> dict[int, Progress]:
        """What is new of attempts that are held. What others said is dropped."""
        taken: dict[int, Progress] = {}
        for lease in list(self._latest):
            progress = self._latest.pop(lease)  # only the heartbeat's thread removes any
            if lease in held:
                taken[lease] = progress
        return taken

    def give_back(self, taken: Mapping[int, Progress]) -> None:
        """The heartbeat failed: what is not outdated by now has to be told again."""
        for lease, progress in taken.items():
            self._latest.setdefault(lease, progress)


class Throttle:
    """Passes on the latest of many words, with a pause between two. The last one is never lost."""

    def __init__(self, pause: float, pass_on: Callable[[Progress], None]) -> None:
        self._pause = pause
        self._pass_on = pass_on
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._waiting: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Pass it on now, or when the pause is over unless a later one comes."""
        with self._lock:
            later, self._waiting = self._waiting is not None, progress
            if later:
                return
            left = self._free_at - time.monotonic()
        if left <= 0:
            self._release()
            return
        timer = threading.Timer(left, self._release)
        timer.daemon = True
        timer.start()

    def _release(self) -> None:
        with self._lock:
            progress, self._waiting = self._waiting, None
            self._free_at = time.monotonic() + self._pause
        if progress is not None:
            self._pass_on(progress)
