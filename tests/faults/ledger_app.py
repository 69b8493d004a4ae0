"""The application that the servers under fault run: each attempt leaves a line outside."""

from __future__ import annotations

import asyncio
import os

from jobqueue import Context, JobQueue

app = JobQueue("memory://")


def note(ctx: Context) -> None:
    """Append one line, in one write, before anything else happens."""
    line = f"{ctx.job_id} {ctx.attempt}\n".encode()
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(ledger, line)
    finally:
        os.close(ledger)


@app.task(name="short")
async def short(number: int, ctx: Context) -> int:
    note(ctx)
    await asyncio.sleep(0.005 * (number % 4))
    return number


@app.task(name="first-attempt-hangs")
async def first_attempt_hangs(number: int, ctx: Context) -> int:
    note(ctx)
    if ctx.attempt == 1:
        await asyncio.sleep(3)
    return ctx.attempt


@app.task(name="half-a-second")
async def half_a_second(number: int, ctx: Context) -> int:
    note(ctx)
    await asyncio.sleep(0.5)
    return number
