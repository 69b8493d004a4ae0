"""The tasks of the benchmarks, as an app for jq-worker: ``--app bench.tasks:app``."""

from __future__ import annotations

import asyncio
import time

from jobqueue import JobQueue

app = JobQueue("memory://")


@app.task
async def noop(n: int) -> int:
    return n


@app.task
async def note(at: float) -> float:
    """How long it took to come here. The clock is one for all processes of a machine."""
    return time.perf_counter() - at


@app.task
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)
