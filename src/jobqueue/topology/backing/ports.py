"""Free ports of 127.0.0.1."""

from __future__ import annotations

import atexit
import os
import random
import socket
from collections import deque

# Below the range from which systems take the near ends of outgoing connections (from 32768 on
# Linux): so nobody's connection sits on the port while its server is being restarted.
_RANGE = range(20_000, 32_000)

# Between the choice of a port and the start of its server nobody listens there. A UDP socket of
# the same number marks the port meanwhile, so that other processes that choose one leave it out.
# The bound is for a process that chooses ports all day: its oldest servers have long started.
_MARKS: deque[socket.socket] = deque(maxlen=128)


def is_free(port: int) -> bool:
    """Whether a server could listen there now. Connections that linger do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port on which nobody listens, and which no other process has just chosen here."""
    for port in random.sample(_RANGE, len(_RANGE)):
        if is_free(port) and _mark(port):
            return port
    raise OSError(f"no port of 127.0.0.1 between {_RANGE.start} and {_RANGE.stop} is free")


def _mark(port: int) -> bool:
    mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        mark.bind(("127.0.0.1", port))
    except OSError:
        mark.close()
        return False
    if len(_MARKS) == _MARKS.maxlen:
        _MARKS.popleft().close()
    _MARKS.append(mark)
    return True


def _unmark() -> None:
    while _MARKS:
        _MARKS.popleft().close()


atexit.register(_unmark)
os.register_at_fork(after_in_child=_unmark)  # the parent keeps its marks
