"""The documents' own bounds on the replicated topology. Run by ``make test-bounds``.

PostgreSQL is on a disk, not in memory as for other tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.processes import server, workers
from bench.remote import sdk, unary
from bench.replicated import rates, running, scaling
from bench.replicated.ground import Ground, ground, scratch
from bench.replicated.sizes import Sizes
from bench.report import Figure, percentile
from jobqueue.api.grpc.remote import GrpcBackend
from tests.bench.bounds import kept
from tests.services.run import Run

pytestmark = [pytest.mark.bench, pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def own_ground(services: Run) -> Iterator[Ground]:
    for name in ("postgres", "redis"):
        services.need(name)
    with scratch() as folder, ground(folder) as prepared:
        yield prepared


def silent(_: str) -> None:
    return


def named(figures: list[Figure], what: str) -> Figure:
    (found,) = (figure for figure in figures if what in figure.what)
    return found


@pytest.mark.req("jq:NFR-001")
async def test_a_server_sustains_1000_submits_a_second(own_ground: Ground):
    async with (
        own_ground.database() as site,
        server(site.url, own_ground.environment()) as process,
    ):
        await kept(lambda: unary(process.target, 5_000), lambda rate: rate >= 1_000)
        await kept(lambda: sdk(process.target, 20_000), lambda rate: rate >= 1_000)


@pytest.mark.req("jq:NFR-002")
async def test_p99_from_submit_to_start_is_under_two_seconds(own_ground: Ground):
    async with (
        own_ground.database() as site,
        server(site.url, own_ground.environment()) as process,
        workers(own_ground.environment() | process.environment, site.store.workers),
    ):
        backend = GrpcBackend(process.target)

        async def p99() -> float:
            return percentile(await running.starts(backend, 2_000, pace=200), 0.99)

        try:
            await kept(p99, lambda milliseconds: milliseconds < 2_000)
        finally:
            await backend.stop()


@pytest.mark.req("jq:NFR-003")
async def test_a_cycle_of_100_takes_under_200_ms_at_p95(own_ground: Ground):
    await kept(
        lambda: rates.cycle(own_ground, Sizes()),
        lambda figures: named(figures, "p95").value < 200,
    )


@pytest.mark.req("jq:NFR-010")
async def test_twice_the_workers_do_about_twice_as_much(own_ground: Ground):
    sizes = Sizes(most_workers=4, nap=0.1, nap_slots=5, nap_seconds=5)

    async def throughput() -> list[float]:
        return [figure.value for figure in await scaling.scaling(own_ground, sizes, silent)]

    def doubles(rates: list[float]) -> bool:
        one, two, four = rates
        return two > 1.7 * one and four > 1.7 * two

    await kept(throughput, doubles)


@pytest.mark.req("jq:NFR-011")
async def test_one_server_holds_100_workers(own_ground: Ground):
    await kept(
        lambda: scaling.crowd(own_ground, Sizes(crowd_seconds=15), silent),
        lambda figures: named(figures, "ONLINE").value == named(figures, "no job").value == 0,
    )
