"""Task types that every worker knows."""

from __future__ import annotations

import asyncio
from typing import Any

from jobqueue.core.errors import InvalidArgument
from jobqueue.services import engine_job, simulation
from jobqueue.worker.context import Context
from jobqueue.worker.outcomes import PlainFailure
from jobqueue.worker.task import TaskDefinition, define

MAX_SIMULATED_BYTES = 16 * 1024 * 1024


async def echo(payload: bytes) -> bytes:
    """Return the payload as it is."""
    return payload


async def sleep(seconds: float = 1.0) -> dict[str, Any]:
    """Do nothing for a while; a cancel ends it at once."""
    if seconds < 0:
        raise InvalidArgument("seconds", f"must not be negative, got {seconds}")
    await asyncio.sleep(seconds)
    return {"slept": seconds}


async def fail(
    ctx: Context, message: str = "failed on purpose", times: int | None = None
) -> dict[str, Any]:
    """Fail the first ``times`` attempts, or every one."""
    if times is None or ctx.attempt <= times:
        raise RuntimeError(message)
    return {"attempts": ctx.attempt}


async def simulate(work_duration_ms: int = 0, payload_size_bytes: int = 0) -> dict[str, Any]:
    """Take that long and return that much."""
    if work_duration_ms < 0:
        raise InvalidArgument("work_duration_ms", f"must not be negative, got {work_duration_ms}")
    if not 0 <= payload_size_bytes <= MAX_SIMULATED_BYTES:
        raise InvalidArgument(
            "payload_size_bytes", f"must be 0 to {MAX_SIMULATED_BYTES}, got {payload_size_bytes}"
        )
    await asyncio.sleep(work_duration_ms / 1000)
    return {"work_duration_ms": work_duration_ms, "output": "x" * payload_size_bytes}


async def run_taskqueue_job(payload: bytes, ctx: Context) -> bytes:
    """Execute a job of ``taskqueue.v1`` as its own services do.

    A cancel does not interrupt it there, so it does not here: the job takes its time, and then it
    is cancelled. What ends the worker, or comes a second time, does.
    """
    work = asyncio.ensure_future(simulation.simulate(engine_job.to_spec(payload)))
    try:
        try:
            made = await asyncio.shield(work)
        except asyncio.CancelledError:
            if not ctx.cancelled or ctx.remaining() == 0.0:
                raise
            made = await work
    except simulation.WorkFailed as failure:
        raise PlainFailure(str(failure)) from None
    finally:
        work.cancel()
    return made.output


def definitions() -> list[TaskDefinition]:
    """The built-in tasks."""
    return [
        *(define(fn) for fn in (echo, sleep, fail, simulate)),
        define(run_taskqueue_job, name=engine_job.TYPE),
    ]
