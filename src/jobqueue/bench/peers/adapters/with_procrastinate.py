"""Measure Procrastinate on PostgreSQL.

In the fastest setting a worker runs several jobs at once (``--concurrency``,
https://procrastinate.readthedocs.io/en/stable/howto/basics/command_line.html), has one
connection more than jobs, because jobs are short
(https://procrastinate.readthedocs.io/en/stable/discussions.html), and deletes jobs that ended (https://procrastinate.readthedocs.io/en/stable/howto/production/delete_finished_jobs.html).
A batch is submitted by ``batch_defer``
(https://procrastinate.readthedocs.io/en/stable/howto/basics/batch_defer.html).
"""

from __future__ import annotations

from collections.abc import Sequence

from adapter import FASTEST, SLOTS, URL, WORKERS, AsyncPeer, mark, program, slots_of_each
from procrastinate import App, PsycopgConnector

_CONCURRENCY = slots_of_each(20 if FASTEST else 1)
_CONNECTIONS = 40  # of a process at most: PostgreSQL has 100 by default
_pool = {"min_size": 1, "max_size": min(_CONCURRENCY + 1, _CONNECTIONS)} if FASTEST else {}

connector = PsycopgConnector(conninfo=URL, **_pool)
app = App(connector=connector)


@app.task(name="noop")
async def noop(n: int) -> None:
    mark(n)


class ProcrastinatePeer(AsyncPeer):
    package = "procrastinate"
    slots = _CONCURRENCY

    async def open(self) -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    async def end(self) -> None:
        await app.close_async()

    async def send(self, n: int) -> None:
        await noop.defer_async(n=n)

    async def send_batch(self, numbers: Sequence[int]) -> None:
        await noop.batch_defer_async(*({"n": n} for n in numbers))

    async def count_left(self) -> int:
        found = await connector.execute_query_one_async(
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return int(found["count"])

    def workers(self) -> list[list[str]]:
        command = [program("procrastinate"), "-a", "with_procrastinate.app", "worker"]
        if FASTEST or SLOTS:
            command += ["--concurrency", str(_CONCURRENCY)]
        if FASTEST:
            command += ["--delete-jobs", "successful"]
        return [command] * WORKERS


make = ProcrastinatePeer
