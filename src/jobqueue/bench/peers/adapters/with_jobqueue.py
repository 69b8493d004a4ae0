"""jobqueue itself, without a server: client and workers on the store.

Fastest: more jobs at once in a worker and larger claims, as in README ("Benchmarks"). What is kept
stays the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from adapter import FASTEST, URL, WORKERS, AsyncPeer, mark, program

from jobqueue import JobQueue

app = JobQueue(URL)


@app.task(name="noop")
async def noop(n: int) -> None:
    mark(n)


class JobQueuePeer(AsyncPeer):
    package = "jobqueue"

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
        command += ["--metrics-port", "0", "--log-level", "warning"]
        if FASTEST:
            command += ["--concurrency", "2000", "--set", "scheduler.batch_size=1000"]
        return [[*command, "--id", f"worker {number}"] for number in range(WORKERS)]


make = JobQueuePeer
