"""The application that the servers under fault run: each attempt leaves a line outside."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

from jobqueue import Breaker, Context, JobQueue

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


@app.task(name="fails", breaker=Breaker(failures=1, pause=3_600))
async def fails(ctx: Context) -> None:
    """Pauses at its first failure, for as long as any test runs."""
    note(ctx)
    raise ConnectionError("nobody answers")


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


def die(how: str) -> None:
    """End the whole process: at once, or as a fault in native code does."""
    if how == "exit":
        os._exit(1)
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(name="fatal-thread")
def fatal_thread(how: str, ctx: Context) -> None:
    note(ctx)
    die(how)


@app.task(name="fatal-async")
async def fatal_async(how: str, ctx: Context) -> None:
    note(ctx)
    die(how)


@app.task(name="healthy-thread")
def healthy_thread(ctx: Context) -> str:
    note(ctx)
    time.sleep(0.5)
    return "well"


@app.task(name="healthy-async")
async def healthy_async(ctx: Context) -> str:
    note(ctx)
    await asyncio.sleep(0.5)
    return "well"


@app.task(name="never-returns")
def never_returns(ctx: Context) -> None:
    note(ctx)
    threading.Event().wait()


@app.task(name="until-released")
async def until_released(number: int, ctx: Context) -> int:
    """Ends once there is a file ``released`` beside the ledger."""
    note(ctx)
    while not Path(os.environ["LEDGER"]).with_name("released").exists():
        await asyncio.sleep(0.01)
    return number
