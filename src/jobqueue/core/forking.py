"""Close open connections before the process forks, because no connection survives a fork.

The child lacks gRPC's threads, and it lacks SQLite's file locks: the parent would not know that the
child uses the database, and could remove the log into which the child writes. The blocking client
therefore closes its connections before a fork. Parent and child open new connections later. If a
connection cannot be closed before the fork, the child refuses to use it: see
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
    """An owner of connections that ``FORKS`` calls before and after each fork."""

    def before_fork(self) -> bool:
        """Close the connections that can be closed; return True if any connection was closed.

        The caller holds ``FORKS.lock``.
        """

    def after_fork(self) -> None:
        """Drop the references to the parent's connections, without using or closing them.

        Only the child process calls this method.
        """


class _Forks:
    def __init__(self) -> None:
        # Calls of the blocking client begin under this lock, so that no call begins during a fork.
        # The lock is reentrant, because a signal handler or the garbage collector may run at any
        # line and may call the blocking client, or fork.
        self.lock = threading.RLock()
        self._members: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._last: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._under_way = _UnderWay()

    def join(self, member: Forkable, *, last: bool = False) -> None:
        """Call the member's hooks at every fork, until the member is garbage collected.

        With ``last``, the member is called after all members without ``last``.
        """
        (self._last if last else self._members).add(member)

    def before(self) -> None:
        # With a timeout, because the lock's holder may be waiting for this thread.
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
    """Holds, for each fork that a thread has begun, whether the fork acquired the lock."""

    def __init__(self) -> None:
        self.held: list[bool] = []


FORKS = _Forks()
# The hooks before a fork run last to first. The hooks of thread pools and of logging acquire locks
# that closing needs. Both modules are imported above, so that this hook runs before theirs.
os.register_at_fork(
    before=FORKS.before, after_in_parent=FORKS.in_parent, after_in_child=FORKS.in_child
)
