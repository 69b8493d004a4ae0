"""The scenarios' tasks, an app for jq-worker. It imports nothing that would weigh on a worker."""

from __future__ import annotations

import time

from jobqueue import JobQueue

app = JobQueue("memory://")


@app.task
async def noop(n: int) -> int:
    """Do nothing."""
    return n


@app.task
async def note(at: float) -> float:
    """Return the time since the submit. All processes of a machine share the clock."""
    return time.perf_counter() - at
