"""Sites for real processes, and the checker's evidence from the store they leave behind."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.connect.backends import create_store
from jobqueue.core.clock import ManualClock
from jobqueue.core.store import Rules
from tests.faults.processes import Site
from tests.history.checker import Evidence
from tests.stores.driver import Driver

SiteOf = Callable[..., Site]


@pytest_asyncio.fixture
async def site_of(tmp_path: Path) -> AsyncIterator[SiteOf]:
    """Servers on an SQLite file, unless `db_url` names another store."""
    sites: list[Site] = []

    def make(servers: int = 1, *, db_url: str = "", redis_url: str = "", **settings: str) -> Site:
        sites.append(Site(tmp_path, settings, servers, db_url=db_url, redis_url=redis_url))
        return sites[-1]

    yield make
    for site in sites:
        await site.end()


@pytest.fixture
def replicated_site_of(site_of: SiteOf, postgres_dsn: str, redis_url: str) -> SiteOf:
    """Two servers on a PostgreSQL and a Redis that nobody disturbs."""
    return functools.partial(site_of, 2, db_url=postgres_dsn, redis_url=redis_url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def any_site_of(request: pytest.FixtureRequest, site_of: SiteOf) -> SiteOf:
    """Servers on one SQLite file, or on one PostgreSQL and Redis."""
    if request.param == "sqlite":
        return site_of
    dsn, redis = request.getfixturevalue("postgres_dsn"), request.getfixturevalue("redis_url")
    return functools.partial(site_of, db_url=dsn, redis_url=redis)


async def evidence_of(site: Site, **more: Any) -> Evidence:
    """Read everything back from the store, as no server sees it."""
    store = create_store(site.db_url)
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
