"""Handlers that a process imports."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from jobqueue.tasks.context import Abort, Context, RetryLater


@dataclass
class Point:
    x: int
    y: int


def add(a: int, b: int) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


async def swap(point: Point, ctx: Context) -> Point:
    await asyncio.sleep(0)
    assert ctx.job_id.startswith("job-")
    return Point(point.y, point.x)


def spin() -> None:
    while True:
        pass


def spin_with_child(pid_file: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(pid_file).write_text(str(child.pid))
    spin()


def wait_for_cancel(ctx: Context) -> str:
    ctx.progress(0.5, "waiting")
    while not ctx.cancelled:
        time.sleep(0.005)
    return "stopped"


def count_and_wait(ctx: Context) -> str:
    for n in range(1, 20_001):
        ctx.progress(n / 20_000, f"step {n}")
    while not ctx.cancelled:
        time.sleep(0.005)
    return "stopped"


async def report_in_a_loop_of_its_own(ctx: Context) -> str:
    ctx.progress(None, "no loop of the worker's")
    while not ctx.cancelled:
        await asyncio.sleep(0.005)
    return "stopped"


def report_nonsense(ctx: Context) -> None:
    ctx.progress(40)


def crash() -> None:
    os._exit(7)


def boom() -> None:
    raise ValueError("no luck")


def later() -> None:
    raise RetryLater(12.5, "busy")


class Passing(Exception):
    """Worth another attempt."""


class Final(Passing):
    """Not worth one."""


def throw(error: str) -> None:
    """Raise an error by its name."""
    known = (Passing, Final, FileNotFoundError, ValueError, Abort)
    if error == "RetryLater":
        raise RetryLater(12.5)
    raise {kind.__name__: kind for kind in known}[error]("thrown")


def never() -> None:
    raise Abort("hopeless")


def chatter() -> str:
    print("on stdout")
    print("on stderr", file=sys.stderr)
    return "ok"


def large(size: int) -> str:
    return "x" * size


class Decorated:
    """What a decorator leaves in a handler's place: the definition is on it, not in it."""

    def __init__(self, definition: object) -> None:
        self.definition = definition


SEEN: contextvars.ContextVar[str | None] = contextvars.ContextVar("seen", default=None)


def look_and_leave() -> str | None:
    """What is in a variable of the context; leaves something there."""
    found = SEEN.get()
    SEEN.set("of another job")
    return found
