"""Ports for tests: each test process has a range of its own.

A port that a test finds by binding port 0 and closing it may be taken by the time it is used: by
another test process that looks at the same moment, or by the kernel for an outgoing connection.
So a process claims a range outside the kernel's own and hands out its ports one after the other.
The first port of the range stays bound as long as the process lives: that is the claim. Other runs
on this machine see it and take other ranges, and the kernel gives it back when the process ends.

A server that may choose for itself is told port 0 and keeps what it gets; it needs none of this.
"""

from __future__ import annotations

import atexit
import os
import socket
from itertools import count
from pathlib import Path

from jobqueue.fleet.ports import is_free

SIZE = 100  # ports of one process
# `jq-ctl up` and private servers choose theirs from 20,000 on (jobqueue.fleet.ports).
_LOWEST, _OURS, _HIGHEST = 2_000, range(10_000, 20_000), 65_535
_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Range:
    """The ports that belong to this process until it ends."""

    def __init__(self, ports: range, guard: socket.socket) -> None:
        self.ports = ports
        self._guard = guard
        self._next = count()

    @classmethod
    def claim(cls, among: range) -> Range:
        """The first range that no other process has claimed."""
        for first in range(among.start, among.stop - SIZE + 1, SIZE):
            guard = socket.socket()
            try:
                guard.bind(("127.0.0.1", first))  # without SO_REUSEADDR: only one process can
            except OSError:
                guard.close()
                continue
            atexit.register(guard.close)
            return cls(range(first + 1, first + SIZE), guard)
        raise OSError(f"all ranges of ports from {among.start} to {among.stop} are claimed")

    def take(self, row: int = 1) -> int:
        """The first of so many adjacent ports on which nobody listens.

        A port comes up again only after all others of the range.
        """
        for _ in self.ports:
            at = next(self._next) % len(self.ports)
            chosen = self.ports[at : at + row]
            if len(chosen) == row and all(map(is_free, chosen)):
                for _ in chosen[1:]:
                    next(self._next)
                return chosen[0]
        raise OSError(f"no {row} adjacent ports of {self.ports} are free")


def outside(low: int, high: int) -> range:
    """Ports that the kernel, which has those from low to high, does not give to connections."""
    below = range(_OURS.start, min(low, _OURS.stop))
    lowest = range(_LOWEST, min(low, _OURS.start))
    above = range(max(high + 1, _OURS.stop), _HIGHEST + 1)
    found = max((below, lowest, above), key=len)
    # A kernel that takes all ports leaves nothing outside: the claim still keeps tests apart.
    return found if len(found) >= SIZE else _OURS


def _kernel_range() -> tuple[int, int]:
    try:
        low, high = map(int, _KERNEL.read_text().split())
    except FileNotFoundError:  # not Linux
        return 32_768, _HIGHEST
    return low, high


_claimed: dict[int, Range] = {}  # by process: one that was forked claims its own


def mine() -> Range:
    """The range of this process."""
    found = _claimed.get(os.getpid())
    if found is None:
        found = _claimed[os.getpid()] = Range.claim(outside(*_kernel_range()))
    return found


def take(row: int = 1) -> int:
    """A port of this process (the first of a row of them) on which nobody listens."""
    return mine().take(row)
