"""What a fork of the process does to what is open in it.

No connection survives a fork. gRPC's threads are missing in the child; SQLite counts its locks per
process, so that a child with an inherited file would write into a log that the parent removes. The
blocking client therefore closes what it has opened before a fork, and parent and child open their
own when they need it. What cannot be closed then is refused in the child: see ``Home.after_fork``.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  see register_at_fork below
import gc
import logging  # noqa: F401  see register_at_fork below
import os
import threading
import weakref
from typing import Protocol

# A fork does not wait any longer for calls that are under way in other threads.
PATIENCE = 3.0


class Forkable(Protocol):
    """Something open that has to know of forks."""

    def before_fork(self) -> bool:
        """Under the lock: close what can be closed; True if there was something."""
        ...

    def after_fork(self) -> None:
        """In the child: forget what the parent has open, without touching it."""
        ...


class _Forks:
    def __init__(self) -> None:
        # Calls of the blocking client begin under this lock: none begins during a fork. A thread
        # may come back to it: a signal handler and the garbage collector run at any line, and what
        # they call may be a call of the blocking client, or a fork.
        self.lock = threading.RLock()
        self._members: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._last: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._under_way = _UnderWay()

    def join(self, member: Forkable, *, last: bool = False) -> None:
        """Tell a member of every fork, as long as it lives; ``last``: after the others."""
        (self._last if last else self._members).add(member)

    def before(self) -> None:
        # Not for ever: the holder may wait for this very thread.
        held = self.lock.acquire(timeout=PATIENCE)
        self._under_way.held.append(held)
        if not held:
            return
        closed = [member.before_fork() for member in list(self._members)]
        if any(closed):
            gc.collect()  # gRPC's threads end with the last object that is part of a channel
        for member in list(self._last):
            member.before_fork()

    def in_parent(self) -> None:
        if self._under_way.held and self._under_way.held.pop():
            self.lock.release()

    def in_child(self) -> None:
        self.lock = threading.RLock()
        self._under_way = _UnderWay()
        for member in (*self._members, *self._last):
            member.after_fork()


class _UnderWay(threading.local):
    """The forks of a thread that have begun: for each, whether it got the lock."""

    def __init__(self) -> None:
        self.held: list[bool] = []


FORKS = _Forks()
# Hooks before a fork run last to first, and those of thread pools and of logging take locks that
# closing needs: these modules are imported above, so that ours runs before theirs.
os.register_at_fork(
    before=FORKS.before, after_in_parent=FORKS.in_parent, after_in_child=FORKS.in_child
)
