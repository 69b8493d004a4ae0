"""Provide the program of ``make demo``: it shows the features of a queue in one process.

The demo shows priorities, idempotency, backpressure, retries and dead letters. It ends when no job
is left.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from jobqueue import config
from jobqueue.cli.program import EXIT_CODES, VersionOption, examples, run_async, run_program
from jobqueue.core.api import Backend
from jobqueue.core.errors import Code, KeyConflict, QueueFull
from jobqueue.core.job import DEFAULT_QUEUE, JobQuery, JobSpec, SubmitStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueStats
from jobqueue.server.process import ServerProcess
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import define
from jobqueue.worker.registry import Registry

SEEDED = 15
FLOOD = 200
_TYPE = "order"
_EXHAUST = 1_000  # the number of failures of an order that must never succeed
app = typer.Typer(name="demo", rich_markup_mode="rich", pretty_exceptions_enable=False)


@dataclass(slots=True)
class DemoPace:
    """Holds the durations of the demo: long enough to watch, or short for a test."""

    work: tuple[float, float] = (0.05, 0.25)
    max_retries: int = 2
    refresh: float = 0.25
    line_every: float = 1.0
    limit: float = 120.0


FAST = DemoPace(work=(0.0, 0.01), max_retries=1, refresh=0.05, line_every=0.2, limit=30.0)


class Shop:
    """Executes the demo's jobs, and records which orders were started and retried."""

    def __init__(self) -> None:
        self.started: list[int] = []  # orders, in the order of their first attempts
        self.retried: list[int] = []  # orders that succeeded in a retry

    async def handle(
        self, ctx: Context, order: int, seconds: float, failures: int
    ) -> dict[str, int]:
        """Execute an order, and return its number and the number of attempts.

        Wait ``seconds`` first. Raise an error in the first ``failures`` attempts.
        """
        if ctx.attempt == 1:
            self.started.append(order)
        await asyncio.sleep(seconds)
        if ctx.attempt <= failures:
            raise RuntimeError(f"order {order}: payment service unreachable")
        if ctx.attempt > 1:
            self.retried.append(order)
        return {"order": order, "attempts": ctx.attempt}


@dataclass(slots=True)
class Demo:
    """Plays the demo: submits jobs to a backend, and prints what happens."""

    backend: Backend
    console: Console
    pace: DemoPace
    draw: random.Random
    shop: Shop
    orders: int = 0
    seeded: dict[int, int] = field(default_factory=dict)  # order: priority
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str = "") -> None:
        """Print a line to the console."""
        self.console.print(text, soft_wrap=True)

    def spec(
        self, priority: int = 0, key: str | None = None, failures: int | None = None
    ) -> JobSpec:
        """Return the spec of the next order.

        Without ``failures``, most orders succeed, some orders fail at first, and a few always fail.
        """
        self.orders += 1
        if failures is None:
            failures = self.draw.choices((0, 1, _EXHAUST), weights=(80, 14, 6))[0]
        body = {
            "order": self.orders,
            "seconds": round(self.draw.uniform(*self.pace.work), 3),
            "failures": failures,
        }
        return JobSpec(
            payload=json.dumps(body).encode(),
            type=_TYPE,
            priority=priority,
            max_retries=self.pace.max_retries,
            key=key,
        )

    async def seed(self) -> None:
        """Submit fifteen jobs with random priorities."""
        specs = [
            self.spec(priority=self.draw.randint(0, 9), failures=failures)
            for failures in (_EXHAUST, 1, *[None] * (SEEDED - 2))
        ]
        self.seeded = {order: spec.priority for order, spec in enumerate(specs, start=1)}
        for result in await self.backend.submit(specs):
            result.unwrap()
        priorities = " ".join(str(spec.priority) for spec in specs)
        self.say(f"[bold]1. Seeded {SEEDED} jobs[/bold] with priorities {priorities} (9 first)")

    async def show_idempotency(self) -> None:
        """Submit jobs with a key that was used before: an equal job, and a different job."""
        first = self.spec(key="order-42")
        other = self.spec(key="order-42")
        (accepted,) = await self.backend.submit([first])
        (again,) = await self.backend.submit([first])
        (refused,) = await self.backend.submit([other])
        self.say("[bold]2. Idempotency key[/bold] order-42")
        self.say(f"   first submit:          accepted as {accepted.unwrap()}")
        same = again.status is SubmitStatus.DUPLICATE and again.job_id == accepted.job_id
        self.say(f"   same job again:        {'rejected, it is that job' if same else '???'}")
        conflict = isinstance(refused.error, KeyConflict)
        self.say(f"   same key, other job:   {'rejected, the key is taken' if conflict else '???'}")

    async def flood(self) -> None:
        """Submit more jobs than the queue's capacity allows."""
        results = await self.backend.submit([self.spec() for _ in range(FLOOD)])
        refused = [r.error for r in results if isinstance(r.error, QueueFull)]
        self.say(f"[bold]3. Flood[/bold] of {FLOOD} jobs: {FLOOD - len(refused)} accepted,"
                 f" {len(refused)} refused by backpressure")  # fmt: skip
        if refused:
            self.say(f"   {refused[0].message}")

    async def drain(self) -> QueueStats:
        """Show the queue's figures until it has no unfinished jobs; return the last figures.

        Raise TimeoutError if the jobs take longer than the demo's limit.
        """
        self.say("[bold]4. Draining[/bold]")
        live = Live(console=self.console, auto_refresh=False, transient=True)
        next_line = 0.0
        with live if self.console.is_terminal else nullcontext():
            while True:
                stats = await self.backend.queue_stats(DEFAULT_QUEUE)
                now = time.monotonic()
                if self.console.is_terminal:
                    live.update(_table(stats, now - self.began), refresh=True)
                elif now >= next_line or not stats.unfinished:
                    self.say(_line(stats, now - self.began))
                    next_line = now + self.pace.line_every
                if not stats.unfinished:
                    return stats
                if now - self.began > self.pace.limit:
                    raise TimeoutError
                await asyncio.sleep(self.pace.refresh)

    async def sum_up(self, stats: QueueStats) -> None:
        """Print a summary of the ended jobs, the retries and the dead letters."""
        dead = await self.backend.list_jobs(JobQuery(states=(State.DEAD_LETTERED,), limit=1_000))
        seconds = time.monotonic() - self.began
        self.say(f"[bold]Drained[/bold] in {seconds:.1f} s: {stats.depth[State.DONE]} jobs done,"
                 f" {_retries(stats)} retries, {stats.depth[State.DEAD_LETTERED]} dead letters,"
                 f" {stats.error_rate:.0%} of attempts failed")  # fmt: skip
        order = " ".join(
            str(self.seeded[order]) for order in self.shop.started if order in self.seeded
        )
        self.say(f"   the seeded jobs started in the order of priority: {order}")
        helped = " ".join(str(order) for order in sorted(self.shop.retried))
        self.say(
            f"   {len(self.shop.retried)} jobs failed at first and were retried: orders {helped}"
        )
        for job in dead.jobs:
            error = job.error.split("\n")[0]
            self.say(f"   dead letter {job.id}: {error} ({job.reason}, {job.attempt} attempts)")


def _retries(stats: QueueStats) -> int:
    """Return the number of failed attempts that did not end their job."""
    return stats.failed - stats.depth.get(State.DEAD_LETTERED, 0) - stats.depth.get(State.FAILED, 0)


def _line(stats: QueueStats, seconds: float) -> str:
    depth = "  ".join(f"{state.name.lower()}={stats.depth.get(state, 0)}" for state in State)
    return f"   [{seconds:5.1f} s]  {depth}  retries={_retries(stats)}".replace("[", "\\[")


def _table(stats: QueueStats, seconds: float) -> Table:
    table = Table(title=f"queue {stats.queue.name} after {seconds:.1f} s", title_justify="left")
    styles = ("cyan", "blue", "bold blue", "green", "yellow", "red")
    for state, style in zip(State, styles, strict=True):  # short names, to fit into 80 columns
        table.add_column(state.name.partition("_")[0], justify="right", style=style)
    table.add_column("RETRIES", justify="right")
    table.add_column("ERRORS", justify="right")
    depths = [str(stats.depth.get(state, 0)) for state in State]
    table.add_row(*depths, str(_retries(stats)), f"{stats.error_rate:.0%}")
    return table


async def _play(pace: DemoPace, draw: random.Random) -> int:
    shop = Shop()
    registry = Registry()
    registry.add(define(shop.handle, name=_TYPE))
    loaded = config.load(
        flags={
            "profile": "producer",
            "db.url": "memory://",
            "http.port": 0,
            "grpc.enabled": False,
            "worker.heartbeat_interval": 1,
        }
    )
    server = ServerProcess(loaded.settings, registry=registry)
    console = Console(highlight=False)
    await server.start()
    try:
        demo = Demo(server.backend, console, pace, draw, shop)
        demo.say(
            f"jobqueue demo: {loaded.settings.worker.concurrency} workers, capacity"
            f" {loaded.settings.queue.capacity}, memory store (not durable);"
            f" while it runs: {server.http_url}/docs"
        )
        await demo.seed()
        await demo.show_idempotency()
        await demo.flood()
        await demo.sum_up(await demo.drain())
    except TimeoutError:
        console.print(f"the queue did not drain within {pace.limit:g} s", style="red")
        return EXIT_CODES[Code.DEADLINE_EXCEEDED]
    finally:
        await server.stop()
    return 0


@app.command(epilog=examples("make demo", "python -m jobqueue.cli.demo --seed 7 --fast"))
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Run with short jobs, in seconds.")] = False,
    seed: Annotated[int | None, typer.Option(help="Repeat the same random choices.")] = None,
    version: VersionOption = False,
) -> int:
    """Show priorities, idempotency, backpressure, retries and dead letters."""
    logging.getLogger().addHandler(logging.NullHandler())
    draw = random.Random(seed)
    return run_async(_play(FAST if fast else DemoPace(), draw))


def run(argv: Sequence[str] | None = None) -> int:
    """Run the demo with the given arguments, or those of this process; return the exit status."""
    return run_program(app, "demo", argv)


if __name__ == "__main__":
    sys.exit(run())
