"""Servers that accept connections and never answer: their processes are stopped for a while."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def hung(pid: int | None) -> Iterator[None]:
    """Stop a process and its children, the parent first so that it starts no more of them."""
    assert pid is not None
    stopped = [pid]
    os.kill(pid, signal.SIGSTOP)
    try:
        for child in _children(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)
                stopped.append(child)
        yield
    finally:
        for one in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in found.split()]
