"""Forks of the process: open connections are closed before, and opened anew after.

No connection survives a fork. gRPC's threads are missing in the child; SQLite counts its locks per
process, so that a child with an inherited file would write into a log that the parent removes. The
blocking client therefore closes its connections before a fork, and parent and child open their own
when they need them. Connections that could not be closed then are refused in the child: see
``SharedBackend.after_fork``.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  see register_at_fork below
import gc
import logging  # noqa: F401  see register_at_fork below
import os
import threading
import weakref
from typing import Protocol

# The longest wait of a fork for calls that are under way in other threads.
PATIENCE = 3.0


class Forkable(Protocol):
    """An open thing that is told of forks."""

    def before_fork(self) -> bool:
        """Close the connections that can be closed, under the lock; True if there was one."""

    def after_fork(self) -> None:
        """Forget the parent's connections, in the child, without touching them."""


class _Forks:
    def __init__(self) -> None:
        # Calls of the blocking client begin under this lock, so that none begins during a fork.
        # It is reentrant: a signal handler and the garbage collector run at any line, and may call
        # the blocking client, or fork.
        self.lock = threading.RLock()
        self._members: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._last: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._under_way = _UnderWay()

    def join(self, member: Forkable, *, last: bool = False) -> None:
        """Tell a member of every fork as long as it lives; with ``last``, after the others."""
        (self._last if last else self._members).add(member)

    def before(self) -> None:
        # Not for ever: the holder may be waiting for this thread.
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
    """The forks that a thread has begun: for each, True if it got the lock."""

    def __init__(self) -> None:
        self.held: list[bool] = []


FORKS = _Forks()
# Hooks before a fork run last to first, and those of thread pools and of logging take locks that
# closing needs: these modules are imported above, so that ours runs before theirs.
os.register_at_fork(
    before=FORKS.before, after_in_parent=FORKS.in_parent, after_in_child=FORKS.in_child
)
