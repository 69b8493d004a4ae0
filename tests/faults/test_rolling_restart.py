"""Both servers are exchanged one after the other under load, as at an upgrade."""

from __future__ import annotations

import asyncio
import itertools
import signal

import pytest

from jobqueue import JobQueue
from tests import patience
from tests.faults.conftest import SiteOf, evidence_of
from tests.faults.load import settled
from tests.faults.processes import Site
from tests.history.checker import assert_kept

NO_POOL = {"JQ_WORKER_CONCURRENCY": "0"}
CALLERS = 6


class Callers:
    """Users of the SDK, who handle no error: one that they see ends them, and fails the test."""

    def __init__(self, site: Site) -> None:
        self.accepted: set[str] = set()
        self.told: dict[str, int] = {}  # results, by job
        self._numbers = itertools.count()
        self._stopping = asyncio.Event()
        self._apps = [JobQueue(f"grpc://{site.target}") for _ in range(3)]
        self._tasks = [
            asyncio.create_task(self._call(app, keyed=number % 2 == 0))
            for number, app in zip(range(CALLERS), itertools.cycle(self._apps))
        ]

    async def _call(self, app: JobQueue, *, keyed: bool) -> None:
        while not self._stopping.is_set():
            number = next(self._numbers)
            key = f"order-{number}" if keyed else None
            handle = await app.submit("short", {"number": number}, key=key)
            self.accepted.add(handle.id)
            await handle.status()
            result = await handle.result(timeout=patience.longest(60))
            assert result == number
            self.told[handle.id] = result

    async def got(self, more: int) -> None:
        """So many more answers: the load flows."""
        until = len(self.told) + more
        async with patience.timeout(60):
            while len(self.told) < until:
                self._look()
                await asyncio.sleep(0.02)

    def _look(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        self._stopping.set()
        async with patience.timeout(90):
            await asyncio.gather(*self._tasks)
        await self.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for app in self._apps:
            await app.close()


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.req("jq:NFR-014", "jq:NFR-005", "jq:NFR-008", "jq:NFR-013")
async def test_both_servers_are_exchanged_under_load_and_nobody_is_refused(
    replicated_site_of: SiteOf,
) -> None:
    site = replicated_site_of(JQ_LOG_LEVEL="info")
    servers = [await site.server(number, **NO_POOL) for number in range(2)]
    for number in range(2):
        await site.worker(f"w{number}", JQ_WORKER_CONCURRENCY="4")
    callers = Callers(site)
    try:
        await callers.got(20)
        for number in range(2):
            servers[number].send_signal(signal.SIGTERM)
            async with patience.timeout(30):
                assert await servers[number].wait() == 0, site.log_tail()
            await callers.got(20)  # by the other one alone
            await site.server(number, **NO_POOL)  # until /readyz says yes
            await callers.got(20)
        await callers.stop()
    finally:
        await callers.close()
    await settled(site, 60)
    await site.end()
    evidence = await evidence_of(
        site, accepted=callers.accepted, told_done=set(callers.told), settled=True,
        dead_letters_allowed=False,
    )  # fmt: skip
    assert_kept(evidence)
    assert set(evidence.jobs) == callers.accepted == set(callers.told)
    runs = [run.job_id for run in site.runs()]
    assert len(runs) == len(set(runs)), "a job was run twice"
