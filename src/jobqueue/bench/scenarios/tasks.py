"""Define the scenarios' tasks for jq-worker. The module imports little, to keep workers small."""

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
    """Return the seconds since the submit at ``at``, by a clock that all processes share."""
    return time.perf_counter() - at
