"""Takes a topology down from outside: through its supervisor or, when that is gone, without it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from itertools import groupby

from jobqueue.core.errors import JobQueueError
from jobqueue.topology.supervisor import folders, identity, state
from jobqueue.topology.supervisor.keeper import Row
from jobqueue.topology.supervisor.state import State

_TICK = 0.05
_KILLED_WITHIN = 10.0


def take_down(found: State, environ: Mapping[str, str], timeout: float) -> list[str]:
    """End all of it within the time; returns the names of those that had to be killed."""
    deadline = time.monotonic() + timeout
    killed = []
    identity.send(found.pid, found.began)
    if not _wait(lambda: not found.supervised, deadline):
        # Before its processes, or it would start them again.
        identity.send(found.pid, found.began, signal.SIGKILL)
        _wait(lambda: not found.supervised, time.monotonic() + _KILLED_WITHIN)
        killed.append("supervisor")
    with contextlib.suppress(JobQueueError):
        found = state.read(found.folder)  # what it wrote last, unless it ended in order
    killed += _end(found.living, deadline)
    folders.forget(environ, found.folder)
    return killed


def _end(rows: list[Row], deadline: float) -> list[str]:
    """End processes that nobody supervises, in the order of a stop."""
    killed = []
    rows = sorted(rows, key=lambda row: row.stage, reverse=True)
    for _, group in groupby(rows, key=lambda row: row.stage):
        stage = list(group)
        for row in stage:
            identity.send(row.pid, row.began, row.stop_signal)
        _wait_for(stage, deadline)
        for row in filter(_runs, stage):
            identity.send(row.pid, row.began, signal.SIGKILL)
            killed.append(row.name)
        _wait_for(stage, time.monotonic() + _KILLED_WITHIN)
    return killed


def _runs(row: Row) -> bool:
    return identity.is_running(row.pid, row.began)


def _wait_for(rows: list[Row], deadline: float) -> None:
    _wait(lambda: not any(map(_runs, rows)), deadline)


def _wait(done: Callable[[], bool], deadline: float) -> bool:
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK)
    return True
