"""The documents' own bounds on the replicated topology. Run by ``make test-bounds``.

PostgreSQL is on a disk, not in memory as for other tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.intervals import percentile
from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios import crowds, rates
from jobqueue.bench.scenarios.catalogue import Sizes
from jobqueue.bench.scenarios.fleet import fleet
from jobqueue.bench.scenarios.stand import Stand, opened
from tests.bench.bounds import kept
from tests.services.run import Run

pytestmark = [pytest.mark.bench, pytest.mark.integration, pytest.mark.timeout(900)]


@pytest_asyncio.fixture
async def stand(services: Run) -> AsyncIterator[Stand]:
    needed = ("postgres", "redis")
    for name in needed:
        services.need(name)
    async with opened(needed) as prepared:
        yield prepared


def named(figures: list[Figure], name: str) -> Figure:
    (found,) = (figure for figure in figures if name in figure.name)
    return found


@pytest.mark.req("jq:NFR-001")
async def test_a_server_sustains_1000_submits_a_second(stand: Stand):
    async with stand.database() as site, fleet(site, workers=0) as programs:
        (target,) = programs.grpc
        await kept(lambda: rates.unary(target, 5_000), lambda rate: rate >= 1_000)
        await kept(lambda: rates.sdk(target, 20_000), lambda rate: rate >= 1_000)


@pytest.mark.req("jq:NFR-002")
async def test_p99_from_submit_to_start_is_under_two_seconds(stand: Stand):
    async with stand.database() as site, fleet(site) as programs:
        backend = GrpcBackend(programs.grpc[0])

        async def p99() -> float:
            return percentile(await rates.starts(backend, 2_000, pace=200), 0.99)

        try:
            await kept(p99, lambda milliseconds: milliseconds < 2_000)
        finally:
            await backend.stop()


@pytest.mark.req("jq:NFR-003")
async def test_a_cycle_of_100_takes_under_200_ms_at_p95(stand: Stand):
    await kept(lambda: rates.cycle(stand), lambda figures: named(figures, "p95").value < 200)


@pytest.mark.req("jq:NFR-010")
async def test_twice_the_workers_do_about_twice_as_much(stand: Stand):
    stand.sizes = Sizes(most_workers=4, nap=0.1, nap_slots=5, nap_seconds=5)

    async def throughput() -> list[float]:
        return [figure.value for figure in await crowds.scaling(stand)]

    def doubles(rates: list[float]) -> bool:
        one, two, four = rates
        return two > 1.7 * one and four > 1.7 * two

    await kept(throughput, doubles)


@pytest.mark.req("jq:NFR-011")
async def test_one_server_holds_100_workers(stand: Stand):
    stand.sizes = Sizes(crowd_seconds=15)
    await kept(
        lambda: crowds.crowd(stand),
        lambda figures: named(figures, "ONLINE").value == named(figures, "no job").value == 0,
    )
