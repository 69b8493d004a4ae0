"""Measure PgQueuer on PostgreSQL.

The fastest setting follows https://janbjorge.github.io/pgqueuer/guides/performance-tuning/ (a
larger batch, a pool for callers, ``pgq autovac``, and unlogged tables, which lose all jobs in a
crash). This file runs the worker as a program
(https://janbjorge.github.io/pgqueuer/guides/programmatic-run/), because ``pgq run`` of version
1.6.0 fails with the newest typer. The worker runs on uvloop, as with ``pgq run``.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence

import asyncpg
import uvloop
from adapter import FASTEST, SLOTS, URL, WORKERS, AsyncPeer, mark, program, slots_of_each
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


async def work() -> None:
    """Run one worker process."""
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        mark(int(job.payload or b"0"))

    batch = 250 if FASTEST else 10
    if SLOTS:
        most = slots_of_each(0)  # PgQueuer allows batches of up to half of it
        await queue.run(batch_size=min(batch, max(1, most // 2)), max_concurrent_tasks=most)
    else:
        await queue.run(batch_size=batch)


class PgQueuerPeer(AsyncPeer):
    package = "pgqueuer"
    slots = slots_of_each(0)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return uvloop.new_event_loop() if FASTEST else super().new_loop()

    def prepare(self) -> None:
        self._run("install", "--durability", "volatile" if FASTEST else "durable")
        if FASTEST:
            self._run("autovac")
        super().prepare()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(URL, min_size=1, max_size=20)
        if FASTEST:
            self._queries = Queries(AsyncpgPoolDriver(self._pool))
        else:
            self._queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))

    async def send(self, n: int) -> None:
        await self._queries.enqueue("noop", b"%d" % n)

    async def send_batch(self, numbers: Sequence[int]) -> None:
        count = len(numbers)
        await self._queries.enqueue(["noop"] * count, [b"%d" % n for n in numbers], [0] * count)

    async def count_left(self) -> int:
        return int(await self._pool.fetchval("SELECT count(*) FROM pgqueuer"))

    def workers(self) -> list[list[str]]:
        return [[sys.executable, __file__]] * WORKERS

    def _run(self, *arguments: str) -> None:
        subprocess.run([program("pgq"), *arguments], env={**os.environ, "PGDSN": URL}, check=True)


make = PgQueuerPeer

if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
