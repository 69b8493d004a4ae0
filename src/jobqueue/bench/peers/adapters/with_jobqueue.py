"""Measure jobqueue without a server: client and workers use the store itself.

In the fastest setting a worker runs more jobs at once, claims are larger, as in README
("Benchmarks"), and callers use uvloop. A worker uses uvloop if it is installed. The store keeps the
same data with both settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from adapter import FASTEST, SLOTS, URL, WORKERS, AsyncPeer, mark, program, slots_of_each

from jobqueue import JobQueue
from jobqueue.config import Settings

app = JobQueue(URL)


@app.task(name="noop")
async def noop(n: int) -> None:
    mark(n)


class JobQueuePeer(AsyncPeer):
    package = "jobqueue"
    slots = slots_of_each(2_000 if FASTEST else Settings().worker.concurrency)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        if FASTEST:
            import uvloop

            return uvloop.new_event_loop()
        return super().new_loop()

    async def open(self) -> None:
        await app.open()

    async def end(self) -> None:
        await app.close()

    async def send(self, n: int) -> None:
        await noop.submit(n)

    async def send_batch(self, numbers: Sequence[int]) -> None:
        await noop.submit_many([(n,) for n in numbers])

    async def count_left(self) -> int:
        return (await app.operator.queue_stats("default")).unfinished

    def workers(self) -> list[list[str]]:
        command = [program("jq-worker"), "--url", URL, "--app", "with_jobqueue:app"]
        command += ["--metrics-port", "0"]  # two workers cannot share the default port
        if FASTEST or SLOTS:
            command += ["--concurrency", str(self.slots)]
        if FASTEST:
            command += ["--set", "scheduler.batch_size=1000"]
        return [[*command, "--id", f"worker {number}"] for number in range(WORKERS)]


make = JobQueuePeer
