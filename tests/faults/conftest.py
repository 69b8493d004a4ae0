"""Sites for real processes, and the checker's evidence from the file they leave behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio

from jobqueue.core.clock import ManualClock
from jobqueue.core.store import Rules
from jobqueue.stores.sqlite.store import SqliteStore
from tests.faults.processes import Site
from tests.history.checker import Evidence
from tests.stores.driver import Driver


@pytest_asyncio.fixture
async def site_of(tmp_path: Path) -> AsyncIterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(servers: int = 1, **settings: str) -> Site:
        sites.append(Site(tmp_path, settings, servers))
        return sites[-1]

    yield make
    for site in sites:
        await site.end()


async def evidence_of(site: Site, **more: Any) -> Evidence:
    """Read everything back from the file, as no server sees it."""
    store = SqliteStore(site.database)
    await store.open()
    try:
        driver = Driver(store, ManualClock(), Rules())
        return Evidence(
            events=await driver.all_events(),
            jobs={job.id: job for job in await driver.all_jobs()},
            runs=site.runs(),
            **more,
        )
    finally:
        await store.close()
